"""`dmon`, `pmon` and `dcgmi dmon`: columns below a line with `#`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.importing.conftest import CAPTURES

from gpuwarden_importing.detect import format_of
from gpuwarden_importing.model import ImportTally, Origin
from gpuwarden_importing.monitor import read

END = 1_780_000_000_000


@pytest.mark.parametrize("machine", CAPTURES)
def test_captures_are_read_round_by_round(imported, capture, machine: str) -> None:
    dmon = imported(read, capture(machine, "load", "nvidia-smi dmon").partition("####")[0])
    assert not dmon.tally.skipped and not dmon.tally.unmapped
    assert [r["ts"] for r in dmon["gpu_samples"]] == [END - 1000 * n for n in (4, 3, 2, 1, 0)]
    assert all(row["power_watts"] > 90 for row in dmon["gpu_samples"])
    text = capture(machine, "load", "nvidia-smi pmon")
    pmon = imported(read, text)
    assert len(pmon["process_samples"]) == sum(l.strip()[:1].isdecimal() for l in text.splitlines())
    assert len({row["ts"] for row in pmon["process_samples"]}) == 5
    assert not pmon.tally.skipped


TEXTS = [
    (
        "times, as with -o DT",
        """\
#Date       Time        gpu    pwr   sm  fb  rxpci
#YYYYMMDD   HH:MM:SS    Idx   W   %  MB  MB/s
 20260714   09:00:44      0     69    5  10  7
 20260714   09:00:44      1      -    6  20  -
""",
        [(1784019644000, 0, 69.0, 5.0, 10 * 2**20), (1784019644000, 1, None, 6.0, 20 * 2**20)],
        {},
    ),
    (
        "the header comes again, and two GPUs",
        "# gpu pwr sm fb\n# Idx W % MB\n0 1 2 3\n1 4 5 6\n# gpu pwr sm fb\n# Idx W % MB\n0 7 8 9\n1 1 1 1\n",
        [(END - 1000, 0, 1.0, 2.0, 3 * 2**20), (END - 1000, 1, 4.0, 5.0, 6 * 2**20),
         (END, 0, 7.0, 8.0, 9 * 2**20), (END, 1, 1.0, 1.0, 2**20)],
        {},
    ),
    (
        "dcgmi",
        """\
#Entity   POWER  GPUTL  FBUSD  XYZZY
ID
GPU 0  1.0  2  3  4
GPU 1  N/A  2  3  N/A
GPU-I 0  1 1 1 1
GPU 0  5.0  2  3  4
""",
        [(END - 1000, 0, 1.0, 2.0, 3 * 2**20), (END - 1000, 1, None, 2.0, 3 * 2**20), (END, 0, 5.0, 2.0, 3 * 2**20)],
        {"xyzzy": 2},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rows", "unmapped"), [t[1:] for t in TEXTS], ids=[t[0] for t in TEXTS]
)
def test_each_form_gives_its_rows(imported, text, rows, unmapped) -> None:
    found = imported(read, text)
    names = ("ts", "gpu", "power_watts", "util_percent", "memory_used_bytes")
    assert [tuple(row[name] for name in names) for row in found["gpu_samples"]] == rows
    assert {row["gpu_uuid"] for row in found["gpus"]} == {f"gpu-{row[1]}@n1" for row in rows}
    assert dict(found.tally.unmapped) == unmapped


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("# gpu  rxpci  txpci \n# Idx   MB/s   MB/s \n    0     60     13 \n    0      -      0 \n", [END - 1000, END]),
        (("#Date       Time        gpu  rxpci  txpci \n#YYYYMMDD   HH:MM:SS    Idx   MB/s   MB/s \n"
         " 20260714   09:00:44      0     60     13 \n 20260714   09:00:45      0      -      0 \n"),
         [1784019644000, 1784019645000]),
    ],
)  # fmt: skip
def test_pcie_throughput_is_a_rate_in_bytes(imported, text: str, times: list[int]) -> None:
    assert format_of(text.splitlines(), Origin(node="n1")) == "dmon or pmon"
    found = imported(read, text)
    assert [
        (row["ts"], row["pcie_rx_bytes_per_second"], row["pcie_tx_bytes_per_second"])
        for row in found["gpu_detail_samples"]
    ] == [(times[0], 60 * 2**20, 13 * 2**20), (times[1], None, 0)]
    assert not found.tally.skipped and not found.tally.unmapped
    assert any("20 ms" in note for note in found.tally.notes)


GPM = """\
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk      gract     smutil      smocc    intutil     mmaact       dram       fp32 
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz      GPM:%      GPM:%      GPM:%      GPM:%      GPM:%      GPM:%      GPM:% 
    0    696     67     57     99     23      0      0      0      0   3201   1395          -          -          -          -          -          -          - 
    0    698     64     58    100     20      0      0      0      0   3201   1515         82         76         11          1         73         14          0 
"""


def test_metrics_of_gpm_are_activities(imported) -> None:
    """As an H200 with driver 580.159 printed them under a matrix product."""
    assert format_of(GPM.splitlines(), Origin(node="n1")) == "dmon or pmon"
    found = imported(read, GPM)
    assert not found.tally.skipped and not found.tally.unmapped
    row = found["gpu_detail_samples"][-1]
    assert [row[f"{name}_percent"] for name in (
        "graphics_active", "sm_active", "sm_occupancy", "integer_active", "tensor_active", "dram_active", "fp32_active"
    )] == [82, 76, 11, 1, 73, 14, 0]  # fmt: skip
    assert found["gpu_detail_samples"][0].get("sm_active_percent") is None


def test_rounds_with_times_are_those_that_a_driver_prints(imported) -> None:
    """As driver 580.159 printed `pmon -s um -o DT`: a second without a line, and a narrow date."""
    found = imported(
        read,
        "#Date        Time         gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command \n"
        "#YYYYMMDD    HH:MM:SS     Idx           #    C/G      %      %      %      %      %      %     MB     MB    name \n"
        " 20261126    15:56:34       0       2522     C     91     21      -      -      -      -   2084      0    python3        \n"
        " 20261126    15:56:36       0       2522     C     99     23      -      -      -      -   2084      0    python3        \n",
    )
    assert [
        (
            row["ts"],
            row["pid"],
            row["sm_util_percent"],
            row["gpu_memory_bytes"],
            row["process_name"],
        )
        for row in found["process_samples"]
    ] == [
        (1795708594000, 2522, 91, 2084 * 2**20, "python3"),
        (1795708596000, 2522, 99, 2084 * 2**20, "python3"),
    ]
    assert found.tally.unmapped == {"mem": 2, "ccpm": 2}


def test_ratios_of_dcgmi_are_percent_and_processes_may_have_blanks(imported) -> None:
    found = imported(read, "#Entity  SMACT  DRAMA\nID\nGPU 3  0.25  0.5\n")
    (row,) = found["gpu_detail_samples"]
    assert (row["gpu"], row["sm_active_percent"], row["dram_active_percent"]) == (3, 25.0, 50.0)
    found = imported(
        read,
        '# gpu pid type sm command\n# Idx # C/G % name\n 0 7 C 5 My "App", v.exe\n 0 - - - -\n 1 7 C+G - x\n',
    )
    assert [
        (r["gpu"], r["pid"], r["process_type"], r["process_name"]) for r in found["process_samples"]
    ] == [
        (0, 7, "compute", 'My "App", v.exe'),
        (1, 7, "compute", "x"),
    ]


@given(st.lists(st.sampled_from(["# gpu pwr sm\n", "# Idx W %\n", "0 1 2\n", "1 - -\n", "#Entity POWER\n", "GPU 0 5\n", "GPU 0\n",
    "Switch 1 5\n", "# gpu pid sm command\n", "0 - - -\n", "x y z\n", '0 " 5\n', "#Date Time gpu pwr\n", "20260714 09:00:44 0 5\n",
    "9 99:99 0 5\n", "é\x00\n"]), max_size=25))  # fmt: skip
def test_rubbish_of_dmon_or_pmon_raises_nothing(pieces: list[str]) -> None:
    list(
        read(
            iter("".join(pieces).splitlines(keepends=True)),
            Origin(node="n1", at_ms=END),
            ImportTally(),
        )
    )
