"""Loops are run as labelled, or a line says why not."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench.diagnosis import limits
from bench.diagnosis.limits import Limited, LimitError
from bench.diagnosis.scenarios import NODES, SCENARIOS, SPEEDS_S
from bench.diagnosis.stage import (
    Setting,
    StageError,
    check_python,
    local_store,
    make_files,
    running,
)


def test_every_loop_is_on_one_node_and_every_node_has_work_at_every_speed() -> None:
    assert sorted(name for node in NODES for name in node.jobs) == sorted(SCENARIOS)
    assert all(node.scenarios(speed_s) for node in NODES for speed_s in SPEEDS_S)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="install the extra `bench`"):
        check_python(sys.executable)
    with pytest.raises(StageError, match="cannot be run: No such file"):
        check_python(str(tmp_path / "python"))
    setting = Setting(python=sys.executable, files=tmp_path, speed_s=0.3, seed=1)
    with (
        pytest.raises(
            StageError, match="healthy ended: ModuleNotFoundError: No module named 'torch'"
        ),
        running([SCENARIOS["healthy"]], setting),
    ):
        pass


def test_an_unknown_loop_is_refused_with_those_that_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.diagnosis.record", "--scenarios", "helthy"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no scenario 'helthy'; there are: healthy, healthy_spin" in done.stderr


def test_data_sets_are_made_once(tmp_path: Path) -> None:
    make_files(tmp_path / "files")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "files").iterdir()}
    assert len(times) == 17
    make_files(tmp_path / "files")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "files").iterdir()} == times


def test_the_store_gives_as_many_bytes_as_asked() -> None:
    with local_store() as address:
        code = f"import urllib.request as r; print(len(r.urlopen('http://{address}/?bytes=100001&wait_s=0').read()))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "100001"


def test_limits_are_set_in_both_versions_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    with pytest.raises(LimitError, match="No such file"):
        Limited("a", cpu_cores=0.7, read_limit=None, disk="8:0")
    for controller in ("cpu", "blkio"):
        (tmp_path / controller).mkdir()
    old = Limited("a", cpu_cores=0.7, read_limit=2e6, disk="8:0")
    old.take(77)
    old.hold()
    cpu, disk = (tmp_path / c / "gpuwarden-bench-a" for c in ("cpu", "blkio"))
    assert (cpu / "cpu.cfs_quota_us").read_text() == "70000"
    assert (disk / "blkio.throttle.read_bps_device").read_text() == "8:0 2000000"
    assert (disk / "cgroup.procs").read_text() == "77"
    old.release()
    assert (disk / "blkio.throttle.read_bps_device").read_text() == "8:0 0"
    (tmp_path / "cgroup.controllers").write_text("cpu io")
    new = Limited("a", cpu_cores=1.5, read_limit=2e6, disk="8:0")
    new.hold()
    group = tmp_path / "gpuwarden-bench-a"
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "io.max").read_text() == "8:0 rbps=2000000"
