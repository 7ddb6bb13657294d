"""Tables, JSON and CSV of the same rows."""

import csv
import io
import json
import re
from unicodedata import east_asian_width

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.untrusted_text import printable, without_formula
from gpuwarden_cli.output import render, without_colour

COLUMNS = ["node", "util_percent", "at"]
ROWS = [["n1", 97.5, "2026-01-01T00:00:00.500Z"], ["node-2", None, None]]


def test_a_table_lines_up_with_numbers_to_the_right() -> None:
    assert render(COLUMNS, ROWS, "table").splitlines() == [
        "node    util_percent  at",
        "──────  ────────────  ─────────────────────",
        "n1              97.5  2026-01-01 00:00:00.5",
        "node-2             –  –",
    ]


def test_texts_are_folded_to_the_terminal_the_widest_first() -> None:
    rows = [["n1", "GPU 0 has done nothing for two hours while a job holds it"], ["n2", "fine"]]
    assert render(["node", "summary"], rows, "table", width=38).splitlines() == [
        "node  summary",
        "────  ────────────────────────────────",
        "n1    GPU 0 has done nothing for two",
        "      hours while a job holds it",
        "n2    fine",
    ]


@given(
    st.lists(st.lists(st.one_of(st.none(), st.text(), st.integers()), min_size=4, max_size=4)),
    st.integers(20, 120),
)
def test_no_line_is_wider_than_the_terminal_and_no_text_is_lost(rows: list, width: int) -> None:
    text = render(["a", "node", "job", "summary"], rows, "table", width=width)
    shown = [
        sum(2 if east_asian_width(c) in "WF" else 1 for c in line) for line in text.split("\n")
    ]
    assert max(shown) <= max(width, 54)
    together = "".join(sorted(re.sub(r"\s", "", text)))
    for row in rows:
        for cell in row:
            if isinstance(cell, str):
                seen = printable(cell)
                assert all(c in together for c in re.sub(r"\s", "", seen))


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = [["critical", None, "fine"]]
    coloured = render(["severity", "value", "summary"], rows, "table", width=80)
    assert "\x1b[31mcritical\x1b[0m" in coloured
    plain = render(["severity", "value", "summary"], rows, "table")
    assert "\x1b" not in plain
    assert without_colour(coloured).split() == plain.split()
    monkeypatch.setenv("NO_COLOR", "1")
    assert render(["severity", "value", "summary"], rows, "table", width=80) == plain


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in render(["name"], [["\x1b[31mred"]], "table")


cells = st.one_of(st.none(), st.text(), st.integers(), st.floats(allow_nan=False), st.booleans())


@given(st.lists(st.tuples(cells, cells)))
def test_json_gives_back_every_value(rows) -> None:
    records = json.loads(render(["a", "b"], rows, "json"))
    assert [(r["a"], r["b"]) for r in records] == rows


@given(st.lists(st.tuples(st.text(), st.integers())))
def test_csv_gives_back_every_text_but_for_control_characters_and_formulas(rows) -> None:
    text = render(["a", "b"], rows, "csv")
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read[0] == ["a", "b"]
    told = [(printable(without_formula(a), keeps="\n\r\t"), str(b)) for a, b in rows]
    assert [tuple(r) for r in read[1:]] == told


def test_a_plan_keeps_its_lines_and_no_other_text_can_pass_for_rows() -> None:
    plan = "┌──┐\n│ 1│\n└──┘\n"
    assert render(["explain_key", "explain_value"], [["plan", plan]], "table").splitlines()[2:] == [
        "plan         ┌──┐",
        "             │ 1│",
        "             └──┘",
    ]
    assert render(["name"], [["a\nb\tc\x1b"]], "table").splitlines()[2:] == ["a b c�"]
