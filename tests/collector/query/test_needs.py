"""What a query needs of the store is read from its plan."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwarden.schema import UPSERTED
from gpuwarden_collector.query.needs import PlannedRead, QueryPlanner
from gpuwarden_rules.definition.language import builtin_rules

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None)
BOUND = "ts > $now::TIMESTAMP - to_seconds($window)"


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> QueryPlanner:
    return QueryPlanner(tmp_path_factory.mktemp("planner"))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            f"SELECT util_percent FROM gpu_samples WHERE {BOUND} AND mig_instance IS NULL UNION ALL FROM (SELECT 1)",
            {"gpu_samples": ({"ts", "util_percent", "mig_instance"}, timedelta(seconds=60))},
        ),
        (
            f"WITH a AS (FROM gpu_1m WHERE {BOUND}) SELECT count(*) FROM a JOIN events e ON e.node = a.node",
            {"gpu_1m": ({"ts", "node"}, timedelta(seconds=60)), "events": ({"node"}, None)},
        ),
        (f"SELECT ts FROM gpu_samples WHERE {BOUND} OR gpu = 1", {"gpu_samples": ({"ts", "gpu"}, None)}),
        (f"SELECT 1 FROM gpu_samples WHERE false AND {BOUND}", {}),
        (f"SELECT util_percent FROM gpu_samples WHERE {BOUND} ORDER BY ts DESC LIMIT 1", None),
    ],
)  # fmt: skip
def test_plans_name_tables_columns_and_bounds(
    planner: QueryPlanner, sql: str, expected: dict[str, tuple[set[str], timedelta | None]] | None
) -> None:
    params = {"now": NOW, "window": 60}
    found = planner.reads(sql, {k: v for k, v in params.items() if f"${k}" in sql})
    if expected is None:
        assert {read.since for read in found} == {NOW - timedelta(seconds=60)}
        return
    assert found == [
        PlannedRead(name, frozenset(columns), None if span is None else NOW - span)
        for name, (columns, span) in expected.items()
    ]


def test_without_room_for_a_copy_the_planner_creates_the_views(
    planner: QueryPlanner, tmp_path: Path
) -> None:
    asked = "SELECT util_percent FROM gpus_now JOIN waste USING (gpu_uuid)"
    tables = [
        {read.table for read in one.reads(asked, {})}
        for one in (planner, QueryPlanner(tmp_path / "none"))
    ]
    assert tables[0] == tables[1] > {"gpu_samples"}


def test_each_built_in_rule_says_from_when_it_needs_rows(planner: QueryPlanner) -> None:
    """So all are judged by rows that are kept, where these are few enough."""
    now = NOW.replace(tzinfo=UTC)
    for rule in builtin_rules():
        params = {
            k: v.replace(tzinfo=None) if isinstance(v, datetime) else v
            for k, v in rule.bindings(now).items()
        }
        reads = [r for r in planner.reads(rule.sql, params) if r.table not in UPSERTED]
        assert all(read.since is not None and read.columns for read in reads), rule.name
