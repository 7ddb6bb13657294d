"""The node's probe reports mounts, of the kernel module and of the fabric manager."""

import os
from pathlib import Path

import pytest

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.collect.host.linux import LinuxReader
from gpuwarden_agent.collect.host.node import HostProbe
from gpuwarden_agent.probe import Row

MOUNTINFO = """\
22 28 0:21 / /proc rw,nosuid - proc proc rw
30 28 0:26 / {shm} rw,nosuid - tmpfs tmpfs rw,size=4096k
48 28 0:45 / /mnt/data rw,relatime - nfs4 server:/data rw,vers=4.2
49 28 0:45 /sub /mnt/sub rw,relatime - nfs4 server:/data/sub rw,vers=4.2
"""
MOUNTSTATS = """\
device server:/data mounted on /mnt/data with fstype nfs4 statvers=1.1
\tbytes:\t1 2 3 4 {bytes} 6 7 8
\t        READ: {reads} {sent} 0 1 2 3 4 {ms} 0
\t     GETATTR: 3 3 0 1 2 3 4 250 0
device server:/data/sub mounted on /mnt/sub with fstype nfs4 statvers=1.1
\tbytes:\t1 2 3 4 {bytes} 6 7 8
\t        READ: {reads} {sent} 0 1 2 3 4 {ms} 0
\t     GETATTR: 3 3 0 1 2 3 4 250 0
"""


@pytest.fixture
def mounted(tmp_path: Path, clock: ManualClock) -> "tuple[HostProbe, Path]":
    """A host with /dev/shm (a folder of this machine) and one NFS export, mounted twice."""
    root = tmp_path
    own = root / "proc/self"
    own.mkdir(parents=True)
    (root / "proc/loadavg").write_text("1.00 2.00 3.00 1/2 3\n")
    (own / "mountinfo").write_text(MOUNTINFO.format(shm=root))
    (own / "mountstats").write_text(MOUNTSTATS.format(bytes=500, reads=10, sent=12, ms=1500))
    reader = LinuxReader(clock, proc=root / "proc", sys=root / "sys", etc=root, shm=root)
    return HostProbe(clock, reader=reader), root


def slow_columns(row: Row) -> Row:
    return {name: value for name, value in row.items() if name.startswith(("nfs_", "shm_"))}


def row_at(probe: HostProbe, ts_s: int) -> Row:
    (row,) = probe.read(1000 * ts_s, {"host_samples"})["host_samples"]
    return row


def test_mounts_are_in_the_row_of_every_tenth_second(mounted: "tuple[HostProbe, Path]") -> None:
    probe, _ = mounted
    filled = [ts_s for ts_s in range(97, 125) if slow_columns(row_at(probe, ts_s))]
    # The first of all readings is sent at once.
    assert filled == [97, 100, 110, 120]


def test_who_asks_for_everything_gets_the_mounts_in_any_second(
    mounted: "tuple[HostProbe, Path]",
) -> None:
    probe, _ = mounted
    for ts_ms in (97_000, 98_000):
        (row,) = probe.read(ts_ms)["host_samples"]
        assert slow_columns(row)


def test_an_export_that_is_mounted_twice_counts_once(mounted: "tuple[HostProbe, Path]") -> None:
    probe, root = mounted
    row = slow_columns(row_at(probe, 0))
    size = os.statvfs(root)
    assert row.pop("shm_total_bytes") == size.f_blocks * size.f_frsize
    assert 0 < row.pop("shm_used_bytes") < size.f_blocks * size.f_frsize  # type: ignore[operator]
    assert row == {
        "nfs_reads_total": 10,
        "nfs_read_seconds_total": 1.5,
        "nfs_read_bytes_total": 500,
        "nfs_write_bytes_total": 6,
        "nfs_metadata_total": 3,
        "nfs_metadata_seconds_total": 0.25,
        "nfs_retransmissions_total": 2,
    }


def test_counters_of_nfs_do_not_fall_when_it_is_mounted_anew(
    mounted: "tuple[HostProbe, Path]",
) -> None:
    probe, root = mounted
    row_at(probe, 0)
    (root / "proc/self/mountstats").write_text(MOUNTSTATS.format(bytes=1, reads=1, sent=1, ms=100))
    row = row_at(probe, 10)
    assert (row["nfs_reads_total"], row["nfs_read_seconds_total"]) == (11, 1.6)
    (root / "proc/self/mountinfo").write_text("")
    assert row_at(probe, 20)["nfs_reads_total"] == 11


def test_without_nfs_and_without_shared_memory_there_are_no_such_columns(
    mounted: "tuple[HostProbe, Path]",
) -> None:
    probe, root = mounted
    (root / "proc/self/mountinfo").write_text(f"30 28 0:26 / {root} rw - nfs4 s:/x rw\n")
    (root / "proc/self/mountstats").write_text("")
    assert slow_columns(row_at(probe, 0)) == {}
    (root / "proc/self/mountinfo").unlink()
    assert slow_columns(row_at(probe, 10)) == {}
    assert not probe.failed


def test_mounts_in_another_format_are_absent_and_counted(
    mounted: "tuple[HostProbe, Path]",
) -> None:
    probe, root = mounted
    (root / "proc/self/mountstats").write_text(MOUNTSTATS.replace("{ms}", "x"))
    row = row_at(probe, 0)
    assert not [name for name in row if name.startswith("nfs_")]
    assert row["load_1m"] == 1.0
    assert probe.failed == {"self/mountstats": 1}


def test_the_node_says_which_kernel_module_and_fabric_manager_it_has(
    mounted: "tuple[HostProbe, Path]",
) -> None:
    probe, root = mounted
    (row,) = probe.describe()["nodes"]
    assert not {"kernel_module", "fabric_manager", "fabric_manager_version"} & row.keys()
    driver = root / "proc/driver/nvidia"
    driver.mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n"
    (driver / "version").write_text(line)
    (root / "proc/42").mkdir()
    (root / "proc/42/comm").write_text("nv-fabricmanage\n")
    (row,) = probe.describe()["nodes"]
    assert (row["kernel_module"], row["fabric_manager"]) == ("open", "active")


def test_shared_memory_of_this_host_is_what_the_kernel_says() -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no /dev/shm here")
    size = os.statvfs("/dev/shm")
    row = row_at(HostProbe(SystemClock()), 0)
    assert row.get("shm_total_bytes", 0) == size.f_blocks * size.f_frsize
