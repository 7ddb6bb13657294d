"""Judges what fired: each fault against its alerts and incidents, each alert against the faults."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from bench.fidelity.fleet import START_MS
from bench.fidelity.scenarios import MINUTE_MS, ScriptedFault

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import from_ms, to_ms
from gpuwarden.incident import Incident, IncidentAlert, IncidentState
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.incidents.graph import graph_of
from gpuwarden_rules.incidents.state import IncidentView, step
from gpuwarden_rules.notify.message import MessageReason
from gpuwarden_rules.notify.planner import IncidentNotice, plan
from gpuwarden_rules.notify.routing import Recipient, Route, RoutingPolicy

CHAT = RoutingPolicy({"chat": Recipient()}, [Route(receivers=("chat",))])
"""The receiver: a channel that cannot replace a message."""
TOLD = (MessageReason.OPENED, MessageReason.ESCALATED)
"""Messages of a new or a worse problem."""


@dataclass(slots=True)
class Score:
    """Counts for one rule."""

    faults: int = 0
    caught: int = 0
    late: int = 0
    missed: int = 0
    follows: int = 0
    """Alerts without a fault of their own, in the incident of another fault as its consequence."""
    false: int = 0
    also: int = 0
    """Right alerts about a fault that another rule must report."""
    minutes: list[float] = field(default_factory=list)
    limit_min: float | None = None


@dataclass(slots=True)
class Verdict:
    """The result of a replay."""

    scores: dict[str, Score]
    confusion: Counter[tuple[str, str]]
    """How often a rule fired, by scenario (- where there was none) and rule."""
    wrong: list[str]
    """A line for each fault that was late or missed, and each false alert."""
    split: list[str] = field(default_factory=list)
    """A line for each fault that became several incidents."""
    faults_told: int = 0
    """Faults with a message."""
    messages: Counter[MessageReason] = field(default_factory=Counter)
    incidents: int = 0

    def figures(self) -> dict[str, Any]:
        """Totals, for a JSON line."""
        scores = self.scores.values()
        names = ("faults", "caught", "late", "missed", "false", "follows", "also")
        found: dict[str, Any] = {n: sum(getattr(s, n) for s in scores) for n in names}
        found["rules_with_faults"] = sum(1 for score in scores if score.faults)
        found["minutes_to_alert_median"] = round(
            statistics.median([m for s in scores for m in s.minutes] or [0]), 2
        )
        told = sum(self.messages[reason] for reason in TOLD)
        return found | {
            "faults_told": self.faults_told,
            "faults_in_several_incidents": len(self.split),
            "product_incidents": self.incidents,
            "messages": {reason.value: count for reason, count in sorted(self.messages.items())},
            "messages_per_fault": round(told / max(1, self.faults_told), 3),
        }


@dataclass(slots=True)
class Lived:
    """Incidents and messages that the product derives from the alerts."""

    incidents: dict[str, Incident] = field(default_factory=dict)
    """In their last state, by id."""
    home: dict[int, tuple[str, IncidentAlert]] = field(default_factory=dict)
    """The incident of each alert, and its part in it, by the alert's id()."""
    messages: Counter[MessageReason] = field(default_factory=Counter)


def lived(episodes: Sequence[Alert], rules: Sequence[Rule], end: datetime) -> Lived:
    """The alerts as the product joins and reports them, through all instants at which it looks."""
    found, graph = Lived(), graph_of(rules)
    active: dict[str, Alert] = {}
    begins = sorted(episodes, key=lambda a: a.fired_at or end, reverse=True)
    ends = sorted(episodes, key=lambda a: a.resolved_at or end, reverse=True)
    notices: dict[str, IncidentNotice] = {}
    state: dict[str, Incident] = {}
    wakes: list[datetime] = []
    while begins or wakes or (ends and (ends[-1].resolved_at or end) < end):
        coming = [*wakes, *(a.fired_at for a in begins[-1:] if a.fired_at)]
        coming += [a.resolved_at or end for a in ends[-1:]]
        now = min(coming)
        if now >= end:
            break
        while ends and (ends[-1].resolved_at or end) <= now:
            over = ends.pop()
            if active.get(over.fingerprint) is not None:
                del active[over.fingerprint]
        while begins and (begins[-1].fired_at or end) <= now:
            alert = begins.pop()
            active[alert.fingerprint] = replace(alert, state=AlertState.FIRING, resolved_at=None)
        done = step(state, active.values(), graph, {}, now)
        state = done.incidents
        made = plan(notices, IncidentView(list(state.values()), active), CHAT, now)
        notices = made.state
        found.messages.update(m.reason for m in made.messages if m.reason)
        found.incidents |= state
        wakes = [at for at in (done.wake_at, made.wake_at) if at is not None and at > now]
    by_episode = {(a.fingerprint, a.active_at): id(a) for a in episodes}
    for key, incident in found.incidents.items():
        if incident.state is not IncidentState.MERGED:
            for member in incident.members.values():
                if number := by_episode.get((member.fingerprint, member.active_at)):
                    found.home[number] = (key, member)
    return found


def judge(
    incidents: Sequence[ScriptedFault],
    episodes: Sequence[Alert],
    rules: Sequence[Rule],
    end_ms: int,
) -> Verdict:
    """Compare. `episodes`: alerts that fired; those that are not resolved continue at the end."""
    scores = {rule.name: Score() for rule in rules}
    confusion: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    joined = lived(episodes, rules, from_ms(START_MS + end_ms))
    by_node: dict[str, list[ScriptedFault]] = defaultdict(list)
    for incident in incidents:
        by_node[incident.node].append(incident)
    homes: dict[int, set[str]] = defaultdict(set)
    explained: set[str] = set()
    unexplained: list[Alert] = []
    for alert in episodes:
        meant = [i for i in by_node[alert.labels["node"]] if _is_meant(i, alert)]
        score = scores[alert.rule]
        expecting = [i for i in meant if alert.rule in i.scenario.expects]
        confusion[(expecting or meant)[0].scenario.name if meant else "-", alert.rule] += 1
        home = joined.home.get(id(alert))
        if meant:
            score.also += not expecting
            # Of several that it may be about, the one that began last.
            fault = max(expecting or meant, key=lambda i: i.begin_ms)
            if home:
                homes[id(fault)].add(home[0])
                explained.add(home[0])
        else:
            unexplained.append(alert)
    for alert in unexplained:
        score, home = scores[alert.rule], joined.home.get(id(alert))
        if home and (home[1].cause is None or home[0] not in explained):
            score.false += 1
            near = _near(by_node[alert.labels["node"]], alert)
            wrong.append(
                f"false   {_at(alert)} {alert.rule} {_where(alert)}; {near}: {alert.summary}"
            )
        else:
            score.follows += 1
    split = []
    for incident in incidents:
        if len(homes[id(incident)]) > 1:
            found = [joined.incidents[key] for key in homes[id(incident)]]
            found.sort(key=lambda i: i.opened_at)
            parts = ", ".join(f"{i.rule} ({i.place})" for i in found)
            split.append(f"several {_clock(incident.begin_ms)} {incident.scenario.name}: {parts}")
    for incident in incidents:
        for rule, limit_min in incident.scenario.expects.items():
            if incident.begin_ms + limit_min * MINUTE_MS > end_ms:
                continue  # it is not due yet
            _expect(incident, rule, limit_min, episodes, scores[rule], wrong)
    told = sum(1 for found in homes.values() if found)
    count = sum(i.state is not IncidentState.MERGED for i in joined.incidents.values())
    return Verdict(scores, confusion, wrong, split, told, joined.messages, count)


def _expect(
    incident: ScriptedFault,
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


def _is_meant(incident: ScriptedFault, alert: Alert) -> bool:
    gpu = alert.labels.get("gpu")
    return incident.may_be_meant(
        alert.rule, alert.labels["node"], None if gpu is None else int(gpu), _since_ms(alert)
    )


def _near(incidents: Sequence[ScriptedFault], alert: Alert) -> str:
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
    head = f"{'rule':26} {'faults':>6} {'caught':>6} {'late':>5} {'missed':>6} {'false':>6} {'follows':>7} {'also':>5} {'median':>7} {'worst':>6} {'limit':>6}"
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
            f"{name:26} {s.faults:6} {s.caught:6} {s.late:5} {s.missed:6} {s.false:6} {s.follows:7} {s.also:5} {times}"
        )
    lines += ["", "alerts by what was wrong (-: nothing was)"]
    by_scenario: Mapping[str, list[str]] = defaultdict(list)
    for (scenario, rule), count in sorted(verdict.confusion.items()):
        by_scenario[scenario].append(f"{rule} {count}")
    lines += [f"  {scenario:34} {', '.join(found)}" for scenario, found in by_scenario.items()]
    return "\n".join(lines + verdict.wrong + verdict.split)
