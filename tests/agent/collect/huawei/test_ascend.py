"""Ascend NPUs, by a tool that prints what Huawei's command reference shows, with values of ours."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.huawei.reports import (
    die_of,
    fields_by_chip,
    fields_of,
    health,
    model_of,
    parse_table,
)
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError, Reading

MIB = 1 << 20
RULE = "+===========================+===============+=============================================+"
A2_HEAD = """\
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                          |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
"""
A2 = f"""\
{RULE}
{A2_HEAD}{RULE}
| 0     910B3               | OK            | 312.5       51                0    / 0             |
| 0                         | 0000:C1:00.0  | 87          0    / 0          41842/ 65536         |
{RULE}
| 5     910B3               | Alarm         | -           NA                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3401 / 65536         |
{RULE}
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
{RULE}
| 0       0                 | 48594         | python3.11               | 38431                   |
| 0       0                 | 48595         |                          | -                       |
{RULE}
| No running processes found in NPU 5                                                         |
{RULE}
"""
A3 = f"""\
| npu-smi 25.2.1                   Version: 25.2.1                                             |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
{RULE}
| 2     Ascend910           | OK            | 180.4       36                0    / 0             |
| 0     4                   | 0000:95:00.0  | 100         0    / 0          59807/ 65536         |
+------------------------------------------------------------------------------------------+
| 2     Ascend910           | OK            | -           35                0    / 0             |
| 1     5                   | 0000:97:00.0  | 60          0    / 0          2891 / 65536         |
{RULE}
| NPU     Chip              | Process id    | Process name  | Process memory(MB) | Process id in container |
| 2       1                 | 2217          | pytest        | 150                | NA                      |
"""
BOARD = """\
        NPU ID                         : {npu}
        Product Name                   : NA
        Serial Number                  : 10240{npu}77
        Software Version               : 24.1.rc2
        PCIe Bus Info                  : 0000:C1:00.0
        Chip Count                     : 1
"""
CHIP = """\
        NPU ID                         : {npu}
        Chip ID                        : {chip}
        Chip Name                      : 910B3
        VDie ID                        : 1A2B3C4D 0000000{npu} 4A10C8D4 14CC040A 0000000{chip}
        NDie ID                        : 27216594 20401010 4E10C8D4 14CC040A A4102003
        Firmware Version               : 7.3.0.1.231
"""
ECC = """\
        NPU ID                                   : 0
        Chip Count                               : 1

        HBM Single Bit Error Count               : 3
        HBM Double Bit Error Count               : 1
        HBM Single Bit Aggregate Total Err Cnt   : 40
        HBM Double Bit Aggregate Total Err Cnt   : 2
        HBM Single Bit Isolated Pages Count      : 5
        HBM Double Bit Isolated Pages Count      : 6
        HBM Single Bit Next-Isolated Pages Count : 0
        HBM Double Bit Next-Isolated Pages Count : 1
        Chip ID                                  : 0
"""
FIRST = {"gpu": 0, "gpu_uuid": "ASCEND-1a2b3c4d-00000000-4a10c8d4-14cc040a-00000000"}
TOOL = """\
name = "-".join(sys.argv[1:]).replace("--", "-")
try:
    print(said(name))
except FileNotFoundError:
    sys.exit("This device does not support querying " + name)
"""


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock)
    made.device("davinci0", "davinci5", "davinci_manager")
    made.tool("npu-smi", TOOL)
    for name, text in {
        "answer": "",
        "info": A2,
        "info-t-ecc-i-0": ECC,
        "info-t-board-i-0": BOARD.format(npu=0),
        "info-t-board-i-0-c-0": CHIP.format(npu=0, chip=0),
    }.items():
        made.answers(text, name)
    device = tmp_path / "sys/bus/pci/devices/0000:c1:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("6\n")
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


def described(probe: AcceleratorProbe) -> Reading:
    reading_of(probe)
    return probe.describe()


def test_chips_are_described_by_table_and_boards(probe: AcceleratorProbe) -> None:
    assert (probe.named, probe.count) == ("2 Ascend NPUs", 2)
    reading = described(probe)
    assert reading["gpus"][0] == FIRST | {
        "vendor": "huawei",
        "kind": "npu",
        "model": "Ascend 910B3",
        "serial": "10240077",
        "pci_bus_id": "0000:c1:00.0",
        "vbios_version": "7.3.0.1.231",
        "memory_total_bytes": 65536 * MIB,
        "numa_node": 6,
    }
    # The board of the other does not answer: its place is the identity.
    assert reading["gpus"][1] == {
        "gpu": 1,
        "gpu_uuid": "ASCEND-n1-0000:01:00.0",
        "vendor": "huawei",
        "kind": "npu",
        "model": "Ascend 910B3",
        "pci_bus_id": "0000:01:00.0",
        "memory_total_bytes": 65536 * MIB,
    }
    assert reading["nodes"] == [{"driver_version": "24.1.rc2"}]
    assert any("npu-smi info -t board" in reason for reason in probe.failed)


def test_each_value_of_the_table_is_in_its_column(probe: AcceleratorProbe) -> None:
    rows = reading_of(probe)["gpu_samples"]
    assert rows[0] == FIRST | {
        "util_percent": 87.0,
        "memory_total_bytes": 65536 * MIB,
        "memory_used_bytes": 41842 * MIB,
        "power_watts": 312.5,
        "temperature_celsius": 51.0,
    }
    # "-" and "NA" leave their columns empty.
    assert rows[1] == {
        "gpu": 1,
        "gpu_uuid": "ASCEND-n1-0000:01:00.0",
        "util_percent": 0.0,
        "memory_total_bytes": 65536 * MIB,
        "memory_used_bytes": 3401 * MIB,
    }


def test_memory_errors_are_in_their_columns(probe: AcceleratorProbe) -> None:
    end = time.monotonic() + 20
    while not (rows := reading_of(probe)["gpu_health_samples"]):
        assert time.monotonic() < end
    rows_of_all = {**reading_of(probe), "gpu_health_samples": rows}
    is_what_the_simulator_tells("ascend", rows_of_all, described(probe)["gpus"])
    assert rows == [
        FIRST
        | {
            "ecc_corrected_volatile_total": 3,
            "ecc_uncorrected_volatile_total": 1,
            "dram_corrected_volatile_total": 3,
            "dram_uncorrected_volatile_total": 1,
            "ecc_corrected_aggregate_total": 40,
            "ecc_uncorrected_aggregate_total": 2,
            "dram_corrected_aggregate_total": 40,
            "dram_uncorrected_aggregate_total": 2,
            "retired_pages_corrected_total": 5,
            "retired_pages_uncorrected_total": 6,
            "retired_pages_pending": True,
        }
    ]


def test_processes_are_on_their_chips(probe: AcceleratorProbe) -> None:
    devices: list[Any] = []
    probe.on_device = devices.append
    reading_of(probe)
    held = [[(each.pid, each.memory_bytes) for each in device.held()] for device in devices]
    assert held == [[(48594, 38431 * MIB), (48595, None)], []]


def test_a_module_of_two_chips_shares_its_power() -> None:
    first, second = parse_table(A3)
    assert (first.npu, first.chip, second.chip) == (2, 0, 1)
    assert [chip.sample["power_watts"] for chip in (first, second)] == [90.2, 90.2]
    assert [chip.sample["util_percent"] for chip in (first, second)] == [100.0, 60.0]
    assert [chip.sample["temperature_celsius"] for chip in (first, second)] == [36.0, 35.0]
    assert (first.processes, second.processes) == ((), ((2217, 150 * MIB),))


def test_a_chip_without_hbm_has_its_ddr() -> None:
    text = """\
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
| 6       310P3                 | OK              | NA           50                0     / 969           |
| 0       0                     | 0000:84:00.0    | 7            1839 / 21525                            |
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
"""
    (chip,) = parse_table(text)
    assert chip.sample["memory_total_bytes"] == 21525 * MIB
    assert chip.sample["memory_used_bytes"] == 1839 * MIB
    assert chip.sample["power_watts"] is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no chip"),
        ("dcmi module initialize failed. ret is -8005", "no chip"),
        (A2[: A2.index("| 5  ")], "before the processes"),
        (A2[: A2.index("| 0                         | 0000")], "no chip"),
        (A2.replace("| 5     910B3", "| x     910B3"), "does not begin"),
        (A2.replace("| 5     910B3", "| 5          "), "no name"),
        (A2.replace("| 5     910B3", "| 0     910B3"), "twice"),
    ],
)
def test_a_table_that_cannot_be_read_is_an_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_table(text)


def test_an_unreadable_table_names_the_tool(machine: VendorHost) -> None:
    machine.answers(
        "dcmi model initialized failed, because the device is used. ret is -8020", "info"
    )
    (probe,) = find_accelerators(machine.host, 0)
    with pytest.raises(
        ProbeError, match="cannot be read: it has no chip: dcmi model initialized failed"
    ):
        reading_of(probe)
    probe.close()


def test_fields_of_pages() -> None:
    two = ECC + ECC.replace(": 3\n", ": 9\n").replace(
        "ID                                  : 0", "ID : 1"
    )
    by_chip = fields_by_chip(two)
    assert [health(by_chip[chip])["ecc_corrected_volatile_total"] for chip in (0, 1)] == [3, 9]
    # Newer drivers leave the chip out where there is one.
    assert fields_by_chip("HBM Double Bit Error Count : 2\n")[0] == {
        "HBM Double Bit Error Count": "2"
    }
    assert health({}) == dict.fromkeys(health({}))
    assert die_of({"VDie ID": "NA", "Die ID": "00000000 00000000"}) is None
    assert die_of({"DDie ID": "0000000A 00000001"}) == "0000000a-00000001"
    assert fields_of("A : NA\nB : 1\nB : 2") == {"B": "1"}
    assert (
        model_of("Ascend910", {"Chip Name": "Ascend910", "NPU Name": "9392"}) == "Ascend 910_9392"
    )
    assert model_of("910B4", {}) == "Ascend 910B4"


WORDS = st.sampled_from(
    ["|", "|\n|", " : ", "\n", "0", "910B3", "0000:C1:00.0", "12 / 34", "Chip", "Chip ID", "-", "²"]
    + ["Process id", "AICore(%) HBM-Usage(MB)", "VDie ID", "9" * 30, *A2.splitlines(keepends=True)]
)


@settings(max_examples=50)
@given(st.lists(WORDS, max_size=40).map("".join) | st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    try:
        chips = parse_table(text)
    except ValueError:
        chips = []
    assert len({(chip.npu, chip.chip) for chip in chips}) == len(chips)
    for fields in (fields_of(text), *fields_by_chip(text).values()):
        health(fields)
        die_of(fields)
        model_of("910B", fields)


@given(st.integers(0, len(A2)))
def test_a_table_that_is_cut_off_gives_no_wrong_value(end: int) -> None:
    try:
        chips = parse_table(A2[:end])
    except ValueError:
        return
    assert [chip.sample for chip in chips] == [chip.sample for chip in parse_table(A2)]
