"""Follows policies over the alerts that fire now. Pure: `advance` makes one step, `answered` and `reported` take news.

A case is one policy and one episode of an alert. It is stored before anything is said or done, so that a collector that
dies in between does nothing twice: what it says has an id, and an act is asked for by its case, which the actor does once.

What is never acted upon: alerts that are pending, simulated, silenced, stale or unknown; what `protect` names; a job that has
changed since; anything while policies are stopped, or while too many alerts of a policy fire at once.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpuwarden.alert import Alert, AlertState
from gpuwarden_rules.policies.language import (
    ON_ALERTS,
    ON_NODES,
    WORDS,
    Policy,
    PolicyState,
    PolicySubject,
    StepKind,
)

_HOUR = timedelta(hours=1)
KEPT_FOR_MAX = timedelta(days=14)
"""Longest time for which an owner may say that something is still needed."""
ACT_WITHIN = timedelta(minutes=10)
"""Time for the actor to do an act and check it; after that a person has to look."""


class CaseState(StrEnum):
    """How far a case is."""

    WAITS = "waits"
    KEPT = "kept"  # its owner said that it is still needed
    ACTING = "acting"  # the actor was asked, and has not reported
    DONE = "done"
    FAILED = "failed"  # the actor could not, may not, or did not report in time
    SPARED = "spared"  # the alert ended, or what it is about has changed
    WITH_OTHERS = "with_others"  # the act of another case ended its job or node
    LEFT = "left"  # to a person: too many at once, or nobody to ask


OPEN = frozenset({CaseState.WAITS, CaseState.KEPT, CaseState.ACTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCase:
    """One policy and one episode of an alert. Instants are aware, UTC."""

    id: str
    policy: str
    act: StepKind
    fingerprint: str
    active_at: datetime
    node: str
    username: str
    job: str
    summary: str
    began_at: datetime
    """When the alert's condition began."""
    state: CaseState
    step: int = 0
    """Number of steps that were taken; -1: the act is next, as the owner asked for it."""
    next_at: datetime | None = None
    """When the next step is due; of ACTING: until when the actor must have reported."""
    act_at: datetime | None = None
    ended_at: datetime | None = None
    note: str = ""
    """Why it ended."""
    usd_per_hour: float | None = None
    rule: str = ""
    gpu_uuid: str = ""
    team: str = ""
    """Label `team` of the node; empty: it has none."""
    with_case: str = ""
    """Of WITH_OTHERS: the case whose act ended the job or node, too."""
    reused_hours: float | None = None
    """Hours of other work on the GPU after the act, so far; None: not judged."""
    busy_again_at: datetime | None = None
    """When its user was busy there again, soon after the act: it was wrong."""
    judged_until: datetime | None = None
    waits_for_undo: bool = False
    """Whether the node will be opened again once the alert is over."""
    undo_at: datetime | None = None
    """When that is due; None: the alert fires, or has fired again."""

    @property
    def is_followed(self) -> bool:
        """Whether something may still be done about it."""
        return self.state in OPEN or self.waits_for_undo

    @property
    def saved_usd(self) -> float | None:
        """Price of the hours in which others worked on the GPU; None: unknown, or the act was wrong."""
        if self.reused_hours is None or self.usd_per_hour is None or self.busy_again_at is not None:
            return None
        return self.usd_per_hour * self.reused_hours

    @property
    def target(self) -> str:
        """What the act is about."""
        if self.act in ON_NODES:
            return f"node {self.node}"
        if self.act in ON_ALERTS:
            return f"alert {self.fingerprint}"
        return f"job {self.job}"

    @property
    def lacks(self) -> str:
        """What is not known that the act needs; empty: nothing."""
        needs_job = self.act not in ON_NODES | ON_ALERTS
        return "no job is known that could be ended" if needs_job and not self.job else ""


@dataclass(frozen=True, slots=True)
class LiveAlert:
    """An alert that fires, and what it is about now."""

    alert: Alert
    subject: PolicySubject

    @property
    def may_be_acted_upon(self) -> bool:
        """Whether it is known to hold now, on a real GPU, and nobody has silenced it."""
        alert = self.alert
        is_known = alert.unknown_since is None and alert.stale_since is None
        is_real = not alert.simulated and alert.muted is None
        return alert.state is AlertState.FIRING and is_known and is_real


@dataclass(frozen=True, slots=True)
class PolicyMoves:
    """What a step changes."""

    changed: tuple[PolicyCase, ...] = ()
    said: tuple[tuple[PolicyCase, StepKind], ...] = ()
    """Steps that say something to the owner of a case."""


def case_id(policy: str, alert: Alert) -> str:
    """The id of a case: 16 hex digits."""
    text = f"{policy}\0{alert.fingerprint}\0{alert.active_at.isoformat()}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def digest_of(policy: Policy) -> str:
    """Hash of what a policy does, without its state and place."""
    said = replace(policy, state=PolicyState.DRY_RUN, path="", line=0)
    return hashlib.blake2b(repr(said).encode(), digest_size=16).hexdigest()


def advance(
    policies: Sequence[Policy],
    cases: Mapping[str, PolicyCase],
    alerts: Sequence[LiveAlert],
    now: datetime,
    *,
    may_ask: Iterable[str] = (),
) -> PolicyMoves:
    """Take each step that is due. `policies`: those that are on; `cases`: by id; `alerts`: all that fire; `may_ask`: users
    whom a message can reach."""
    known = dict(cases)
    changed: dict[str, PolicyCase] = {}
    said: list[tuple[PolicyCase, StepKind]] = []
    reachable = frozenset(may_ask)
    by_name = {policy.name: policy for policy in policies}
    for policy in policies:
        mine = {
            case_id(policy.name, one.alert): one
            for one in alerts
            if one.alert.rule == policy.rule and one.subject.fits(policy.match)
        }
        for name, one in mine.items():
            if name not in known and one.may_be_acted_upon and not policy.is_protected(one.subject):
                known[name] = changed[name] = _begun(policy, name, one)
        own = [case for case in known.values() if case.policy == policy.name]
        firing = sum(case.state in OPEN and case.id in mine for case in own)
        for case in sorted(own, key=lambda case: (case.next_at or now, case.id)):
            if case.state not in OPEN:
                continue
            moved, word = _moved(policy, case, mine.get(case.id), known, firing, now, reachable)
            if moved is not case:
                known[case.id] = changed[case.id] = moved
            if word is not None:
                said.append((moved, word))
    for case in [case for case in known.values() if case.waits_for_undo]:
        for moved in _undone(case, by_name.get(case.policy), alerts, now):
            known[moved.id] = changed[moved.id] = moved
    for case in list(known.values()):
        # A policy that is gone, off or stopped leaves no case open but those whose act may be on its way.
        if case.policy not in by_name and case.state in OPEN - {CaseState.ACTING}:
            changed[case.id] = _ended(case, CaseState.SPARED, now, "the policy is off")
        if case.policy not in by_name and case.state is CaseState.ACTING:
            late = _late(case, now)
            if late is not case:
                changed[case.id] = late
    return PolicyMoves(tuple(changed.values()), tuple(said))


def answered(case: PolicyCase, now: datetime, *, until: datetime | None) -> PolicyCase | None:
    """The case after its owner's answer: still needed `until`, or None: end it now. None: it is too late."""
    if case.state not in (CaseState.WAITS, CaseState.KEPT):
        return None
    if until is None:
        return replace(
            case, state=CaseState.WAITS, step=-1, next_at=now, note="its owner said: end it"
        )
    kept = min(until, now + KEPT_FOR_MAX)
    return replace(
        case, state=CaseState.KEPT, step=0, next_at=kept, note="its owner said: still needed"
    )


def resumed(node: str, by: str, now: datetime, *, policy: str = "") -> PolicyCase:
    """The case of a node that a person, or a policy by itself, returns to the queue."""
    text = f"resume\0{node}\0{now.isoformat()}"
    return PolicyCase(
        id=hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
        policy=policy,
        act=StepKind.RESUME_NODE,
        fingerprint="",
        active_at=now,
        node=node,
        username="",
        job="",
        summary=f"{by} returns {node} to the queue",
        began_at=now,
        state=CaseState.ACTING,
        act_at=now,
        next_at=now + ACT_WITHIN,
    )


def reported(case: PolicyCase, now: datetime, *, is_done: bool, note: str) -> PolicyCase | None:
    """The case after the actor's report; None: nobody asked for the act."""
    if case.state is not CaseState.ACTING:
        return None
    return _ended(case, CaseState.DONE if is_done else CaseState.FAILED, now, note)


def _undone(
    case: PolicyCase, policy: Policy | None, alerts: Sequence[LiveAlert], now: datetime
) -> list[PolicyCase]:
    """A case whose node waits to be opened again, as it is now, and the case that opens it."""
    if policy is None or policy.undo_after_s is None:
        return [replace(case, waits_for_undo=False, undo_at=None)]
    if case.state is not CaseState.DONE:
        return []
    # Of the node as a whole: what another GPU of it has keeps it closed.
    is_sick = any(one.alert.rule == policy.rule and one.subject.node == case.node for one in alerts)
    if is_sick:
        return [replace(case, undo_at=None)] if case.undo_at else []
    if case.undo_at is None:
        return [replace(case, undo_at=now + timedelta(seconds=policy.undo_after_s))]
    if case.undo_at > now:
        return []
    back = resumed(case.node, f"policy {case.policy}", now, policy=case.policy)
    return [replace(case, waits_for_undo=False), back]


def _begun(policy: Policy, name: str, one: LiveAlert) -> PolicyCase:
    alert, subject = one.alert, one.subject
    due = (alert.fired_at or alert.active_at) + timedelta(seconds=policy.after_s)
    return PolicyCase(
        id=name,
        policy=policy.name,
        act=policy.act,
        fingerprint=alert.fingerprint,
        active_at=alert.active_at,
        node=subject.node,
        username=subject.username,
        job=subject.job,
        summary=alert.summary,
        began_at=alert.began_at,
        state=CaseState.WAITS,
        next_at=_within(policy, due),
        usd_per_hour=alert.usd_per_hour,
        rule=policy.rule,
        gpu_uuid=alert.labels.get("gpu_uuid", ""),
        team=subject.labels.get("team", ""),
    )


def _within(policy: Policy, at: datetime) -> datetime:
    return at if policy.hours is None else policy.hours.next_at(at)


def _moved(
    policy: Policy,
    case: PolicyCase,
    one: LiveAlert | None,
    known: Mapping[str, PolicyCase],
    firing: int,
    now: datetime,
    reachable: frozenset[str],
) -> tuple[PolicyCase, StepKind | None]:
    """The case now, and what is said to its owner."""
    if case.state is CaseState.ACTING:
        return _late(case, now), None
    if one is None:
        return _ended(case, CaseState.SPARED, now, "the alert ended"), None
    if policy.is_protected(one.subject):
        return _ended(case, CaseState.SPARED, now, "it is protected"), None
    if case.act not in ON_NODES and (one.subject.job, one.subject.username) != (
        case.job,
        case.username,
    ):
        return _ended(case, CaseState.SPARED, now, "another job has the GPU"), None
    if not one.may_be_acted_upon or case.next_at is None or case.next_at > now:
        return case, None
    if (due := _within(policy, now)) > now:
        return replace(case, next_at=due), None
    step = policy.steps[case.step]
    if step.kind in WORDS:
        if step.kind is StepKind.ASK_OWNER and case.username not in reachable:
            return _ended(case, CaseState.LEFT, now, "its owner has no address to ask at"), None
        due = _within(policy, now + timedelta(seconds=step.wait_s))
        return replace(case, state=CaseState.WAITS, step=case.step + 1, next_at=due), step.kind
    return _acting(policy, case, known, firing, now), None


def _acting(
    policy: Policy, case: PolicyCase, known: Mapping[str, PolicyCase], firing: int, now: datetime
) -> PolicyCase:
    """The case whose act is due: it is asked for, or held back."""
    if case.lacks:
        return _ended(case, CaseState.LEFT, now, case.lacks)
    acts_of_policies = [one for one in known.values() if one.act is not StepKind.RESUME_NODE]
    for other in acts_of_policies:
        has_acted = other.id != case.id and other.act_at is not None and other.target == case.target
        if has_acted and other.state in (CaseState.ACTING, CaseState.DONE):
            assert other.act_at is not None
            if other.act_at >= case.began_at:
                joined = replace(case, with_case=other.id)
                return _ended(joined, CaseState.WITH_OTHERS, now, f"with case {other.id}")
    if policy.at_once is not None and firing > policy.at_once:
        return _ended(
            case, CaseState.LEFT, now, f"{firing} alerts fire at once: a person has to look"
        )
    acts = sorted(
        other.act_at
        for other in acts_of_policies
        if other.policy == policy.name and other.act_at is not None and other.act_at > now - _HOUR
    )
    if policy.an_hour is not None and len(acts) >= policy.an_hour:
        return replace(case, next_at=acts[-policy.an_hour] + _HOUR)
    can_undo = policy.undo_after_s is not None
    return replace(
        case, state=CaseState.ACTING, act_at=now, next_at=now + ACT_WITHIN, waits_for_undo=can_undo
    )


def _late(case: PolicyCase, now: datetime) -> PolicyCase:
    if case.next_at is not None and case.next_at <= now:
        return _ended(
            case,
            CaseState.FAILED,
            now,
            "the actor did not report in time: check whether it was done",
        )
    return case


def _ended(case: PolicyCase, state: CaseState, now: datetime, note: str) -> PolicyCase:
    waits = case.waits_for_undo and state is CaseState.DONE
    return replace(case, state=state, next_at=None, ended_at=now, note=note, waits_for_undo=waits)
