"""A policy asks, waits and acts, through kills of the collector at each step: nothing is said or done twice."""

import json
import re
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.cli.actor.test_actor import Cluster
from tests.end_to_end.test_alerts import hooked

from gpuwarden.sqlite_file import NOTIFICATIONS

pytestmark = pytest.mark.slow

RULE = """
rules:
  - name: planted_idle
    severity: warning
    labels: [node, job]
    interval: 1s
    summary: "Job {job} of {owner} is idle."
    remedy: none
    sql: |
      SELECT node, job, split_part(text, ' ', 2) AS owner, 1.0 AS value FROM annotations
      WHERE starts_with(text, 'idle ') AND began_at <= $now::TIMESTAMP
"""
POLICY = """
policies:
  - name: cull
    state: on
    rule: planted_idle
    protect: [{username: grace}]
    steps: [{do: ask_owner, wait: WAIT}, {do: cancel_job}]
    limits: {an_hour: 5, at_once: 3}
"""


class Scene:
    """A collector with a policy, and an actor with Slurm's commands of a test."""

    def __init__(self, world: Any, address: str, wait: str, policy: str = POLICY) -> None:
        self.world = world
        folder: Path = world.folder
        rules = folder / "rules"
        rules.mkdir()
        (rules / "planted.yaml").write_text(RULE)
        (rules / "overrides.yaml").write_text(
            "overrides: [{rules: ['*'], enabled: false}, {rules: [planted_idle], enabled: true}]\n"
        )
        self.policies = folder / "policies.yaml"
        self.policies.write_text(policy.replace("WAIT", wait))
        notify = folder / "notify.yaml"
        notify.write_text(
            f"link: {world.url}\nreceivers: [{{name: owner, apprise: 'json://{address.removeprefix('http://')}' '{{owner}}'}}]\n".replace(
                "' '", ""
            )
            + "routes: []\nowners: {address: '{user}@example.com'}\n"
        )
        self.config = folder / "collector.toml"
        self.config.write_text(
            f'notify_file = "{notify}"\nrules_dirs = ["{rules}"]\npolicies_path = "{self.policies}"\n'
        )
        self.collector = world.collector("--config", str(self.config))
        self.slurm = Cluster(folder / "bin")
        world.env["PATH"] = f"{self.slurm.folder}:{world.env['PATH']}"

    def kill(self) -> None:
        """kill -9 of the collector, and another one."""
        self.collector.kill()
        self.collector = self.world.collector("--config", str(self.config))

    def call(self, method: str, path: str, document: Any = None) -> Any:
        data = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        request = urllib.request.Request(self.world.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def idle(self, job: str, user: str = "ada") -> str:
        """Plant an alert; its annotation."""
        made = self.call(
            "POST", "/v1/annotations", {"text": f"idle {user}", "node": "n0", "job": job}
        )
        return str(made["id"])

    def state(self, job: str) -> str:
        cases = self.call("GET", "/v1/policies")["cases"]
        return next((case["state"] for case in cases if case["job"] == job), "")

    def wait(self, job: str, state: str) -> None:
        self.world.wait_for(
            lambda: self.state(job) == state,
            f"job {job} is {state}, not {self.state(job)}",
            within_s=240,
        )

    def wait_sent(self) -> None:
        """Wait until no message waits: a kill between an answer and its record would send it again."""
        path = self.world.folder / "store" / NOTIFICATIONS
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as outbox:
            self.world.wait_for(
                lambda: outbox.execute("SELECT count(*) FROM messages").fetchone() == (0,),
                "the record that the message was sent",
            )

    def look(self) -> None:
        # There are no samples that could be replayed.
        words = ("backtest", str(self.policies), "--config", str(self.config), "--i-know")
        done = self.world.run("policies", *words)
        assert done.returncode == 0, done.stderr

    def act(self, *kinds: str) -> None:
        self.world.start(
            "actor",
            "run",
            *(f"--allow={kind}" for kind in kinds or ("cancel_job",)),
            "--journal",
            str(self.world.folder / "acts.jsonl"),
        )


def links(received: list[tuple[dict[str, str], bytes]]) -> list[str]:
    return [
        link
        for _, body in received
        for link in re.findall(r"http://127[^\s\"\\]+/answer/[\w-]+", body.decode())
    ]


def test_an_idle_job_is_asked_about_and_ended_once_through_kills_of_the_collector(
    world: Any,
) -> None:
    with hooked() as (address, received):
        scene = Scene(world, address, "8s")
        scene.idle("11")
        # Without a look at its dry run it is not on.
        world.wait_for(
            lambda: "nobody has read its dry run" in scene.collector.output, "the warning"
        )
        assert scene.state("11") == ""
        scene.look()
        scene.wait("11", "waits")
        world.wait_for(lambda: len(received) == 1, "a question")
        scene.wait_sent()
        scene.kill()
        scene.wait("11", "acting")
        scene.kill()
        assert scene.state("11") == "acting" and scene.slurm.changes == []
        scene.act()
        scene.wait("11", "done")
        scene.kill()
        assert scene.state("11") == "done"
        assert scene.slurm.changes == [["scancel", "11"]] and len(received) == 1
        audit = "SELECT string_agg(action, ' ' ORDER BY ts, number) FROM audit WHERE starts_with(action, 'policy_')"
        world.wait_for(lambda: "policy_done" in (world.one(audit) or ""), "the audit")


def test_owners_keep_or_end_their_jobs_and_a_stop_holds_everything(world: Any) -> None:
    with hooked() as (address, received):
        scene = Scene(world, address, "1h")
        scene.slurm.known["jobs"] = {str(n): ["ada", "RUNNING"] for n in range(1, 5)}
        scene.slurm.write()
        scene.look()
        scene.act()

        def link_of(job: str, user: str = "ada") -> str:
            known = set(links(received))
            scene.idle(job, user)
            world.wait_for(lambda: set(links(received)) - known, f"a question about job {job}")
            (found,) = set(links(received)) - known
            return str(found)

        def answers(link: str, **form: str) -> tuple[int, str]:
            data = urlencode(form).encode() if form else None
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(link, data), timeout=60
                ) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        keep, end = link_of("1"), link_of("2")
        status, page = answers(keep)
        assert status == 200 and "Job 1 of ada is idle." in page and "ends the job" in page
        assert answers(keep, answer="keep", hours="0")[0] == 400
        assert answers(keep, answer="keep", hours="24")[0] == 200 and scene.state("1") == "kept"
        assert answers(keep, answer="end")[0] == 410
        assert answers(end, answer="end")[0] == 200
        scene.wait("2", "done")
        # Of whom nobody may ask, and whose alert ends.
        scene.idle("3", "grace")
        note = scene.idle("4", "eve")
        scene.wait("4", "waits")
        scene.call("DELETE", f"/v1/annotations/{note}")
        scene.wait("4", "spared")
        assert scene.state("3") == ""
        assert world.run("policies", "stop").returncode == 0
        late = scene.idle("2", "ada")
        assert scene.call("GET", "/v1/policies")["stopped"]
        assert late
        assert world.run("policies", "start").returncode == 0
        assert scene.slurm.changes == [["scancel", "2"]]
