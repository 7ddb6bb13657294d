"""Says what a policy would have done to the alerts of a time, what that would have saved, and where it was wrong.

`tried` follows the steps of each alert through waits, hours and limits. `judged` compares each act with what the GPU did
afterwards: one whose job was busy again within `WRONG_WITHIN` was a wrong one. Both are pure; `dry_run` reads what they need.
Alerts are those of a replay of the rule. An answer of an owner is not known: nobody was asked, so nobody answers.
"""

import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gpuwarden.alert import Alert, usd_between
from gpuwarden.query import Querier
from gpuwarden_rules.backtest.replay import Replay
from gpuwarden_rules.definition.overrides import Locations
from gpuwarden_rules.definition.sql_text import timestamp_text
from gpuwarden_rules.policies.language import ON_NODES, OfficeHours, Policy, PolicySubject

WRONG_WITHIN = timedelta(hours=1)
HELD_WITHIN = timedelta(minutes=10)
"""A process that had the GPU this long before an instant had it at that instant."""
BUSY_SECONDS_MIN = 30
"""Of a minute: from here on it was busy."""
_HOUR = timedelta(hours=1)
_AT_ONCE = 2_000
"""Alerts in one query."""
_IN_TIME = "ts >= $begin::TIMESTAMP AND ts <= $end::TIMESTAMP"


class Outcome(StrEnum):
    """What would have become of an alert."""

    PROTECTED = "protected"
    ENDED = "ended before the first step"
    SPARED = "ended while the policy waited"
    LIMITED = "ended while a limit held the act back"
    MANY = "left to a person: too many alerts at once"
    WITH_OTHERS = "ended by the act on another GPU of its job or node"
    CHANGED = "left alone: another job had the GPU by then"
    WAITS = "would still wait"
    ACTED = "acted"


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """An alert, and what the policy would have done about it."""

    alert: Alert
    subject: PolicySubject
    outcome: Outcome
    first_at: datetime | None = None
    """When its first step would have been taken."""
    act_at: datetime | None = None
    """When the act would have been done; of WITH_OTHERS: the act on the other GPU."""
    saved_usd: float | None = None
    """Cost from the act to the end of the alert; None: nothing was saved, or no price is known."""
    busy_again_at: datetime | None = None
    """When the same job was busy again: within `WRONG_WITHIN` of the act, which was a wrong one."""
    is_judged: bool = False
    """Whether all of `WRONG_WITHIN` after the act is past, and the act ends jobs."""

    @property
    def is_wrong(self) -> bool:
        """Whether the act would have ended work."""
        return self.busy_again_at is not None


def tried(
    policy: Policy, episodes: Sequence[Alert], subjects: Sequence[PolicySubject], until: datetime
) -> list[PolicyTrial]:
    """What the policy would have done about these alerts, in their order. `subjects`: of each alert; those that do not
    match are left out."""
    trials: dict[int, PolicyTrial] = {}
    waiting: list[tuple[datetime, int]] = []
    for number, (alert, subject) in enumerate(zip(episodes, subjects, strict=True)):
        if not subject.fits(policy.match):
            continue
        trials[number] = begun = _waited(policy, PolicyTrial(alert, subject, Outcome.ACTED), until)
        if begun.outcome is Outcome.ACTED and begun.act_at is not None:
            heapq.heappush(waiting, (begun.act_at, number))
    firing = _Firing(policy, [t for t in trials.values() if t.outcome is not Outcome.PROTECTED])
    acts: list[datetime] = []
    ended: dict[str, datetime] = {}
    while waiting:
        at, number = heapq.heappop(waiting)
        trial = trials[number]
        target = _target(policy, trial)
        if _is_over(trial.alert, at):
            trials[number] = replace(trial, outcome=Outcome.LIMITED, act_at=None)
        elif at > until:
            trials[number] = replace(trial, outcome=Outcome.WAITS, act_at=None)
        elif _is_ended(trial, ended.get(target)):
            trials[number] = replace(trial, outcome=Outcome.WITH_OTHERS, act_at=ended[target])
        elif policy.at_once is not None and firing.count(at, ended) > policy.at_once:
            trials[number] = replace(trial, outcome=Outcome.MANY, act_at=None)
        elif (free_at := _free_at(policy, acts, at)) > at:
            heapq.heappush(waiting, (free_at, number))
        else:
            acts.append(at)
            ended[target] = at
            trials[number] = replace(trial, act_at=at)
    return [_with_others(one, policy, ended) for _, one in sorted(trials.items())]


def _waited(policy: Policy, trial: PolicyTrial, until: datetime) -> PolicyTrial:
    """The alert after the steps before the act; ACTED if it lasts until then."""
    if policy.is_protected(trial.subject):
        return replace(trial, outcome=Outcome.PROTECTED)
    alert = trial.alert
    at = _fired_at(alert) + timedelta(seconds=policy.after_s)
    for number, step in enumerate(policy.steps):
        at = _within(policy.hours, at)
        if _is_over(alert, at):
            return replace(trial, outcome=Outcome.SPARED if number else Outcome.ENDED)
        if at > until:
            return replace(trial, outcome=Outcome.WAITS)
        trial = replace(trial, first_at=trial.first_at or at)
        if number == len(policy.steps) - 1:
            return replace(trial, act_at=at)
        at += timedelta(seconds=step.wait_s)
    return trial


def _with_others(trial: PolicyTrial, policy: Policy, ended: Mapping[str, datetime]) -> PolicyTrial:
    """An alert that waited for its own act while another one ended its job or node."""
    at = ended.get(_target(policy, trial))
    if trial.outcome not in (Outcome.SPARED, Outcome.WAITS, Outcome.LIMITED) or at is None:
        return trial
    if trial.alert.began_at <= at and not _is_over(trial.alert, at):
        return replace(trial, outcome=Outcome.WITH_OTHERS, act_at=at)
    return trial


def _within(hours: OfficeHours | None, at: datetime) -> datetime:
    return at if hours is None else hours.next_at(at)


def _is_over(alert: Alert, at: datetime) -> bool:
    return alert.resolved_at is not None and alert.resolved_at <= at


class _Firing:
    """Counts the alerts that fire at an instant, without those that an act has ended. Instants are asked in order."""

    def __init__(self, policy: Policy, trials: Sequence[PolicyTrial]) -> None:
        self._policy = policy
        self._coming = sorted(trials, key=lambda t: _fired_at(t.alert), reverse=True)
        self._now: list[PolicyTrial] = []

    def count(self, at: datetime, ended: Mapping[str, datetime]) -> int:
        while self._coming and _fired_at(self._coming[-1].alert) <= at:
            self._now.append(self._coming.pop())
        self._now = [
            trial
            for trial in self._now
            if not _is_over(trial.alert, at)
            and not _is_ended(trial, ended.get(_target(self._policy, trial)))
        ]
        return len(self._now)


def _fired_at(alert: Alert) -> datetime:
    return alert.fired_at or alert.active_at


def _is_ended(trial: PolicyTrial, ended_at: datetime | None) -> bool:
    """Whether an act at that time ended what the alert is about; one that began later came after it."""
    return ended_at is not None and trial.alert.began_at <= ended_at


def _free_at(policy: Policy, acts: Sequence[datetime], at: datetime) -> datetime:
    """When the limit of acts an hour allows the next one. `acts` are in order of time."""
    if policy.an_hour is None or len(acts) < policy.an_hour:
        return at
    return max(at, _within(policy.hours, acts[-policy.an_hour] + _HOUR))


def _target(policy: Policy, trial: PolicyTrial) -> str:
    """What the act ends: a node, a job, or what one GPU has."""
    if policy.act in ON_NODES:
        return f"node {trial.subject.node}"
    if trial.subject.job:
        return f"job {trial.subject.job}"
    return f"alert {trial.alert.fingerprint} {trial.alert.active_at}"


@dataclass(frozen=True, slots=True)
class ActFacts:
    """What was on the GPU at an act, and after it."""

    job: str = ""
    """Empty: none is known."""
    busy_again_at: datetime | None = None


def judged(
    policy: Policy, trials: Sequence[PolicyTrial], facts: Sequence[ActFacts], until: datetime
) -> list[PolicyTrial]:
    """The trials with the result of their acts. `facts`: of each trial. Acts on nodes end no job: they
    are neither wrong, nor do they save what the alert cost."""
    if policy.act in ON_NODES:
        return list(trials)
    return [_judged(trial, fact, until) for trial, fact in zip(trials, facts, strict=True)]


def _judged(trial: PolicyTrial, fact: ActFacts, until: datetime) -> PolicyTrial:
    if trial.act_at is None or trial.outcome not in (Outcome.ACTED, Outcome.WITH_OTHERS):
        return trial
    if trial.subject.job and fact.job != trial.subject.job:
        return replace(trial, outcome=Outcome.CHANGED, act_at=None)
    ends_at = trial.alert.resolved_at or until
    return replace(
        trial,
        saved_usd=usd_between(trial.alert.usd_per_hour, trial.act_at, max(ends_at, trial.act_at)),
        busy_again_at=fact.busy_again_at,
        is_judged=trial.act_at + WRONG_WITHIN <= until,
    )


def saved_usd(trials: Iterable[PolicyTrial]) -> float | None:
    """Dollars that all acts would have saved but the wrong ones; None: no price is known."""
    saved = [t.saved_usd for t in trials if t.saved_usd is not None and not t.is_wrong]
    return sum(saved) if saved else None


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a policy would have done over a time."""

    policy: Policy
    since: datetime
    until: datetime
    trials: tuple[PolicyTrial, ...]

    def of(self, outcome: Outcome) -> list[PolicyTrial]:
        """Trials with that outcome."""
        return [trial for trial in self.trials if trial.outcome is outcome]

    @property
    def wrong(self) -> list[PolicyTrial]:
        """Acts that would have ended work."""
        return [trial for trial in self.trials if trial.is_wrong]

    @property
    def saved_usd(self) -> float | None:
        """As `saved_usd` of all."""
        return saved_usd(self.trials)

    def by_user(self) -> Mapping[str, Sequence[PolicyTrial]]:
        """Acts by the user whom they would have met; empty: not known."""
        found: dict[str, list[PolicyTrial]] = defaultdict(list)
        for trial in self.trials:
            if trial.act_at is not None:
                found[trial.subject.username].append(trial)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))


ASKED = (
    'asked AS (SELECT a.* FROM (SELECT unnest(from_json($asked, \'[{"key": "BIGINT", "gpu_uuid": "VARCHAR", '
    '"job": "VARCHAR", "username": "VARCHAR", "at": "TIMESTAMP"}]\')) AS a))'
)
OF_ASKED_GPUS = f"gpu_uuid IN (SELECT gpu_uuid FROM asked) AND {_IN_TIME}"


def _held_sql(table: str) -> str:
    """Job and user by row of `asked`, of the newest row of its GPU."""
    return (
        "SELECT a.key, arg_max(t.job, t.ts) AS job, arg_max(t.username, t.ts) AS username "
        f"FROM asked a JOIN (SELECT * FROM {table} WHERE {OF_ASKED_GPUS}) t ON t.gpu_uuid = a.gpu_uuid "
        f"AND t.ts > a.at - INTERVAL {_minutes(HELD_WITHIN)} MINUTE AND t.ts <= a.at GROUP BY a.key"
    )


def _minutes(span: timedelta) -> int:
    return int(span.total_seconds() // 60)


_HELD = f"""
WITH {ASKED}, held AS ({_held_sql("process_1m")}), given AS ({_held_sql("allocation_samples")})
SELECT key, coalesce(h.job, g.job, '') AS job, coalesce(h.username, g.username, '') AS username
FROM asked LEFT JOIN held h USING (key) LEFT JOIN given g USING (key)
"""
BUSY_AGAIN_SQL = f"""
WITH {ASKED},
working AS (SELECT gpu_uuid, ts FROM gpu_1m WHERE busy_seconds >= {BUSY_SECONDS_MIN} AND {OF_ASKED_GPUS}),
processes AS (SELECT gpu_uuid, ts, job, username FROM process_1m WHERE {OF_ASKED_GPUS})
SELECT a.key, min(w.ts) AS busy_at
FROM asked a
JOIN working w ON w.gpu_uuid = a.gpu_uuid AND w.ts > a.at AND w.ts < a.at + INTERVAL {_minutes(WRONG_WITHIN)} MINUTE
JOIN processes p ON p.gpu_uuid = w.gpu_uuid AND p.ts = w.ts
WHERE CASE WHEN a.job <> '' THEN p.job = a.job WHEN a.username <> '' THEN p.username = a.username ELSE true END
GROUP BY a.key
"""


async def dry_run(policy: Policy, replay: Replay, places: Locations, querier: Querier) -> DryRun:
    """A policy over the alerts of a replay of its rule, in the fleet of today. Raises QueryError."""
    fired = [_fired_at(alert) for alert in replay.episodes]
    subjects = await subjects_of(querier, replay.episodes, places, fired)
    trials = tried(policy, replay.episodes, subjects, replay.until)
    found = judged(policy, trials, await _facts(querier, trials), replay.until)
    return DryRun(policy, replay.since, replay.until, tuple(found))


async def subjects_of(
    querier: Querier, alerts: Sequence[Alert], places: Locations, instants: Sequence[datetime]
) -> list[PolicySubject]:
    """What each alert is about at its instant. Raises QueryError."""
    owners = await _holders(querier, alerts, instants)
    return [_subject(alert, places, owner) for alert, owner in zip(alerts, owners, strict=True)]


def _subject(alert: Alert, places: Locations, owner: Mapping[str, str]) -> PolicySubject:
    place = places.of(alert.labels)
    job = alert.labels.get("job") or owner["job"]
    username = alert.owner or owner["username"]
    return PolicySubject(place.node, place.model, username, job, dict(place.labels))


async def _holders(
    querier: Querier, alerts: Sequence[Alert], instants: Sequence[datetime]
) -> Sequence[Mapping[str, str]]:
    """Job and user that had the GPU of each alert at its instant; empty: none is known."""
    asked = [
        {"key": key, "gpu_uuid": alert.labels.get("gpu_uuid", ""), "at": at}
        for key, (alert, at) in enumerate(zip(alerts, instants, strict=True))
    ]
    rows = await rows_by_key(querier, _HELD, asked)
    return [rows[key] for key in range(len(asked))]


async def _facts(querier: Querier, trials: Sequence[PolicyTrial]) -> Sequence[ActFacts]:
    """What was on the GPU of each act, and when the same job was busy again; of trials without an act: nothing."""
    asked = [
        {
            "key": key, "gpu_uuid": trial.alert.labels.get("gpu_uuid", ""), "at": trial.act_at,
            "job": trial.subject.job, "username": trial.subject.username,
        }
        for key, trial in enumerate(trials)
        if trial.act_at is not None
    ]  # fmt: skip
    held = await rows_by_key(querier, _HELD, asked)
    busy = await rows_by_key(querier, BUSY_AGAIN_SQL, asked)
    return [
        ActFacts(held[key]["job"], busy[key]["busy_at"] if key in busy else None)
        if key in held
        else ActFacts()
        for key in range(len(trials))
    ]


async def rows_by_key(
    querier: Querier,
    sql: str,
    asked: Sequence[Mapping[str, Any]],
    after: timedelta = WRONG_WITHIN,
) -> dict[int, Mapping[str, Any]]:
    """Rows by key; the query reads the time until `after` their instants. Raises QueryError. Alerts that are near in time are asked together, as each query reads all of the time between."""
    found: dict[int, Mapping[str, Any]] = {}
    ordered = sorted(asked, key=lambda one: one["at"])
    for first in range(0, len(ordered), _AT_ONCE):
        part = ordered[first : first + _AT_ONCE]
        texts = [
            {"job": "", "username": "", **one, "at": timestamp_text(one["at"])} for one in part
        ]
        params = {
            "asked": json.dumps(texts),
            "begin": part[0]["at"] - HELD_WITHIN,
            "end": part[-1]["at"] + after,
        }
        rows = (await querier.query(sql, params, row_limit=_AT_ONCE)).records()
        found |= {row["key"]: row for row in rows}
    return found
