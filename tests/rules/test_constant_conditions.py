"""An alert of a condition that continues is one episode, whatever short exceptions its window forgives.

Method: every firing case again, on several nodes, its last readings held for hours. On all nodes but the first
the readings are the opposite of what they were for a moment sometimes: one reading, or a twentieth of the
rule's window, at most once in two windows. No node may have more episodes than the first.
"""

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tests.rules.built_in import FILES, cases_in

from gpuwarden.alert import AlertState
from gpuwarden.clock import SystemClock
from gpuwarden.schema import TABLES
from gpuwarden_rules.backtest.query import BacktestQuery
from gpuwarden_rules.definition.language import Rule, builtin_rules
from gpuwarden_rules.evaluation.state import RuleState, step
from gpuwarden_rules.testing import Case, MemoryDatabase
from gpuwarden_rules.testing.cases import START

NODES = 3
LATE_S = 240.0
"""By how much rollups are late, so how much longer they stay in a window."""
NUMBERED = re.compile(r"-(\d+)$")
EXCEPTIONS_MAX = 4
Row = dict[str, Any]

NO_EXCEPTIONS: Mapping[str, str] = {
    "oversized_gpu": "reads hours: one of work is not short",
    "gpu_lost": "of events and silence",
    "driver_down": "of events and silence",
    "sxid_fatal": "of events",
}


def windows_s(rule: Rule) -> list[float]:
    return [
        float(value)
        for name, value in rule.params.items()
        if name.endswith("window") and isinstance(value, int | float)
    ]


RULES = [
    rule.name
    for rule in builtin_rules()
    if windows_s(rule) and "node" in rule.labels and rule.name not in NO_EXCEPTIONS
]


@cache
def firing_case(name: str) -> tuple[Case, float]:
    """The first case in which the rule fires, and when."""
    for path in FILES:
        for case in cases_in(path):
            for expectation in case.expectations:
                is_firing = any(a.state is AlertState.FIRING for a in expectation.alerts)
                if expectation.rule == name and is_firing:
                    return case, expectation.at_s
    raise LookupError(name)


def series_of(table: str, rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The table's rows by what they are about, each in order of time."""
    names = (
        *("node", "gpu_uuid", "pid", "link", "probe", "table_name", "device", "port"),
        *("owner", "kind", "sender", "name"),
    )
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name in names), []).append(row)
    for series in found.values():
        yield sorted(series, key=lambda row: row["ts"])


def held(table: str, rows: Sequence[Row], at: datetime, until: datetime) -> list[Row]:
    """The rows up to an instant, and from there on each series as it was last."""
    if "ts" not in TABLES[table].names or table == "events":
        return [dict(row) for row in rows]
    result = []
    for series in series_of(table, rows):
        past = [row for row in series if row["ts"] <= at]
        result += [dict(row) for row in past]
        if len(past) < 2:
            continue
        last, before = past[-1], past[-2]
        pace = last["ts"] - before["ts"]
        if at - last["ts"] > 2 * pace + timedelta(minutes=1):
            continue  # it had ended
        for number in range(1, math.floor((until - last["ts"]) / pace) + 1):
            grown = {
                name: value + number * (value - (before.get(name) or 0))
                for name, value in last.items()
                if name.endswith("_total") and value is not None
            }
            result.append({**last, **grown, "ts": last["ts"] + number * pace})
    return result


def opposite(row: Row) -> Row:
    """What the reading would be if the condition were not."""
    changed = dict(row)
    for name, value in row.items():
        if value is None or name.endswith("_total"):
            continue
        if name.startswith("util_percent"):
            changed[name] = 95.0 if value < 50 else 0.0
        elif name == "temperature_margin_celsius":
            changed[name] = 40.0
        elif name.startswith(("temperature_celsius", "memory_temperature_celsius")):
            changed[name] = 45.0
        elif name == "clocks_event_reasons":
            changed[name] = 0
        elif name.startswith("reason_") or name.endswith(
            ("thermal_seconds_delta", "brake_seconds_delta", "violation_seconds_delta")
        ):
            changed[name] = 0.0
        elif name in ("late", "skipped", "missed", "failed"):
            changed[name] = 0
        elif name == "fan_percent" or "cpu_percent" in name:
            changed[name] = 50.0
    if row.get("idle_seconds") is not None:
        changed["idle_seconds"], changed["busy_seconds"] = row["busy_seconds"], row["idle_seconds"]
    return changed


def renamed(row: Row, number: int) -> Row:
    """The row on another node, with GPUs and jobs of its own."""
    names = ("node", "gpu_uuid", "job", "pod", "container_id", "owner", "subject", "cgroup")
    return {k: f"{v}-{number}" if k in names and v is not None else v for k, v in row.items()}


def episodes_of(
    database: MemoryDatabase, name: str, exceptions: Sequence[Sequence[tuple[float, float]]]
) -> dict[str, dict[str, list[str]]]:
    """The end of each alert, by its labels without the node's number, and by that number.

    `exceptions`: where within two windows, and how long in shares of the most that is allowed, by node.
    """
    case, at_s = firing_case(name)
    rule = case.rules[name]
    window_s = max(min(windows_s(rule)), 60.0)
    apart_s = 2 * (window_s + LATE_S)
    at = START + timedelta(seconds=at_s)
    until = at + timedelta(seconds=min(max(4 * window_s, 1800.0), 3 * 3600.0))
    step_s = max(rule.interval_s, min(60.0, window_s / 20))
    for table, rows in case.rows.items():
        extended = held(table, rows, at, until)
        pace_s = pace_of(extended)
        for number in range(NODES):
            moments: list[tuple[datetime, datetime]] = []
            for index, (where, share) in enumerate(exceptions[number - 1] if number else ()):
                begin = at + timedelta(seconds=apart_s * (index + where / 2))
                if moments:
                    begin = max(begin, moments[-1][0] + timedelta(seconds=apart_s))
                lasts = timedelta(seconds=max(pace_s, share * window_s / 20))
                moments.append((begin, begin + lasts))
            database.insert(
                table,
                [
                    renamed(opposite(row) if is_within(row, moments) else row, number)
                    for row in extended
                ],
            )
    database.advance_idleness()
    state = RuleState()
    happened: dict[tuple[str, ...], list[str]] = {}
    first = START + timedelta(seconds=max(0.0, at_s - rule.for_s - 2 * step_s))
    count = math.floor((until - first).total_seconds() / step_s) + 1
    instants = [first + timedelta(seconds=number * step_s) for number in range(count)]
    query = BacktestQuery(rule, database, SystemClock())
    for evaluation in asyncio.run(query.at(instants)):
        state, transitions = step(state, evaluation.rows, rule, evaluation.at)
        for alert in (transition.alert for transition in transitions):
            said = happened.setdefault(tuple(alert.labels.values()), [])
            said.append(f"{alert.state} at {evaluation.at:%H:%M:%S}")
    found: dict[str, dict[str, list[str]]] = {}
    for labels, said in happened.items():
        number = next(match[1] for label in labels if (match := NUMBERED.search(label)))
        found.setdefault(" ".join(NUMBERED.sub("", label) for label in labels), {})[number] = said
    return found


def is_within(row: Row, moments: Sequence[tuple[datetime, datetime]]) -> bool:
    return "ts" in row and any(begin <= row["ts"] < end for begin, end in moments)


def pace_of(rows: Sequence[Row]) -> float:
    times = sorted({row["ts"] for row in rows if row.get("ts") is not None})
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    return min(gaps, default=0.0)


REGULAR = [[(number / NODES, number / NODES)] * EXCEPTIONS_MAX for number in range(1, NODES)]


@pytest.mark.parametrize("name", RULES)
def test_a_condition_that_goes_on_is_one_episode(database: MemoryDatabase, name: str) -> None:
    episodes = episodes_of(database, name, REGULAR).values()
    fired = [nodes for nodes in episodes if "firing" in str(nodes.get("0"))]
    assert fired
    for nodes in fired:
        longer = {number: said for number, said in nodes.items() if len(said) > len(nodes["0"])}
        assert not longer, f"without exceptions {nodes['0']}"
