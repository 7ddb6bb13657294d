"""One list names what a collector keeps, and another collector continues from a backup of it."""

import time
from typing import Any

import pytest
from tests.end_to_end.test_alerts import hooked
from tests.end_to_end.test_policies_act import POLICY, Scene
from tests.end_to_end.test_received import send_scrape

from gpuwarden.data_folder import strangers

pytestmark = pytest.mark.slow
DRAINS = POLICY.replace("cancel_job", "drain_node") + "    undo: {after: 2s}\n"


def test_a_drained_node_is_opened_by_a_restored_collector_and_no_file_is_forgotten(
    world: Any,
) -> None:
    store, copy = world.folder / "store", world.folder / "copy"
    with hooked() as (address, _):
        scene = Scene(world, address, "1s", DRAINS)
        scene.look()
        send_scrape(world, int(time.time()))
        scene.call("POST", "/v1/queries", {"name": "mine", "sql": "SELECT 42"})
        idle = scene.idle("11")
        scene.act("drain_node", "resume_node")
        scene.wait("11", "done")
        assert world.run("policies", "stop").returncode == 0
        words = ("collector", "backup", str(copy), "--data-dir", str(store))
        assert (done := world.run(*words)).returncode == 0, done.stderr
        for words in (
            ("collector", "init", "--dir", str(store / "tls"), "--name", "localhost"),
            ("token", "create", "--scope", "read", "--comment", "me"),
        ):
            done = world.run(*words, "--data-dir", str(store))
            assert done.returncode == 0, done.stderr
        assert strangers(store) == []
        scene.collector.kill()
        assert strangers(store) == []
        store.rename(world.folder / "lost")
        words = ("collector", "restore", str(copy), "--data-dir", str(store))
        assert (done := world.run(*words)).returncode == 0, done.stderr
        world.collector("--config", str(scene.config))
        assert scene.state("11") == "done"
        assert scene.call("GET", "/v1/policies")["stopped"]
        assert world.one("SELECT count(*) FROM gpu_samples") is not None
        assert scene.call("GET", "/v1/queries")["queries"][0]["name"] == "mine"
        scene.call("DELETE", f"/v1/annotations/{idle}")
        assert world.run("policies", "start").returncode == 0
        world.wait_for(
            lambda: scene.slurm.read()["nodes"]["n0"] == "idle", "the node is open again"
        )
