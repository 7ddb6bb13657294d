"""Xids out of the kernel's log, however it was kept."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_importing.kernel_log import is_kernel_log, read, read_fabric_manager
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name=python3, GPU has fallen off the bus."
AT = 1740327858000


@pytest.mark.parametrize(
    ("line", "ts", "node"),
    [
        (f"[Sun Feb 23 16:24:18 2025] {XID}", AT, "n1"),
        (f"kern  :err   : [Sun Feb 23 16:24:18 2025] {XID}", AT, "n1"),
        (f"kern  :err   : 2025-02-23T16:24:18,250000+00:00 {XID}", AT + 250, "n1"),
        (f"2025-02-23T16:24:18+0000 gpu-07 kernel: {XID}", AT, "gpu-07"),
        (f"2025-02-23T16:24:18.5+00:00 gpu-07 kernel: [   12.345678] {XID}", AT + 500, "gpu-07"),
        (f"Sun 2025-02-23 16:24:18 UTC gpu-07 kernel: {XID}", AT, "gpu-07"),
        (f"Feb 23 16:24:18 gpu-07 kernel: {XID}", AT, "gpu-07"),
        (json.dumps({"__REALTIME_TIMESTAMP": f"{AT}000", "_HOSTNAME": "gpu-07", "MESSAGE": XID}), AT, "gpu-07"),
    ],
)  # fmt: skip
def test_each_way_to_keep_the_log_gives_the_same_event(imported, line, ts, node) -> None:
    chosen = None if node != "n1" else "n1"
    (event,) = imported(read, line + "\n", node=chosen, at_ms=AT + 86_400_000)["events"]
    assert (event["ts"], event["node"], event["kind"]) == (ts, node, "xid")
    assert json.loads(event["details"])["xid"] == 79
    assert json.loads(event["details"])["process"] == "python3"


@pytest.mark.parametrize(
    ("first", "last"),
    [(f"[  100.000000] {XID}\n", "[  160.500000] usb 1-1: new device\n"),
     (f"3,10,100000000,-;{XID}\n", "6,11,160500000,-;usb 1-1: new device\n")],
)  # fmt: skip
def test_times_since_boot_count_back_from_the_last_line(imported, first, last) -> None:
    found = imported(read, first + last)
    assert found["events"][0]["ts"] == 1_780_000_000_000 - 60_500
    assert any("count from boot" in note for note in found.tally.notes)


def test_one_fall_off_the_bus_in_two_ways_is_one_event(imported) -> None:
    words = "[  100.000001] NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.\n"
    found = imported(read, f"[  100.000000] {XID}\n" + words)
    assert len(found["events"]) == 1


def test_the_gpu_is_named_where_the_log_names_it(imported, data) -> None:
    found = imported(read, (data / "kernel_log" / "dmesg_xid_119.log").read_text())
    assert {e["gpu_uuid"] for e in found["events"]} == {"GPU-509665ad-b600-ac93-3616-d754b23d636d"}
    assert [e["ts"] for e in found["events"]][:2] == [AT, AT + 6000]
    assert len(found["events"]) == 5


def test_xids_of_two_gpus_that_the_log_does_not_name_are_of_two_gpus(imported) -> None:
    other = XID.replace("9b", "3b")
    found = imported(read, f"[  100.000000] {XID}\n[  100.500000] {other}\n")
    assert [event["gpu_uuid"] for event in found["events"]] == [
        "pci-0000:9b:00.0@n1",
        "pci-0000:3b:00.0@n1",
    ]


def test_without_a_node_the_call_is_wrong(imported) -> None:
    with pytest.raises(UnreadableError, match="--node"):
        imported(read, f"[Sun Feb 23 16:24:18 2025] {XID}\n", node=None)


def test_a_log_is_known_by_its_lines() -> None:
    assert is_kernel_log([XID])
    assert is_kernel_log(["6,3964,206764307,-;nvidia-nvswitch2: open (major=510)"])
    assert is_kernel_log(["[    0.000000] Linux version 6.1"])
    assert not is_kernel_log(["MIT License", "", "Copyright"])


@given(st.lists(st.sampled_from([XID, "[  1.000000] ", "[Sun Feb 23 16:24:18 2025] ", "{", "}", "\n", "SXid (",
                                 "6,1,2,-;", '{"MESSAGE": "NVRM"}', "NVRM: ", " kernel: ", "é\x00"]), max_size=25))  # fmt: skip
def test_rubbish_in_a_kernel_log_raises_nothing(pieces) -> None:
    lines = "".join(pieces).splitlines(keepends=True)
    list(read(iter(lines), Origin(node="n1", at_ms=AT), ImportTally()))
    is_kernel_log(lines)


FABRIC_LINE = "[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch {} error {} on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61\n"


def test_a_real_log_has_its_one_error(imported, data) -> None:
    found = imported(read_fabric_manager, (data / "kernel_log" / "fabricmanager.log").read_text())
    (event,) = found["events"]
    assert (event["ts"], event["kind"], event["severity"]) == (1740669002000, "sxid", "warning")
    details = json.loads(event["details"])
    assert (details["sxid"], details["pci_bus_id"], details["switch"], details["link"]) == (
        12028,
        "0000:86:00.0",
        3,
        61,
    )
    assert details["source"] == "fabric manager"


@pytest.mark.parametrize(("word", "severity"), [("fatal", "critical"), ("non-fatal", "warning")])
def test_an_error_is_as_bad_as_the_line_says(imported, word, severity) -> None:
    found = imported(
        read_fabric_manager,
        FABRIC_LINE.format(word, 20034)
        + FABRIC_LINE.replace("detected NVSwitch", "failed to train"),
    )
    assert [event["severity"] for event in found["events"]] == [severity]
    assert found.tally.ignored["an error of the fabric manager without an SXid"].count == 1
