"""Tables, JSON and CSV of the same rows."""

import csv
import io
import json

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_cli.output import render

COLUMNS = ["node", "util_percent", "at"]
ROWS = [["n1", 97.5, "2026-01-01T00:00:00.500Z"], ["node-2", None, None]]


def test_a_table_lines_up_with_numbers_to_the_right() -> None:
    assert render(COLUMNS, ROWS, "table").splitlines() == [
        "node    util_percent  at",
        "──────  ────────────  ─────────────────────",
        "n1              97.5  2026-01-01 00:00:00.5",
        "node-2             –  –",
    ]


def test_the_last_column_is_folded_to_the_terminal() -> None:
    rows = [["n1", "GPU 0 has done nothing for two hours while a job holds it"], ["n2", "fine"]]
    assert render(["node", "summary"], rows, "table", width=40).splitlines() == [
        "node  summary",
        "────  ──────────────────────────────",
        "n1    GPU 0 has done nothing for two",
        "      hours while a job holds it",
        "n2    fine",
    ]


def test_no_rows_are_a_table_with_its_head() -> None:
    assert render(["count"], [], "table") == "count\n─────\n"


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in render(["name"], [["\x1b[31mred"]], "table")


cells = st.one_of(st.none(), st.text(), st.integers(), st.floats(allow_nan=False), st.booleans())


@given(st.lists(st.tuples(cells, cells)))
def test_json_gives_back_every_value(rows) -> None:
    records = json.loads(render(["a", "b"], rows, "json"))
    assert [(r["a"], r["b"]) for r in records] == rows


@given(st.lists(st.tuples(st.text(), st.integers())))
def test_csv_gives_back_every_text(rows) -> None:
    text = render(["a", "b"], rows, "csv")
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read[0] == ["a", "b"]
    assert [tuple(r) for r in read[1:]] == [(a, str(b)) for a, b in rows]


@given(st.lists(st.tuples(cells, cells), max_size=5))
def test_a_table_has_one_line_a_row(rows) -> None:
    assert len(render(["a", "b"], rows, "table").split("\n")) == len(rows) + 3


def test_a_plan_keeps_its_lines_and_no_other_text_can_pass_for_rows() -> None:
    plan = "┌──┐\n│ 1│\n└──┘\n"
    assert render(["explain_key", "explain_value"], [["plan", plan]], "table").splitlines()[2:] == [
        "plan         ┌──┐",
        "             │ 1│",
        "             └──┘",
    ]
    assert render(["name"], [["a\nb\tc\x1b"]], "table").splitlines()[2:] == ["a b c�"]
