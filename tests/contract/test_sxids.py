"""The catalogue of SXids has every code of the source, and knows which are fatal."""

import csv
from pathlib import Path

import pytest

from gpuwarden.sxids import SXIDS, sxid_info

CATALOGUE = Path(__file__).parents[3] / "shared" / "data" / "catalog" / "sxid_catalog.csv"


def test_every_code_is_there_and_fatal_where_the_source_says_so() -> None:
    if not CATALOGUE.is_file():
        pytest.skip("no catalogue of SXids at ../shared/data/catalog")
    with CATALOGUE.open() as file:
        rows = {int(row["sxid"]): row for row in csv.DictReader(file)}
    assert set(SXIDS) == set(rows)
    for code, row in rows.items():
        assert SXIDS[code].is_fatal == (row["gpud_type"] == "Fatal")
        plain = row["desc"].replace("_", " ").replace("crubmstore", "crumbstore")
        assert SXIDS[code].meaning.lower() == plain.lower()


def test_each_sxid_is_listed_once() -> None:
    assert len(SXIDS) == 92
    assert all(code == row.code for code, row in SXIDS.items())


def test_a_code_that_nobody_knows_says_so_and_is_not_called_harmless() -> None:
    assert sxid_info(99999).is_fatal is None
    assert sxid_info(99999).meaning == "not in the catalogue"
