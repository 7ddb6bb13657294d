"""Rows of events: who, what, how bad and what to do, in a sentence and in columns."""

import json

import pytest

from gpuwarden_agent.events.xid_lines import FellOffBus, Xid, parse
from gpuwarden_agent.events.xid_rows import row_of, row_of_event
from gpuwarden_agent.queue.rows import impossible_columns

GPUS = {"0000:3b:00.0": (3, "GPU-3")}


def row(line: str):
    found = parse(line)
    assert found is not None
    made = row_of(found, GPUS, 41)
    assert impossible_columns("events", {**made, "ts": 1, "node": "n", "simulated": False}) == ()
    return made


def test_an_xid_says_what_happened_where_and_what_to_do() -> None:
    made = row(
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    assert made["kind"] == "xid"
    assert made["severity"] == "critical"
    assert (made["gpu"], made["gpu_uuid"]) == (3, "GPU-3")
    assert made["message"] == (
        "Xid 79 on GPU 3 (0000:3b:00.0): GPU has fallen off the bus; reboot the node;"
        " reseat or replace the GPU if it comes again"
    )
    assert json.loads(made["details"]) == {
        "xid": 79,
        "pci_bus_id": "0000:3b:00.0",
        "action": "RESTART_BM",
        "mnemonic": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "text": "GPU has fallen off the bus.",
        "kmsg_sequence": 41,
    }


def test_the_process_and_the_mig_instance_are_named() -> None:
    made = row("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 31, pid=7, name=python3, Ch 1")
    assert made["message"].startswith(
        "Xid 31 on GPU 3 (0000:3b:00.0, MIG GPU instance 5), python3 (pid 7): GPU memory page fault"
    )
    details = json.loads(made["details"])
    assert (details["pid"], details["process"], details["gpu_instance"]) == (7, "python3", 5)


def test_a_gpu_that_nobody_knows_is_named_by_its_place() -> None:
    made = row("NVRM: Xid (PCI:0000:9b:00): 48, pid=1, DBE")
    assert (made["gpu"], made["gpu_uuid"]) == (None, None)
    assert made["message"].startswith("Xid 48 on the GPU at 0000:9b:00.0, process (pid 1): ")


def test_an_nvlink_error_is_told_by_its_decoded_text() -> None:
    made = row(
        "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03"
        " (0x00086226 0x00000001 0x00000000)"
    )
    assert made["severity"] == "warning"
    assert made["message"] == (
        "Xid 149 on GPU 3 (0000:3b:00.0): NVLINK: NETIR Error, NETIR_BER_EVENT on link 3;"
        " nothing at once, check the link and its cables"
    )
    details = json.loads(made["details"])
    assert (details["unit"], details["link"], details["action"]) == ("NETIR_BER_EVENT", 3, "IGNORE")


def test_an_nvlink_error_of_no_link_is_as_bad_as_nvidia_says() -> None:
    made = row(
        "NVRM: Xid (PCI:0000:3b:00): 149, NETIR     Fatal   XC0 i0 Link -1 (0x000fe406 0x00000000 0x0)"
    )
    assert made["severity"] == "critical"
    assert "NVLINK: NETIR Error, NETIR; drain the node and reset the GPU" in made["message"]
    assert "link" not in json.loads(made["details"])


@pytest.mark.parametrize(
    ("to", "severity", "action"),
    [
        ("0x0 (None)", "info", "NONE"),
        ("0x1 (GPU Reset Required)", "critical", "RESET_GPU"),
        ("0x4 (Drain and Reset)", "critical", "DRAIN_AND_RESET"),
        ("0x9 (Something New)", "warning", "XID_154"),
    ],
)
def test_a_changed_recovery_action_is_as_bad_as_what_it_asks_for(to, severity, action) -> None:
    made = row(f"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x3 (X) to {to}")
    assert made["severity"] == severity
    assert json.loads(made["details"])["action"] == action
    assert to.partition("(")[2].rstrip(")") in made["message"]


def test_a_gpu_that_fell_off_the_bus_without_a_code_is_an_xid_79() -> None:
    made = row_of(FellOffBus("0000:3b:00.0", "NVRM: ..."), GPUS, 1)
    assert made["severity"] == "critical"
    assert json.loads(made["details"])["xid"] == 79


def test_an_xid_of_nvml_has_what_nvml_knows() -> None:
    made = row_of_event(Xid(48, "0000:3b:00.0", ""), GPUS)
    assert made["message"].startswith("Xid 48 on GPU 3 (0000:3b:00.0): Double-bit ECC error")
    assert json.loads(made["details"]) == {
        "xid": 48,
        "pci_bus_id": "0000:3b:00.0",
        "action": "WORKFLOW_XID_48",
        "mnemonic": "ROBUST_CHANNEL_GPU_ECC_DBE",
        "source": "nvml",
    }


def test_of_an_sxid_the_line_says_whether_it_is_fatal() -> None:
    fatal = row("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 27 LTSSM Fault Up")
    assert fatal["kind"] == "sxid"
    assert fatal["severity"] == "critical"
    assert fatal["message"] == (
        "SXid 20034 on NVSwitch 3 (0000:c1:00.0), link 27: LTSSM Fault Up;"
        " drain the node and reset the GPU of the link; if that fails, its GPUs and switches together"
    )
    details = json.loads(fatal["details"])
    assert (details["action"], details["mnemonic"]) == (
        "RESET_GPU",
        "NVSWITCH_ERR_HW_DLPL_LTSSM_FAULT_UP",
    )
    assert fatal["message"].endswith(f"; {details['remedy']}")
    other = row("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 27 LTSSM")
    assert other["severity"] == "warning"
    silent = row("SXid (PCI:0000:c1:00.0): 20034, LTSSM")
    assert silent["severity"] == "critical"


def test_an_sxid_that_is_not_fatal_still_has_its_action() -> None:
    made = row("SXid (PCI:0000:c1:00.0): 11004, Non-fatal, Link 36 ingress invalid ACL (First)")
    assert made["severity"] == "warning"
    assert "check the fabric manager's partitions" in made["message"]
    assert json.loads(made["details"])["action"] == "CHECK_FM_CONFIG"
    corrected = row("SXid (PCI:0000:c1:00.0): 11012, Non-fatal, Link 36 ingress header ECC")
    assert "action" not in json.loads(corrected["details"])


def test_a_text_without_end_is_cut() -> None:
    made = row("NVRM: Xid (PCI:0000:3b:00): 13, " + "x" * 9000)
    assert len(json.loads(made["details"])["text"]) == 2000
