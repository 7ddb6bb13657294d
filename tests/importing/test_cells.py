"""Lines of CSV become columns, with any content."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_importing.cells import CellColumn, LineBlock, count_present, filled, split
from gpuwarden_importing.model import ImportTally
from gpuwarden_importing.values import converter


@given(st.lists(st.lists(st.text(max_size=5), min_size=3, max_size=3), max_size=6))
def test_a_block_gives_back_the_cells_that_were_split(rows) -> None:
    block, expected = LineBlock(3, ","), []
    for number, row in enumerate(rows):
        line = ",".join(row).replace("\n", " ").replace("\r", " ") + "\n"
        if block.add(line, number):
            expected.append([re.sub(r"[,\r\n]", " ", c).replace('"', "") for c in split(line, ",")])
    columns, numbers = block.take()
    assert len(numbers) == len(expected)
    found = [list(row) for row in zip(*(c.to_pylist() for c in columns), strict=True)]
    assert [[c.strip() for c in row] for row in found] == [[c.strip() for c in r] for r in expected]
    assert block.take()[1] == []


def test_each_text_is_converted_once() -> None:
    asked = []

    def convert(cell):
        asked.append(cell)
        return converter("percent")(cell) if "%" in cell else None

    column = CellColumn("util", convert)
    cells = pa.array(["5 %", "7 %", "5 %", "5 %", ""]).dictionary_encode()
    assert column.values(cells, range(5), ImportTally()).to_pylist() == [5.0, 7.0, 5.0, 5.0, None]
    column.values(cells, range(5), ImportTally())
    assert sorted(asked) == ["", "5 %", "7 %"]


def test_absent_values_are_filled_from_the_second_field() -> None:
    assert filled(pa.array([1, None]), pa.array([5.5, 2.5])).to_pylist() == [1.0, 2.5]
    assert filled(pa.nulls(2), pa.array([1, 2])).to_pylist() == [1, 2]
    assert filled(pa.array([1, 2]), pa.nulls(2)).to_pylist() == [1, 2]


def test_what_says_nothing_is_not_counted() -> None:
    assert count_present(pa.array(["a", "[N/A]", "", "a"]).dictionary_encode()) == 2


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ("2026-07-14 09:00:44,579, 30 %\n", ["2026-07-14 09:00:44.579", " 30 %"]),
        ("2026-07-14T09:00:44,579+02:00,30\n", ["2026-07-14T09:00:44.579+02:00", "30"]),
        ("30, 2026-07-14T09:00:44,579123Z\n", ["30", " 2026-07-14T09:00:44.579123Z"]),
        ("30, 5, 7\n", None),
    ],
)
def test_the_comma_of_a_time_separates_no_cells(line, cells) -> None:
    block = LineBlock(2, ",")
    assert block.add(line, 1) is (cells is not None)
    if cells:
        assert [column.to_pylist()[0] for column in block.take()[0]] == cells
