"""A collector whose PostgreSQL catalogue is away continues judging what its own segments hold."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import Host, Postgres, wait_for
from tests.cluster.test_cluster import counted, of, send
from tests.end_to_end.conftest import copy_rules

from gpuwarden_client.http import CallError, ask

Hosts = Callable[..., list[Host]]
RECENT = "SELECT count(*) FROM collector_samples WHERE ts > now()::TIMESTAMP - INTERVAL 90 SECOND"


JUDGED = ("storage_stalled", "notifier_failing", "xid_critical", "persistence_off")


def _rules(host: Host) -> dict[str, dict[str, Any]]:
    with urllib.request.urlopen(host.url + "/v1/rules", timeout=60) as answer:
        return {rule["rule"]: rule for rule in json.load(answer)["rules"]}


def test_rules_of_minutes_are_judged_while_the_catalogue_is_away(
    hosts: Hosts, postgres: Postgres, tmp_path: Path
) -> None:
    (a,) = hosts("a")
    a.seals_after_s = 3600
    a.set("rules_dirs", str(copy_rules(tmp_path / "often", *JUDGED, interval="1s")))
    a.start()
    assert send(a, 1) == 204
    wait_for(lambda: counted(a) == of(1), "it is stored", a.process)

    def answers(sql: str) -> int | str | None:
        try:
            return int(ask(sql, url=a.url).rows[0][0])
        except CallError as error:
            return str(error)

    postgres.stop()
    try:
        recent = RECENT.replace("90 SECOND", "1 SECOND")
        wait_for(lambda: isinstance(answers(recent), int), "segments alone answer", a.process)
        assert "which only the lake has" in str(answers("SELECT count(*) FROM gpu_samples"))
        assert answers("SELECT count(*) FROM nodes") == 0
        before = _rules(a)["storage_stalled"]["evaluations"]

        def judged() -> bool:
            rules = _rules(a)
            return (
                rules["notifier_failing"]["evaluations"] > before
                and rules["xid_critical"]["state"] == "not judged"
                and rules["persistence_off"]["state"] in ("ok", "slow")
            )

        wait_for(judged, "some rules are judged and others named", a.process)
    finally:
        postgres.start()
    wait_for(lambda: counted(a) == of(1), "the lake is read again", a.process)
    wait_for(
        lambda: _rules(a)["xid_critical"]["state"] in ("ok", "slow"), "and judged by", a.process
    )


def test_files_of_an_object_store_that_is_away_are_not_called_lost(hosts: Hosts) -> None:
    (a,) = hosts("a")
    a.start()
    assert send(a, 1) == 204
    segments = a.folder / "store" / "segments"
    sealed = max(segments.iterdir(), key=lambda path: path.stat().st_size)  # of the batch
    wait_for(lambda: not sealed.exists(), "it is in the lake", a.process)
    a.kill()
    a.set_env("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    a.start()
    with pytest.raises(CallError, match="files cannot be read now: .*Could not connect") as failed:
        ask("SELECT avg(util_percent) FROM gpu_samples", url=a.url)
    assert "missing or damaged" not in str(failed.value)
