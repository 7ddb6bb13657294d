"""The catalogue of SXids has every code of the source, and knows which are fatal."""

import csv
from pathlib import Path

import pytest
from tests.each import each

from gpuwarden.sxids import SXIDS, sxid_info

CATALOGUE = Path(__file__).parents[3] / "shared" / "data" / "catalog" / "sxid_catalog.csv"


GPUD_IS_WRONG = {10003, 12030}
"""gpud calls them not fatal; the fabric manager guide lists both as fatal."""


def test_every_code_is_there_and_fatal_where_the_source_says_so() -> None:
    if not CATALOGUE.is_file():
        pytest.skip("no catalogue of SXids at ../shared/data/catalog")
    with CATALOGUE.open() as file:
        rows = {int(row["sxid"]): row for row in csv.DictReader(file)}
    assert len(rows) == 92
    for code, row in rows.items():
        assert SXIDS[code].is_fatal == (row["gpud_type"] == "Fatal" or code in GPUD_IS_WRONG)
        plain = row["desc"].replace("_", " ").replace("crubmstore", "crumbstore")
        assert SXIDS[code].meaning.lower() == plain.lower()


@each(
    ("code", "is_fatal", "remedy"),
    [
        (11004, False, "check the fabric manager's partitions"),
        (19084, False, "reset its GPUs and switches together"),
        (20001, False, "nothing at once"),
        (20001, True, "drain the node"),
        (20034, True, "reset the GPU of the link"),
        (18001, True, "check the link and its signal"),
        (10009, True, "contact NVIDIA support"),
    ],
)
def test_the_remedy_follows_the_action_and_the_word_of_the_line(code, is_fatal, remedy) -> None:
    assert remedy in SXIDS[code].remedy(is_fatal)


def test_a_code_that_nobody_knows_says_so_and_is_not_called_harmless() -> None:
    assert sxid_info(99999).is_fatal is None
    assert sxid_info(99999).meaning == "not in the catalogue"
    assert sxid_info(99999).remedy(None).startswith("nothing at once")
