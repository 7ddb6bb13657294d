"""The ways in which an AMD GPU or its files go wrong, sleep, vanish and come back."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.collect.amd.boards import MI100, PCI, T, describe, plant, probe_of, read

from gpuwarden_agent.collect import files as device_files
from gpuwarden_agent.collect.files import DeviceFiles
from gpuwarden_agent.probe import ProbeError
from gpuwarden_agent.queue.rows import impossible_columns


@pytest.mark.parametrize("garbage", ["garbage", "", "-", "9" * 500, "\x00\xff", "4294967201"])
def test_garbage_in_every_file_is_absent_and_counted(tmp_path: Path, garbage: str) -> None:
    device = plant(tmp_path, MI100)
    probe = probe_of(device)
    read(probe)
    keep = {"vendor", "unique_id", "power/runtime_status", "hwmon/name", "mem_info_vram_used"}
    for file in MI100.keys() - keep:
        path = device / file.replace("hwmon/", "hwmon/hwmon3/")
        path.write_text(f"{garbage}\n")
    (device / "mem_info_vram_total").write_text("34342961152\n")
    row = read(probe)
    assert row.keys() == {"gpu", "gpu_uuid", "memory_total_bytes", "memory_used_bytes"}
    assert probe.failed
    stamp = {"ts": T, "node": "n1", "simulated": False}
    assert impossible_columns("gpu_samples", stamp | row) == ()
    assert impossible_columns("gpus", {"node": "n1", "simulated": False} | describe(probe)) == ()


def test_a_file_that_cannot_be_read_is_absent_and_counted(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    (device / "gpu_busy_percent").unlink()
    (device / "gpu_busy_percent").mkdir()  # reading a folder is an error of its own: EISDIR
    probe = probe_of(device)
    row = read(probe)
    assert "util_percent" not in row
    assert row["memory_util_percent"] == 0.0
    assert probe.failed == {"gpu_busy_percent: EISDIR": 1}


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        (errno.EBUSY, {"gpu_busy_percent: EBUSY": 1}),
        (errno.EIO, {"gpu_busy_percent: EIO": 1}),
        (errno.EPERM, {"gpu_busy_percent: EPERM": 1}),
        (errno.EOPNOTSUPP, {}),
        (errno.ENODATA, {}),
    ],
)
def test_what_the_device_lacks_is_told_from_what_fails(
    code: int, failed: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of ours answers EBUSY: the system call is the outside world here."""

    def fails(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    files = DeviceFiles({"gpu": 0})
    monkeypatch.setattr(device_files.os, "open", fails)
    assert files.read(Path("gpu_busy_percent"), int) is None
    assert files.failed == failed


def test_reasons_that_never_end_are_counted_together(tmp_path: Path) -> None:
    files = DeviceFiles({"gpu": 0})
    for nth in range(300):
        (tmp_path / "file").write_text(f"garbage {nth}")
        files.read(tmp_path / "file", int)
    assert len(files.failed) == 101
    assert sum(files.failed.values()) == 300


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_gpu_that_sleeps_is_not_read(tmp_path: Path, status: str) -> None:
    device = plant(tmp_path, MI100 | {"power/runtime_status": status})
    touched = watch(device)
    probe = probe_of(device)
    assert probe.read(T) == {table: [] for table in probe.tables}
    assert probe.describe() == {}
    assert touched() == {"runtime_status"}


def watch(device: Path) -> Callable[[], set[str]]:
    """Names of the files below `device` that were read since: their access times say so."""
    files = [path for path in device.rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, (0, path.stat().st_mtime))

    def touched() -> set[str]:
        return {path.name for path in files if path.stat().st_atime > 0}

    (device / "vendor").read_text()
    if not touched():
        pytest.skip("this file system keeps no access times")
    os.utime(device / "vendor", (0, (device / "vendor").stat().st_mtime))
    return touched


def test_pcie_bandwidth_is_never_read(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100 | {"pcie_bw": "1 2 256"})
    touched = watch(device)
    probe = probe_of(device)
    read(probe), describe(probe)
    assert "gpu_busy_percent" in touched()
    assert "pcie_bw" not in touched()


def test_a_gpu_that_fell_asleep_is_still_there_without_readings(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    probe = probe_of(device)
    inventory = describe(probe)
    (device / "power/runtime_status").write_text("suspended\n")
    assert read(probe) == {"gpu": 0, "gpu_uuid": "AMD-79ccd55167a2124a"}
    assert describe(probe) == inventory
    (device / "power/runtime_status").write_text("active\n")
    assert read(probe)["power_watts"] == 36.0


def test_a_gpu_that_vanishes_is_lost_and_comes_back_by_itself(tmp_path: Path) -> None:
    device = plant(tmp_path / "sys", MI100)
    probe = probe_of(device)
    read(probe)
    device.rename(tmp_path / "away")
    for call in (lambda: probe.read(T), probe.describe):
        with pytest.raises(ProbeError, match=r"GPU 0 \(AMD, 0000:83:00.0\) is lost") as caught:
            call()
        assert caught.value.kind == "gpu_lost"
    (tmp_path / "away").rename(device)
    assert read(probe)["power_watts"] == 36.0


def test_a_gpu_that_no_longer_answers_the_bus_is_lost(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    (device / "config").write_bytes(b"\xff" * 64)
    with pytest.raises(ProbeError, match="fell off the bus") as caught:
        probe_of(device).read(T)
    assert caught.value.kind == "gpu_lost"


def test_a_driver_that_is_unloaded_and_loaded_again(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    probe = probe_of(device)
    read(probe)
    driver = (device / "driver").readlink()
    (device / "driver").unlink()
    with pytest.raises(ProbeError, match="load the amdgpu kernel module") as caught:
        probe.read(T)
    assert caught.value.kind == "driver_not_loaded"
    (device / "driver").symlink_to(driver)
    # While it loads: some files are there, and `unique_id` is not yet.
    (device / "drm").rename(device / "later")
    (device / "unique_id").unlink()
    with pytest.raises(ProbeError, match="no driver that is ready"):
        probe.read(T)
    assert probe.gpu_uuid == "AMD-79ccd55167a2124a"
    (device / "unique_id").write_text("79ccd55167a2124a\n")
    (device / "later").rename(device / "drm")
    (device / "hwmon/hwmon3").rename(device / "hwmon/hwmon9")
    assert read(probe)["power_watts"] == 36.0


def test_a_gpu_without_any_reading_is_an_error(tmp_path: Path) -> None:
    device = plant(tmp_path, PCI)
    with pytest.raises(ProbeError, match="no reading at all") as caught:
        probe_of(device).read(T)
    assert caught.value.kind == "probe_failed"


def test_an_identity_that_cannot_be_read_now_is_not_replaced(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    (device / "unique_id").write_text("?\n")
    probe = probe_of(device)
    with pytest.raises(ProbeError, match="does not tell its unique id"):
        probe.read(T)
    assert probe.gpu_uuid is None
    (device / "unique_id").write_text("79ccd55167a2124a\n")
    assert read(probe)["gpu_uuid"] == "AMD-79ccd55167a2124a"
