"""A node with an Xid leaves the queue of a real Slurm, is rebooted, tested and accepted, and takes jobs again."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.end_to_end.conftest import copy_rules

from gpuwarden.gpu_test import GpuTestResult, GpuTestRun
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.wire import CONTENT_TYPE, TABLE_KEY, BatchId, headers_of
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS

from .cluster import HOST, SPARE, Cluster, cluster, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.systemd, pytest.mark.timeout(400)]

POLICIES = "policies: [{name: sick, state: on, rule: xid_critical, steps: [{do: reboot_node}]}]\n"
GPU = "GPU-3f1d4b5a-0000-0000-0000-000000000001"
API = "127.0.0.1:8750"
SOON_S = 90


@pytest.fixture
def slurm() -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    with cluster(has_spare=True) as made:
        etc = made.root / "etc"
        copy_rules(etc / "rules", "xid_critical", gather_for="0s")
        (etc / "policies.yaml").write_text(POLICIES)
        (etc / "collector.toml").write_text(
            'data_dir = "/var/lib/gpuwarden"\nrules_dirs = ["/etc/rules"]\npolicies_path = "/etc/policies.yaml"\n'
        )
        made.run("install -d -o gpuwarden /var/lib/gpuwarden /var/lib/gpuwarden-actor")
        made.run("sacctmgr -i add user gpuwarden account=physics adminlevel=admin")
        config = "--config /etc/collector.toml"
        made.start(f"gpuwarden collector run {config}", "collector.log", "gpuwarden")
        made.wait("gpuwarden sql 'select 1'", 60)
        made.run(f"gpuwarden policies backtest /etc/policies.yaml {config} --i-know")
        allowed = "--allow reboot_node --allow resume_node"
        made.start(f"gpuwarden actor run {allowed}", "actor.log", "gpuwarden")
        yield made


class NodeAgent:
    """Sends what an agent on the node would, of one boot after another."""

    def __init__(self, slurm: Cluster) -> None:
        self._slurm = slurm
        self._sequence = 0
        self.boot = "boot-1"

    def send(self, **events: Any) -> None:
        """A second of samples, and an event of each kind with these details."""
        now = datetime.now(UTC)
        of_gpu = {"node": HOST, "gpu": 0, "gpu_uuid": GPU, "simulated": False}
        tables = {
            "nodes": [{"node": HOST, "agent_id": "agent-1", "boot_id": self.boot, "gpus": 1, "simulated": False}],
            "gpus": [{**of_gpu, "model": "NVIDIA H100 80GB HBM3", "vendor": "nvidia"}],
            "gpu_samples": [{**of_gpu, "ts": now, "util_percent": 0.0, "sm_clock_mhz": 1980.0, "clocks_event_reasons": 0}],
            "events": [
                {**of_gpu, "ts": now, "kind": kind, "severity": "critical" if kind == "xid" else "info",
                 "message": f"planted {kind}", "details": json.dumps(details)}
                for kind, details in events.items()
            ],
        }  # fmt: skip
        sink = pa.BufferOutputStream()
        for name, rows in tables.items():
            schema = WIRE_SCHEMAS[name].with_metadata({TABLE_KEY: name})
            assert {column.name for column in WIRE_TABLES[name].columns if column.required} <= {
                key for row in rows or [dict.fromkeys(schema.names)] for key in row
            }, name
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_table(pa.Table.from_pylist(rows, schema))
        (self._slurm.root / "batch").write_bytes(bytes(sink.getvalue()))
        self._sequence += 1
        headers = {"Content-Type": CONTENT_TYPE, **headers_of(BatchId("agent-1", self.boot, self._sequence))}  # fmt: skip
        words = " ".join(f"-H '{name}: {value}'" for name, value in headers.items())
        said = self._slurm.run(f"curl -s -i {words} --data-binary @/batch {API}/v1/ingest")
        assert " 204" in said, said


def state(slurm: Cluster) -> str:
    return slurm.run(f"sinfo -h -n {HOST} -o %T").split()[0]


def until(slurm: Cluster, is_so: Any, what: str) -> None:
    end = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < end, (
            f"not within {SOON_S} s: {what}; {HOST} is {state(slurm)}\n{slurm.said('actor.log')}\n{slurm.said('collector.log')}"
        )
        time.sleep(1)


def accept(slurm: Cluster, *more: str) -> tuple[bool, dict[str, str]]:
    """Whether it may return, and the finding of each check that failed."""
    said = slurm.run(f"gpuwarden accept {HOST} {' '.join(more)} --format json 2>/dev/null", check=False)  # fmt: skip
    failed = {row["check"]: row["finding"] for row in json.loads(said) if row["status"] == "fail"}
    return not failed, failed


def test_a_node_with_an_xid_is_rebooted_tested_accepted_and_resumed(slurm: Cluster) -> None:
    agent = NodeAgent(slurm)
    job = slurm.run(f"sbatch --parsable -w {HOST} --wrap 'sleep 3000' --chdir=/tmp", user="ada").strip()  # fmt: skip
    slurm.wait(f"test $(squeue -h -j {job} -o %T) = RUNNING", SOON_S)
    agent.send()
    agent.send(xid={"xid": 79, "action": "reboot", "severity": "critical"})

    # It takes no new jobs, and the running one ends by itself.
    until(slurm, lambda: state(slurm).startswith("drain"), "the node drains")
    assert slurm.run(f"squeue -h -j {job} -o %T").strip() == "RUNNING"
    other = slurm.run("sbatch --parsable --wrap 'sleep 3000' --chdir=/tmp", user="ada").strip()
    slurm.wait(f"test $(squeue -h -j {other} -o %N) = {SPARE}", SOON_S)
    is_well, failed = accept(slurm, "--resume")
    assert not is_well and {"events", "alerts"} <= failed.keys()
    slurm.run(f"scancel {job}")
    slurm.wait("test -e /run/rebooted", SOON_S)
    until(slurm, lambda: state(slurm) == "drained", "the node is drained after its reboot")

    # The agent of the new boot says so, which ends the alert; a failed test keeps the node out.
    agent.boot = "boot-2"
    rebooted = {"rebooted": True, "last_ts_ms": int(time.time() * 1000)}
    agent.send(agent_gap=rebooted)
    until(slurm, lambda: slurm.run("gpuwarden sql --format csv \"SELECT count(*) FROM alerts_now WHERE state = 'firing'\"").split()[1] == "0", "the alert ends")  # fmt: skip
    began = time.time()
    for status, finding in (
        ("fail", "2 wrong words of 0x55"),
        ("ok", "81,920 MiB kept 5 patterns"),
    ):
        now = datetime.now(UTC)
        result = GpuTestResult("memory", status, finding, "torch 2.9", now, now, 0, GPU, 2.0 if status == "fail" else 0.0)  # fmt: skip
        run = GpuTestRun(HOST, f"{int(status == 'ok'):012x}", False, [result])
        (slurm.root / "tests.json").write_text(json.dumps(run.document()))
        slurm.run(f"curl -sf --json @/tests.json {API}/v1/gpu-tests")
        agent.send()
        is_well, failed = accept(slurm, "--since", f"{time.time() - began + 1:.0f}s", "--resume")
        if status == "fail":
            assert failed == {"tests": f"GPU 0 memory: {finding}"}
            assert state(slurm) == "drained"
    assert is_well, failed
    until(slurm, lambda: state(slurm) in ("idle", "mixed"), "the node takes jobs")
    actions = slurm.run("gpuwarden sql --format csv \"SELECT action FROM audit WHERE target LIKE '%gpunode' ORDER BY ts, number\"")  # fmt: skip
    # The audit has a request when it was answered.
    found = actions.split()[1:]
    assert sorted(found) == ["policy_act", "policy_act", "policy_done", "policy_done", "resume_node"]  # fmt: skip
    assert found[:2] == ["policy_act", "policy_done"]
