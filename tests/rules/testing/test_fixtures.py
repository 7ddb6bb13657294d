"""Blocks become rows; what a block cannot mean is named with its place."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden_rules.definition.yaml_positions import YamlReader
from gpuwarden_rules.testing.fixtures import Rows, expand, rows_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def read(text: str) -> tuple[Rows, list[str]]:
    reader = YamlReader("f.yaml", text)
    root = reader.root()
    assert root is not None
    return rows_of(reader, root, START), [problem.message for problem in reader.problems]


def samples(block: str) -> tuple[Rows, list[str]]:
    return read(f"gpu_samples: [{{node: n1, gpu_uuid: GPU-a, {block}}}]")


def test_a_block_is_a_row_each_interval() -> None:
    rows, problems = samples("every: 10s, from: 1m, util_percent: 0x59 _, pstate: 8")
    assert problems == []
    table = rows["gpu_samples"]
    assert len(table) == 61
    assert [row["ts"] - START for row in table[:2]] == [timedelta(0, 60), timedelta(0, 70)]
    assert [row["util_percent"] for row in table[-2:]] == [0, None]
    assert {row["pstate"] for row in table} == {8}
    assert {row["simulated"] for row in table} == {False}
    assert "power_watts" not in table[0]


def test_a_hexadecimal_number_of_yaml_is_notation_here() -> None:
    rows, problems = samples("every: 1s, util_percent: 0x9")
    assert (len(rows["gpu_samples"]), problems) == (10, [])


def test_without_every_a_block_is_one_row() -> None:
    rows, problems = read("gpus: [{node: n1, gpu_uuid: a, usd_per_hour: 2.5}]")
    assert problems == []
    assert rows == {
        "gpus": [{"gpu_uuid": "a", "node": "n1", "simulated": False, "usd_per_hour": 2.5}]
    }


def test_an_instant_is_an_offset_from_the_start() -> None:
    rows, problems = read("process_samples: [{node: n, gpu_uuid: a, pid: 7, started_at: -2h}]")
    assert problems == []
    assert rows["process_samples"][0]["started_at"] == START - timedelta(hours=2)
    assert rows["process_samples"][0]["ts"] == START


@each(
    ("block", "message"),
    [
        ("every: 1s, util: 0x9", "unknown key 'util'; known: node"),
        ("every: 1s, util_percent: 0x9, pstate: 1x5", "pstate has 6 values, the block 10 rows"),
        ("every: 1s, for: 5s, pstate: 1x5", "pstate has 6 values, the block 5 rows"),
        ("util_percent: 0x9", "util_percent needs `every` beside it"),
        ("for: 1m", "for needs `every` beside it"),
        ("every: 0s, pstate: 1x5", "must be above 0"),
        ("every: 1s", "`every` needs notation in a column, or `for`"),
        ("every: soon, pstate: 1x5", "'soon' is not an offset"),
        ("every: 1s, for: 20d", "more than 1000000 rows"),
        ("every: 1s, pstate: 1xx", "'1xx' is not notation"),
        ("mig_instance: 7", "mig_instance is string, not 7"),
        ("pstate: true", "'true' is not notation"),
        ("ts: 0s", "unknown key 'ts'"),
    ],
)
def test_a_block_that_makes_no_sense_is_refused(block: str, message: str) -> None:
    _, problems = samples(block)
    assert any(problem.startswith(message) for problem in problems), problems


def test_a_table_that_does_not_exist_is_refused() -> None:
    assert read("gpu_sample: []")[1][0].startswith("unknown table 'gpu_sample'; known: gpu_samples")


@each(
    ("text", "values"),
    [
        ("-2+4x3", [-2, 2, 6, 10]),
        ("1-2x4", [1, -1, -3, -5, -7]),
        ("1x4", [1, 1, 1, 1, 1]),
        ("1 _x3 5", [1, None, None, None, 5]),
        ("_", [None]),
        ("0+60x2 0", [0, 60, 120, 0]),
        (".5+.25x1 1e3", [0.5, 0.75, 1000]),
        ("1e3x1", [1000, 1000]),
        ("", []),
    ],
)
def test_promtool_notation_is_expanded_to_values(text: str, values: list[float | None]) -> None:
    assert expand(text) == values


@each("text", ["a", "1x", "x3", "1+x3", "1+2", "1 x 3", "__", "1x-3", "stale"])
def test_what_is_not_notation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="notation|no xN"):
        expand(text)


def test_a_typo_does_not_fill_the_memory() -> None:
    with pytest.raises(ValueError, match="more than"):
        expand("1x9999999")


@given(st.integers(-1000, 1000), st.integers(-50, 50), st.integers(0, 100))
def test_a_series_starts_where_it_says_and_grows_by_its_step(
    start: int, change: int, times: int
) -> None:
    values = expand(f"{start}{change:+}x{times}")
    assert values == [start + change * i for i in range(times + 1)]
