"""Blocks become rows; what a block cannot mean is told with its place."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_rules.definition.yaml_positions import YamlReader
from gpuwarden_rules.testing.fixtures import Rows, rows_of

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


@pytest.mark.parametrize(
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
