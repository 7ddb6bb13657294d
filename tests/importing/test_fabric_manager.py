"""NVSwitch errors out of fabricmanager.log."""

import json

import pytest

from gpuwarden_importing.fabric_manager import read

LINE = "[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch {} error {} on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61\n"


def test_a_real_log_has_its_one_error(imported, data) -> None:
    found = imported(read, (data / "kernel_log" / "fabricmanager.log").read_text())
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
        read, LINE.format(word, 20034) + LINE.replace("detected NVSwitch", "failed to train")
    )
    assert [event["severity"] for event in found["events"]] == [severity]
    assert found.tally.skipped["an error of the fabric manager that is no SXid"].count == 1
