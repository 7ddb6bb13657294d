"""Each fault has its signature in the rows, from its beginning to its end and not beside them."""

import itertools
import json
from collections.abc import Sequence

import pytest

from gpuwarden.models import GpuModel, model_named
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_simulator import Fault, FaultKind, Placement, SimulatedNode, Workload

H100 = model_named("H100-SXM-80GB")
TRAINING = [Placement((0, 1, 2, 3), Workload.TRAINING)]


class Watched:
    """A node that trains on four GPUs, and is read at any time."""

    def __init__(
        self,
        start_ms: int,
        *faults: Fault,
        model: GpuModel = H100,
        placements: Sequence[Placement] = TRAINING,
    ) -> None:
        gpus = sum(len(placement.gpus) for placement in placements)
        self.node = SimulatedNode("n", gpus, model, 3, placements, script=faults)
        self.start_ms = start_ms
        self.first = self.node.read(start_ms)

    def at(self, seconds: float) -> Reading:
        """All tables so long after the first tick."""
        return self.node.read(self.start_ms + round(1000 * seconds))

    def each(self, first: int, after: int, every: int = 1) -> list[Reading]:
        """A reading for each second from `first` on."""
        return [self.at(second) for second in range(first, after, every)]


def fault(kind: FaultKind, begin_s: int, end_s: int | None = None, **more: object) -> Fault:
    gpu = more.pop("gpu", 1)
    end_ms = None if end_s is None else 1000 * end_s
    return Fault(kind, 1000 * begin_s, end_ms, gpu, more)  # type: ignore[arg-type]


def of_node(kind: FaultKind, begin_s: int, end_s: int | None = None, **options: object) -> Fault:
    return fault(kind, begin_s, end_s, gpu=None, **options)


def row(reading: Reading, table: str, gpu: int = 1) -> Row:
    return next(row for row in reading[table] if row["gpu"] == gpu)


def mean(
    readings: Sequence[Reading], column: str, gpu: int = 1, table: str = "gpu_samples"
) -> float:
    return sum(row(reading, table, gpu)[column] for reading in readings) / len(readings)  # type: ignore[misc]


def grown(before: Reading, after: Reading, table: str, column: str, gpu: int = 1) -> float:
    return row(after, table, gpu)[column] - row(before, table, gpu)[column]  # type: ignore[operator,return-value]


def test_a_node_without_faults_has_no_events_and_one_with_a_later_fault_the_same_rows(
    start_ms: int,
) -> None:
    quiet, later = Watched(start_ms), Watched(start_ms, fault(FaultKind.HANG, 1000))
    assert "events" not in quiet.first
    assert later.first["events"] == []
    assert quiet.at(60) == {k: v for k, v in later.at(60).items() if k != "events"}


def test_a_burst_of_corrected_errors_grows_volatile_and_aggregate_alike(start_ms: int) -> None:
    burst = fault(FaultKind.ECC_CORRECTED, 60, 180, per_minute=500)
    watched = Watched(start_ms, burst)
    before, amid, after, later = (watched.at(s) for s in (59, 120, 181, 600))
    for column in ("ecc_corrected_volatile_total", "dram_corrected_aggregate_total"):
        assert grown(before, amid, "gpu_health_samples", column) == 500
        assert grown(before, after, "gpu_health_samples", column) == 1000
        assert grown(after, later, "gpu_health_samples", column) <= 1
    assert grown(before, later, "gpu_health_samples", "ecc_corrected_volatile_total", gpu=2) <= 1


def test_uncorrected_errors_are_counted_where_they_were(start_ms: int) -> None:
    watched = Watched(
        start_ms, fault(FaultKind.ECC_UNCORRECTED, 60, errors=5, place="sram"), placements=TRAINING
    )
    before, after = watched.at(59), watched.at(61)
    for since in ("volatile", "aggregate"):
        assert grown(before, after, "gpu_health_samples", f"sram_uncorrected_{since}_total") == 5
        assert grown(before, after, "gpu_health_samples", f"ecc_uncorrected_{since}_total") == 5
        assert grown(before, after, "gpu_health_samples", f"dram_uncorrected_{since}_total") == 0
    assert row(after, "gpu_health_samples")["sram_threshold_exceeded"] is True


def test_a_row_remap_is_pending_until_the_reset_that_ends_it(start_ms: int) -> None:
    watched = Watched(
        start_ms,
        fault(FaultKind.ECC_UNCORRECTED, 50),
        fault(FaultKind.ROW_REMAP, 60, 600, rows=2),
    )
    pending, drained, after = watched.at(120), watched.at(590), watched.at(601)
    health = row(pending, "gpu_health_samples")
    assert (health["remap_pending"], health["remapped_rows_uncorrected_total"]) == (True, 2)
    assert (health["recovery_action"], health["remap_banks_high"]) == ("gpu_reset", 2)
    assert health["remap_banks_max"] == 2560 - 2
    assert not drained["process_samples"]
    health = row(after, "gpu_health_samples")
    assert (health["remap_pending"], health["remapped_rows_uncorrected_total"]) == (False, 2)
    assert health["recovery_action"] == "none"
    assert health["ecc_uncorrected_volatile_total"] == 0
    assert health["ecc_uncorrected_aggregate_total"] == 1
    assert row(after, "gpu_samples")["energy_joules_total"] < 2 * 700  # type: ignore[operator]
    assert len(after["process_samples"]) == 4


def test_another_board_has_its_own_name_and_none_of_the_troubles_of_the_one_before(
    start_ms: int,
) -> None:
    watched = Watched(
        start_ms,
        fault(FaultKind.ECC_UNCORRECTED, 50, place="sram", errors=4),
        fault(FaultKind.ROW_REMAP_FAILED, 55),
        fault(FaultKind.THERMAL_THROTTLE, 60),
        fault(FaultKind.GPU_LOST, 600),
        of_node(FaultKind.REBOOT, 900, 1200),
        fault(FaultKind.BOARD_REPLACED, 1000),
        fault(FaultKind.ECC_UNCORRECTED, 1500, errors=3),
    )
    before = watched.at(120)
    assert row(before, "gpu_health_samples")["remap_failed"] is True
    assert len(watched.at(700)["gpu_samples"]) == 3
    known = {gpu["gpu"]: gpu for gpu in watched.node.describe()["gpus"]}
    assert not watched.at(1100)
    after = watched.at(1210)
    kinds = [event["kind"] for event in after["events"]]
    assert "probe_recovered" not in kinds, "it is not the one that was lost"
    health = row(after, "gpu_health_samples")
    assert (health["remap_failed"], health["sram_threshold_exceeded"]) == (False, False)
    assert health["sram_uncorrected_aggregate_total"] == 0
    assert health["dram_corrected_aggregate_total"] <= 1
    assert row(watched.at(1400), "gpu_samples")["temperature_celsius"] < 75  # type: ignore[operator]
    last = watched.at(1510)
    assert row(last, "gpu_health_samples")["dram_uncorrected_aggregate_total"] == 3
    now = {gpu["gpu"]: gpu for gpu in watched.node.describe()["gpus"]}
    for gpu in range(4):
        is_other = gpu == 1
        assert (now[gpu]["gpu_uuid"] != known[gpu]["gpu_uuid"]) is is_other
        assert (now[gpu]["serial"] != known[gpu]["serial"]) is is_other
        assert now[gpu]["pci_bus_id"] == known[gpu]["pci_bus_id"]
    for table in ("gpu_samples", "gpu_detail_samples", "process_samples", "link_samples"):
        assert row(last, table)["gpu_uuid"] == now[1]["gpu_uuid"]


def test_an_nvlink_that_is_down_carries_nothing_and_the_others_carry_it_all(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.NVLINK_DOWN, 60, 120, link=4))
    before, down, up = watched.at(60), watched.at(119), watched.at(140)

    def link(reading: Reading, number: int) -> Row:
        return next(r for r in reading["link_samples"] if (r["gpu"], r["link"]) == (1, number))

    assert [link(r, 4)["active"] for r in (before, down, up)] == [False, False, True]
    assert link(watched.first, 4)["active"] is True
    assert link(down, 4)["tx_bytes_total"] == link(before, 4)["tx_bytes_total"]
    assert link(down, 5)["tx_bytes_total"] > link(before, 5)["tx_bytes_total"]  # type: ignore[operator]
    assert link(down, 4)["recovery_errors_total"] == 1
    active = [row(r, "gpu_detail_samples")["nvlinks_active"] for r in (before, down, up)]
    assert active == [17, 17, 18]
    for reading in (before, down, up):
        sent = sum(r["tx_bytes_total"] for r in reading["link_samples"] if r["gpu"] == 1)  # type: ignore[misc]
        assert sent == row(reading, "gpu_samples")["nvlink_tx_bytes_total"]


def test_a_flapping_nvlink_goes_down_once_a_period(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.NVLINK_DOWN, 60, 180, link=0, flap=20_000))
    readings = watched.each(55, 200, 5)
    links = [
        next(r for r in reading["link_samples"] if (r["gpu"], r["link"]) == (1, 0))
        for reading in readings
    ]
    states = [link["active"] for link in links]
    assert sum(a is True and b is False for a, b in itertools.pairwise(states)) == 6
    assert links[-1]["recovery_errors_total"] == 6
    assert states[-1] is True


def test_a_degraded_pcie_link_is_narrow_slow_and_sends_again(start_ms: int) -> None:
    watched = Watched(
        start_ms,
        fault(FaultKind.PCIE_DEGRADED, 60, 180, generation=1, width=4, replays_per_minute=30),
    )
    before, amid, after = watched.at(59), watched.at(179), watched.at(240)
    detail = row(amid, "gpu_detail_samples")
    assert (detail["pcie_generation"], detail["pcie_width"]) == (1, 4)
    assert grown(before, amid, "gpu_detail_samples", "pcie_replays_total") == 59
    most = 4 * 0.25e9
    assert detail["pcie_rx_bytes_per_second"] <= most  # type: ignore[operator]
    detail = row(after, "gpu_detail_samples")
    assert (detail["pcie_generation"], detail["pcie_width"]) == (5, 16)
    assert grown(amid, after, "gpu_detail_samples", "pcie_replays_total") <= 1


@pytest.mark.parametrize(("main", "state", "cpu"), [("spin", "R", 100), ("blocked", "D", 0)])
def test_a_hang_looks_busy_and_does_nothing_on_all_gpus_of_the_job(
    start_ms: int, main: str, state: str, cpu: float
) -> None:
    watched = Watched(start_ms, fault(FaultKind.HANG, 60, main=main))
    begun = watched.at(90)
    readings = watched.each(91, 151)
    for gpu in range(4):
        assert mean(readings, "util_percent", gpu) >= 99
        idle, limit = watched.node._devices[gpu].idle_watts, 700
        share = (mean(readings, "power_watts", gpu) - idle) / (limit - idle)
        assert share < 0.2
        detail = row(readings[-1], "gpu_detail_samples", gpu)
        assert (detail["sm_active_percent"], detail["tensor_active_percent"]) == (0, 0)
        assert grown(begun, readings[-1], "gpu_samples", "nvlink_tx_bytes_total", gpu) == 0
        process = row(readings[-1], "process_samples", gpu)
        assert process["state"] == state
        assert process["main_cpu_percent"] == pytest.approx(cpu, abs=3)
        assert process["loader_cpu_percent"] == 0
    assert grown(begun, readings[-1], "process_samples", "read_bytes_total") == 0


def test_a_straggler_is_slow_and_the_others_of_its_job_wait(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.STRAGGLER, 60, 180, clock=0.6))
    before, amid, after = watched.each(20, 60), watched.each(60, 180), watched.each(180, 220)
    assert mean(amid, "sm_clock_mhz", 1) == pytest.approx(0.6 * 1980, abs=20)
    assert all(row(r, "gpu_samples", 1)["clocks_event_reasons"] == 0x2 for r in amid)
    for gpu in (0, 2, 3):
        assert mean(amid, "sm_clock_mhz", gpu) == 1980
        assert mean(amid, "power_watts", gpu) < 0.85 * mean(before, "power_watts", gpu)
        assert mean(amid, "util_percent", gpu) >= 98
    assert mean(after, "sm_clock_mhz", 1) == 1980


def test_a_gpu_memory_leak_ends_the_job_which_comes_back_with_new_processes(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.MEMORY_LEAK, 60, 360, full_after=120_000))
    readings = watched.each(60, 180)
    used = [row(r, "gpu_samples")["memory_used_bytes"] for r in readings]
    assert used == sorted(used)  # type: ignore[type-var]
    last = row(readings[-1], "gpu_samples")
    assert last["memory_free_bytes"] < 0.02 * last["memory_total_bytes"]  # type: ignore[operator]
    away = watched.at(200)
    assert not away["process_samples"]
    assert not away["allocation_samples"]
    assert row(away, "gpu_samples")["memory_used_bytes"] == 0
    back = watched.at(245)
    before = {r["pid"] for r in readings[0]["process_samples"]}
    assert not before & {r["pid"] for r in back["process_samples"]}
    assert {r["started_at"] for r in back["process_samples"]} == {start_ms + 240_000}
    assert watched.at(370)["process_samples"][0]["started_at"] == start_ms + 240_000


def test_a_host_memory_leak_grows_to_the_limit_of_the_cgroup(start_ms: int) -> None:
    leak = fault(FaultKind.MEMORY_LEAK, 60, where="host", full_after=600_000)
    watched = Watched(start_ms, leak)
    begun, late, out = watched.at(60), watched.at(655), watched.at(665)
    process = row(late, "process_samples")
    limit = process["cgroup_memory_limit_bytes"]
    assert process["cgroup_memory_used_bytes"] == pytest.approx(limit, rel=0.02)
    assert process["rss_bytes"] > 3 * row(begun, "process_samples")["rss_bytes"]  # type: ignore[operator]
    used = [r["host_samples"][0]["memory_used_bytes"] for r in (begun, late, out)]
    assert used[1] > 3 * used[0] > 3 * used[2]  # type: ignore[operator]


def test_bad_cooling_holds_the_clock_down(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.THERMAL_THROTTLE, 60, 600))
    before, amid = watched.each(10, 60), watched.each(200, 600)
    assert sum(bool(row(r, "gpu_samples")["clocks_event_reasons"] & 0x20) for r in amid) > 120  # type: ignore[operator]
    assert mean(amid, "sm_clock_mhz") < 0.9 * mean(before, "sm_clock_mhz")
    assert grown(amid[0], amid[-1], "gpu_samples", "sw_thermal_seconds_total") > 120
    margin = row(amid[-1], "gpu_detail_samples")["temperature_margin_celsius"]
    assert margin <= 6  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "bit", "counter"),
    [
        (FaultKind.POWER_THROTTLE, 0x4, "power_violation_seconds_total"),
        (FaultKind.POWER_CAPPED, 0x4, "power_violation_seconds_total"),
        (FaultKind.POWER_BRAKE, 0x80, "hw_power_brake_seconds_total"),
    ],
)
def test_a_limit_on_power_shows_in_bit_counter_and_clock(
    start_ms: int, kind: FaultKind, bit: int, counter: str
) -> None:
    options = {"share": 0.35} if kind is FaultKind.POWER_CAPPED else {}
    watched = Watched(start_ms, fault(kind, 120, 180, **options))
    before, amid = watched.each(110, 120), watched.each(120, 180)
    after = watched.at(181)
    assert all(row(r, "gpu_samples")["clocks_event_reasons"] & bit for r in amid)  # type: ignore[operator]
    assert grown(before[-1], amid[-1], "gpu_samples", counter) == pytest.approx(60, abs=1)
    assert mean(amid, "sm_clock_mhz") < mean(before, "sm_clock_mhz")
    limit = row(amid[0], "gpu_samples")["power_limit_watts"]
    assert limit == (pytest.approx(245) if kind is FaultKind.POWER_CAPPED else 700)
    assert not row(after, "gpu_samples")["clocks_event_reasons"] & bit  # type: ignore[operator]
    assert row(after, "gpu_samples")["power_limit_watts"] == 700


def test_a_lost_gpu_has_no_rows_and_kills_its_job_until_it_is_back(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.GPU_LOST, 60, 240))
    before, lost, back = watched.at(59), watched.at(120), watched.at(241)
    for table in ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples"):
        assert {r["gpu"] for r in lost[table]} == {0, 2, 3}
        assert {r["gpu"] for r in back[table]} == {0, 1, 2, 3}
    assert not lost["process_samples"]
    assert row(lost, "gpu_samples", 0)["memory_used_bytes"] == 0
    assert len(back["process_samples"]) == 4
    joules = [row(r, "gpu_samples")["energy_joules_total"] for r in (before, back)]
    assert joules[0] > 1e6 > joules[1]  # type: ignore[operator]
    assert [r["kind"] for r in lost["events"]] == ["gpu_lost", "xid"]
    assert json.loads(str(lost["events"][1]["details"]))["xid"] == 79
    assert [r["kind"] for r in back["events"]] == ["probe_recovered"]
    assert back["events"][0]["duration_seconds"] == 180


def test_a_reboot_silences_the_node_and_mends_what_needs_one(start_ms: int) -> None:
    watched = Watched(
        start_ms,
        fault(FaultKind.GPU_LOST, 60),
        fault(FaultKind.ROW_REMAP, 60, gpu=2),
        of_node(FaultKind.REBOOT, 300, 540),
    )
    before, down, back = watched.at(299), watched.at(400), watched.at(545)
    assert down == {}
    assert {r["gpu"] for r in before["gpu_samples"]} == {0, 2, 3}
    assert {r["gpu"] for r in back["gpu_samples"]} == {0, 1, 2, 3}
    assert row(before, "gpu_health_samples", 2)["remap_pending"] is True
    assert row(back, "gpu_health_samples", 2)["remap_pending"] is False
    for table, column in (
        ("host_samples", "network_rx_bytes_total"),
        ("host_samples", "nfs_reads_total"),
        ("infiniband_samples", "tx_bytes_total"),
    ):
        assert back[table][0][column] < 1e-3 * before[table][0][column]  # type: ignore[operator]
    assert {r["started_at"] for r in back["process_samples"]} == {start_ms + 540_000}


def test_an_infiniband_port_that_is_down_says_so_and_carries_nothing(start_ms: int) -> None:
    watched = Watched(start_ms, of_node(FaultKind.INFINIBAND_DOWN, 60, 180, adapter=2))
    before, down, up = (watched.at(s)["infiniband_samples"] for s in (61, 179, 240))
    port = down[2]
    assert (port["device"], port["state"], port["physical_state"]) == ("mlx5_2", "down", "Polling")
    assert port["link_downed_total"] == 1
    assert port["tx_bytes_total"] == before[2]["tx_bytes_total"]
    assert down[3]["tx_bytes_total"] > before[3]["tx_bytes_total"]  # type: ignore[operator]
    assert (up[2]["state"], up[2]["link_downed_total"]) == ("active", 1)
    assert [r["state"] for r in down].count("active") == 3


def test_slow_nfs_shows_in_its_latency_and_starves_jobs_with_loaders(start_ms: int) -> None:
    watched = Watched(start_ms, of_node(FaultKind.NFS_SLOW, 60, 660, latency_ms=300))
    first, last = watched.at(100), watched.at(600)

    def latency(before: Row, after: Row) -> float:
        seconds = after["nfs_read_seconds_total"] - before["nfs_read_seconds_total"]  # type: ignore[operator]
        return seconds / (after["nfs_reads_total"] - before["nfs_reads_total"])  # type: ignore[operator,return-value]

    assert latency(first["host_samples"][0], last["host_samples"][0]) == pytest.approx(
        0.3, rel=0.05
    )
    assert last["host_samples"][0]["nfs_retransmissions_total"] > 50  # type: ignore[operator]
    assert row(last, "gpu_samples")["util_percent"] < 60  # type: ignore[operator]
    assert row(last, "process_samples")["loader_blocked_percent"] > 40  # type: ignore[operator]
    assert last["host_samples"][0]["disk_busy_percent"] < 20  # type: ignore[operator]
    healthy = watched.each(1000, 1060, 10)
    assert latency(healthy[0]["host_samples"][0], healthy[-1]["host_samples"][0]) < 0.002
    # A checkpoint is shorter than that.
    assert max(row(r, "gpu_samples")["util_percent"] for r in healthy) > 90  # type: ignore[type-var,operator]


def test_a_full_shm_has_nothing_left(start_ms: int) -> None:
    watched = Watched(start_ms, of_node(FaultKind.SHM_FULL, 60, 120))
    used = []
    for seconds in (50, 70, 130):
        (host,) = watched.at(seconds)["host_samples"]
        used.append(host["shm_used_bytes"] / host["shm_total_bytes"])  # type: ignore[operator]
    assert used[0] < 0.5
    assert used[1] == 1
    assert used[2] < 0.5


def test_faults_of_idle_gpus_do_not_make_them_work(start_ms: int) -> None:
    free = [Placement((gpu,), Workload.FREE) for gpu in range(2)]
    kinds = (FaultKind.HANG, FaultKind.STRAGGLER, FaultKind.POWER_THROTTLE, FaultKind.MEMORY_LEAK)
    watched = Watched(start_ms, *(fault(kind, 10) for kind in kinds), placements=free)
    sample = row(watched.at(60), "gpu_samples")
    assert (sample["util_percent"], sample["memory_used_bytes"]) == (0, 0)


def test_an_ordered_job_has_the_gpus_for_its_time_and_the_one_before_comes_back_with_new_processes(
    start_ms: int,
) -> None:
    watched = Watched(start_ms, fault(FaultKind.JOB, 60, 600, workload="idle_held"))
    before, amid, after = (watched.at(s) for s in (59, 300, 700))
    own, other, again = (row(reading, "process_samples") for reading in (before, amid, after))
    assert other["started_at"] == start_ms + 60_000
    assert other["job"] != own["job"] == again["job"]
    assert again["pid"] != own["pid"]
    assert {r["util_percent"] for r in amid["gpu_samples"]} == {0.0}
    assert row(after, "gpu_samples")["util_percent"] > 50


def test_an_unused_allocation_has_no_process_and_says_so(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.JOB, 60, workload="unused"))
    amid = watched.at(120)
    assert amid["process_samples"] == []
    assert {r["processes"] for r in amid["allocation_samples"]} == {0}


def test_locked_clocks_show_their_reason_and_hold_up_nobody(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.CLOCKS_LOCKED, 60, clock=0.5))
    amid = watched.at(120)
    assert row(amid, "gpu_samples")["clocks_event_reasons"] & 2  # type: ignore[operator]
    assert row(amid, "gpu_samples")["sm_clock_mhz"] == 990
    assert not row(amid, "gpu_samples", gpu=2)["clocks_event_reasons"] & 2  # type: ignore[operator]


def test_memory_is_left_behind_where_the_processes_are_gone(start_ms: int) -> None:
    watched = Watched(start_ms, fault(FaultKind.ORPHAN_MEMORY, 60, 600))
    amid, after = watched.at(120), watched.at(700)
    assert amid["process_samples"] == []
    assert row(amid, "gpu_samples")["memory_used_bytes"] > 30e9  # type: ignore[operator]
    assert row(amid, "gpu_samples", gpu=2)["memory_used_bytes"] == 0
    assert len(after["process_samples"]) == 4


def test_boards_say_what_else_is_broken_and_only_as_long_as_it_is(start_ms: int) -> None:
    watched = Watched(
        start_ms,
        fault(FaultKind.INFOROM_INVALID, 60, 300),
        fault(FaultKind.MEMORY_UNREPAIRABLE, 60),
        fault(FaultKind.RECOVERY, 60, 300, action="node_reboot"),
        fault(FaultKind.FABRIC_DOWN, 60, 300),
    )
    before, amid, after = (row(watched.at(s), "gpu_health_samples") for s in (30, 120, 400))
    names = ("inforom_valid", "memory_unrepairable", "recovery_action", "fabric_health")
    assert [before[name] for name in names] == [True, False, "none", "healthy"]
    assert [amid[name] for name in names] == [False, True, "node_reboot", "route_unhealthy"]
    assert [after[name] for name in names] == [True, True, "none", "healthy"]


def test_older_boards_retire_pages_and_fans_stand_still(start_ms: int) -> None:
    retired = Watched(
        start_ms, fault(FaultKind.PAGES_RETIRED, 60, pages=20), model=model_named("T4-16GB")
    )
    assert row(retired.at(120), "gpu_health_samples")["retired_pages_uncorrected_total"] == 20
    stuck = Watched(
        start_ms, fault(FaultKind.FAN_STUCK, 60, 300), model=model_named("RTX-A6000-48GB")
    )
    assert row(stuck.at(120), "gpu_detail_samples")["fan_percent"] == 0
    assert row(stuck.at(400), "gpu_detail_samples")["fan_percent"] > 0  # type: ignore[operator]
