"""A GPU's rows: units, fallbacks, what is absent, what is learned, and the ways a GPU goes wrong."""

import csv
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.agent.collect.nvidia.fake_driver import (
    H100_BUSY,
    H100_BUSY_FIELDS,
    H100_IDLE,
    H100_IDLE_FIELDS,
    L40S_BUSY,
    L40S_BUSY_FIELDS,
    MIB,
    MISSING,
    UNSUPPORTED,
    VGPU,
    VGPU_FIELDS,
    Fails,
    FakeDevice,
    FakeMigDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
from gpuwarden_agent.collect.nvidia.metrics import FIELDS
from gpuwarden_agent.collect.nvidia.timing import FIELD_ROUNDS, TRIAL_CALLS
from gpuwarden_agent.probe import ProbeError, Row

T = 1_784_016_758_000
FAST = {"gpu_samples"}


def read(device: FakeDevice, clock: ManualClock, times: int = 1) -> Row:
    probe = GpuProbe(device, clock)
    for _ in range(times):
        rows = probe.read(T, FAST)["gpu_samples"]
    assert len(rows) == 1
    return rows[0]


def test_of_a_vgpu_what_belongs_to_the_whole_gpu_is_absent(clock: ManualClock) -> None:
    device = FakeDevice(VGPU, VGPU_FIELDS)
    row = read(device, clock, times=3)
    assert {"util_percent", "memory_used_bytes"} <= row.keys()
    of_the_board = {"power_watts", "energy_joules_total", "temperature_celsius", "sm_clock_mhz"}
    assert not of_the_board & row.keys()
    probe = GpuProbe(device, clock)
    reading = probe.read(T)
    assert reading["gpu_health_samples"] == reading["link_samples"] == []
    (row,) = probe.describe()["gpus"]
    assert (row["virtualization"], row["model"]) == ("vgpu", "NVIDIA H100-20C")
    assert not probe.failed


def test_every_reading_of_a_busy_h100_is_in_the_catalogues_unit(clock: ManualClock) -> None:
    assert read(FakeDevice(H100_BUSY, H100_BUSY_FIELDS), clock) == {
        "gpu": 0,
        "gpu_uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "util_percent": 100.0,
        "memory_util_percent": 11.0,
        "encoder_util_percent": 0.0,
        "decoder_util_percent": 0.0,
        "memory_total_bytes": 81559 * MIB,
        "memory_used_bytes": 19818 * MIB,
        "memory_free_bytes": 61263 * MIB,
        "memory_reserved_bytes": 479 * MIB,
        "power_watts": 629.45,
        "power_instant_watts": 588.39,
        "power_limit_watts": 700.0,
        "energy_joules_total": 123_456.789,
        "temperature_celsius": 59.0,
        "memory_temperature_celsius": 55.0,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "clocks_event_reasons": 0,
        "power_violation_seconds_total": 0.0,
        "thermal_violation_seconds_total": 0.0,
        "sw_thermal_seconds_total": 0.0,
        "hw_thermal_seconds_total": 0.0,
        "hw_power_brake_seconds_total": 0.0,
        "pstate": 0,
        "pcie_tx_bytes_total": 352_000,
        "pcie_rx_bytes_total": 329_000,
        "nvlink_tx_bytes_total": 1_024_000,
        "nvlink_rx_bytes_total": 2_048_000,
    }


def test_an_l40s_has_neither_memory_temperature_nor_nvlink(clock: ManualClock) -> None:
    row = read(FakeDevice(L40S_BUSY, L40S_BUSY_FIELDS), clock, times=3)
    absent = {"memory_temperature_celsius", "nvlink_tx_bytes_total", "nvlink_rx_bytes_total"}
    assert not absent & row.keys()
    assert row["power_violation_seconds_total"] == pytest.approx(204.642816)
    assert (row["util_percent"], row["encoder_util_percent"]) == (9.0, 59.0)
    assert row["power_watts"] == 110.24


@pytest.mark.parametrize(
    ("name", "answers", "fields"),
    [("h100-80gb-hbm3", H100_BUSY, H100_BUSY_FIELDS), ("l40s", L40S_BUSY, L40S_BUSY_FIELDS)],
)
def test_rows_agree_with_what_nvidia_smi_printed(
    name: str, answers: dict[str, Any], fields: dict[int, Any], clock: ManualClock, captures: Path
) -> None:
    (path,) = captures.glob(f"*nvidia-{name}__*.txt")
    printed = _query_gpu_under_load(path)
    device = FakeDevice(answers, fields)
    probe = GpuProbe(device, clock)
    row = dict(probe.describe()["gpus"][0])
    for _ in range(3):
        row |= probe.read(T, FAST)["gpu_samples"][0]
    for column, header in {
        "power_limit_default_watts": "power.default_limit [W]",
        "power_limit_min_watts": "power.min_limit [W]",
        "power_limit_max_watts": "power.max_limit [W]",
        "power_limit_watts": "enforced.power.limit [W]",
        "sm_clock_max_mhz": "clocks.max.sm [MHz]",
        "memory_clock_max_mhz": "clocks.max.memory [MHz]",
        "memory_clock_mhz": "clocks.current.memory [MHz]",
        "pcie_generation_max": "pcie.link.gen.max",
        "pcie_width_max": "pcie.link.width.max",
    }.items():
        assert row[column] == pytest.approx(float(printed[header].split()[0]), abs=0.01), column
    for column in ("memory_total_bytes", "memory_reserved_bytes"):
        mib = float(printed[column.replace("_bytes", "").replace("_", ".") + " [MiB]"].split()[0])
        assert row[column] == mib * MIB
    assert row["model"] == printed["name"]
    assert row["vbios_version"] == printed["vbios_version"]
    assert printed["pci.bus_id"].lower().endswith(str(row["pci_bus_id"]))


def _query_gpu_under_load(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("timestamp, driver_version")]
    header, values = csv.reader(lines[heads[-1] : heads[-1] + 2], skipinitialspace=True)
    return dict(zip(header, values, strict=True))


def test_one_driver_call_asks_for_all_fields(clock: ManualClock) -> None:
    device = FakeDevice()
    probe = GpuProbe(device, clock)
    probe.read(T, FAST)
    device.calls.clear()
    probe.read(T, FAST)
    assert device.calls["field_values"] == 1
    assert [query.field for query in device.queries] == [each.id for each in FIELDS["gpu_samples"]]
    links = [query.scope for query in device.queries if query.field in (138, 139)]
    assert links == [0xFFFFFFFF, 0xFFFFFFFF]


@pytest.mark.parametrize(
    ("lacks", "fields", "column", "value"),
    [
        ({}, {185: UNSUPPORTED}, "power_watts", 69.85),
        ({}, {185: 0}, "power_watts", 69.85),
        ({}, {190: Fails(nvml.INVALID_ARGUMENT)}, "power_limit_watts", 700.0),
        ({}, {83: UNSUPPORTED}, "energy_joules_total", 123_456.789),
        ({"temperature_v": MISSING}, {}, "temperature_celsius", 41.0),
        ({"clocks_event_reasons": MISSING}, {}, "clocks_event_reasons", 1),
        ({"memory_v2": MISSING}, {}, "memory_used_bytes", 479 * MIB),
        (
            {"memory_v2": Fails(nvml.ARGUMENT_VERSION_MISMATCH)},
            {},
            "memory_free_bytes",
            81081 * MIB,
        ),
        ({"field_values": MISSING}, {}, "power_watts", 69.85),
    ],
)
def test_an_older_call_stands_in(
    lacks: dict[str, Any], fields: dict[int, Any], column: str, value: float, clock: ManualClock
) -> None:
    row = read(FakeDevice(H100_IDLE | lacks, H100_IDLE_FIELDS | fields), clock)
    assert row[column] == value


@pytest.mark.parametrize(
    ("lacks", "fields"),
    [({"power_usage_mw": UNSUPPORTED}, {185: UNSUPPORTED}), ({"power_usage_mw": 0}, {185: 0})],
)
def test_a_gpu_with_instant_power_only_has_that_as_its_power(
    lacks: dict[str, Any], fields: dict[int, Any], clock: ManualClock
) -> None:
    row = read(FakeDevice(H100_IDLE | lacks, H100_IDLE_FIELDS | fields | {186: 81_500}), clock)
    assert (row["power_watts"], row["power_instant_watts"]) == (81.5, 81.5)


def test_an_average_that_fails_once_is_not_replaced_by_the_instant_power(
    clock: ManualClock,
) -> None:
    device = FakeDevice(H100_IDLE, H100_IDLE_FIELDS)
    probe = GpuProbe(device, clock)
    assert probe.read(T, FAST)["gpu_samples"][0]["power_watts"] == 69.85
    device.fields[185] = Fails(nvml.UNKNOWN)
    device.answers["power_usage_mw"] = Fails(nvml.UNKNOWN)
    row = probe.read(T, FAST)["gpu_samples"][0]
    assert "power_watts" not in row and "power_instant_watts" in row


def test_what_is_not_supported_is_asked_for_again_after_ten_minutes(clock: ManualClock) -> None:
    device = FakeDevice(
        H100_IDLE | {"decoder_utilization": UNSUPPORTED}, H100_IDLE_FIELDS | {186: UNSUPPORTED}
    )
    probe = GpuProbe(device, clock)
    for _ in range(600):
        row = probe.read(T, FAST)["gpu_samples"][0]
        clock.advance(0.999)
    assert device.calls["decoder_utilization"] == 1
    assert 186 not in [query.field for query in device.queries]
    assert not {"decoder_util_percent", "power_instant_watts"} & row.keys()
    assert probe.failed == {}
    device.answers["decoder_utilization"] = 7
    device.fields[186] = 70_000
    clock.advance(1)
    row = probe.read(T, FAST)["gpu_samples"][0]
    assert (row["decoder_util_percent"], row["power_instant_watts"]) == (7.0, 70.0)


def test_a_failed_reading_is_absent_counted_and_asked_again(clock: ManualClock) -> None:
    device = FakeDevice(
        H100_IDLE | {"utilization": Fails(nvml.UNKNOWN)},
        H100_IDLE_FIELDS | {82: Fails(nvml.UNKNOWN)},
    )
    probe = GpuProbe(device, clock)
    for _ in range(3):
        row = probe.read(T, FAST)["gpu_samples"][0]
    assert not {"util_percent", "memory_util_percent", "memory_temperature_celsius"} & row.keys()
    assert row["temperature_celsius"] == 41
    assert probe.failed == {
        "nvml utilization: UNKNOWN": 3,
        "nvmlDeviceGetFieldValues(82): UNKNOWN": 3,
    }
    device.answers["utilization"] = (5, 1)
    assert probe.read(T, FAST)["gpu_samples"][0]["util_percent"] == 5


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (nvml.GPU_IS_LOST, "gpu_lost"),
        (nvml.GPU_NOT_FOUND, "gpu_lost"),
        (nvml.RESET_REQUIRED, "gpu_reset_required"),
        (nvml.DRIVER_NOT_LOADED, "driver_not_loaded"),
        (nvml.UNINITIALIZED, "driver_not_loaded"),
        (nvml.LIB_RM_VERSION_MISMATCH, "driver_mismatch"),
        (nvml.TIMEOUT, "driver_timeout"),
    ],
)
def test_the_end_of_a_gpu_is_told_by_its_kind(code: int, kind: str, clock: ManualClock) -> None:
    for device in (
        FakeDevice(H100_IDLE | {"utilization": Fails(code)}, index=3),
        FakeDevice(H100_IDLE, H100_IDLE_FIELDS | {83: Fails(code)}, index=3),
        FakeDevice(H100_IDLE | {"open": Fails(code)}, index=3),
    ):
        with pytest.raises(ProbeError, match=r"GPU 3 .*\(.+\)$") as caught:
            GpuProbe(device, clock).read(T, FAST)
        assert caught.value.kind == kind


def test_a_lost_gpu_that_comes_back_is_opened_again(clock: ManualClock) -> None:
    device = FakeDevice()
    probe = GpuProbe(device, clock)
    probe.read(T, FAST)
    device.answers["performance_state"] = Fails(nvml.GPU_IS_LOST)
    for _ in range(2):
        with pytest.raises(ProbeError):
            probe.read(T, FAST)
    device.answers["performance_state"] = 0
    assert probe.read(T, FAST)["gpu_samples"][0]["pstate"] == 0
    assert device.calls["open"] == 3


def test_a_gpu_dead_at_the_start_has_no_uuid_until_it_answers(clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE)
    device.answers["open"] = Fails(nvml.GPU_IS_LOST)
    probe = GpuProbe(device, clock)
    with pytest.raises(ProbeError):
        probe.describe()
    assert probe.gpu_uuid is None
    device.answers["open"] = None
    probe.describe()
    assert probe.gpu_uuid == device.uuid is not None


def test_a_gpu_that_fails_every_call_is_an_error_and_no_empty_row(clock: ManualClock) -> None:
    device = FakeDevice(
        dict.fromkeys(H100_IDLE, Fails(nvml.UNKNOWN)),
        dict.fromkeys(H100_IDLE_FIELDS, Fails(nvml.UNKNOWN)),
    )
    with pytest.raises(ProbeError, match="no reading at all"):
        GpuProbe(device, clock).read(T, FAST)


def test_in_mig_mode_utilization_is_absent_even_where_the_driver_says_0(clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE | {"is_mig_enabled": True})
    row = read(device, clock)
    assert not [column for column in row if "util" in column]
    assert row["power_watts"] == 69.85
    assert device.calls["utilization"] == 0


def test_mig_mode_switched_on_later_is_noticed_by_the_next_description(clock: ManualClock) -> None:
    device = FakeDevice()
    probe = GpuProbe(device, clock)
    assert "util_percent" in probe.read(T, FAST)["gpu_samples"][0]
    device.answers["is_mig_enabled"] = True
    assert probe.describe()["gpus"][0]["mig_mode"] is True
    assert "util_percent" not in probe.read(T, FAST)["gpu_samples"][0]


def test_waking_a_gpu_up_does_not_count_as_its_work(clock: ManualClock) -> None:
    device = FakeDevice(L40S_BUSY | {"utilization": (100, 9)}, L40S_BUSY_FIELDS)
    probe = GpuProbe(device, clock)
    rows = [probe.read(T, FAST)["gpu_samples"][0] for _ in range(3)]
    assert ["util_percent" in row for row in rows] == [False, False, True]
    assert all("power_watts" in row for row in rows)


def test_a_zero_that_cannot_be_is_absent(clock: ManualClock) -> None:
    zeros = {82: 0, 185: 0, 186: 0, 190: 0}
    no_power = {"power_usage_mw": 0, "enforced_power_limit_mw": 0}
    row = read(FakeDevice(H100_IDLE | no_power, H100_IDLE_FIELDS | zeros), clock)
    assert not [name for name in row if "power_" in name and name.endswith("watts")]
    assert "memory_temperature_celsius" not in row
    assert row["energy_joules_total"] > 0  # type: ignore[operator]


def test_blank_sentinels_are_absent(clock: ManualClock) -> None:
    answers = H100_IDLE | {
        "power_usage_mw": 0xFFFFFFFF,
        "performance_state": 32,
        "slowdown_celsius": 0xFFFFFFFE,
        "pcie_width_max": 0xFFFFFFFF,
        "serial": "",
    }
    device = FakeDevice(answers, H100_IDLE_FIELDS | {185: UNSUPPORTED, 186: UNSUPPORTED})
    probe = GpuProbe(device, clock)
    row = probe.read(T, FAST)["gpu_samples"][0]
    gpu = probe.describe()["gpus"][0]
    assert not {"power_watts", "pstate"} & row.keys()
    assert not {"temperature_slowdown_celsius", "pcie_width_max", "serial"} & gpu.keys()


def test_a_board_without_nvlink_has_no_nvlink_bytes_even_where_the_driver_says_0(
    clock: ManualClock,
) -> None:
    row = read(FakeDevice(H100_IDLE, H100_IDLE_FIELDS | {91: 0, 138: 0, 139: 0}), clock)
    assert not [column for column in row if column.startswith("nvlink")]


def test_counters_stay_whole_above_the_53_bits_of_a_float(clock: ManualClock) -> None:
    kib = 2**50 + 1
    row = read(FakeDevice(H100_IDLE, H100_IDLE_FIELDS | {138: kib}), clock)
    assert row["nvlink_tx_bytes_total"] == kib * 1024


def test_a_hung_gpu_does_not_hold_up_another_user_of_it(clock: ManualClock) -> None:
    returns = threading.Event()

    def hang() -> int:
        returns.wait(30)
        return 0

    device = FakeDevice(H100_IDLE | {"performance_state": hang})
    hung = threading.Thread(target=GpuProbe(device, clock).read, args=(T, FAST), daemon=True)
    hung.start()
    while not device.calls["performance_state"]:
        hung.join(0.01)
    try:
        with pytest.raises(ProbeError, match="does not return") as caught:
            GpuProbe(device, clock).read(T, FAST)
        assert caught.value.kind == "probe_stuck"
    finally:
        returns.set()
        hung.join()
    assert not device.lock.locked()


def test_every_table_that_is_due_has_its_key_and_no_other(clock: ManualClock) -> None:
    probe = GpuProbe(FakeDevice(), clock)
    assert probe.read(T).keys() == set(probe.tables)
    assert probe.read(T, FAST).keys() == FAST
    assert probe.read(T, {"link_samples", "host_samples"}).keys() == {"link_samples"}
    assert probe.read(T, ()) == {}


def test_mig_devices_are_in_each_table_beside_their_gpu(clock: ManualClock) -> None:
    part = FakeMigDevice(0, 9, 9984)
    answers = H100_IDLE | {"is_mig_enabled": True, "mig_device": {0: part}, "mig_devices_max": 1}
    device = FakeDevice(answers)
    probe = GpuProbe(device, clock)
    assert [row["gpu_uuid"] for row in probe.describe()["gpus"]] == [device.uuid, part.uuid]
    probe.read(T)
    clock.advance(10)
    reading = probe.read(T)
    for table in ("gpu_samples", "gpu_detail_samples"):
        assert [row["gpu_uuid"] for row in reading[table]] == [device.uuid, part.uuid], table
    assert [row["gpu_uuid"] for row in reading["gpu_health_samples"]] == [device.uuid]
    assert reading["link_samples"] == []
    assert "nvlinks_active" not in reading["gpu_detail_samples"][0]


def test_a_gpu_opened_again_begins_its_averages_anew(clock: ManualClock) -> None:
    device = FakeDevice()
    probe = GpuProbe(device, clock)
    probe.read(T)
    device.answers["performance_state"] = Fails(nvml.GPU_IS_LOST)
    with pytest.raises(ProbeError):
        probe.read(T)
    device.answers["performance_state"] = 0
    clock.advance(10)
    assert "sm_active_percent" not in probe.read(T)["gpu_detail_samples"][0]
    clock.advance(10)
    assert "sm_active_percent" in probe.read(T)["gpu_detail_samples"][0]
    probe.close()
    assert all(sample.is_free for sample in device.gpm_samples)


def test_a_slow_call_is_made_when_the_slower_tables_are_due(clock: ManualClock) -> None:
    def slow() -> int:
        clock.advance(0.02)
        return 41

    device = FakeDevice(H100_IDLE | {"temperature_v": slow})
    probe = GpuProbe(device, clock)
    rows = [probe.read(T, FAST)["gpu_samples"][0] for _ in range(12)]
    assert ["temperature_celsius" in row for row in rows] == [True] * 10 + [False] * 2
    assert all("power_watts" in row for row in rows)
    due = {"gpu_samples", "gpu_detail_samples"}
    assert probe.read(T, due)["gpu_samples"][0]["temperature_celsius"] == 41
    (report,) = [call for call in probe.calls() if call.reading == "temperature_v"]
    assert (report.tier_s, report.count) == (10, 11)
    assert report.p50_ms == pytest.approx(20, rel=0.01)


def test_power_comes_from_its_own_call_while_a_slow_batch_is_left_out(clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE | {"field_values": lambda: clock.advance(0.02)})
    probe = GpuProbe(device, clock)
    rows = [probe.read(T, FAST)["gpu_samples"][0] for _ in range(15)]
    tried = TRIAL_CALLS + FIELD_ROUNDS
    assert ["power_instant_watts" in row for row in rows] == [True] * tried + [False] * 2
    assert [row["power_watts"] for row in rows] == [69.85] * 15


def test_only_the_slow_field_of_a_slow_batch_is_left_out(clock: ManualClock) -> None:
    def energy() -> int:
        clock.advance(0.006)
        return 123_456_789

    device = FakeDevice(H100_IDLE, H100_IDLE_FIELDS | {83: energy})
    probe = GpuProbe(device, clock)
    rows = [probe.read(T, FAST)["gpu_samples"][0] for _ in range(16)]
    tried = TRIAL_CALLS + FIELD_ROUNDS
    assert ["energy_joules_total" in row for row in rows] == [True] * tried + [False] * 3
    assert all({"power_instant_watts", "pcie_tx_bytes_total"} <= row.keys() for row in rows)
    assert device.calls["total_energy_mj"] == 0, "a call of its own is as slow"
    due = {"gpu_samples", "gpu_detail_samples"}
    row = probe.read(T, due)["gpu_samples"][0]
    assert row["energy_joules_total"] == pytest.approx(123_456.789)
    told = {call.reading: call.tier_s for call in probe.calls()}
    assert (told["fast_fields"], told["fast_fields_slow"]) == (1, 10)
    assert (told["power_watts"], told["energy_joules_total"]) == (1, 10)
