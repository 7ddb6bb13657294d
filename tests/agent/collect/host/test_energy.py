"""Energy of CPUs and memory from RAPL, power of the node from ACPI's meter, power supplies from a BMC."""

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import SystemClock
from gpuwarden_agent.collect.host.bmc import Bmc, PowerSupplies, parse_supplies, parse_watts
from gpuwarden_agent.collect.host.energy import RaplReader, find_zones, node_watts, unwrapped
from gpuwarden_agent.collect.host.linux import LinuxReader
from gpuwarden_agent.collect.host.node import HostProbe
from gpuwarden_agent.probe import ProbeError

RANGE = 262_143_328_850
"""Of a Xeon: Documentation/power/powercap/powercap.rst."""


def zone(sys: Path, name: str, said: str, microjoules: int) -> Path:
    path = sys / "class/powercap" / name
    path.mkdir(parents=True, exist_ok=True)
    for file, text in (("name", said), ("energy_uj", microjoules), ("max_energy_range_uj", RANGE)):
        (path / file).write_text(f"{text}\n")
    return path


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "dram", 1_000_000)
    zone(tmp_path, "intel-rapl:0:1", "core", 4_000_000)
    zone(tmp_path, "intel-rapl:1", "package-1", RANGE - 1_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 9_000_000)
    return tmp_path


def test_packages_and_memory_are_counted_from_the_first_reading(sys: Path) -> None:
    reader = RaplReader(sys, Counter())
    first = {"intel-rapl:0": 0.0, "intel-rapl:1": 0.0}
    assert reader.read() == {
        "cpu_energy_joules_total": first,
        "dram_energy_joules_total": {"intel-rapl:0:0": 0.0},
    }
    zone(sys, "intel-rapl:0", "package-0", 105_000_000)
    zone(sys, "intel-rapl:1", "package-1", 49_000_000)  # it began again
    found = reader.read()
    assert found["cpu_energy_joules_total"] == {"intel-rapl:0": 100.0, "intel-rapl:1": 50.0}
    assert found["dram_energy_joules_total"] == {"intel-rapl:0:0": 0.0}


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2_000), min_size=1), st.integers(0, 1999))
def test_a_counter_that_begins_again_counts_on(steps: list[int], start: int) -> None:
    most, state, counted = 2_000, None, start
    for step in [0, *steps]:
        counted += min(step, most - 1)
        state = unwrapped(state, counted % most, most)
    assert state
    assert state[1] == counted - start


def test_half_of_a_sum_is_no_sum(sys: Path) -> None:
    (sys / "class/powercap/intel-rapl:1/energy_uj").unlink()
    failed: Counter[str] = Counter()
    reader = RaplReader(sys, failed)
    for _ in range(3):
        assert set(reader.read()) == {"dram_energy_joules_total"}
    assert failed == {"energy_uj": 1}, "it is not tried again each second"
    assert len(find_zones(sys)) == 3


@pytest.mark.parametrize("place", ["power1_average", "device/power1_average", "power1_input"])
def test_the_meter_of_the_node_is_found(tmp_path: Path, place: str) -> None:
    assert node_watts(tmp_path) is None
    for number, name, value in ((0, "coretemp", 1), (1, "power_meter", 812_500_000)):
        file = tmp_path / f"class/hwmon/hwmon{number}" / place
        file.parent.mkdir(parents=True)
        file.write_text(f"{value}\n")
        (tmp_path / f"class/hwmon/hwmon{number}/name").write_text(f"{name}\n")
    assert node_watts(tmp_path) == 812.5


POWER = """
    Instantaneous power reading:                   358 Watts
    Minimum during sampling period:                 50 Watts
    Maximum during sampling period:                506 Watts
    Average power reading over sample period:      295 Watts
    IPMI timestamp:                           Mon Mar  4 10:03:08 2024
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated
"""
SUPPLIES = """\
PS Redundancy    | 77h | ok  |  7.1 | Redundancy Lost
PS1 Status       | C8h | ok  | 10.1 | Presence detected
PS2 Status       | C9h | ok  | 10.2 | Presence detected, Power Supply AC lost
PS3 Status       | CAh | ok  | 10.3 |
PS4 Status       | CBh | ns  | 10.4 | No Reading
PS5 Status       | CCh | ok  | 10.5 | Presence detected, Failure detected, Predictive failure
"""


def test_answers_of_ipmitool_are_read() -> None:
    assert parse_watts(POWER) == 358.0
    assert parse_watts("DCMI request failed because: Invalid command (c1)") is None
    assert parse_watts(POWER.replace("358", "0")) is None, "a BMC without a meter says 0"
    assert parse_supplies(SUPPLIES) == PowerSupplies(3, 2)
    assert parse_supplies("") is None
    assert parse_supplies(SUPPLIES.splitlines()[0]) is None


@settings(max_examples=50)
@given(st.text() | st.text(alphabet="|10. Presence detected\n"))
def test_no_text_breaks_the_parsers(text: str) -> None:
    parse_watts(text)
    found = parse_supplies(text)
    assert found is None or 0 <= found.failed <= found.present


def test_the_bmc_is_asked_by_a_thread_and_the_kernels_meter_goes_before_it(tmp_path: Path) -> None:
    asked = threading.Event()

    def run(command: tuple[str, ...], limit_s: float) -> str:
        asked.wait(20)
        return POWER if "dcmi" in command else SUPPLIES

    (tmp_path / "loadavg").write_text("0.5 0.4 0.3 1/2 3\n")
    clock = SystemClock()
    bmc = Bmc("ipmitool", clock, run)
    probe = HostProbe(clock, reader=LinuxReader(clock, proc=tmp_path, sys=tmp_path), bmc=bmc)
    try:
        (row,) = probe.read(0)["host_samples"]
        assert "host_power_watts" not in row
        assert not any("ipmitool" in reason for reason in probe.failed)
        asked.set()
        row = _settled(probe)
        assert (row["host_power_watts"], row["power_supplies"], row["power_supplies_failed"]) == (
            358.0,
            3,
            2,
        )
        (tmp_path / "class/hwmon/hwmon0").mkdir(parents=True)
        (tmp_path / "class/hwmon/hwmon0/name").write_text("power_meter")
        (tmp_path / "class/hwmon/hwmon0/power1_average").write_text("400000000")
        assert _settled(probe)["host_power_watts"] == 400.0
    finally:
        probe.close()


def _settled(probe: HostProbe) -> dict[str, object]:
    """A row with all columns, once the BMC has answered."""
    for _ in range(2000):
        (row,) = probe.read(0, None)["host_samples"]
        if "power_supplies" in row:
            return dict(row)
        threading.Event().wait(0.01)
    raise AssertionError(row)


def test_a_bmc_that_fails_is_counted_with_its_words(tmp_path: Path) -> None:
    def run(command: tuple[str, ...], limit_s: float) -> str:
        raise ProbeError("ipmitool ended with exit status 1: Could not open device at /dev/ipmi0")

    bmc = Bmc("ipmitool", SystemClock(), run)
    try:
        for _ in range(2000):
            try:
                if bmc.gauges() == {}:
                    threading.Event().wait(0.01)
            except ProbeError as error:
                assert "/dev/ipmi0" in str(error)
                return
        raise AssertionError("no error came")
    finally:
        bmc.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_counters_that_may_not_be_read_are_absent(sys: Path) -> None:
    (sys / "class/powercap/intel-rapl:0/energy_uj").chmod(0)
    assert "cpu_energy_joules_total" not in RaplReader(sys, Counter()).read()
