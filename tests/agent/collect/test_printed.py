"""Values of the JSON that vendors' tools print."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.collect.printed import (
    CELSIUS,
    MIB,
    PERCENT,
    WATTS,
    amount,
    index,
    json_object,
    named,
    word,
)


@pytest.mark.parametrize(
    ("value", "units", "expected"),
    [
        ("48 %", PERCENT, 48.0),
        ("48%", PERCENT, 48.0),
        (48, PERCENT, 48.0),
        ("49152MiB", MIB, 49152 * 2.0**20),
        ("48 GiB", MIB, 48 * 2.0**30),
        (7, MIB, 7 * 2.0**20),
        ("35C", CELSIUS, 35.0),
        (" 68.94W ", WATTS, 68.94),
        ("250 mW", WATTS, 0.25),
        ("N/A", PERCENT, None),
        ("12 Mhz", PERCENT, None),
        ("-3", PERCENT, None),
        ("", PERCENT, None),
        (None, PERCENT, None),
        (True, PERCENT, None),
        ({}, PERCENT, None),
        (float("nan"), PERCENT, None),
        (10**400, PERCENT, None),
    ],
)
def test_an_amount_has_its_unit_or_none(
    value: object, units: dict[str, float], expected: float | None
) -> None:
    assert amount(value, units) == expected


def test_names_are_found_whatever_their_case_and_blanks() -> None:
    entry = {"Power Readings": {"Power Draw ": "5 W"}}
    assert named(entry, "power readings", "Power Draw") == "5 W"
    assert named(entry, "Power Readings", "Power Draw", "more") is None
    assert named(None, "x") is None


@pytest.mark.parametrize("text", ["N/A", " [n/a] ", "", "Unknown", 5, None])
def test_words_for_absent_are_no_words(text: object) -> None:
    assert word(text) is None


@pytest.mark.parametrize(
    ("value", "expected"), [("3", 3), (0, 0), ("x", None), (1.5, None), (-1, None), (1e14, None)]
)
def test_an_index_is_a_whole_number(value: object, expected: int | None) -> None:
    assert index(value) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=9,
)


@settings(max_examples=50)
@given(JSON, st.text(max_size=2))
def test_nothing_breaks_them(value: object, name: str) -> None:
    for units in (PERCENT, MIB, CELSIUS, WATTS):
        assert amount(value, units) is None or amount(value, units) >= 0
    named(value, name, name)
    word(value)
    index(value)


@pytest.mark.parametrize("text", ["", "[]", "5", "[" * 100_000, json.dumps("x")])
def test_only_an_object_is_taken(text: str) -> None:
    with pytest.raises(ValueError):
        json_object(text)
