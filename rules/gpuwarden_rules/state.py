"""The life of alerts as one pure function: the same for live evaluation, tests and history.

    inactive -> pending -> firing -> resolved

An alert is pending from the evaluation that first finds it, fires once it has been found for the
rule's `for`, and is resolved by the first evaluation that does not find it later than
`keep_firing_for` after the last that did. A pending alert that is not found again is resolved
without having fired (`fired_at` is None). One that comes back begins a new episode.

A row may say `holds`: TRUE (the default) the condition holds; FALSE it does not, as if there were
no row; NULL nobody can say, or the value is in the band between firing and clearing: a new alert
does not start, one that exists stays exactly as it is.

Where the clock goes back nothing is resolved before it began and nothing costs less than nothing; a
pending alert waits until its `for` has passed on the clock as it is now.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.alert import Alert, AlertState, fingerprint
from gpuwarden_rules.language import Rule
from gpuwarden_rules.texts import usd

State = Mapping[str, Alert]
"""Pending and firing alerts of one rule, by fingerprint."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state: `alert` as it is now; `before` is None for an alert that begins."""

    alert: Alert
    before: AlertState | None


class RowsError(ValueError):
    """The SQL ran, but its rows cannot be alerts; the message names the rows and what is wrong."""


def step(
    state: State, rows: Sequence[Mapping[str, Any]], rule: Rule, now: datetime
) -> tuple[dict[str, Alert], list[Transition]]:
    """State after an evaluation at `now` that returned `rows`, and what changed.

    An evaluation that failed is no evaluation: do not call this, and the state stays as it is.
    Raises RowsError; `state` is never changed.
    """
    found, undecided = _found(rows, rule)
    after: dict[str, Alert] = {}
    transitions: list[Transition] = []
    for key, (labels, row) in found.items():
        before = state.get(key)
        alert = _seen(before, key, labels, row, rule, now)
        after[key] = alert
        if before is None or before.state is not alert.state:
            transitions.append(Transition(alert, before.state if before else None))
    for key, alert in state.items():
        if key in found:
            continue
        if key in undecided:
            after[key] = alert
        elif _is_kept(alert, rule, now):
            # Seen in the future: the clock went back, and `keep_firing_for` counts from here.
            after[key] = replace(alert, seen_at=now) if alert.seen_at > now else alert
        else:
            resolved_at = max(now, alert.active_at)
            over = replace(alert, state=AlertState.RESOLVED, resolved_at=resolved_at)
            transitions.append(Transition(over, alert.state))
    return after, transitions


def _found(
    rows: Sequence[Mapping[str, Any]], rule: Rule
) -> tuple[dict[str, tuple[dict[str, str], Mapping[str, Any]]], set[str]]:
    """Rows that hold, by fingerprint, and fingerprints of which nobody can say."""
    found: dict[str, tuple[dict[str, str], Mapping[str, Any]]] = {}
    undecided: set[str] = set()
    for row in rows:
        holds = row.get("holds", True)
        if holds is False:
            continue
        labels = _labels(row, rule)
        key = fingerprint(rule.name, labels)
        if key in found or key in undecided:
            named = ", ".join(f"{name}={value}" for name, value in labels.items())
            raise RowsError(f"two rows have the same labels ({named or 'no labels'})")
        if holds is None:
            undecided.add(key)
        else:
            found[key] = (labels, row)
    return found, undecided


def _labels(row: Mapping[str, Any], rule: Rule) -> dict[str, str]:
    """The row's labels; one that is NULL is left out, it does not apply."""
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
    key: str,
    labels: Mapping[str, str],
    row: Mapping[str, Any],
    rule: Rule,
    now: datetime,
) -> Alert:
    active_at = before.active_at if before else now
    began_at = min(_instant(row, "began_at") or active_at, active_at)
    if before:
        began_at = min(began_at, before.began_at)
    fires = now - active_at >= timedelta(seconds=rule.for_s)
    is_firing = fires or (before is not None and before.state is AlertState.FIRING)
    fired_at = before.fired_at if before else None
    alert = Alert(
        fingerprint=key,
        rule=rule.name,
        severity=rule.severity,
        state=AlertState.FIRING if is_firing else AlertState.PENDING,
        labels=labels,
        summary="",
        remedy="",
        value=_number(row, "value"),
        usd_per_hour=_number(row, "usd_per_hour"),
        began_at=began_at,
        active_at=active_at,
        fired_at=fired_at or (now if is_firing else None),
        seen_at=now,
        simulated=row.get("simulated") is True,
    )
    values = {**rule.params, **row, **_offered(alert, now)}
    try:
        return replace(
            alert, summary=rule.summary.render(values), remedy=rule.remedy.render(values)
        )
    except (LookupError, ValueError) as error:
        raise RowsError(str(error.args[0])) from error


def _offered(alert: Alert, now: datetime) -> dict[str, Any]:
    """Values that texts may use beside the row's: see `language.OFFERED`."""
    now = max(now, alert.began_at)  # a clock that went back costs nothing
    so_far = alert.usd_so_far(now)
    if alert.usd_per_hour is None or so_far is None:
        cost = "cost unknown"
    else:
        cost = f"{usd(so_far)} so far, {usd(alert.usd_per_hour)}/h"
    return {
        "active": now - alert.began_at,
        "usd_per_hour": alert.usd_per_hour,
        "usd_so_far": so_far,
        "cost": cost,
    }


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RowsError(f"column {name!r} must be a number, not {value!r:.60}") from error
    return number if math.isfinite(number) else None


def _instant(row: Mapping[str, Any], name: str) -> datetime | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise RowsError(f"column {name!r} must be a TIMESTAMP, not {value!r:.60}")
    return value
