"""Complaints about YAML name the line and the column, and there is one for each mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_rules.definition.yaml_positions import YamlReader


def reader_of(text: str) -> YamlReader:
    return YamlReader("f.yaml", text)


@pytest.mark.parametrize(
    ("text", "where"),
    [("a: [1,", (1, 7)), ("a: 1\n b: 2", (2, 3)), ("", (1, 1)), ("a: 1\n---\nb: 2", (2, 1))],
)
def test_yaml_that_cannot_be_read_is_told_with_its_place(text: str, where: tuple[int, int]) -> None:
    reader = reader_of(text)
    assert reader.root() is None
    (problem,) = reader.problems
    assert (problem.line, problem.column) == where


def test_unknown_missing_and_repeated_keys_are_all_told() -> None:
    reader = reader_of("a: 1\nb: 2\na: 3\n1: x\n")
    root = reader.root()
    assert root is not None
    assert list(reader.fields(root, required=("a", "c"), optional=("d",))) == ["a"]
    assert sorted(map(str, reader.problems)) == [
        "f.yaml:1:1: key 'c' is missing",
        "f.yaml:2:1: unknown key 'b'; known: a, c, d",
        "f.yaml:3:1: key 'a' stands twice",
        "f.yaml:4:1: a key must be a text",
    ]


@pytest.mark.parametrize("text", ["a: 1", "a: true", "a: [x]", "a: {b: c}", "a:", "a: 2026-01-01"])
def test_only_a_text_is_a_text(text: str) -> None:
    reader = reader_of(text)
    root = reader.root()
    assert root is not None
    assert reader.text(reader.fields(root, required=("a",))["a"]) is None
    assert len(reader.problems) == 1


def test_a_place_in_a_block_of_text_is_its_own_line_and_column() -> None:
    source = "a:\n  sql: |\n    SELECT 1,\n      now()\n  q: 'x now()'\n"
    reader = reader_of(source)
    root = reader.root()
    assert root is not None
    inner = reader.fields(reader.fields(root, required=("a",))["a"], required=("sql", "q"))
    for key in ("sql", "q"):
        value = reader.text(inner[key])
        assert value is not None
        line, column = reader.position(inner[key], value.index("now"))
        assert source.splitlines()[line - 1][column - 1 :].startswith("now()")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    reader = reader_of(text)
    assert (reader.root() is None) == bool(reader.problems)


def test_a_merged_mapping_gives_the_keys_that_are_not_there() -> None:
    reader = reader_of("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    root = reader.root()
    assert root is not None
    entries = reader.entries(reader.entries(root)["b"][1])
    assert {key: reader.scalar(value) for key, (_, value) in entries.items()} == {"x": 1, "y": 3}
    assert reader.problems == []


@pytest.mark.parametrize("text", ["&a {<<: *a}", "&a {<<: &b {<<: *a}}", "{<<: 3}"])
def test_a_mapping_cannot_be_merged_into_itself_nor_a_number(text: str) -> None:
    reader = reader_of(text)
    root = reader.root()
    assert root is not None
    assert reader.entries(root) == {}
    assert len(reader.problems) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 1100 + "]" * 1100, "maximum recursion depth"),
        ("a:\tb", "that cannot start any token"),
        ("a: *b", "undefined alias 'b'"),
        ("a: \ud800", "special characters are not allowed"),
    ],
)
def test_a_text_that_libyaml_reads_otherwise_is_refused_in_the_same_words(
    text: str, message: str
) -> None:
    reader = reader_of(text)
    assert reader.root() is None
    assert message in reader.problems[0].message
