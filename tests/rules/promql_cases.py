"""Gives the cases of the built-in rules to PromQL: rows become series as the agent's exporter shows them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.rules.built_in import FILES, cases_in

from gpuwarden.alert import Alert
from gpuwarden.clock import to_ms
from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import (
    DCGM_TABLES,
    KEEP_PERIODS,
    KEEP_S,
    dcgm_labels,
    names_of,
    own_labels,
)
from gpuwarden_rules.definition.language import Rule, builtin_rules
from gpuwarden_rules.evaluation.state import step
from gpuwarden_rules.prometheus_file import AlertingRule, alerting_rules
from gpuwarden_rules.testing import Case
from gpuwarden_rules.testing.cases import START

STEP_S_MAX = 30
"""Longest time between two scrapes."""
Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a series."""
SampleRows = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class PromqlCase:
    """A rule in a case that expects something of it."""

    case: Case
    alerting: AlertingRule
    name_set: str

    @property
    def rule(self) -> Rule:
        """The rule."""
        return self.alerting.rule

    @property
    def reason(self) -> str | None:
        """Why PromQL differs in this case; None: it does not."""
        return self.case.not_in_promql.get(self.rule.name)

    def __str__(self) -> str:
        return f"{self.rule.name}, {self.name_set}: {self.case.name}"


def promql_cases(name_set: str) -> list[PromqlCase]:
    """All rules that PromQL can say, in all cases that expect something of them."""
    known = {one.rule.name: one for one in alerting_rules(builtin_rules(), name_set)}
    return [
        PromqlCase(case, known[name], name_set)
        for path in FILES
        for case in cases_in(path)
        for name in dict.fromkeys(e.rule for e in case.expectations)
        if name in known
    ]


def sample_rows(case: Case) -> SampleRows:
    """The case's rows of samples, with samples instead of hours: an hour whose highest value is 18 is a day of 18."""
    rows = {table: [*found] for table, found in case.rows.items() if table in METRICS}
    gpus = {row["gpu_uuid"]: row for row in case.rows.get("gpus", [])}
    for hour in case.rows.get("gpu_1h", []):
        for table in DCGM_TABLES:
            values = {
                metric.name: hour[f"{metric.name}_max"]
                for metric in METRICS[table]
                if hour.get(f"{metric.name}_max") is not None
            }
            if not values:
                continue
            gpu = {"node": hour["node"], "gpu_uuid": hour["gpu_uuid"], "simulated": False}
            gpu["gpu"] = gpus.get(hour["gpu_uuid"], {}).get("gpu")
            rows.setdefault(table, []).extend(
                {**gpu, **values, "ts": hour["ts"] + timedelta(minutes=minute)}
                for minute in range(60)
            )
    return rows


@dataclass(frozen=True, slots=True)
class ScrapedSeries:
    """What a Prometheus finds at each scrape of an agent's exporter."""

    began_at: datetime
    step_s: int
    values: Mapping[Key, Sequence[float | None]]
    """A value at each scrape; None: the series is not shown."""

    def offset_s(self, at_s: float) -> float:
        """Seconds from the first scrape to a time of the case."""
        return (START - self.began_at).total_seconds() + at_s


def scraped(case: PromqlCase, until_s: float) -> ScrapedSeries:
    """The series that the expressions of a rule name."""
    wanted = {*re.findall(r"\w+", case.alerting.expr + case.alerting.keeps)}
    gpus = {row["gpu_uuid"]: row for row in case.case.rows.get("gpus", [])}
    readings: dict[Key, tuple[float, dict[datetime, float]]] = {}
    for table, rows in sample_rows(case.case).items():
        cadence_s = {metric.name: metric.cadence_s for metric in METRICS[table]}
        for exported in names_of(case.name_set, table):
            if exported.name not in wanted or exported.is_rate:
                continue
            (column,) = exported.columns
            keep_s = max(KEEP_S, KEEP_PERIODS * cadence_s[column])
            for row in rows:
                if row.get(column) is not None:
                    key = exported.name, _labels(case.name_set, row, gpus)
                    value = exported.scale(float(row[column]))
                    readings.setdefault(key, (keep_s, {}))[1][row["ts"]] = value
    times = [at for _, found in readings.values() for at in found]
    began_at = min([*times, START])
    apart = {round((at - began_at).total_seconds()) for at in times} | {STEP_S_MAX}
    step_s = math.gcd(*apart, round((START - began_at).total_seconds()))
    count = math.ceil(((START - began_at).total_seconds() + until_s) / step_s) + 1
    return ScrapedSeries(
        began_at,
        step_s,
        {
            key: [*_shown(found, keep_s, began_at, step_s, count)]
            for key, (keep_s, found) in readings.items()
        },
    )


def _labels(
    name_set: str, row: Mapping[str, Any], gpus: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    gpu = gpus.get(str(row.get("gpu_uuid")), {})
    row = {"gpu": gpu.get("gpu"), **row}
    found = own_labels("link_samples", row, gpu) if name_set == "own" else {}
    if name_set != "own":
        found = dcgm_labels(name_set, row, gpu, "550.54")
    return tuple((name, str(value)) for name, value in found.items() if value is not None)


def _shown(
    found: Mapping[datetime, float], keep_s: float, began_at: datetime, step_s: int, count: int
) -> Iterator[float | None]:
    """The newest reading at each scrape, unless it is too old."""
    at_s = sorted(((at - began_at).total_seconds(), value) for at, value in found.items())
    newest: tuple[float, float] | None = None
    position = 0
    for number in range(count):
        now_s = number * step_s
        while position < len(at_s) and at_s[position][0] <= now_s:
            newest = at_s[position]
            position += 1
        is_shown = newest is not None and now_s - newest[0] < keep_s
        yield newest[1] if is_shown and newest is not None else None


def expanded(values: Sequence[float | None]) -> str:
    """The values in promtool's notation; a series that is shown no more is stale."""
    parts: list[str] = []
    position = 0
    while position < len(values):
        value = values[position]
        end = position
        while end < len(values) and values[end] == value:
            end += 1
        times = end - position
        if value is not None:
            parts.append(f"{value!r}+0x{times - 1}" if times > 1 else f"{value!r}")
        elif position:
            parts += ["stale", *([f"_x{times - 1}"] if times > 1 else [])]
        else:
            parts.append(f"_x{times}")
        position = end
    return " ".join(parts)


def unit_test(case: PromqlCase, rules: Path, expected: Mapping[float, Sequence[Alert]]) -> Any:
    """The case as a file for `promtool test rules`: `ALERTS` must have the alerts that the SQL makes."""
    series = scraped(case, max(expected))
    evaluate_s = math.gcd(
        30, *(round(series.offset_s(at_s)) for at_s in expected), round(series.offset_s(0))
    )
    return {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{evaluate_s}s",
        "tests": [
            {
                "interval": f"{series.step_s}s",
                "input_series": [
                    {"series": _written(name, dict(labels)), "values": expanded(values)}
                    for (name, labels), values in series.values.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": f'ALERTS{{alertname="{case.rule.name}"}}',
                        "eval_time": f"{round(series.offset_s(at_s))}s",
                        "exp_samples": [
                            {"labels": _written("ALERTS", _of(case, alert)), "value": 1}
                            for alert in alerts
                        ],
                    }
                    for at_s, alerts in expected.items()
                ],
            }
        ],
    }


def _of(case: PromqlCase, alert: Alert) -> dict[str, str]:
    labels = {case.alerting.labels[name]: value for name, value in alert.labels.items()}
    return labels | {
        "alertname": alert.rule,
        "alertstate": alert.state.value,
        "severity": alert.severity.value,
        "consequence": alert.consequence.value,
    }


def _written(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def alerts_of(
    case: PromqlCase,
    holding: Mapping[int, Mapping[tuple[tuple[str, str], ...], float]],
    kept: Mapping[int, Mapping[tuple[tuple[str, str], ...], float]],
    times_ms: Sequence[int],
) -> dict[int, Mapping[str, Alert]]:
    """Alerts at each time from the series of `expr` and `keeps`, by the life cycle that all rules have."""
    rule = case.rule
    assert rule.promql is not None
    assert rule.promql.summary is not None
    rule = replace(rule, summary=rule.promql.summary, remedy=rule.promql.summary)
    state: Mapping[str, Alert] = {}
    found = {}
    for at_ms in times_ms:
        now = START + timedelta(milliseconds=at_ms - to_ms(START))
        held, keeps = holding.get(at_ms, {}), kept.get(at_ms, {})
        series = {**dict.fromkeys(keeps, (None, None)), **{k: (v, True) for k, v in held.items()}}
        rows = [
            {**dict.fromkeys(rule.labels), **dict(labels), "value": value, "holds": holds}
            for labels, (value, holds) in series.items()
        ]
        state, _ = step(state, rows, rule, now)
        found[at_ms] = state
    return found
