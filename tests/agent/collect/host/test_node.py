"""The node's row: parsing of odd /proc texts, arithmetic on counters, and agreement with psutil."""

import shutil
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.collect.host.linux import (
    DiskCounters,
    LinuxReader,
    parse_cpuinfo,
    parse_diskstats,
    parse_loadavg,
    parse_meminfo,
    parse_net_dev,
    parse_pressure,
    parse_stat,
)
from gpuwarden_agent.collect.host.node import (
    HostProbe,
    Total,
    busiest_percent,
    cpu_percents,
    host_reader,
)
from gpuwarden_agent.collect.host.portable import PsutilReader
from gpuwarden_agent.collect.host.reader import CPU_STATES
from gpuwarden_agent.probe import ProbeError, Row
from gpuwarden_agent.queue.rows import impossible_columns

KIB = 1024
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc")

STAT = """\
cpu  100 20 30 1000 40 5 6 7 8 9
cpu0 50 10 15 500 20 2 3 4 4 4
intr 130944 0 0
ctxt 234610
btime 1795229000
procs_running 3
procs_blocked 1
"""


def test_stat_gives_ticks_by_state_and_tasks() -> None:
    stat = parse_stat(STAT)
    assert dict(stat.ticks) == {
        "user": 100,
        "nice": 20,
        "system": 30,
        "idle": 1000,
        "iowait": 40,
        "irq": 5,
        "softirq": 6,
        "steal": 7,
    }
    assert (stat.running, stat.blocked) == (3, 1)


def test_stat_of_an_old_kernel_has_fewer_states_and_no_tasks() -> None:
    stat = parse_stat("cpu 1 2 3 4\n")
    assert dict(stat.ticks) == {"user": 1, "nice": 2, "system": 3, "idle": 4}
    assert stat.running is None
    assert "cpu_steal_percent" not in cpu_percents({"user": 0, "idle": 0}, stat.ticks)


def test_percents_are_shares_of_the_time_between_two_looks() -> None:
    before = dict.fromkeys(CPU_STATES, 1000)
    after = before | {"user": 1030, "system": 1010, "iowait": 1020, "idle": 1035, "softirq": 1005}
    assert cpu_percents(before, after) == {
        "cpu_user_percent": 30,
        "cpu_nice_percent": 0,
        "cpu_system_percent": 10,
        "cpu_iowait_percent": 20,
        "cpu_steal_percent": 0,
        "cpu_idle_percent": 35,
        "cpu_irq_percent": 5,
        "cpu_util_percent": 45,
    }


def test_time_of_guests_counts_once_and_stolen_time_as_busy() -> None:
    """The kernel counts guests' time in user and nice as well."""
    before = parse_stat("cpu  1000 100 0 1000 0 0 0 50 1000 100\n").ticks
    after = parse_stat("cpu  1040 110 0 1040 0 0 0 60 1040 110\n").ticks
    percents = cpu_percents(before, after)
    assert percents["cpu_user_percent"] == 40
    assert percents["cpu_nice_percent"] == 10
    assert percents["cpu_steal_percent"] == 10
    assert percents["cpu_util_percent"] == 60
    assert percents["cpu_idle_percent"] == 40


COUNTERS = st.fixed_dictionaries({state: st.integers(0, 2**63) for state in CPU_STATES})


@settings(max_examples=50)
@given(COUNTERS, COUNTERS)
def test_percents_add_up_to_100_whatever_the_counters_do(
    before: dict[str, int], after: dict[str, int]
) -> None:
    percents = cpu_percents(before, after)
    util = percents.pop("cpu_util_percent", None)
    if util is None:
        assert all(after[state] <= before[state] for state in CPU_STATES)
        return
    assert sum(percents.values()) == pytest.approx(100)
    assert all(0 <= p <= 100 for p in percents.values())
    rest = percents["cpu_idle_percent"] + percents["cpu_iowait_percent"]
    assert util == pytest.approx(100 - rest, abs=1e-6)
    assert 0 <= util <= 100 + 1e-9


def test_no_time_between_two_looks_gives_no_percents() -> None:
    assert cpu_percents({"user": 5, "idle": 5}, {"user": 5, "idle": 5}) == {}


def test_loadavg_gives_the_load_of_1_5_and_15_minutes() -> None:
    loads = parse_loadavg("0.52 1.58 129.02 2/1389 12345\n")
    assert loads == {"load_1m": 0.52, "load_5m": 1.58, "load_15m": 129.02}


def test_meminfo_counts_as_free_does() -> None:
    text = (
        "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nCached: 300 kB\n"
        "SReclaimable: 50 kB\nSwapTotal: 80 kB\nSwapFree: 30 kB\nHugePages_Total:       0\n"
    )
    assert parse_meminfo(text) == {
        "memory_total_bytes": 1000 * KIB,
        "memory_available_bytes": 600 * KIB,
        "memory_used_bytes": 400 * KIB,
        "memory_cached_bytes": 350 * KIB,
        "swap_used_bytes": 50 * KIB,
    }


def test_meminfo_of_a_kernel_without_available_leaves_used_absent() -> None:
    memory = parse_meminfo("MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 300 kB\n")
    assert [name for name, value in memory.items() if value is not None] == ["memory_total_bytes"]


def test_a_container_with_more_available_than_there_is_leaves_used_absent() -> None:
    assert parse_meminfo("MemTotal: 5 kB\nMemAvailable: 9 kB\n")["memory_used_bytes"] is None


def test_pressure_gives_share_and_total_of_both_extents() -> None:
    text = (
        "some avg10=1.50 avg60=0.10 avg300=0.07 total=4765901\n"
        "full avg10=0.25 avg60=0.00 avg300=0.00 total=1000000\n"
    )
    assert parse_pressure("io", text) == {
        "psi_io_some_percent": 1.5,
        "psi_io_some_seconds_total": 4.765901,
        "psi_io_full_percent": 0.25,
        "psi_io_full_seconds_total": 1.0,
    }


def test_cpu_pressure_of_an_older_kernel_has_no_full() -> None:
    values = parse_pressure("cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")
    assert set(values) == {"psi_cpu_some_percent", "psi_cpu_some_seconds_total"}


def test_diskstats_are_read_of_old_and_new_kernels() -> None:
    disks = parse_diskstats(
        "   8       0 sda 10 0 16 5 20 0 32 6 0 77 11\n"
        " 259       0 nvme0n1 1 0 2 3 4 0 6 7 0 9 10 0 0 0 0 0 0\n"
        "   8       1 sda1 1 2 3 4\n"
    )
    assert disks == {
        "sda": DiskCounters(16 * 512, 32 * 512, 77),
        "nvme0n1": DiskCounters(2 * 512, 6 * 512, 9),
    }


def test_the_busiest_disk_counts_and_never_reads_over_100() -> None:
    before = {"sda": 0, "sdb": 500, "sdc": 9_000}
    after = {"sda": 250, "sdb": 600, "sdc": 5}
    assert busiest_percent(before, after, 1.0) == 25.0
    assert busiest_percent(before, {"sda": 1_004}, 1.0) == 100.0
    assert busiest_percent(before, {"new": 4}, 1.0) is None
    assert busiest_percent(before, after, 0.0) is None


def test_net_dev_with_and_without_a_space_after_the_colon() -> None:
    text = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
        "    lo:    3193 29 0 0 0 0 0 0 3193 29 0 0 0 0 0 0\n"
        "  eth0:400892807 16575 0 0 0 0 0 0 731306 7981 0 0 0 0 0 0\n"
        "eth0:1: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n"
    )
    assert parse_net_dev(text) == {
        "lo": (3193, 3193),
        "eth0": (400892807, 731306),
        "eth0:1": (5, 6),
    }


def test_cpuinfo_names_the_model_and_arm_does_not() -> None:
    text = "processor\t: 0\nmodel name\t: AMD EPYC: 7B13\n\nprocessor\t: 1\nmodel name\t: other\n"
    assert parse_cpuinfo(text)["model name"] == "AMD EPYC: 7B13"
    assert "model name" not in parse_cpuinfo("processor\t: 0\nBogoMIPS\t: 50.00\n")


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), min_size=1)))
def test_a_total_never_falls_and_is_the_sum_while_nothing_restarts(
    looks: list[dict[str, int]],
) -> None:
    total, last, fell = Total(), 0, False
    previous: dict[str, int] = {}
    for counters in looks:
        fell = fell or any(counters.get(name, was) < was for name, was in previous.items())
        previous |= counters
        now = total.of(counters)
        assert now is not None
        assert now >= last
        assert fell or now == sum(previous.values())
        last = now


def test_a_total_of_nothing_is_absent_until_there_was_something() -> None:
    total = Total()
    assert [total.of({}), total.of({"a": 0}), total.of({})] == [None, 0, 0]


@pytest.fixture
def host(tmp_path: Path, clock: ManualClock) -> "tuple[HostProbe, Path]":
    """A probe on a made-up host, and the folder to change it."""
    proc = tmp_path / "proc"
    (proc / "pressure").mkdir(parents=True)
    (proc / "net").mkdir()
    (proc / "stat").write_text(STAT)
    (proc / "loadavg").write_text("1.00 2.00 3.00 1/2 3\n")
    disk = "8 0 {} 10 0 16 5 20 0 32 6 0 77 11\n"
    (proc / "diskstats").write_text(
        "".join(map(disk.format, ("sda", "sda1", "dm-0", "md0", "sdb")))
    )
    line = "{}: 100 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n"
    names = ("lo", "eth0", "eth1", "bond0", "docker0", "veth1")
    (proc / "net" / "dev").write_text("".join(map(line.format, names)))
    for device in ("block/sda/device", "class/net/eth0/device", "class/net/eth1/device"):
        (tmp_path / "sys" / device).mkdir(parents=True)
    for lower in ("bond0/lower_eth0", "bond0/lower_eth1", "docker0/lower_veth1", "veth1"):
        (tmp_path / "sys" / "class" / "net" / lower).mkdir(parents=True)
    (tmp_path / "sys/block/sdb/device").mkdir(parents=True)
    (tmp_path / "sys/block/sdb/hidden").write_text("1\n")
    reader = LinuxReader(clock, proc=proc, sys=tmp_path / "sys", etc=tmp_path)
    return HostProbe(clock, reader=reader), tmp_path


def first(probe: HostProbe) -> Row:
    (row,) = probe.read(0)["host_samples"]
    return row


def test_bytes_are_counted_once(host: "tuple[HostProbe, Path]") -> None:
    row = first(host[0])
    assert (row["disk_read_bytes_total"], row["disk_write_bytes_total"]) == (16 * 512, 32 * 512)
    assert (row["network_rx_bytes_total"], row["network_tx_bytes_total"]) == (200, 20)


def test_in_a_container_the_virtual_interface_counts(host: "tuple[HostProbe, Path]") -> None:
    probe, root = host
    shutil.rmtree(root / "sys/class/net")
    line = "{}: 100 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n"
    (root / "proc/net/dev").write_text("".join(map(line.format, ("lo", "eth0"))))
    assert first(probe)["network_rx_bytes_total"] == 100


def test_what_the_kernel_does_not_have_is_absent(host: "tuple[HostProbe, Path]") -> None:
    probe, root = host
    (root / "proc/net/dev").unlink()
    (root / "proc/diskstats").unlink()
    row = first(probe)
    assert not [name for name in row if name.startswith(("psi_", "disk_", "network_", "memory_"))]
    assert row["load_1m"] == 1.0
    assert not probe.failed


def test_a_file_in_another_format_is_absent_and_counted(host: "tuple[HostProbe, Path]") -> None:
    probe, root = host
    (root / "proc/loadavg").write_text("")
    (root / "proc/pressure/io").write_text("some avg10\n")
    row = first(probe)
    assert not [name for name in row if name.startswith(("psi_", "load_"))]
    assert probe.failed == {"loadavg": 1, "pressure/io": 1}


def test_a_rate_is_absent_until_the_second_reading(
    host: "tuple[HostProbe, Path]", clock: ManualClock
) -> None:
    probe, root = host
    assert not {"cpu_util_percent", "disk_busy_percent"} & first(probe).keys()
    clock.advance(2)
    (root / "proc/stat").write_text(STAT.replace("cpu  100", "cpu  200"))
    (root / "proc/diskstats").write_text("8 0 sda 10 0 16 5 20 0 32 6 0 577 11\n")
    row = first(probe)
    assert (row["cpu_util_percent"], row["disk_busy_percent"]) == (100.0, 25.0)


def test_a_bond_made_later_is_noticed_by_the_next_description(
    host: "tuple[HostProbe, Path]",
) -> None:
    probe, root = host
    net = root / "sys/class/net"
    shutil.rmtree(net / "bond0")
    (net / "bond0/device").mkdir(parents=True)
    assert first(probe)["network_rx_bytes_total"] == 300
    (net / "bond0/lower_eth0").mkdir()
    probe.describe()
    line = "{}: 200 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n"
    names = ("lo", "eth0", "eth1", "bond0", "docker0", "veth1")
    (root / "proc/net/dev").write_text("".join(map(line.format, names)))
    # What the bond carried before stays in the sum, and its new bytes do not count.
    assert first(probe)["network_rx_bytes_total"] == 500


def test_a_vanished_interface_does_not_make_the_counter_fall(
    host: "tuple[HostProbe, Path]",
) -> None:
    probe, root = host
    first(probe)
    (root / "proc/net/dev").write_text("eth0: 150 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n")
    assert first(probe)["network_rx_bytes_total"] == 250


def test_a_proc_that_gives_nothing_is_an_error(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(ProbeError, match="nothing in"):
        HostProbe(clock, reader=LinuxReader(clock, proc=tmp_path, sys=tmp_path)).read(0)


def test_the_description_names_system_and_processor(
    host: "tuple[HostProbe, Path]",
) -> None:
    probe, root = host
    (root / "os-release").write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n')
    (root / "proc/cpuinfo").write_text("model name : Xeon\n")
    (row,) = probe.describe()["nodes"]
    assert (row["os"], row["cpu_model"]) == ("Ubuntu 22.04.5 LTS", "Xeon")
    assert row["cpus"] == psutil.cpu_count()
    assert not {"memory_total_bytes", "cpu_cores"} & set(row)


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_cores_are_counted_once_with_all_their_threads(
    host: "tuple[HostProbe, Path]", name: str
) -> None:
    """`thread_siblings_list` is the name of kernels before 5.3."""
    probe, root = host
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / name).write_text(f"{siblings}\n")
    (root / "sys/devices/system/cpu/cpu4").mkdir()  # offline
    assert probe.describe()["nodes"][0]["cpu_cores"] == 2


@NEEDS_PROC
def test_both_readers_tell_the_same_of_this_host() -> None:
    files, library = LinuxReader(SystemClock()), PsutilReader()
    facts, others = files.facts(), library.facts()
    assert facts["memory_total_bytes"] == others["memory_total_bytes"]
    assert facts["cpu_cores"] == others["cpu_cores"]
    ours, theirs = files.read(mounts=True), library.read(mounts=True)
    # Others allocate, read and write between the two: 64 MiB apart is the same reading, and the
    # kernel updates the load by a few percent.
    apart = {name: 0.5 if name.startswith("load_") else 64 * KIB * KIB for name in theirs.gauges}
    assert dict(theirs.gauges) == {
        name: pytest.approx(ours.gauges[name], abs=allowed) for name, allowed in apart.items()
    }
    assert theirs.cpu_times.keys() == ours.cpu_times.keys()
    for column, counted in theirs.counters.items():
        # psutil has partitions and stacked interfaces as well.
        same = {name: counted[name] for name in ours.counters[column]}
        assert same == pytest.approx(dict(ours.counters[column]), abs=64 * KIB * KIB), column
    assert {name: theirs.disk_busy_ms[name] for name in ours.disk_busy_ms} == pytest.approx(
        dict(ours.disk_busy_ms), abs=1000
    )
    assert not files.failed + library.failed


def test_rows_of_the_portable_reader_fit_their_tables() -> None:
    probe = HostProbe(SystemClock(), reader=PsutilReader())
    stamp = {"ts": 1, "node": "n", "simulated": False}
    assert impossible_columns("host_samples", first(probe) | stamp) == ()
    (node,) = probe.describe()["nodes"]
    own = {"node": "n", "simulated": False, "agent_id": "a", "boot_id": "b"}
    assert impossible_columns("nodes", node | own) == ()


@NEEDS_PROC
def test_cpu_percents_of_this_host_agree_with_psutil_over_the_same_time() -> None:
    probe = HostProbe(SystemClock())
    first(probe)
    before = psutil.cpu_times()
    started = before
    while sum(started) - sum(before) < 0.4 * (psutil.cpu_count() or 1):
        sum(range(100_000))
        started = psutil.cpu_times()
    row = first(probe)
    spent = sum(started[:8]) - sum(before[:8])
    idle = (started.idle - before.idle + started.iowait - before.iowait) / spent
    # Ticks are 10 ms, and the looks are not at the same instant: a few ticks in forty a CPU.
    assert row["cpu_util_percent"] == pytest.approx(100 * (1 - idle), abs=10)
    parts = [v for k, v in row.items() if k.startswith("cpu_") and k != "cpu_util_percent"]
    assert sum(parts) == pytest.approx(100)  # type: ignore[arg-type]


def test_without_linux_the_row_has_what_psutil_has_there(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields are those of psutil's readings on macOS."""
    cpu = namedtuple("cpu", "user nice system idle")
    memory = namedtuple("memory", "total available percent used free active inactive wired")
    disk = namedtuple("disk", "read_count write_count read_bytes write_bytes read_time write_time")
    card = namedtuple("card", "bytes_sent bytes_recv")
    seconds = iter((100.0, 103.0))
    for reading, answer in {
        "getloadavg": lambda: (1.0, 2.0, 3.0),
        "virtual_memory": lambda: memory(1000, 400, 60, 500, 100, 300, 300, 200),
        "cpu_times": lambda: cpu(next(seconds), 0.0, 50.0, 1000.0),
        "disk_io_counters": lambda perdisk, nowrap: {"disk0": disk(1, 1, 10, 20, 5, 5)},
        "net_io_counters": lambda pernic, nowrap: {
            name: card(sent, 10 * sent)
            for sent, name in enumerate(("lo0", "en0", "en1", "bridge0", "utun3"))
        },
    }.items():
        monkeypatch.setattr(psutil, reading, answer)
    monkeypatch.setattr(psutil, "swap_memory", fail)
    reader = host_reader(clock, "darwin")
    probe = HostProbe(clock, reader=reader)
    assert not [column for column in first(probe) if column.startswith("cpu_")]
    row = first(probe)
    assert row == {
        "cpu_util_percent": 100.0,
        "cpu_user_percent": 100.0,
        "cpu_nice_percent": 0.0,
        "cpu_system_percent": 0.0,
        "cpu_idle_percent": 0.0,
        "load_1m": 1.0,
        "load_5m": 2.0,
        "load_15m": 3.0,
        "memory_total_bytes": 1000,
        "memory_available_bytes": 400,
        "memory_used_bytes": 600,
        "disk_read_bytes_total": 10,
        "disk_write_bytes_total": 20,
        "network_rx_bytes_total": 30,
        "network_tx_bytes_total": 3,
    }
    assert probe.failed == {"swap": 2}


def fail() -> None:
    raise OSError("host_statistics64 failed")
