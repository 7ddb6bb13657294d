"""Texts say what the row says, and "unknown" where it says nothing."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden_rules.definition.templates import TEXT_CHARS_MAX, parse


def rendered(source: str, **values: Any) -> str:
    text, problems = parse(source)
    assert not problems
    return text.render(values)


@each(
    ("source", "value", "text"),
    [
        ("{x}", "sim-1", "sim-1"),
        ("{x}", 3, "3"),
        ("{x}", 3.0, "3"),
        ("{x}", 1234.567, "1234.57"),
        ("{x}", 0.5, "0.5"),
        ("{x}", True, "yes"),
        ("{x}", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02 03:04:05 UTC"),
        ("{x}", timedelta(hours=2, minutes=5), "2 h 05 min"),
        ("{x:.0f} %", 69.6, "70 %"),
        ("{x:,.1f}", 12345.67, "12,345.7"),
        ("{x:d}", 6.7, "7"),
        ("{x:.2f}", Decimal("1.005"), "1.00"),
        ("{x:duration}", 7500, "2 h 05 min"),
        ("{x:bytes}", 36_700_000_000, "34.2 GiB"),
        ("{x:bytes}", 1023, "1023 B"),
        ("{x:bytes}", -2048, "-2.0 KiB"),
        ("{x:bytes}", 1024**4 - 1024**3, "1023.0 GiB"),
        ("{x:bytes}", 1024**4, "1.0 TiB"),
        ("{x:usd}", 2.949, "$2.95"),
        ("{x:usd}", 999.99, "$999.99"),
        ("{x:usd}", 1000, "$1,000"),
        ("{x:usd}", 1203.7, "$1,204"),
        ("{x:usd}", 0.0042, "$0.0042"),
        ("{x:usd}", 0, "$0.00"),
        ("{x:usd/h}", 2.95, "$2.95/h"),
        ("{x:GPU|GPUs}", 1, "1 GPU"),
        ("{x:GPU is|GPUs are} up", 1234.0, "1,234 GPUs are up"),
        ("{x:GPU|GPUs}", None, "an unknown number of GPUs"),
        ("{{{x}}}", 1, "{1}"),
    ],
)
def test_a_value_is_shown_in_its_format(source: str, value: Any, text: str) -> None:
    assert rendered(source, x=value) == text


@each("form", ["", ":.0f", ":duration", ":bytes", ":usd", ":usd/h"])
@each("value", [None, float("nan"), float("inf")])
def test_an_absent_value_is_unknown_in_every_format(form: str, value: Any) -> None:
    assert rendered(f"{{x{form}}}", x=value) == "unknown"


def test_white_space_of_the_file_is_folded_and_that_of_values_kept() -> None:
    assert rendered("GPU\n   {x}\n  idle ", x="a  b") == "GPU a  b idle"


def test_a_template_knows_its_source_and_where_its_fields_are() -> None:
    text, _ = parse("GPU {gpu}\n  of {node:d} ")
    assert str(text) == "GPU {gpu} of {node:d}"
    assert [(field.name, field.form, field.offset) for field in text.fields] == [
        ("gpu", "", 4),
        ("node", "d", 15),
    ]


def test_control_characters_of_a_process_name_do_not_reach_the_terminal() -> None:
    assert rendered("{x}", x="py\x1b[31m\nthon") == "py?[31m?thon"
    assert len(rendered("{x}", x="a" * 10_000)) == TEXT_CHARS_MAX


@each(
    ("source", "offset", "part"),
    [
        ("a {", 2, "a lone '{'; write it twice"),
        ("a } b", 2, "write it twice"),
        ("{}", 0, "not a field"),
        ("{a.b}", 0, "not a field"),
        ("ok {a:>10}", 3, "unknown format '>10'"),
        (
            "{a:dollars}",
            0,
            "unknown format 'dollars'; known: duration, bytes, usd, usd/h, one|many",
        ),
    ],
)
def test_a_wrong_text_is_told_where_it_is_wrong(source: str, offset: int, part: str) -> None:
    _, problems = parse(source)
    assert [offset for offset, _ in problems] == [offset]
    assert part in problems[0][1]


def test_all_problems_of_a_text_are_told() -> None:
    _, problems = parse("{ {a:b} {C}")
    assert [offset for offset, _ in problems] == [0, 2, 8]


@each("form", [":.0f", ":usd", ":duration", ":d"])
@each("value", ["seven", True, datetime(2026, 1, 1, tzinfo=UTC)])
def test_a_number_format_refuses_what_is_no_number(form: str, value: Any) -> None:
    text, _ = parse(f"{{x{form}}}")
    with pytest.raises(ValueError, match="needs a number"):
        text.render({"x": value})


def test_a_column_that_is_not_there_is_an_error_and_not_unknown() -> None:
    text, _ = parse("{x} {y}")
    with pytest.raises(LookupError, match="{y}"):
        text.render({"x": 1})


@given(st.text())
def test_any_text_is_parsed_or_refused(source: str) -> None:
    text, problems = parse(source)
    if not problems:
        text.render({field.name: None for field in text.fields})
