"""Odd inputs of public bug reports, imported as a user would."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.importing.conftest import AT_MS, Imported

from gpuwarden_importing.detect import read
from gpuwarden_importing.model import Origin
from gpuwarden_importing.sources import opened


@pytest.fixture
def report(data: Path) -> Callable[..., Imported]:
    """`report("62-ecc-columns.csv")`: its rows, in the format that is recognised."""

    def run(name: str, **origin: Any) -> Imported:
        path = data / "reports" / name
        if not path.exists():
            pytest.skip(f"no {name} at ../shared/data/reports")

        def reader(_lines, origin, tally):
            return read(opened(path), path, origin, tally)[1]

        return Imported(reader, "", Origin(**{"node": "n1", "at_ms": AT_MS, **origin}))

    return run


def test_a_csv_with_ecc_columns_is_of_nvidia_and_keeps_its_rows_and_times(report) -> None:
    rows = report("62-ecc-columns.csv")
    health = "ecc_uncorrected_volatile_total"
    assert [(r["ts"], r["gpu"], r[health]) for r in rows["gpu_health_samples"]] == [
        (1788256800000, 0, 0), (1788256810000, 0, 3), (1788256820000, 1, 0),
    ]  # fmt: skip
    assert {(g["vendor"], g["model"]) for g in rows["gpus"]} == {
        ("nvidia", "NVIDIA A100-SXM4-80GB")
    }
    assert not rows.tally.skipped


def test_a_gpu_whose_memory_cell_is_words_has_its_other_readings(report) -> None:
    (row,) = report("02-gb10-table.txt")["gpu_samples"]
    names = ("temperature_celsius", "pstate", "power_watts", "util_percent", "memory_used_bytes")
    assert [row[name] for name in names] == [36, 8, 3, 0, None]


def test_rounds_that_lack_a_gpu_are_skipped_and_counted(report) -> None:
    rows = report("08-lost-gpu-shifts-lines.csv")
    of_gpu = {(r["gpu"], r["util_percent"]) for r in rows["gpu_samples"]}
    assert of_gpu == {(0, 11), (1, 22), (2, 33)}
    assert len(rows["gpu_samples"]) == 30
    ((reason, skipped),) = rows.tally.skipped.items()
    assert "fewer than 3 GPUs" in reason
    assert (skipped.count, skipped.line) == (4, 32)


@pytest.mark.parametrize("name", ["11-xml-bad-process-name.xml", "12-xml-unbalanced-clocks.xml"])
def test_a_document_that_is_not_quite_xml_keeps_its_readings(report, name: str) -> None:
    (row,) = report(name)["gpu_samples"]
    assert (row["util_percent"], row["power_watts"], row["memory_used_bytes"]) == (
        88, 311.2, 47120 * 2**20,
    )  # fmt: skip


def test_sentences_of_a_missing_driver_are_counted(report) -> None:
    rows = report("25-driver-upgrade-in-log.csv")
    first, last = (row["ts"] for row in rows["gpu_samples"])
    assert last - first == 20 * 60_000
    assert rows.tally.skipped["other text"].count == 4


def test_a_clock_that_an_apu_does_not_know_is_absent(report) -> None:
    (row,) = report("28-amd-smi-apu-65535.json")["gpu_samples"]
    assert row["util_percent"] == 42
    assert (row.get("sm_clock_mhz"), row.get("memory_clock_mhz")) == (None, None)


def test_the_hour_that_comes_twice_is_told_by_the_order_of_lines(report) -> None:
    rows = report("37-dst-night-berlin.csv", zone=ZoneInfo("Europe/Berlin"))
    times = [row["ts"] for row in rows["gpu_samples"]]
    assert [then - ts for ts, then in pairwise(times)] == [15 * 60_000] * 11
    ((reason, skipped),) = rows.tally.skipped.items()
    assert "does not exist in Europe/Berlin" in reason
    assert skipped.count == 1


def test_a_time_that_clocks_skip_is_refused(report) -> None:
    rows = report("61-time-that-does-not-exist.csv", zone=ZoneInfo("Europe/Berlin"))
    assert [row["util_percent"] for row in rows["gpu_samples"]] == [50, 51]
    assert sum(skipped.count for skipped in rows.tally.skipped.values()) == 1


def test_links_that_a_gpu_does_not_tell_are_counted(report) -> None:
    rows = report("43-b200-links-inactive.txt")
    assert len(rows["link_samples"]) == 18
    assert rows.tally.skipped["other text"].count == 1
