"""Keeps the runtime of a rule: its alerts, which of them must be saved and reported, and its statistics."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuwarden.alert import Alert, AlertState, Silence, first_covering
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import Locations, Override, OverridePlan
from gpuwarden_rules.evaluation.state import RuleState, Transition
from gpuwarden_rules.evaluation.statistics import RuleStatistics

log = logging.getLogger(__name__)

REFRESH_S = 60.0
"""An alert without a change of state is saved again at most this often."""
UNSAVED_MAX = 10_000
"""Unsaved alerts of a rule while the store fails; above it the oldest resolved ones are dropped."""


@dataclass(slots=True)
class RuleRuntime:
    """A rule and its state in the engine."""

    rule: Rule
    overrides: Sequence[Override] = ()
    """Overrides that concern the rule."""
    stats: RuleStatistics = field(default_factory=RuleStatistics)
    state: RuleState = field(default_factory=RuleState)
    unsaved: dict[tuple[str, datetime], Alert] = field(default_factory=dict)
    saved_at: dict[str, datetime] = field(default_factory=dict)
    unnotified: list[Alert] = field(default_factory=list)
    begun_at: datetime | None = None
    """When the rule was added to the engine; None: at the engine's start."""
    is_begun: bool = False
    """Its evaluations have begun."""
    is_replayed: bool = True
    """False until the replay of its past has ended: an alert that is pending since the start may have begun
    long before."""
    past: RuleState | None = None
    """Result of the replay, which the next evaluation applies."""
    held: set[str] = field(default_factory=set)
    """Pending alerts that are not saved or reported until then, because they may have begun earlier."""
    _plan: tuple[Locations, OverridePlan] | None = None

    def plan(self, places: Locations) -> OverridePlan:
        """The override plan for a fleet; made once for each."""
        if self._plan is None or self._plan[0] is not places:
            self._plan = places, OverridePlan(self.rule, self.overrides, places)
        return self._plan[1]

    def become(self, rule: Rule, overrides: Sequence[Override]) -> None:
        """Replace the rule by a new version; its alerts stay until the next evaluation."""
        self.rule, self.overrides, self._plan = rule, overrides, None

    def mark(self, transitions: Sequence[Transition], now: datetime) -> None:
        """Mark alerts to report and save: each change of state, and alerts whose last save is old."""
        for transition in transitions:
            alert = transition.alert
            if not self.is_replayed and alert.state is AlertState.PENDING:
                self.held.add(alert.fingerprint)
                continue
            if alert.fingerprint in self.held:
                self.held.discard(alert.fingerprint)
                if alert.fired_at is None:
                    continue  # it was never reported
            self.unnotified.append(alert)
            self.unsaved[alert.fingerprint, alert.active_at] = alert
            if alert.state is AlertState.RESOLVED:
                self.saved_at.pop(alert.fingerprint, None)
        for key, alert in self.state.items():
            saved_at = self.saved_at.get(key)
            # Negative: the clock went back.
            is_old = saved_at and not 0 <= (now - saved_at).total_seconds() < REFRESH_S
            is_newly_stale = alert.stale_since == now
            is_old = is_old and (alert.seen_at == now or alert.unknown_since or alert.stale_since)
            if is_old or is_newly_stale:
                self.unsaved[key, alert.active_at] = alert
        self._drop()

    def take_past(self, past: RuleState, now: datetime) -> None:
        """Apply a replay: its alerts are pending or firing since then. Alerts from the store do not change."""
        held, self.held, self.past, self.is_replayed = self.held, set(), None, True
        earlier = {
            key: alert
            for key, alert in past.items()
            if (known := self.state.get(key)) is None
            or (key in held and alert.active_at < known.active_at)
        }
        self.state = replace(self.state, alerts={**self.state.alerts, **earlier})
        fresh = [alert for key, alert in self.state.items() if key in earlier or key in held]
        self.mark([Transition(alert, None) for alert in fresh], now)

    def leave(self, nodes: Collection[str], now: datetime) -> bool:
        """End the alerts of nodes that send to another collector, without a transition; whether there were any."""
        gone = {k: a for k, a in self.state.items() if a.labels.get("node") in nodes}
        for key, alert in gone.items():
            self.held.discard(key)
            self.saved_at.pop(key, None)
            self.unsaved[key, alert.active_at] = replace(
                alert,
                state=AlertState.RESOLVED,
                resolved_at=max(now, alert.active_at),
                resolved_reason="its node reports to another collector",
            )
        if gone:
            left = {key: alert for key, alert in self.state.items() if key not in gone}
            self.state = replace(self.state, alerts=left)
        return bool(gone)

    def adopt(self, alert: Alert, now: datetime) -> None:
        """Continue an alert of another collector. Its condition is unknown until a row has it."""
        known = self.state.get(alert.fingerprint)
        if known is not None and known.state is AlertState.FIRING:
            return
        alert = replace(alert, unknown_since=now)
        self.held.discard(alert.fingerprint)
        self.state = replace(self.state, alerts={**self.state.alerts, alert.fingerprint: alert})
        self.unsaved[alert.fingerprint, alert.active_at] = alert
        self.unnotified.append(alert)

    def mute(self, reasons: Mapping[str, str]) -> None:
        """Set why alerts are muted, and mark those for which this changed."""
        changed = {
            key: replace(alert, muted=reasons.get(key))
            for key, alert in self.state.items()
            if alert.muted != reasons.get(key)
        }
        if changed:
            self.state = replace(self.state, alerts={**self.state.alerts, **changed})
            self.unsaved |= {
                (key, a.active_at): a for key, a in changed.items() if key not in self.held
            }
            self.unnotified = [
                now if (now := changed.get(a.fingerprint)) and now.active_at == a.active_at else a
                for a in self.unnotified
            ]

    def count(self) -> None:
        """Update the numbers of alerts in the statistics."""
        states = [alert.state for alert in self.state.values()]
        self.stats.pending = states.count(AlertState.PENDING)
        self.stats.firing = states.count(AlertState.FIRING)
        self.stats.unknown = len(self.state.unknown)
        self.stats.muted = sum(alert.muted is not None for alert in self.state.values())

    def saved(self, alerts: Mapping[tuple[str, datetime], Alert], now: datetime) -> None:
        """The store has saved these alerts."""
        for key, alert in alerts.items():
            if self.unsaved.get(key) is alert:
                del self.unsaved[key]
            if alert.state is not AlertState.RESOLVED:
                self.saved_at[alert.fingerprint] = now

    def failed(self, error: Exception) -> None:
        """Count a failure; the first in a row is logged."""
        reason = str(error).partition("\n")[0] or type(error).__name__
        if self.stats.last_error is None:
            log.warning("rule fails", extra={"rule": self.rule.name, "reason": reason})
        self.stats.failures += 1
        self.stats.last_error = reason

    def unjudged(self, error: Exception, began_at: datetime) -> None:
        """The rule cannot be judged without the lake; its alerts do not change."""
        if self.stats.unjudged_since is None:
            log.warning("rule is not judged", extra={"rule": self.rule.name, "reason": str(error)})
            self.stats.unjudged_since = began_at
        self.stats.last_error = str(error)

    def succeeded(self, now: datetime) -> None:
        """The evaluation worked and its alerts are saved."""
        if self.stats.last_error is not None:
            log.info("rule works again", extra={"rule": self.rule.name})
        self.stats.last_error = None
        self.stats.last_success_at = now

    def _drop(self) -> None:
        """Limit the number of unsaved alerts: drop resolved ones, the oldest first."""
        excess = len(self.unsaved) - max(UNSAVED_MAX, len(self.state))
        over = [k for k, a in self.unsaved.items() if a.state is AlertState.RESOLVED]
        dropped = over[: max(0, excess)]
        for key in dropped:
            del self.unsaved[key]
        if dropped and not self.stats.dropped:
            log.error("resolved alerts are not recorded", extra={"rule": self.rule.name})
        self.stats.dropped += len(dropped)


def mute_reasons(
    alerts: Iterable[Alert], silences: Sequence[Silence], now: datetime
) -> dict[str, str]:
    """Why alerts are muted, by fingerprint; alerts that are not muted are left out."""
    active = [silence for silence in silences if silence.is_active(now)]
    return {
        alert.fingerprint: silence.reason(now)
        for alert in (alerts if active else ())
        if (silence := first_covering(active, alert, now))
    }
