"""Runs the test cases of rules on a DuckDB in memory, and compares the alerts with the expected ones.

All rows are in the tables from the start, so a rule that reads rows after `$now` fails. The rules run through
the state machine of the engine. At instants with an expectation the rule's SQL runs unchanged; instants between
are queried many at a time, as in a backtest, together with those.
"""

import asyncio
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gpuwarden.alert import Alert
from gpuwarden.clock import SystemClock
from gpuwarden.durations import readable
from gpuwarden.query import QueryError
from gpuwarden.rollups import ROLLUPS
from gpuwarden_rules.backtest.query import BacktestQuery, Rows
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.evaluation.holders import HOLDERS_SQL, sought_by, with_holders
from gpuwarden_rules.evaluation.state import RowsError, step
from gpuwarden_rules.testing.cases import START, Case, Expectation, Expected, braced, load_cases
from gpuwarden_rules.testing.database import MemoryDatabase

TOLERANCE = 0.005
"""Numbers may differ by half a per cent."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case; `failures` are texts for people."""

    path: str
    line: int
    name: str
    failures: tuple[str, ...]
    evaluations: int
    seconds: float

    @property
    def difference(self) -> str:
        """All failures as one text; empty where it passed."""
        return "\n".join(self.failures)

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return not self.failures


def run_file(path: Path) -> list[CaseResult]:
    """Run every case of a test file. Raises RuleFileError where it or its rules are wrong."""
    return [run_case(case) for case in load_cases(path)]


def run_case(case: Case) -> CaseResult:
    """Run one case."""
    started = time.perf_counter()
    database = _database(case)
    failures: list[str] = []
    evaluations = 0
    try:
        for name in dict.fromkeys(e.rule for e in case.expectations):
            if unseen := _unseen(case.rules[name], case.rows.keys()):
                failures.append(f"{name} {unseen}")
                continue
            wanted = {e.at_s: e for e in case.expectations if e.rule == name}
            found, count = _evaluate(case.rules[name], database, wanted, case.evaluate_s)
            failures += found
            evaluations += count
    finally:
        database.close()
    seconds = time.perf_counter() - started
    return CaseResult(case.path, case.line, case.name, tuple(failures), evaluations, seconds)


def _unseen(rule: Rule, tables: Collection[str]) -> str | None:
    """Why the rule sees none of a case's samples: it reads their rollup, of which the case has no rows."""
    columns = [*rule.requires, *rule.one_of, *rule.optional]
    read = {table for table, _ in columns}
    for name, rollup in ROLLUPS.items():
        samples = [part.table for part in rollup.parts if part.table in tables]
        if name not in read or name in tables or not samples or read & {*samples}:
            continue
        wanted = [column for table, column in columns if table == name]
        return (
            f"reads {name}, as windows of ten minutes and more do, and the case has rows of {samples[0]} alone: "
            f"give it rows of {name} with {', '.join(dict.fromkeys(wanted))}, one a minute"
        )
    return None


def _database(case: Case) -> MemoryDatabase:
    """The rows of a case, and what follows from them."""
    database = MemoryDatabase()
    for table, rows in case.rows.items():
        database.insert(table, rows)
    database.advance_idleness()
    return database


def alerts_in(case: Case, name: str) -> dict[float, list[Alert]]:
    """The alerts of a rule at the times at which the case expects some, as its SQL finds them."""
    database = _database(case)
    try:
        wanted = {e.at_s for e in case.expectations if e.rule == name}
        states = _states(case.rules[name], database, wanted, case.evaluate_s)
        return {at_s: [*state.values()] for at_s, state in states if at_s in wanted}
    finally:
        database.close()


def _evaluate(
    rule: Rule,
    database: MemoryDatabase,
    wanted: Mapping[float, Expectation],
    evaluate_s: float | None,
) -> tuple[list[str], int]:
    """Run a rule up to the last expectation; returns the failures and the number of evaluations."""
    failures: list[str] = []
    number = 0
    try:
        for at_s, state in _states(rule, database, wanted.keys(), evaluate_s):
            number += 1
            if at_s in wanted:
                failures += _compared(wanted[at_s], list(state.values()))
    except _EvaluationError as error:
        return [*failures, f"at {_offset(error.at_s)} {rule.name} fails: {error}"], number + 1
    return failures, number


class _EvaluationError(Exception):
    """An evaluation failed."""

    def __init__(self, at_s: float, error: Exception) -> None:
        super().__init__(str(error))
        self.at_s = at_s


def _states(
    rule: Rule, database: MemoryDatabase, wanted: Collection[float], evaluate_s: float | None
) -> Iterator[tuple[float, Mapping[str, Alert]]]:
    """The alerts after each evaluation, up to the last of the wanted times. Raises _EvaluationError."""
    interval_s = evaluate_s or rule.interval_s
    ticks = {i * interval_s for i in range(math.floor(max(wanted) / interval_s) + 1)}
    state: Mapping[str, Alert] = {}
    rows_at = asyncio.run(_rows_at(rule, database, ticks, wanted))
    for at_s in sorted(ticks | {*wanted}):
        now = _instant(at_s)
        try:
            rows = rows_at.get(at_s)
            if rows is None:
                rows = database.run(rule.sql, rule.bindings(now)).records()
            if sought := sought_by(rule, rows, state, now):
                holders = database.run(HOLDERS_SQL, sought.bindings).records()
                rows = with_holders(rows, sought, holders)
            state, _ = step(state, rows, rule, now)
        except (QueryError, RowsError) as error:
            raise _EvaluationError(at_s, error) from error
        yield at_s, state


async def _rows_at(
    rule: Rule, database: MemoryDatabase, ticks: Collection[float], wanted: Collection[float]
) -> dict[float, Rows]:
    """The rows of the rule's SQL at each time; empty if a query fails.

    Those at the wanted times are of the SQL unchanged. A query of many instants must find the same alerts there,
    or it counts for nothing.
    """
    query = BacktestQuery(rule, database, SystemClock(), compared=0)
    times = sorted({*ticks, *wanted})
    try:
        alone = {at_s: (await query.at([_instant(at_s)]))[0] for at_s in wanted}
        if len(times) == len(alone):
            found = alone
        else:
            found = dict(zip(times, await query.at([*map(_instant, times)]), strict=True))
    except (QueryError, RowsError):
        return {}
    if any(found[at_s].fingerprints != one.fingerprints for at_s, one in alone.items()):
        found = {}
    return {at_s: evaluation.rows for at_s, evaluation in (found | alone).items()}


def _instant(offset_s: float) -> datetime:
    return START + timedelta(seconds=offset_s)


def _compared(expectation: Expectation, alerts: Sequence[Alert]) -> list[str]:
    """A text for each difference, with the alerts that exist instead."""
    left = list(alerts)
    missing = []
    for expected in expectation.alerts:
        alert = next((a for a in left if not _differences(expected, a)), None)
        if alert is None:
            missing.append(expected)
        else:
            left.remove(alert)
    if not missing and not left:
        return []
    lines = [f"at {_offset(expectation.at_s)} {expectation.rule}:"]
    for expected in missing:
        near = next((a for a in left if a.labels.items() >= expected.labels.items()), None)
        lines.append(f"  expected {expected}")
        if near:
            left.remove(near)
            lines += [f"  but      {text}" for text in _differences(expected, near)]
    lines += [f"  not expected: {a.state} {braced(a.labels)}: {a.summary}" for a in left]
    return ["\n".join(lines)]


def _differences(expected: Expected, alert: Alert) -> list[str]:
    found = []
    if alert.state is not expected.state:
        found.append(f"it is {alert.state}")
    for name, value in expected.labels.items():
        if alert.labels.get(name) != value:
            found.append(f"{name} is {alert.labels.get(name)}")
    for name, wanted in expected.about.items():
        if name in ("summary", "remedy"):
            text = getattr(alert, name)
            found += [f"{name} lacks {part!r}: {text}" for part in wanted if part not in text]
            continue
        got = getattr(alert, name) if name != "began" else _since_start(alert.began_at)
        if not _is_close(wanted, got):
            found.append(f"{name} is {_offset(got) if name == 'began' else got}")
    return found


def _is_close(wanted: Any, got: Any) -> bool:
    if wanted is None or got is None or isinstance(wanted, bool | str):
        return bool(wanted == got)
    return math.isclose(wanted, got, rel_tol=TOLERANCE, abs_tol=1e-9)


def _since_start(instant: datetime) -> float:
    return (instant - START).total_seconds()


def _offset(seconds: float) -> str:
    return f"-{readable(-seconds)}" if seconds < 0 else readable(seconds)
