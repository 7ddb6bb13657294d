"""Policies on a real Slurm: an idle job is asked about and ended, one is kept, one is busy again, a last node stays."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.end_to_end.test_policies_act import RULE

from .cluster import HOST, Cluster, cluster, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.systemd, pytest.mark.timeout(300)]

HOOK = """
import http.server
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("/tmp/mails", "ab") as mails:
            mails.write(body + b"\\n")
        self.send_response(204)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8099), Hook).serve_forever()
"""
POLICIES = """
policies:
  - {name: cull, state: on, rule: planted_idle, match: {job: "*"}, steps: [{do: ask_owner, wait: 15s}, {do: cancel_job}]}
  - {name: drain, state: on, rule: planted_sick, steps: [{do: drain_node}]}
"""
SICK = RULE.partition("rules:")[2].replace("planted_idle", "planted_sick").replace("[node, job]", "[node]").replace(
    "'idle '", "'sick '").replace("SELECT node, job, split_part(text, ' ', 2) AS owner", "SELECT node").replace(
    "Job {job} of {owner} is idle.", "{node} is sick.")  # fmt: skip
NOTIFY = """
link: http://127.0.0.1:8750
receivers: [{name: owner, apprise: "json://127.0.0.1:8099/{owner}"}]
routes: []
owners: {address: "{user}@example.com"}
"""
SOON_S = 60


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    with cluster() as made:
        etc = made.root / "etc"
        (etc / "rules").mkdir()
        (etc / "rules/planted.yaml").write_text(RULE + SICK)
        (etc / "rules/overrides.yaml").write_text(
            "overrides: [{rules: ['*'], enabled: false}, {rules: ['planted_*'], enabled: true}]\n"
        )
        (etc / "policies.yaml").write_text(POLICIES)
        (etc / "notify.yaml").write_text(NOTIFY)
        (etc / "collector.toml").write_text(
            'data_dir = "/var/lib/gpuwarden"\nnotify_file = "/etc/notify.yaml"\nrules_dirs = ["/etc/rules"]\n'
            'policies_path = "/etc/policies.yaml"\n'
        )
        (made.root / "hook.py").write_text(HOOK)
        made.run("install -d -o gpuwarden /var/lib/gpuwarden /var/lib/gpuwarden-actor")
        # Operators may end jobs of others, but change no node.
        made.run("sacctmgr -i add user gpuwarden account=physics adminlevel=admin")
        made.start("python3 /hook.py", "hook.log")
        made.start(
            "gpuwarden collector run --config /etc/collector.toml", "collector.log", "gpuwarden"
        )
        made.wait("gpuwarden sql 'select 1'", 60)
        made.run(
            "gpuwarden policies backtest /etc/policies.yaml --config /etc/collector.toml --i-know"
        )
        made.start(
            "gpuwarden actor run --allow cancel_job --allow drain_node --allow resume_node",
            "actor.log",
            "gpuwarden",
        )
        yield made


def submitted(slurm: Cluster) -> str:
    """A job of ada that runs."""
    job = slurm.run(
        "sbatch --parsable --gres=gpu:1 --wrap 'sleep 3000' --chdir=/tmp", user="ada"
    ).strip()
    slurm.wait(f"test $(squeue -h -j {job} -o %T) = RUNNING", SOON_S)
    return job


def idle(slurm: Cluster, job: str) -> str:
    """Plant an alert about a job; its annotation."""
    made = slurm.run(
        f'curl -s --json \'{{"text": "idle ada", "node": "{HOST}", "job": "{job}"}}\' 127.0.0.1:8750/v1/annotations'
    )
    return str(json.loads(made)["id"])


def link_of(slurm: Cluster, job: str) -> str:
    slurm.wait(f"grep -q 'job {job}' /tmp/mails", SOON_S)
    mail = next(line for line in slurm.run("cat /tmp/mails").splitlines() if f"job {job}" in line)
    return re.findall(r"http://127[^\s\"\\]+/answer/[\w-]+", mail)[0]


def state_of(slurm: Cluster, target: str) -> Any:
    cases = json.loads(slurm.run("curl -s 127.0.0.1:8750/v1/policies"))["cases"]
    return next((case for case in cases if case["target"] == target), {"state": "", "note": ""})


def becomes(slurm: Cluster, target: str, state: str) -> Any:
    until = time.monotonic() + SOON_S
    while (found := state_of(slurm, target))["state"] != state:
        assert time.monotonic() < until, (
            found,
            slurm.said("actor.log"),
            slurm.said("collector.log"),
        )
        time.sleep(1)
    return found


def test_an_unanswered_question_ends_the_job_in_slurm(slurm: Cluster) -> None:
    job = submitted(slurm)
    idle(slurm, job)
    found = becomes(slurm, f"job {job}", "done")
    assert found["note"] == "done, and checked"
    assert slurm.run(f"squeue -h --states=all -j {job} -o %T", check=False).strip() in (
        "CANCELLED",
        "COMPLETING",
        "",
    )
    assert f"gpuwarden cull: Job {job} of ada is idle." in slurm.run(f"scontrol show job {job}")


def test_an_answer_ends_the_job_at_once_and_another_keeps_it(slurm: Cluster) -> None:
    ended, kept = submitted(slurm), submitted(slurm)
    idle(slurm, ended)
    slurm.run(f"curl -s -d answer=end {link_of(slurm, ended)}")
    idle(slurm, kept)
    slurm.run(f"curl -s -d answer=keep -d hours=5 {link_of(slurm, kept)}")
    becomes(slurm, f"job {ended}", "done")
    time.sleep(20)
    assert state_of(slurm, f"job {kept}")["state"] == "kept"
    assert slurm.run(f"squeue -h -j {kept} -o %T").strip() == "RUNNING"


def test_a_job_that_is_busy_again_is_spared(slurm: Cluster) -> None:
    job = submitted(slurm)
    note = idle(slurm, job)
    link_of(slurm, job)
    slurm.run(f"curl -s -X DELETE 127.0.0.1:8750/v1/annotations/{note}")
    assert becomes(slurm, f"job {job}", "spared")["note"] == "the alert ended"
    assert slurm.run(f"squeue -h -j {job} -o %T").strip() == "RUNNING"


def test_the_last_node_of_a_partition_is_not_drained(slurm: Cluster) -> None:
    slurm.run(
        f'curl -s --json \'{{"text": "sick node", "node": "{HOST}"}}\' 127.0.0.1:8750/v1/annotations'
    )
    found = becomes(slurm, f"node {HOST}", "failed")
    assert found["note"] == f"{HOST} is the last node of partition batch that takes jobs: not done"
    assert "drain" not in slurm.run("sinfo -h -o %T")


def test_a_node_is_returned_only_if_it_was_drained_by_the_actor(slurm: Cluster) -> None:
    for reason, state in (("bad fan", "failed"), ("gpuwarden 12", "done")):
        slurm.run(f"scontrol update NodeName={HOST} State=DRAIN Reason='{reason}'")
        made = json.loads(slurm.run(f"curl -s --json '{{}}' 127.0.0.1:8750/v1/nodes/{HOST}/resume"))
        until = time.monotonic() + SOON_S
        while not (
            found := [
                c
                for c in json.loads(slurm.run("curl -s 127.0.0.1:8750/v1/policies"))["cases"]
                if c["id"] == made["id"] and c["ended_at"]
            ]
        ):
            assert time.monotonic() < until, slurm.said("actor.log")
            time.sleep(1)
        assert found[0]["state"] == state, found[0]["note"]
    assert "drain" not in slurm.run("sinfo -h -o %T")
