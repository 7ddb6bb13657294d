"""Implements the life cycle of alerts as one pure function, for live evaluation, tests and replays.

    inactive -> pending -> firing -> resolved

An alert is pending from the evaluation that first finds it, fires once it has been found for the
rule's `for` (at once where the row says `immediate`), and is resolved by the first evaluation that
does not find it, once `keep_firing_for` has passed since the last one that did. A pending alert that is not
found again is resolved without having fired (`fired_at` is None). An alert that comes back begins a new
episode.

A row may have a column `holds`. TRUE (the default): the condition holds. FALSE: it does not, as without the
row. NULL: unknown, or between the thresholds of firing and clearing: no alert starts, and an existing one
stays and records since when its condition is unknown. A row whose job is younger than the rule's `warm_up`
counts as NULL.

A node that has sent nothing for a while is silent: its rows are old. None of its alerts begins or fires. One
that already fires becomes stale until the node sends again, and is resolved after STALE_MAX with that reason.
Rules about silence itself are exempt (`judges_silent_nodes`).

An alert that has fired and cleared FLAPS_MAX times within FLAP_WINDOW flaps: it keeps firing, and its text
says so, until it changes less often.

If the clock goes back, no alert is resolved before its begin, no cost is negative, and a pending alert waits
until its `for` has passed on the new clock.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from gpuwarden.alert import Alert, AlertState, Severity, fingerprint
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.templates import TEXT_CHARS_MAX

FLAPS_MAX = 4
"""Changes (fires, clears) within FLAP_WINDOW from which an alert flaps."""
FLAP_WINDOW = timedelta(hours=1)
STALE_MAX = timedelta(minutes=30)
"""How long an alert of a silent node stays stale: longer than a large node takes to boot."""
FLAPPING = " Flapping: it fired and cleared too often within an hour, so it keeps firing."


class Change(NamedTuple):
    """The condition of a firing alert began to hold, or ended."""

    at: datetime
    came: bool


@dataclass(frozen=True, slots=True, eq=False)
class RuleState(Mapping[str, Alert]):
    """Pending and firing alerts of one rule by fingerprint, and the history that the next step needs."""

    alerts: Mapping[str, Alert] = field(default_factory=dict)
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    """Changes of the last hour by fingerprint, oldest first; also of resolved alerts."""
    unknown: frozenset[str] = frozenset()
    """Fingerprints whose condition was unknown at the last evaluation."""

    def __getitem__(self, key: str) -> Alert:
        return self.alerts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.alerts)

    def __len__(self) -> int:
        return len(self.alerts)


def restored(alerts: Iterable[Alert]) -> RuleState:
    """The state from stored alerts: open ones, and those resolved lately."""
    episodes = list(alerts)
    changes: dict[str, list[Change]] = {}
    for alert in episodes:
        if alert.fired_at:
            found = changes.setdefault(alert.fingerprint, [])
            found.append(Change(alert.fired_at, came=True))
            if alert.resolved_at:
                found.append(Change(alert.resolved_at, came=False))
    return RuleState(
        {a.fingerprint: a for a in episodes if a.state is not AlertState.RESOLVED},
        {key: tuple(sorted(found)) for key, found in changes.items()},
    )


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state: the alert after it, and the state before; None: the alert is new."""

    alert: Alert
    before: AlertState | None


class RowsError(ValueError):
    """The rows of the SQL cannot be alerts; the message says which rows, and why."""


class Account(NamedTuple):
    """The cost of an alert by `waste`."""

    usd: float
    until: datetime
    """Up to when the cost is computed."""
    began_at: datetime
    """When the condition began, or from when on the cost was added."""


def step(
    state: Mapping[str, Alert],
    rows: Sequence[Mapping[str, Any]],
    rule: Rule,
    now: datetime,
    silent: Collection[str] = (),
    accounts: Mapping[str, Account] = MappingProxyType({}),
    unread: Collection[str] = (),
) -> tuple[RuleState, list[Transition]]:
    """The state after an evaluation at `now` that returned `rows`, and the changes.

    `state`: the result of the previous step, or {}. `silent`: nodes that send nothing. `accounts`: costs of
    alerts by fingerprint; others are computed from their price an hour. `unread`: alerts that came from another
    collector, whose condition is unknown unless a row has it. Do not call this for an evaluation
    that failed: the state stays. Raises RowsError.
    """
    silent = () if rule.judges_silent_nodes else silent
    found, unknown = holding_and_unknown(rows, rule, now, silent)
    unknown |= {key for key in unread if key not in found}
    state = _with_accounts(state, accounts)
    changes = _recent(state, now)
    after: dict[str, Alert] = {}
    transitions: list[Transition] = []
    for key, (labels, row) in found.items():
        before = state.get(key)
        alert = _seen(before, accounts.get(key), key, labels, row, rule, now)
        if alert.state is AlertState.FIRING and _begins_to_hold(before, changes.get(key, ())):
            changes[key] = (*changes.get(key, ()), Change(now, came=True))
        after[key] = _flapping(alert) if _flaps(changes.get(key, ())) else alert
        if before is None or before.state is not alert.state:
            transitions.append(Transition(after[key], before.state if before else None))
    for key, alert in state.items():
        if key in found:
            continue
        if alert.labels.get("node") in silent and (stale := _stale(alert, now)):
            after[key] = stale
        elif alert.labels.get("node") in silent:
            transitions.append(Transition(_ended(alert, now, _silent_reason(alert)), alert.state))
        elif key in unknown:
            unknown_since = alert.unknown_since or now
            after[key] = replace(alert, unknown_since=unknown_since, stale_since=None)
        elif _is_kept(alert, rule, now):
            # A time in the future: the clock went back, and `keep_firing_for` counts from now.
            seen_at = min(alert.seen_at, now)
            after[key] = replace(alert, seen_at=seen_at, unknown_since=None, stale_since=None)
        elif alert.state is AlertState.FIRING and _flaps(changes.get(key, ())):
            if changes[key][-1].came:
                changes[key] = (*changes[key], Change(now, came=False))
            after[key] = _flapping(replace(alert, unknown_since=None, stale_since=None))
        else:
            if alert.state is AlertState.FIRING:
                changes[key] = (*changes.get(key, ()), Change(now, came=False))
            transitions.append(Transition(_ended(alert, now), alert.state))
    return RuleState(after, changes, frozenset(unknown)), transitions


def _with_accounts(
    state: Mapping[str, Alert], accounts: Mapping[str, Account]
) -> Mapping[str, Alert]:
    """The state with the costs of its alerts."""
    known = {
        key: replace(state[key], accounted_usd=account.usd, accounted_until=account.until)
        for key, account in accounts.items()
        if key in state
    }
    if not known:
        return state
    after = {**state, **known}
    return replace(state, alerts=after) if isinstance(state, RuleState) else after


def _recent(state: Mapping[str, Alert], now: datetime) -> dict[str, tuple[Change, ...]]:
    """Changes within the window by fingerprint; a plain mapping has no history."""
    changes = state.changes if isinstance(state, RuleState) else {}
    recent = {
        key: tuple(c for c in found if timedelta(0) <= now - c.at < FLAP_WINDOW)
        for key, found in changes.items()
    }
    return {key: found for key, found in recent.items() if found}


def _flaps(changes: Sequence[Change]) -> bool:
    return len(changes) >= FLAPS_MAX


def _begins_to_hold(before: Alert | None, changes: Sequence[Change]) -> bool:
    """Whether the condition of an alert that fires now began to hold, also while the alert flaps."""
    is_new = before is None or before.state is not AlertState.FIRING
    return is_new or (len(changes) > 0 and not changes[-1].came)


def _flapping(alert: Alert) -> Alert:
    return replace(alert, summary=alert.summary.removesuffix(FLAPPING) + FLAPPING)


def _stale(alert: Alert, now: datetime) -> Alert | None:
    """The alert of a silent node, stale; None: it ends, because it was pending or stale for too long."""
    # A time in the future: the clock went back, and the time counts from now.
    stale_since = min(alert.stale_since or now, now)
    if alert.state is AlertState.PENDING or now - stale_since >= STALE_MAX:
        return None
    return replace(alert, stale_since=stale_since)


def _silent_reason(alert: Alert) -> str:
    minutes = STALE_MAX // timedelta(minutes=1)
    if alert.state is AlertState.PENDING:
        return f"{alert.labels['node']} stopped sending"
    return f"{alert.labels['node']} has sent nothing for {minutes} min, so its state is unknown"


def _ended(alert: Alert, now: datetime, reason: str | None = None) -> Alert:
    resolved_at = max(now, alert.active_at)
    return replace(
        alert, state=AlertState.RESOLVED, resolved_at=resolved_at, resolved_reason=reason
    )


def holding_and_unknown(
    rows: Sequence[Mapping[str, Any]], rule: Rule, now: datetime, silent: Collection[str] = ()
) -> tuple[dict[str, tuple[dict[str, str], Mapping[str, Any]]], set[str]]:
    """Rows whose condition holds, by fingerprint, and fingerprints whose condition is unknown."""
    found: dict[str, tuple[dict[str, str], Mapping[str, Any]]] = {}
    unknown: set[str] = set()
    for row in rows:
        holds = row.get("holds", True)
        if holds is False:
            continue
        labels = labels_of(row, rule)
        key = fingerprint(rule.name, labels)
        if key in found or key in unknown:
            named = ", ".join(f"{name}={value}" for name, value in labels.items())
            raise RowsError(f"two rows have the same labels ({named or 'no labels'})")
        if labels.get("node") in silent:
            continue
        if holds is None or _is_warming_up(row, rule, now):
            unknown.add(key)
        else:
            found[key] = (labels, row)
    return found, unknown


def found_rows(
    rows: Sequence[Mapping[str, Any]], rule: Rule, now: datetime
) -> dict[str, tuple[dict[str, str], Mapping[str, Any]]]:
    """Rows whose condition holds, with their labels, by fingerprint. Raises RowsError."""
    return holding_and_unknown(rows, rule, now)[0]


def fingerprints_in(
    rows: Sequence[Mapping[str, Any]], rule: Rule, now: datetime
) -> tuple[frozenset[str], frozenset[str]]:
    """Fingerprints whose condition holds, and those whose condition is unknown. Raises RowsError."""
    found, unknown = holding_and_unknown(rows, rule, now)
    return frozenset(found), frozenset(unknown)


def _is_warming_up(row: Mapping[str, Any], rule: Rule, now: datetime) -> bool:
    started_at = instant_of(row, "job_started_at") if rule.warm_up_s else None
    return started_at is not None and now - started_at < timedelta(seconds=rule.warm_up_s)


def labels_of(row: Mapping[str, Any], rule: Rule) -> dict[str, str]:
    """The row's labels without those that are NULL, which do not apply."""
    missing = [name for name in rule.labels if name not in row]
    if missing:
        raise RowsError(f"the SQL does not return the label {missing[0]!r}")
    return {name: str(row[name]) for name in rule.labels if row[name] is not None}


def _is_kept(alert: Alert, rule: Rule, now: datetime) -> bool:
    keep = timedelta(seconds=rule.keep_firing_for_s)
    unseen = max(now - alert.seen_at, timedelta(0))
    return alert.state is AlertState.FIRING and unseen < keep


def _seen(
    before: Alert | None,
    account: Account | None,
    key: str,
    labels: Mapping[str, str],
    row: Mapping[str, Any],
    rule: Rule,
    now: datetime,
) -> Alert:
    active_at = before.active_at if before else now
    began_at = min(instant_of(row, "began_at") or active_at, active_at)
    if before:
        began_at = min(began_at, before.began_at)
    elif account:
        began_at = min(began_at, account.began_at)
    usd_known = account.usd if account else before.accounted_usd if before else None
    until = account.until if account else before.accounted_until if before else None
    fires = row.get("immediate") is True or now - active_at >= timedelta(seconds=rule.for_s)
    is_firing = fires or (before is not None and before.state is AlertState.FIRING)
    fired_at = before.fired_at if before else None
    usd_per_hour = _number(row, "usd_per_hour")
    # A clock that went back makes no alert younger than now.
    values = {**rule.params, **row, "active": max(now - began_at, timedelta())}
    try:
        summary, remedy = rule.summary.render(values), rule.remedy.render(values)
    except (LookupError, ValueError) as error:
        raise RowsError(str(error.args[0])) from error
    return Alert(
        fingerprint=key,
        rule=rule.name,
        severity=_severity(row) or rule.severity,
        consequence=rule.consequence,
        state=AlertState.FIRING if is_firing else AlertState.PENDING,
        labels=labels,
        summary=summary,
        remedy=remedy,
        value=_number(row, "value"),
        usd_per_hour=usd_per_hour,
        accounted_usd=usd_known,
        accounted_until=until,
        began_at=began_at,
        active_at=active_at,
        fired_at=fired_at or (now if is_firing else None),
        seen_at=now,
        owner=_text(row, "owner") or (before.owner if before else None),
        job=_text(row, "job") or (before.job if before else None),
        muted=before.muted if before else None,
        simulated=row.get("simulated") is True,
    )


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RowsError(f"column {name!r} must be a number, not {value!r:.60}") from error
    return number if math.isfinite(number) else None


def instant_of(row: Mapping[str, Any], name: str) -> datetime | None:
    """An instant of a row, or None. Raises RowsError."""
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise RowsError(f"column {name!r} must be a TIMESTAMP, not {value!r:.60}")
    return value


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    return None if value is None else str(value)[:TEXT_CHARS_MAX]


def _severity(row: Mapping[str, Any]) -> Severity | None:
    word = _text(row, "severity")
    if word is None:
        return None
    try:
        return Severity(word)
    except ValueError as error:
        known = ", ".join(Severity)
        raise RowsError(f"column 'severity' must be one of {known}, not {word!r:.60}") from error
