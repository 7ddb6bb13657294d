"""Lines of the kernel's log: real ones parse as they are meant, others are nothing."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.events.xid_lines import FellOffBus, Sxid, Xid, bus_id, parse, step

LINES = Path(__file__).parents[4] / "shared" / "data" / "kernel_log"


def lines_of(name: str) -> list[str]:
    if not (LINES / name).is_file():
        pytest.skip("no kernel logs at ../shared/data/kernel_log")
    return (LINES / name).read_text().splitlines()


def test_every_real_line_has_its_code_gpu_process_and_text() -> None:
    found = [parse(line) for line in lines_of("xid_lines_real.txt")]
    assert [f.code for f in found] == [
        *[79], *[13] * 8, 43, 119, 119, 145, 145, 149, 149, 154, 145, 149, 154, 145, 149, 154,
        145, 154,
    ]  # fmt: skip
    by_code = {f.code: f for f in reversed(found)}
    assert by_code[79] == Xid(79, "0000:05:00.0", "GPU has fallen off the bus.")
    assert by_code[43] == Xid(43, "0000:38:00.0", "Ch 00000008", 2924364, "pt_main_thread")
    assert found[-2].process == "ray::WorkerDict"
    assert found[-2].text.startswith("RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x040980c2 ")


def test_of_the_made_up_lines_only_the_malformed_are_nothing() -> None:
    nothing = [line for line in lines_of("xid_lines_synthetic.txt") if parse(line) is None]
    assert nothing == [
        "NVRM: Xid (PCI:0000:04:00): 69",
        "NVRM: Xid (...)",
        "NVRM: Xid (invalid): some error",
    ]


def test_a_whole_log_of_a_hung_gsp_has_its_timeouts_and_nothing_else() -> None:
    found = [f for line in lines_of("dmesg_xid_119.log") if (f := parse(line)) is not None]
    assert {(f.code, f.pci_bus_id) for f in found} == {(119, "0000:9b:00.0")}
    assert [f.process for f in found][:2] == ["nvidia-smi", "nvidia-smi"]
    assert len(found) == sum("NVRM: Xid" in line for line in lines_of("dmesg_xid_119.log"))


@pytest.mark.parametrize("name", ["kmsg_1.log", "kmsg_2_peermem.log", "fabricmanager.log"])
def test_a_log_without_errors_of_gpus_has_none(name: str) -> None:
    assert [line for line in lines_of(name) if parse(line) is not None] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            Xid(14, "0000:03:00.0", "Channel 00000001"),
        ),
        ("NVRM: Xid (PCI:0000:01:00): 31, pid=123", Xid(31, "0000:01:00.0", "", 123)),
        ("NVRM: Xid (PCI:0000:01:0A): 31, a", Xid(31, "0000:01:0a.0", "a")),
        ("NVRM: Xid (PCI:0000:01:00): 31, pid=XXX", Xid(31, "0000:01:00.0", "pid=XXX")),
        (
            "NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 31, pid=7, name=a b, Ch 1, intr 2",
            Xid(31, "0000:3b:00.0", "Ch 1, intr 2", 7, "a b", 5),
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout",
            Sxid(24007, "0000:c1:00.0", "sourcetrack timeout", True, 3, 46),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20034, Non-fatal, Link 27 LTSSM Fault Up",
            Sxid(20034, "0000:85:00.0", "LTSSM Fault Up", False, 0, 27),
        ),
        ("SXid (PCI:0000:00:00.0): 26008, SOE", Sxid(26008, "0000:00:00.0", "SOE")),
        (
            "SXid (PCI:0000:00:00.0): 20012, Correctable, Link 07 RX CRC",
            Sxid(20012, "0000:00:00.0", "RX CRC", is_fatal=False, link=7),
        ),
        (
            "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            FellOffBus("0000:3b:00.0", "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."),
        ),
    ],
)
def test_each_form_of_an_xid_line_is_parsed(line: str, expected: object) -> None:
    assert parse(line) == expected


def test_details_that_follow_an_sxid_are_not_a_second_one() -> None:
    assert parse("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Severity 1 Engine 46") is None
    assert parse("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Data {0x1, 0x2}") is None


SENTENCE = (
    "NVRM: The NVIDIA GPU 0000:65:00.0\n"
    "NVRM: (PCI ID: 10de:1eb8) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)


def test_a_sentence_of_several_lines_names_the_gpu_of_its_first() -> None:
    assert parse(SENTENCE) == FellOffBus("0000:65:00.0", SENTENCE)
    two = "NVRM: The NVIDIA GPU 0000:65:00.0 (PCI ID: 10de:1eb8)\nNVRM: has fallen off the bus and is not responding"
    assert parse(two) == FellOffBus("0000:65:00.0", two)
    one = two.replace("\nNVRM:", "")
    assert parse(one) == FellOffBus("0000:65:00.0", one)


def test_the_sentence_may_come_as_records_with_others_between() -> None:
    first, second, third = SENTENCE.split("\n")
    named = None
    for line in (first, "usb 1-1: new device", second, "usb 1-1: gone"):
        found, named = step(named, line)
        assert found is None
    found, named = step(named, third)
    assert found == FellOffBus("0000:65:00.0", SENTENCE)
    assert named is None


def test_the_end_of_a_sentence_without_its_start_is_nothing() -> None:
    assert parse(SENTENCE.split("\n")[2]) is None
    in_time = "\n".join([SENTENCE.split("\n")[0], *["NVRM: other"] * 2, SENTENCE.split("\n")[2]])
    assert parse(in_time) == FellOffBus("0000:65:00.0", in_time)
    late = "\n".join([SENTENCE.split("\n")[0], *["NVRM: other"] * 3, SENTENCE.split("\n")[2]])
    assert parse(late) is None


def test_a_bus_id_is_the_same_however_it_is_written() -> None:
    for text in ("0000:3b:00", "00000000:3B:00.0", "0000:3B:00.0", "000000:3b:00"):
        assert bus_id(text) == "0000:3b:00.0"
    assert bus_id("0018:01:00") == "0018:01:00.0"
    assert bus_id("00010000:01:00") == "10000:01:00.0"
    for text in ("", "3b:00.0", "GPU-1", "0000:3b:00.9", "0000:3b:00.0\n", "٠٠٠٠:3b:00"):
        assert bus_id(text) is None


PIECES = [
    "NVRM: ", "Xid (", "SXid (", "PCI:", "0000:3b:00", "): ", "79, ", "pid=", "'", "1", "name=",
    "<unknown>", ", ", "Fatal", "Link ", "The NVIDIA GPU ", "GPU ", "\n",
    "fallen off the bus and is not responding", ": GPU has fallen off the bus", "\x00", "²", "é",
]  # fmt: skip


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_no_line_is_too_odd_to_be_looked_at(line: str) -> None:
    found = parse(line)
    assert found is None or bus_id(found.pci_bus_id) == found.pci_bus_id


@settings(max_examples=50)
@given(
    code=st.integers(1, 999),
    pid=st.integers(0, 2**31),
    name=st.text("abcXYZ019_:./- ", min_size=1, max_size=15).map(str.strip).filter(bool),
    text=st.text("abc 0x:()%", max_size=40).map(str.strip),
)
def test_whatever_the_driver_fills_in_comes_out_again(code, pid, name, text) -> None:
    line = f"NVRM: Xid (PCI:0000:3b:00): {code}, pid={pid}, name={name}, {text}"
    assert parse(line) == Xid(code, "0000:3b:00.0", text, pid, name)
