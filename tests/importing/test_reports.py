"""Odd inputs of public bug reports, imported as a user would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
