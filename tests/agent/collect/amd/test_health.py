"""Error counters and bad pages of AMD GPUs: columns each minute, and events of what is new."""

from pathlib import Path

import pytest
from tests.agent.collect.amd.boards import MI100, MI300X, RX6700XT, T, plant, probe_of

from gpuwarden_agent.collect.amd.gpu import AmdGpuProbe
from gpuwarden_agent.collect.amd.health import error_columns
from gpuwarden_agent.events.changes import NOTHING, observe
from gpuwarden_agent.probe import Row
from gpuwarden_agent.queue.rows import impossible_columns

STAMP: Row = {"ts": T, "node": "n1", "simulated": False}


def minute(probe: AmdGpuProbe) -> tuple[list[Row], list[Row]]:
    """Rows of the whole minute: health, and events."""
    reading = probe.read(T, probe.tables)
    for table in ("gpu_health_samples", "events"):
        for row in reading[table]:
            assert impossible_columns(table, STAMP | row) == ()
    return list(reading["gpu_health_samples"]), list(reading["events"])


def test_errors_of_dram_and_sram_are_told_apart_and_links_left_out(tmp_path: Path) -> None:
    board = MI300X | {"ras/umc_err_count": "ue: 2\nce: 4\nde: 3"}
    rows, _ = minute(probe_of(plant(tmp_path, board), gpu=2))
    assert rows == [
        {
            "gpu": 2,
            "gpu_uuid": "AMD-b6f10ab8f7df5e3e",
            "dram_corrected_volatile_total": 4,
            "dram_uncorrected_volatile_total": 5,
            "sram_corrected_volatile_total": 1,
            "sram_uncorrected_volatile_total": 0,
            "ecc_corrected_volatile_total": 5,
            "ecc_uncorrected_volatile_total": 5,
            "retired_pages_uncorrected_total": 0,
            "retired_pages_pending": False,
        }
    ]


def test_a_board_without_such_counters_has_no_row(tmp_path: Path) -> None:
    assert minute(probe_of(plant(tmp_path, RX6700XT))) == ([], [])


def test_counters_that_cannot_be_asked_for_now_leave_their_sums_out() -> None:
    umc, gfx = {"ue": 0, "ce": 5}, {"ue": 0, "ce": 1}
    assert error_columns({"umc": umc, "gfx": None}).keys() == {
        "dram_corrected_volatile_total",
        "dram_uncorrected_volatile_total",
    }
    assert error_columns({"umc": None, "gfx": gfx}).keys() == {
        "sram_corrected_volatile_total",
        "sram_uncorrected_volatile_total",
    }
    assert error_columns({"xgmi_wafl": gfx, "df": gfx}) == {}


@pytest.mark.parametrize(
    ("text", "retired", "is_pending"),
    [
        ("", 0, False),
        ("0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : R\n\n", 2, False),
        ("0x00000001 : 0x00001000 : R\n0x027f5d43 : 0x00001000 : P", 1, True),
        ("0x00000001 : 0x00001000 : F", 0, True),
    ],
)
def test_retired_and_pending_pages_are_counted_apart(
    tmp_path: Path, text: str, retired: int, is_pending: bool
) -> None:
    probe = probe_of(plant(tmp_path, MI300X | {"ras/gpu_vram_bad_pages": text}))
    ((row,), _) = minute(probe)
    assert row["retired_pages_uncorrected_total"] == retired
    assert row["retired_pages_pending"] is is_pending


def test_more_bad_pages_than_fit_into_a_page_are_all_counted(tmp_path: Path) -> None:
    text = "".join(f"0x{n:08x} : 0x00001000 : R\n" for n in range(5000))
    probe = probe_of(plant(tmp_path, MI300X | {"ras/gpu_vram_bad_pages": text}))
    ((row,), _) = minute(probe)
    assert row["retired_pages_uncorrected_total"] == 5000


def test_garbage_for_pages_is_absent_and_counted(tmp_path: Path) -> None:
    probe = probe_of(plant(tmp_path, MI100 | {"ras/gpu_vram_bad_pages": "garbage"}))
    ((row,), _) = minute(probe)
    assert not [name for name in row if name.startswith("retired_")]
    assert probe.failed == {"gpu_vram_bad_pages: not a list of bad pages": 1}


def test_counters_are_read_only_when_they_are_due(tmp_path: Path) -> None:
    device = plant(tmp_path, MI300X)
    probe = probe_of(device)
    minute(probe)
    (device / "ras/umc_err_count").write_text("ue: 1\nce: 4\nde: 0\n")
    assert probe.read(T, {"gpu_samples", "gpu_detail_samples"}).keys() == {
        "gpu_samples",
        "gpu_detail_samples",
    }
    _, events = minute(probe)
    assert len(events) == 1


def test_new_hardware_errors_are_one_event(tmp_path: Path) -> None:
    device = plant(tmp_path, MI300X)
    probe = probe_of(device, gpu=2)
    _, events = minute(probe)
    assert events == []  # the four corrected ones are older than the agent
    (device / "ras/umc_err_count").write_text("ue: 1\nce: 7\nde: 0\n")
    _, events = minute(probe)
    assert events == [
        {
            "kind": "ras_errors",
            "severity": "critical",
            "message": "GPU 2 (AMD, 0000:83:00.0) counted new hardware errors: "
            "1 uncorrected in umc, 3 corrected in umc",
            "gpu": 2,
            "gpu_uuid": "AMD-b6f10ab8f7df5e3e",
            "duration_seconds": None,
            "details": '{"errors": {"umc": {"ce": 3, "ue": 1}}, "pci_bus_id": "0000:83:00.0"}',
        }
    ]
    _, events = minute(probe)
    assert events == []


def test_an_uncorrected_error_is_one_event_also_of_what_compares_samples(tmp_path: Path) -> None:
    """Also where another block cannot be asked for at first, so that the sum comes a minute later."""
    device = plant(tmp_path, MI300X)
    probe = probe_of(device)
    seen, found = NOTHING, []

    def look() -> None:
        nonlocal seen
        health, events = minute(probe)
        seen, changes = observe(seen, "gpu_health_samples", health, probe.reported_kinds)
        found.extend([*events, *changes])

    look()
    (device / "ras/umc_err_count").write_text("ue: 2\nce: 4\nde: 0\n")
    (device / "ras/gfx_err_count").write_text("Query currently inaccessible\n")
    look()
    (device / "ras/gfx_err_count").write_text("ue: 0\nce: 1\n")
    look()
    look()
    assert [(event["kind"], event["severity"]) for event in found] == [("ras_errors", "critical")]
    (device / "ras/gfx_err_count").write_text("ue: 1\nce: 1\n")
    look()
    assert [event["kind"] for event in found] == ["ras_errors"] * 2


def test_errors_that_cannot_be_asked_for_now_are_reported_later(tmp_path: Path) -> None:
    device = plant(tmp_path, MI300X)
    probe = probe_of(device)
    minute(probe)
    (device / "ras/umc_err_count").write_text("Query currently inaccessible\n")
    _, events = minute(probe)
    assert events == []
    (device / "ras/umc_err_count").write_text("ue: 0\nce: 6\nde: 0\n")
    _, (event,) = minute(probe)
    assert event["severity"] == "info"
    assert str(event["message"]).endswith("2 corrected in umc")
    assert not probe.failed
