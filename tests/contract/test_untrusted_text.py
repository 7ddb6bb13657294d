"""What anybody may have written reaches terminals, logs and spreadsheets as text and nothing else."""

import json
import logging
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.logs import JsonFormatter, TextFormatter
from gpuwarden.untrusted_text import escaped_json, printable, without_formula
from gpuwarden_cli.output import render
from gpuwarden_collector.query.formats import csv_rows

ATTACKS = (
    "\x1b[2J\x1b[1;31mgone",
    "\x1b]0;title\x07",
    "\x9b31m",
    "a\rb",
    "user\u202egpj.exe",
    "\u2066x\u2069",
    "zero\u200bwidth",
    "\x7f\x08\x08",
    "\u2028next",
    "\U000e0041tag",
)
FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd|x", "@SUM(A1)", "\t=1", "\r=1", "=HYPERLINK()")


@given(st.text() | st.sampled_from(ATTACKS))
def test_a_printable_text_is_one_line_of_printable_characters(text: str) -> None:
    told = printable(text)
    assert told.isprintable()
    assert len(told) == len(text)
    assert printable(told) == told


@given(st.recursive(st.text() | st.floats(allow_nan=False), lambda c: st.lists(c, max_size=3)))
def test_escaped_json_says_the_same(value: Any) -> None:
    text = escaped_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(text) == value
    assert all(c.isprintable() or c == "\n" for c in text)


@each("attack", ATTACKS)
@each("form", ["table", "json", "ndjson", "markdown", "csv"])
def test_no_form_of_output_has_control_characters(form: str, attack: str) -> None:
    text = render(["a", "b"], [[attack, 1]], form)
    assert all(c.isprintable() or c in "\n\r\t" for c in text), text


@each("attack", ATTACKS)
@each("formatter", [TextFormatter(with_time=False), JsonFormatter()])
def test_no_line_of_a_log_has_control_characters(formatter: logging.Formatter, attack: str) -> None:
    record = logging.makeLogRecord(
        {"name": "x", "levelname": "INFO", "msg": attack, "node": attack}
    )
    assert formatter.format(record).isprintable()


@each("cell", FORMULAS)
def test_a_formula_is_a_text_in_csv(cell: str) -> None:
    assert without_formula(cell) == f"'{cell}"
    told = csv_rows(pa.table({"a": [cell], "b": ["x"]}), ("VARCHAR", "VARCHAR"))
    assert told.lstrip(b'"').startswith(b"'")
    assert render(["a"], [[cell]], "csv").splitlines()[1].lstrip('"').startswith("'")


@each("cell", ["-1", "+1.5e-3", "-.5", "a=b", "x@y", "", "1-2", "-", "@", "--port", "-p"])
def test_numbers_and_plain_texts_stay_as_they_are_in_csv(cell: str) -> None:
    assert without_formula(cell) == cell
    told = csv_rows(pa.table({"a": [cell], "b": ["x"]}), ("VARCHAR", "VARCHAR"))
    assert told == f"{cell},x\n".encode()


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=8))
def test_both_writers_of_csv_agree_about_formulas(cells: list[str]) -> None:
    told = csv_rows(pa.table({"a": cells, "b": ["x"] * len(cells)}), ("VARCHAR", "VARCHAR"))
    for cell in cells:
        quoted = without_formula(cell).replace('"', '""')
        assert quoted.encode() in told
