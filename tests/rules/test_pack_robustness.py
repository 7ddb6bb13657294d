"""The built-in rules over worse data than their cases have: columns that go absent, clocks that lag.

Goal: what is absent neither fires an alert nor ends one. Method: a firing and a quiet case of each rule again, with one
metric absent at a time, or without its newest samples, against what the whole data gave.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.rules.built_in import FILES, cases_in

from gpuwarden.alert import fingerprint
from gpuwarden.metrics import METRICS
from gpuwarden.rollups import REASONS, ROLLUPS
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.testing import Case, MemoryDatabase
from gpuwarden_rules.testing.cases import START
from gpuwarden_rules.testing.fixtures import Rows

MAY_FIRE_WITHOUT = {
    # Without the counter the bits serve, which are a coarser glance at the same.
    ("gpu_thermal_throttle_hw", "hw_thermal_seconds_total"),
    # Drawing more than its peers excuses a GPU; one that does not say has no excuse.
    ("temperature_peer_outlier", "power_watts"),
    # Little power is evidence enough where nothing tells what the SMs do.
    ("busy_not_working", "sm_active_percent"),
    ("busy_not_working", "dram_active_percent"),
}
MAY_CLEAR_WITHOUT = {
    # Utilization of 100 is work, unless the memory is known to be empty.
    ("gpu_idle_free", "memory_used_bytes"),
    ("job_partially_idle", "memory_used_bytes"),
}


def judged(path: Path) -> list[tuple[str, Case]]:
    """Of each rule the first case in which it fires, and the first in which it is quiet."""
    found: dict[tuple[str, bool], Case] = {}
    for case in cases_in(path):
        for expectation in case.expectations:
            found.setdefault((expectation.rule, bool(expectation.alerts)), case)
    return [(name, case) for (name, _), case in found.items()]


def holding(database: MemoryDatabase, rule: Rule, at_s: float) -> dict[str, bool | None]:
    """What the rule says, by fingerprint: True it holds, None nobody knows."""
    found: dict[str, bool | None] = {}
    now = START + timedelta(seconds=at_s)
    for row in database.run(rule.sql, rule.bindings(now)).records():
        labels = {name: str(row[name]) for name in rule.labels if row[name] is not None}
        key = fingerprint(rule.name, labels)
        assert key not in found, "two rows with the same labels"
        found[key] = row.get("holds", True)
    return found


def absences_in(case: Case, rule: Rule) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Metrics that the case has and the rule reads: table, metric, and the columns that report it."""
    for table, metrics in METRICS.items():
        for metric in metrics:
            if metric.name in rule.sql and has_any(case, table, metric.name):
                yield table, metric.name, (metric.name,)
    for table, rollup in ROLLUPS.items():
        told: dict[str, list[str]] = {}
        for part in rollup.parts:
            for summary in part.summaries:
                told.setdefault(summary.source, []).append(summary.column.name)
            if part.has_activity:
                told["util_percent"] += ["idle_seconds", "busy_seconds"]
                told["clocks_event_reasons"] = [column.name for column in REASONS.values()]
        for metric_name, columns in told.items():
            read = [c for c in columns if c in rule.sql and has_any(case, table, c)]
            if read:
                yield table, metric_name, tuple(read)


def has_any(case: Case, table: str, column: str) -> bool:
    return any(row.get(column) is not None for row in case.rows.get(table, ()))


def fill(database: Any, rows: Rows) -> None:
    """Have these rows alone."""
    database.clear()
    for table, of_table in rows.items():
        database.insert(table, of_table)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_absent_metric_neither_fires_nor_clears(path: Path, database) -> None:
    problems = {
        (name, case.name): told_by_absence(name, case, database) for name, case in judged(path)
    }
    assert not {where: said for where, said in problems.items() if said}


def told_by_absence(name: str, case: Case, database: MemoryDatabase) -> list[str]:
    rule = case.rules[name]
    at_s = max(e.at_s for e in case.expectations if e.rule == name)
    problems = []
    fill(database, case.rows)
    before = holding(database, rule, at_s)
    true = {key for key, holds in before.items() if holds}
    for table, metric, columns in absences_in(case, rule):
        database.execute("BEGIN")
        try:
            database.execute(f"UPDATE {table} SET {', '.join(f'{c} = NULL' for c in columns)}")
            after = holding(database, rule, at_s)
        finally:
            database.execute("ROLLBACK")
        new = {key for key, holds in after.items() if holds} - true
        if new and (name, metric) not in MAY_FIRE_WITHOUT:
            problems.append(f"fires because {metric} is NULL")
        if true - after.keys() and (name, metric) not in MAY_CLEAR_WITHOUT:
            problems.append(f"clears because {metric} is NULL")
    return problems


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_node_whose_clock_lags_is_judged_all_the_same(path: Path, database) -> None:
    """Thirty seconds behind, and ten for sealing and shipping."""
    missed = {(name, case.name): missed_late(name, case, database) for name, case in judged(path)}
    assert not {where: keys for where, keys in missed.items() if keys}


def missed_late(name: str, case: Case, database: MemoryDatabase) -> set[str]:
    rule = case.rules[name]
    at_s = max(e.at_s for e in case.expectations if e.rule == name)
    late = {
        table: [
            shifted(row, -40.0) for row in rows if row.get("ts") is None or age_s(row, at_s) >= 0
        ]
        for table, rows in case.rows.items()
    }
    fill(database, late)
    true = {key for key, holds in holding(database, rule, at_s).items() if holds}
    fill(database, case.rows)
    expected = {key for key, holds in holding(database, rule, at_s).items() if holds}
    return expected - true


def age_s(row: Mapping[str, Any], at_s: float) -> float:
    return at_s - (row["ts"] - START).total_seconds()


def shifted(row: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    return {**row, "ts": row["ts"] + timedelta(seconds=seconds)} if "ts" in row else dict(row)
