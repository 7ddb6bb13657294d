"""NVML's own events: Xids with their lines, other errors, and the driver's own trouble."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agent.collect.nvidia.fake_driver import Fails, FakeDevice
from tests.agent.collect.nvidia.fake_nvidia import FakeDriver

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden_agent.collect.nvidia import event_source as types
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.events import REGISTER_AGAIN_S, DriverState, NvmlProbe
from gpuwarden_agent.collect.nvidia.nvml import GpuEvent
from gpuwarden_agent.events.kinds import KINDS
from gpuwarden_agent.events.xid_ledger import XidLedger
from gpuwarden_agent.probe import ProbeError, Row
from gpuwarden_agent.queue.rows import impossible_columns

LOST = Fails(nvml.GPU_IS_LOST)


class Bench:
    """A probe over a driver with these GPUs, opened by their own probes."""

    def __init__(self, clock: ManualClock, *devices: FakeDevice, has_log: bool = False) -> None:
        for device in devices:
            device.open()
        self.clock = clock
        self.driver = FakeDriver(*devices)
        self.ledger = XidLedger(has_log=has_log)
        self.state = DriverState(driver=self.driver, devices=devices)
        self.probe = NvmlProbe(self.state, self.ledger, clock)
        self.probe.read(0)

    def tell(self, device: FakeDevice, *found: Any) -> None:
        self.driver.events[device].queue += found

    def rows(self) -> Sequence[Row]:
        rows = self.probe.read(0)["events"]
        for row in rows:
            assert row["kind"] in KINDS
            assert impossible_columns("events", {**row, "node": "n", "simulated": False}) == ()
        return rows


def xid(code: int) -> GpuEvent:
    return GpuEvent(types.XID, code)


def test_an_xid_where_there_is_no_log_is_told_with_what_is_known(clock: ManualClock) -> None:
    gpu = FakeDevice(index=3)
    bench = Bench(clock, gpu)
    bench.tell(gpu, GpuEvent(types.XID, 31, gpu_instance=5))
    (row,) = bench.rows()
    assert row["message"] == (
        "Xid 31 on GPU 3 (0000:00:09.0, MIG GPU instance 5): GPU memory page fault: the application"
        " touched an address that is not mapped; restart the application; the same GPU with several"
        " applications: run dcgmi diag -r 3"
    )
    assert (row["kind"], row["gpu"], row["gpu_uuid"]) == ("xid", 3, gpu.uuid)
    assert row["ts"] == to_ms(clock.now())
    details = json.loads(str(row["details"]))
    assert (details["xid"], details["source"], details["gpu_instance"]) == (31, "nvml", 5)
    assert not {"kmsg_sequence", "text", "pid"} & details.keys()
    assert bench.rows() == []


@pytest.mark.parametrize(
    ("number", "kind", "severity"),
    [
        (types.DOUBLE_BIT_ECC, "ecc_double_bit", "critical"),
        (types.SINGLE_BIT_ECC_STORM, "ecc_storm", "warning"),
        (types.DRAM_RETIREMENT, "dram_retirement", "warning"),
        (types.DRAM_RETIREMENT_FAILURE, "dram_retirement_failed", "critical"),
        (types.POISON, "poison", "warning"),
        (types.FATAL_POISON, "poison", "critical"),
        (types.GPU_UNAVAILABLE, "gpu_unavailable", "critical"),
        (types.RECOVERY_ACTION, "recovery_action_changed", "warning"),
        (0x10_0000, "nvml_event", "warning"),
    ],
)
def test_other_errors_are_events_of_their_own_and_those_at_once_one(
    clock: ManualClock, number: int, kind: str, severity: str
) -> None:
    gpu = FakeDevice(index=1)
    bench = Bench(clock, gpu)
    bench.tell(gpu, GpuEvent(number, 0), GpuEvent(number, 0), xid(48))
    row, an_xid = bench.rows()
    assert (row["kind"], row["severity"], row["gpu"]) == (kind, severity, 1)
    assert str(row["message"]).startswith("GPU 1: ")
    assert str(row["message"]).endswith(" (2 times)")
    assert json.loads(str(row["details"])) == {"count": 2, "nvml_event_type": number}
    assert an_xid["kind"] == "xid"


def test_every_type_that_is_asked_for_has_words(clock: ManualClock) -> None:
    gpu = FakeDevice()
    bench = Bench(clock, gpu)
    bits = [1 << bit for bit in range(64) if types.ASKED_FOR & 1 << bit]
    bench.tell(gpu, *(GpuEvent(bit, 1) for bit in bits))
    assert "nvml_event" not in {row["kind"] for row in bench.rows()}


def test_a_gpu_whose_events_fail_costs_the_others_nothing(clock: ManualClock) -> None:
    dead, well = FakeDevice(index=0), FakeDevice(index=1)
    bench = Bench(clock, dead, well)
    first = bench.driver.events[dead]
    bench.tell(dead, LOST)
    bench.tell(well, xid(13))
    assert [row["gpu"] for row in bench.rows()] == [1]
    assert first.is_closed
    assert dict(bench.probe.failed) == {"GPU 0: nvmlEventSetWait_v2: GPU_IS_LOST": 1}
    bench.driver.registering[dead] = LOST
    clock.advance(REGISTER_AGAIN_S)
    bench.tell(well, xid(13))
    assert [row["gpu"] for row in bench.rows()] == [1]
    del bench.driver.registering[dead]
    clock.advance(REGISTER_AGAIN_S)
    bench.rows()
    bench.tell(dead, xid(79))
    assert [row["gpu"] for row in bench.rows()] == [0]


def test_a_gpu_in_a_call_that_hangs_is_registered_when_it_returns(clock: ManualClock) -> None:
    hung, well = FakeDevice(index=0), FakeDevice(index=1)
    with hung.lock:
        bench = Bench(clock, hung, well)
        assert list(bench.driver.events) == [well]
        bench.tell(well, xid(13))
        assert [row["gpu"] for row in bench.rows()] == [1]
    bench.rows()
    assert list(bench.driver.events) == [well, hung]


def test_a_registered_gpu_that_hangs_still_tells(clock: ManualClock) -> None:
    gpu = FakeDevice()
    bench = Bench(clock, gpu)
    with gpu.lock:
        bench.tell(gpu, xid(119))
        assert len(bench.rows()) == 1


def test_a_gpu_is_not_opened_for_its_events(clock: ManualClock) -> None:
    bench = Bench(clock)
    unopened = FakeDevice()
    bench.state.devices = (unopened,)
    assert bench.rows() == []
    assert unopened.calls["open"] == 0
    unopened.open()
    bench.rows()
    assert list(bench.driver.events) == [unopened]


def test_a_gpu_without_events_is_asked_once(clock: ManualClock) -> None:
    gpu = FakeDevice()
    gpu.open()
    driver = FakeDriver(gpu)
    driver.registering[gpu] = None
    probe = NvmlProbe(DriverState(driver=driver, devices=[gpu]), XidLedger(has_log=False), clock)
    for _ in range(3):
        assert probe.read(0) == {"events": []}
        clock.advance(10)
    assert gpu.calls["pci_bus_id"] == 1


def test_a_driver_that_was_opened_anew_is_registered_with_anew(clock: ManualClock) -> None:
    gpu = FakeDevice()
    bench = Bench(clock, gpu)
    before = bench.driver.events[gpu]
    bench.state.generation += 1
    bench.rows()
    assert bench.driver.events[gpu] is not before
    bench.probe.close()
    assert bench.driver.events[gpu].is_closed


def test_a_driver_in_trouble_is_an_error_and_what_is_new_goes_first(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.state.trouble = ("driver_mismatch", "library and module differ")
    bench.state.news.append({"kind": "driver_opened", "message": "x"})
    assert [row["kind"] for row in bench.probe.read(0)["events"]] == ["driver_opened"]
    with pytest.raises(ProbeError, match="library and module differ") as raised:
        bench.probe.read(0)
    assert raised.value.kind == "driver_mismatch"
    bench.state.trouble = None
    assert bench.probe.read(0) == {"events": []}


def test_threads_may_tell_news_while_the_probe_reads(clock: ManualClock) -> None:
    bench = Bench(clock)
    told: list[Row] = []

    def tell() -> None:
        for number in range(500):
            bench.state.news.append({"kind": "driver_opened", "number": number})

    thread = threading.Thread(target=tell)
    thread.start()
    while thread.is_alive() or bench.state.news:
        told += bench.probe.read(0)["events"]
    assert [row["number"] for row in told] == list(range(500))
