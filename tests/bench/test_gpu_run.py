"""The evidence run, end to end against the simulator, and the judgements in it."""

import csv
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

import pytest
from bench.gpu import agreement, support
from bench.gpu.scenes import Workshop
from bench.gpu.workloads import WORKLOADS
from tests.agent.collect.nvidia import fake_library

from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.queue.rows import impossible_columns
from gpuwarden_simulator.recordings.format import Ended, Samples, entries_of

RUN = Path(__file__).parents[2] / "bench" / "gpu" / "run.py"
FILES = {
    "agreement.csv", "recordings.tar", "results.json", "summary.md", "support.csv",
}  # fmt: skip


def run(*flags: str) -> "subprocess.CompletedProcess[str]":
    """Run it as on a machine where only packages are installed: this checkout is not (-S)."""
    environment = {k: v for k, v in os.environ.items() if k != "OUT"}
    environment["PYTHONPATH"] = sysconfig.get_path("purelib")
    return subprocess.run(
        [sys.executable, "-S", str(RUN), *flags],
        capture_output=True, text=True, timeout=240, check=False, env=environment, cwd="/",
    )  # fmt: skip


H200 = sorted((RUN.parent / "h200").glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", H200, ids=[path.name.partition(".")[0] for path in H200])
def test_recordings_of_a_real_gpu_fit_the_tables_of_today(path: Path) -> None:
    rows = 0
    for entry in entries_of(path):
        if not isinstance(entry, Samples):
            continue
        for table, found in entry.rows.items():
            for row in found:
                assert row.keys() <= set(WIRE_TABLES[table].names), table
                stamped = {"node": "n1", "ts": 1, "simulated": False, **row}
                names = WIRE_TABLES[table].names
                asked = {name: value for name, value in stamped.items() if name in names}
                assert not impossible_columns(table, asked)
                rows += 1
    assert rows > 20


@pytest.fixture(scope="module")
def evidence(tmp_path_factory) -> Path:
    """What a short run against the simulator wrote."""
    output = tmp_path_factory.mktemp("evidence")
    done = run("--simulator", "--short", "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return output


def test_every_workload_was_recorded_and_can_be_read(evidence: Path, tmp_path) -> None:
    assert {path.name for path in evidence.iterdir()} == FILES
    assert sum(path.stat().st_size for path in evidence.iterdir()) < 2**20
    assert "during" not in (evidence / "summary.md").read_text(), "a part of the run failed"
    results = json.loads((evidence / "results.json").read_text())
    scenes = {scene["name"]: scene for scene in results["scenes"]}
    assert list(scenes) == ["idle", *WORKLOADS]
    assert not [scene["skipped"] for scene in scenes.values() if scene["skipped"]]
    assert all(scene["ticks"] and scene["rows"] for scene in scenes.values())
    with tarfile.open(evidence / "recordings.tar") as tar:
        tar.extractall(tmp_path)
    for name in scenes:
        assert isinstance(list(entries_of(tmp_path / f"{name}.jsonl.gz"))[-1], Ended)
    assert scenes["idle"]["means"]["util_percent"] < 10 < scenes["matmul"]["means"]["util_percent"]


def test_every_field_id_was_asked(evidence: Path) -> None:
    with (evidence / "support.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows if row["kind"] == "field"] == [
        f"FI {n}" for n in support.FIELD_IDS
    ]
    (name,) = [row for row in rows if row["kind"] == "port" and row["name"] == "name"]
    assert name["code"] == "SUCCESS" and "H200" in name["value"]


@pytest.mark.slow
def test_at_the_deadline_it_writes_what_it_has(tmp_path) -> None:
    done = run("--simulator", "--deadline", "2", "--output", str(tmp_path))
    assert done.returncode in (0, 3)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert "no time was left" in done.stdout or "stopped at the deadline" in done.stdout


def test_without_a_gpu_it_says_so_in_a_line(tmp_path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    done = run("--output", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "no GPU to measure: " in done.stdout.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_no_workload_outlives_the_workshop() -> None:
    workshop = Workshop(pretend=True)
    assert workshop.start("spin") is None
    pid = workshop._pid
    assert pid and Path(f"/proc/{pid}").exists()
    workshop.close()
    ends = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not is_running(pid)


POWER = agreement.Field("power.draw.average", "gpu_samples", "power_watts", 5, 0.05)
EXACT = agreement.Field("pstate", "gpu_samples", "pstate")
MEMORY = agreement.Field("memory.used", "gpu_samples", "memory_used_bytes", 2**20, times=2**20)
MODE = agreement.Field("mig.mode.current", "gpus", "mig_mode")
BUS = agreement.Field("pci.bus_id", "gpus", "pci_bus_id")
REASONS = agreement.Field("clocks_event_reasons.active", "gpu_samples", "clocks_event_reasons")
UUID = agreement.Field("uuid", "gpus", "gpu_uuid")


@pytest.mark.parametrize(
    ("field", "before", "after", "said", "verdict"),
    [
        (POWER, 100.0, 300.0, "200.00", "agree"),
        (POWER, 100.0, 100.0, "104.90", "agree"),
        (POWER, 100.0, 100.0, "106.00", "differs"),
        (POWER, None, 100.0, "100.00", "agree"),
        (POWER, None, None, "100.00", "only theirs"),
        (POWER, 100.0, 100.0, "[N/A]", "only ours"),
        (POWER, None, None, "[Not Supported]", "both absent"),
        (POWER, None, None, None, "both absent"),
        (EXACT, 0, 0, "P0", "agree"),
        (EXACT, 0, 2, "P8", "differs"),
        (MEMORY, 500 * 2**20, 500 * 2**20, "501", "agree"),
        (MEMORY, 500 * 2**20, 500 * 2**20, "502", "differs"),
        (MODE, False, False, "Disabled", "agree"),
        (MODE, True, True, "Disabled", "differs"),
        (BUS, "0000:0a:00.0", "0000:0a:00.0", "00000000:0A:00.0", "agree"),
        (REASONS, 4, 4, "0x0000000000000004", "agree"),
        (POWER, 100.0, 100.0, "gibberish", "differs"),
        (UUID, "GPU-1", "GPU-1", "GPU-1", "agree"),
        (UUID, "GPU-1", "GPU-1", "GPU-2", "differs"),
    ],
)
def test_a_field_agrees_within_its_tolerance(field, before, after, said, verdict) -> None:
    assert agreement.judged("idle", field, before, after, said).verdict == verdict


def test_what_identifies_a_board_is_compared_and_not_shown() -> None:
    one = agreement.judged("idle", UUID, "GPU-1", "GPU-1", "GPU-1")
    assert "GPU-1" not in str(one)
    answer = support.timed("call", "nvmlDeviceGetUUID", "", lambda: "GPU-1")
    assert (answer.value, answer.code) == ("hidden", "SUCCESS")


WALK = """
import json, os, sys
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
from bench.gpu import support
answers = []
troubles = support.walk_apart(False, 30.0, answers.append)
print(json.dumps({"troubles": troubles, "answers": [[a.kind, a.name, a.code] for a in answers]}))
"""


def test_a_call_that_crashes_costs_itself_alone(tmp_path) -> None:
    """Over a driver's library that lacks many calls, through the real binding."""
    root = str(RUN.parents[2])
    paths = [root, *(f"{root}/{part}" for part in ("contract", "agent", "cli"))]
    library = fake_library.compiled(tmp_path)
    (said,) = fake_library.run(library, (WALK, {"PYTHONPATH": os.pathsep.join(paths)}))
    kinds = {kind for kind, _, _ in said["answers"]}
    assert kinds == {"port", "field", "call"}
    named = [name for _, name, _ in said["answers"]]
    # The binding's calls come in the order of their names: this is one of the last.
    assert "nvmlDeviceGetVbiosVersion" in named
    assert ["call", "nvmlDeviceGetUUID", "SUCCESS"] in said["answers"]
    for trouble in said["troubles"]:
        assert "the process that asked nvmlDeviceGet" in trouble
