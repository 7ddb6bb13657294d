"""Gaudi accelerators, by a tool that prints CSV as captures of hl-smi have it, with values of ours."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.intel.hl_smi import (
    ERRORS,
    IDENTITY,
    SAMPLE,
    bus_of,
    ecc_mode,
    health,
    model_of,
    parse,
    sample,
)
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError, Reading

MIB = 1 << 20
NAMES = (*IDENTITY, *SAMPLE)
SAMPLES = """\
index, uuid, name, serial, bus_id, driver_version, module_id, utilization.aip [%], memory.total [MiB], \
memory.used [MiB], memory.free [MiB], power.draw [W], temperature.aip [C]
0, 01P0-HL2080A0-15-TNBS12-04-07-03, HL-225, AM50001234, 0000:4d:00.0, 1.22.1-97ec1a4, 2, 83 %, 98304 MiB, \
32768 MiB, 65536 MiB, 412 W, 47 C
1, 01P0-HL2080A0-15-TNBS12-09-02-01, HL-325L, N/A, 0000:4E:00.0, 1.22.1-97ec1a4, N/A, N/A, 98304 MiB, \
672 MiB, 97632 MiB, [N/A], N/A
"""
ECC = """\
index, uuid, name, serial, bus_id, driver_version, module_id, ecc.mode.current, \
ecc.errors.corrected.volatile.total, ecc.errors.uncorrected.volatile.total, \
ecc.errors.corrected.aggregate.total, ecc.errors.uncorrected.aggregate.total
0, 01P0-HL2080A0-15-TNBS12-04-07-03, HL-225, AM50001234, 0000:4d:00.0, 1.22.1-97ec1a4, 2, Enabled, 4, 1, 90, 2
1, 01P0-HL2080A0-15-TNBS12-09-02-01, HL-325L, N/A, 0000:4E:00.0, 1.22.1-97ec1a4, N/A, N/A, N/A, 0, N/A, N/A
"""
FIRST = {"gpu": 0, "gpu_uuid": "GAUDI-01P0-HL2080A0-15-TNBS12-04-07-03"}
SECOND = {"gpu": 1, "gpu_uuid": "GAUDI-01P0-HL2080A0-15-TNBS12-09-02-01"}
TOOL = """\
assert sys.argv[1] == "-Q" and sys.argv[3:] == ["-f", "csv"], sys.argv
try:
    print(said("errors") if "ecc." in sys.argv[2] else ANSWER, end="")
except FileNotFoundError:
    sys.exit("Invalid query: errors")
"""


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock)
    for index, vendor in enumerate(("0x1da3", "0x1da3", "0x1022")):
        device = tmp_path / f"sys/class/accel/accel{index}/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
    node = tmp_path / "sys/bus/pci/devices/0000:4d:00.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    made.tool("hl-smi", TOOL)
    made.answers(SAMPLES)
    made.answers(ECC, "errors")
    return made


@pytest.fixture
def probe(machine: VendorHost) -> Iterator[AcceleratorProbe]:
    (made,) = find_accelerators(machine.host, 0)
    yield made
    made.close()


def reading_of(probe: AcceleratorProbe) -> Reading:
    """A reading, once the first answer is there."""
    end = time.monotonic() + 20
    while True:
        try:
            return probe.read(0)
        except ProbeError as error:
            if "no answer yet" not in str(error) or time.monotonic() > end:
                raise


def test_devices_are_described(probe: AcceleratorProbe) -> None:
    assert (probe.named, probe.count) == ("2 Intel Gaudi accelerators", 2)
    reading_of(probe)
    described = probe.describe()
    common = {"vendor": "intel", "kind": "npu", "memory_total_bytes": 98304 * MIB}
    assert described["gpus"] == [
        FIRST
        | common
        | {
            "model": "Intel Gaudi 2 HL-225",
            "serial": "AM50001234",
            "pci_bus_id": "0000:4d:00.0",
            "module_id": 2,
            "ecc_mode": True,
            "numa_node": 1,
        },
        SECOND | common | {"model": "Intel Gaudi 3 HL-325L", "pci_bus_id": "0000:4e:00.0"},
    ]
    assert described["nodes"] == [{"driver_version": "1.22.1-97ec1a4"}]


def test_each_value_is_in_its_column(probe: AcceleratorProbe) -> None:
    reading = reading_of(probe)
    is_what_the_simulator_tells("gaudi", reading, probe.describe()["gpus"])
    assert reading["gpu_samples"] == [
        FIRST
        | {
            "util_percent": 83.0,
            "memory_total_bytes": 98304 * MIB,
            "memory_used_bytes": 32768 * MIB,
            "memory_free_bytes": 65536 * MIB,
            "power_watts": 412.0,
            "temperature_celsius": 47.0,
        },
        SECOND
        | {
            "memory_total_bytes": 98304 * MIB,
            "memory_used_bytes": 672 * MIB,
            "memory_free_bytes": 97632 * MIB,
        },
    ]
    assert reading["gpu_health_samples"] == [
        FIRST
        | {
            "ecc_corrected_volatile_total": 4,
            "ecc_uncorrected_volatile_total": 1,
            "ecc_corrected_aggregate_total": 90,
            "ecc_uncorrected_aggregate_total": 2,
        },
        SECOND | {"ecc_uncorrected_volatile_total": 0},
    ]


def test_a_release_without_error_counters_tells_the_rest(machine: VendorHost) -> None:
    (machine.folder / "errors").unlink()
    (probe,) = find_accelerators(machine.host, 0)
    reading = reading_of(probe)
    assert len(reading["gpu_samples"]) == 2
    assert reading["gpu_health_samples"] == []
    assert probe.failed == {"hl-smi failed with exit status 1: Invalid query: errors": 1}
    probe.close()


def test_an_unreadable_answer_names_the_tool(machine: VendorHost) -> None:
    machine.answers("No devices found\n")
    (probe,) = find_accelerators(machine.host, 0)
    with pytest.raises(ProbeError, match="hl-smi -Q cannot be read.*No devices found"):
        reading_of(probe)
    probe.close()


def test_units_come_from_the_value_or_the_names() -> None:
    names = ("memory.used", "memory.total", "power.draw")
    (device,) = parse("memory.used [GiB], memory.total, power.draw [W]\n2, 3, 4.5", names)
    assert device.memory("memory.used") == 2 << 30
    assert device.memory("memory.total") == 3 * MIB
    assert device.number("power.draw") == 4.5
    (odd,) = parse("memory.used\n5 XB", ("memory.used",))
    assert odd.memory("memory.used") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no line of names"),
        (SAMPLES.splitlines()[1], "no line of names"),
        (SAMPLES.splitlines()[0], "no device"),
        (SAMPLES[:-30], "values for 13 names"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text, NAMES)


def test_a_warning_before_the_names_is_passed_over() -> None:
    assert len(parse("hl-smi: driver is older than the tool\n" + SAMPLES, NAMES)) == 2


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("HL-205", "Intel Gaudi HL-205"),
        ("HL-288", "Intel Gaudi 2 HL-288"),
        ("HL-338", "Intel Gaudi 3 HL-338"),
        ("X1", "Intel Gaudi X1"),
        (None, "Intel Gaudi"),
    ],
)
def test_the_board_names_the_generation(name: str | None, model: str) -> None:
    assert model_of(name) == model


WORDS = st.sampled_from(
    [*SAMPLES.splitlines(keepends=True), ", ", "\n", '"', "12 MiB", "N/A", "²", "9" * 30, "\0"]
)


@settings(max_examples=50)
@given(st.lists(WORDS, max_size=20).map("".join) | st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    for names in (NAMES, (*IDENTITY, *ERRORS)):
        try:
            devices = parse(text, names)
        except ValueError:
            continue
        for device in devices:
            sample(device)
            health(device)
            ecc_mode(device)
            bus_of(device)
            model_of(device.text("name"))
