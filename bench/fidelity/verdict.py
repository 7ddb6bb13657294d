"""Judges what fired: each fault against its alerts, each alert against the faults."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from bench.fidelity.fleet import START_MS
from bench.fidelity.scenarios import MINUTE_MS, Incident

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import from_ms, to_ms
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.evaluation.muting import reasons

TOLD_AFTER = timedelta(minutes=2)
"""An alert that is not muted for so long is one that people hear of: the first seconds of a cause are not
enough, nor the last of one that has just gone."""


@dataclass(slots=True)
class Score:
    """How one rule fared."""

    faults: int = 0
    caught: int = 0
    late: int = 0
    missed: int = 0
    muted: int = 0
    """Alerts that a cause kept quiet, and no fault of their own explains."""
    false: int = 0
    also: int = 0
    """Alerts about a fault that another rule had to tell, which are right as well."""
    minutes: list[float] = field(default_factory=list)
    limit_min: float | None = None


@dataclass(slots=True)
class Verdict:
    """What came of a replay."""

    scores: dict[str, Score]
    confusion: Counter[tuple[str, str]]
    """How often a rule fired, by scenario (- where there was none) and rule."""
    wrong: list[str]
    """A line for each fault that was late or missed, and each false alert."""

    def figures(self) -> dict[str, Any]:
        """Totals, for a JSON line."""
        scores = self.scores.values()
        names = ("faults", "caught", "late", "missed", "false", "muted", "also")
        found: dict[str, Any] = {n: sum(getattr(s, n) for s in scores) for n in names}
        found["rules_with_faults"] = sum(1 for score in scores if score.faults)
        found["minutes_to_alert_median"] = round(
            statistics.median([m for s in scores for m in s.minutes] or [0]), 2
        )
        return found


def judge(
    incidents: Sequence[Incident], episodes: Sequence[Alert], rules: Sequence[Rule], end_ms: int
) -> Verdict:
    """Compare. `episodes`: alerts that fired; those that are not resolved go on at the end."""
    scores = {rule.name: Score() for rule in rules}
    confusion: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    told = _told(episodes, rules, from_ms(START_MS + end_ms))
    by_node: dict[str, list[Incident]] = defaultdict(list)
    for incident in incidents:
        by_node[incident.node].append(incident)
    for alert in episodes:
        meant = [i for i in by_node[alert.labels["node"]] if _is_meant(i, alert)]
        score = scores[alert.rule]
        expecting = [i for i in meant if alert.rule in i.scenario.expects]
        confusion[(expecting or meant)[0].scenario.name if meant else "-", alert.rule] += 1
        if meant:
            score.also += not expecting
        elif id(alert) in told:
            score.false += 1
            near = _near(by_node[alert.labels["node"]], alert)
            wrong.append(
                f"false   {_at(alert)} {alert.rule} {_where(alert)}; {near}: {alert.summary}"
            )
        else:
            score.muted += 1
    for incident in incidents:
        for rule, limit_min in incident.scenario.expects.items():
            if incident.begin_ms + limit_min * MINUTE_MS > end_ms:
                continue  # it is not due yet
            _expect(incident, rule, limit_min, episodes, scores[rule], wrong)
    return Verdict(scores, confusion, wrong)


def _expect(
    incident: Incident,
    rule: str,
    limit_min: float,
    episodes: Sequence[Alert],
    score: Score,
    wrong: list[str],
) -> None:
    score.faults += 1
    score.limit_min = max(score.limit_min or 0.0, limit_min)
    right = (rule, incident.scenario.stands_in.get(rule))
    firing = [_since_ms(a) for a in episodes if a.rule in right and _is_meant(incident, a)]
    where = f"{incident.scenario.name} on {incident.node} {sorted(incident.gpus or ())}"
    at = _clock(incident.begin_ms)
    if not firing:
        score.missed += 1
        wrong.append(f"missed  {at} {rule}: {where}")
        return
    minutes = (min(firing) - incident.begin_ms) / MINUTE_MS
    score.minutes.append(minutes)
    if minutes > limit_min:
        score.late += 1
        wrong.append(f"late    {at} {rule}: {where}, {minutes:.1f} min, allowed {limit_min:g}")
    else:
        score.caught += 1


def _since_ms(alert: Alert) -> int:
    assert alert.fired_at is not None
    return to_ms(alert.fired_at) - START_MS


def _is_meant(incident: Incident, alert: Alert) -> bool:
    gpu = alert.labels.get("gpu")
    return incident.may_be_meant(
        alert.rule, alert.labels["node"], None if gpu is None else int(gpu), _since_ms(alert)
    )


def _told(episodes: Sequence[Alert], rules: Sequence[Rule], end: datetime) -> set[int]:
    """Ids of the alerts that people hear of, by the product's own inhibition."""
    by_name = {rule.name: rule for rule in rules}
    told: set[int] = set()
    nodes: dict[str, list[Alert]] = defaultdict(list)
    for alert in episodes:
        nodes[alert.labels["node"]].append(alert)
    for alerts in nodes.values():
        edges = {a.fired_at for a in alerts} | {a.resolved_at or end for a in alerts}
        instants = sorted(at for at in edges if at is not None)
        quiet_until = {id(a): timedelta(0) for a in alerts}
        for at, after in pairwise(instants):
            active = [a for a in alerts if a.fired_at and a.fired_at <= at < (a.resolved_at or end)]
            muted = reasons([_firing(a) for a in active], by_name, (), at)
            for alert in active:
                if alert.fingerprint not in muted:
                    quiet_until[id(alert)] += after - at
        told |= {key for key, loud in quiet_until.items() if loud >= TOLD_AFTER}
        told |= {id(a) for a in alerts if _is_short(a, end) and quiet_until[id(a)] > timedelta(0)}
    return told


def _is_short(alert: Alert, end: datetime) -> bool:
    assert alert.fired_at is not None
    return (alert.resolved_at or end) - alert.fired_at < TOLD_AFTER


def _firing(alert: Alert) -> Alert:
    return replace(alert, state=AlertState.FIRING)


def _near(incidents: Sequence[Incident], alert: Alert) -> str:
    """Incidents of the node that were going on, or had just ended."""
    at = _since_ms(alert)
    names = [
        f"{i.scenario.name} {sorted(i.gpus or ())}"
        for i in incidents
        if i.begin_ms <= at <= i.end_ms + 40 * MINUTE_MS and i.scenario.minutes
    ]
    return ", ".join(names) or "nothing"


def _where(alert: Alert) -> str:
    return " ".join(v for k, v in alert.labels.items() if k in ("node", "gpu", "xid", "port"))


def _at(alert: Alert) -> str:
    return _clock(_since_ms(alert))


def _clock(since_ms: int) -> str:
    minutes, _ = divmod(since_ms, MINUTE_MS)
    return f"{minutes // 60:3d}:{minutes % 60:02d}"


def table(verdict: Verdict) -> str:
    """Each rule's line, then which scenario raised what."""
    head = f"{'rule':26} {'faults':>6} {'caught':>6} {'late':>5} {'missed':>6} {'false':>6} {'muted':>6} {'also':>5} {'median':>7} {'worst':>6} {'limit':>6}"
    lines = [head]
    for name, s in verdict.scores.items():
        if s.faults:
            times = (
                f"{statistics.median(s.minutes):7.1f} {max(s.minutes):6.1f}"
                if s.minutes
                else f"{'-':>7} {'-':>6}"
            )
            times += f" {s.limit_min:6g}"
        else:
            times = f"{'-':>7} {'-':>6} {'-':>6}"
        lines.append(
            f"{name:26} {s.faults:6} {s.caught:6} {s.late:5} {s.missed:6} {s.false:6} {s.muted:6} {s.also:5} {times}"
        )
    lines += ["", "alerts by what was wrong (-: nothing was)"]
    by_scenario: Mapping[str, list[str]] = defaultdict(list)
    for (scenario, rule), count in sorted(verdict.confusion.items()):
        by_scenario[scenario].append(f"{rule} {count}")
    lines += [f"  {scenario:34} {', '.join(found)}" for scenario, found in by_scenario.items()]
    return "\n".join(lines + verdict.wrong)
