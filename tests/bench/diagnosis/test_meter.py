"""A loop's numbers about its device reach another process unchanged."""

import time
from pathlib import Path

from bench.diagnosis.devices import DeviceProbe, DeviceProcesses, SimulatedDevice
from bench.diagnosis.meter import Meter

from gpuwarden.models import model_named


def test_a_reader_sees_time_busy_while_it_goes_on_and_after_it(tmp_path: Path) -> None:
    writer, reader = Meter(tmp_path / "gpu"), Meter(tmp_path / "gpu")
    assert reader.use().busy_ns == 0
    began_ns = time.monotonic_ns()
    with writer:
        time.sleep(0.02)
        during = reader.use().busy_ns
        assert 20_000_000 <= during <= time.monotonic_ns() - began_ns
    after = reader.use().busy_ns
    assert during <= after <= time.monotonic_ns() - began_ns
    time.sleep(0.01)
    assert reader.use().busy_ns == after
    writer.worked(0.5)
    assert reader.use().busy_ns == after + 500_000_000


def test_a_loop_is_at_its_pace_after_two_steps_or_when_it_says_so(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "gpu")
    meter.stepped()
    assert not meter.use().is_ready
    meter.stepped()
    assert meter.use().is_ready and meter.use().steps == 2
    server = Meter(tmp_path / "other")
    server.ready()
    assert server.use().is_ready


def test_rows_of_a_device_have_no_utilization_until_there_are_two_readings(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "gpu")
    device = SimulatedDevice(3, "GPU-3", meter, 77)
    meter.hold(5 << 30, 0.5)
    meter.receive(1000)
    probe = DeviceProbe(device, model_named("H100-SXM-80GB"), "gpu3:healthy")
    (first,) = probe.read(0)["gpu_samples"]
    assert "util_percent" not in first and "power_watts" not in first
    with meter:
        time.sleep(0.02)
        (second,) = probe.read(1000)["gpu_samples"]
    assert 0 < float(second["util_percent"] or 0) <= 100
    assert second["pcie_rx_bytes_total"] == 1000 and second["memory_used_bytes"] == 5 << 30
    (held,) = DeviceProcesses(device).held()
    assert (held.pid, held.gpu_uuid, held.memory_bytes) == (77, "GPU-3", 5 << 30)
