"""The catalogue of Xids says what NVIDIA's says, and each row says what to do."""

import csv
from pathlib import Path

import pytest

from gpuwarden.xids import ACTIONS, CRITICAL, WARNING, XIDS, xid_info

ROOT = Path(__file__).parents[2]
NOT_IN_GPUDS = {133, *range(174, 183), 185}
"""Codes that gpud's copy of NVIDIA's catalogue lacks."""
CATALOGUE = ROOT.parent / "shared" / "data" / "catalog" / "xid_catalog.csv"


@pytest.fixture
def catalogue() -> list[dict[str, str]]:
    if not CATALOGUE.is_file():
        pytest.skip("no catalogue of Xids at ../shared/data/catalog")
    with CATALOGUE.open() as file:
        return list(csv.DictReader(file))


def test_every_code_has_its_mnemonic_and_nvidias_action(catalogue) -> None:
    assert list(XIDS) == sorted({int(row["xid"]) for row in catalogue} | NOT_IN_GPUDS)
    for row in catalogue:
        ours = XIDS[int(row["xid"])]
        if row["mnemonic"]:
            assert ours.mnemonic == row["mnemonic"].split(" / ")[0]
        action = row["nvidia_immediate"]
        assert ours.action == (None if action in ("", "(not in catalogue)") else action)


def test_gpuds_wrong_severities_are_not_ours(catalogue) -> None:
    """gpud calls these fatal although NVIDIA says to ignore them or to restart the application."""
    wrong = [
        int(row["xid"]) for row in catalogue if row["note"] == "!" and row["gpud_type"] == "Fatal"
    ]
    assert 63 in wrong
    assert 94 in wrong
    assert [code for code in wrong if XIDS[code].severity == CRITICAL] == []


def test_whoever_is_told_to_reset_or_reboot_is_told_so_in_words() -> None:
    for row in XIDS.values():
        assert row.meaning and row.remedy
        assert row.action is None or row.action in ACTIONS
        if row.action in ("RESET_GPU", "RESTART_BM"):
            assert row.severity == CRITICAL
            assert "reset" in row.remedy or "reboot" in row.remedy


def test_a_code_that_nobody_knows_is_a_warning_that_says_so() -> None:
    assert xid_info(183).severity == WARNING
    assert xid_info(183).meaning == "not in the catalogue"
    assert xid_info(183).action is None
    assert "catalogue of Xids" in xid_info(183).remedy
