"""Which alerts notify nobody, and why: the inhibition graph and silences, as pure functions.

A rule names in `inhibited_by` the rules that explain it. While one of those fires with the same
labels, the alert is muted; whether that one is muted itself does not matter, so a cause hides what
follows from it through any number of steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from graphlib import CycleError, TopologicalSorter

from gpuwarden.alert import Alert, AlertState
from gpuwarden.silence import Silence, first_covering
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.yaml_positions import FileProblem

Key = tuple[str, tuple[str, ...]]
"""A rule and the labels that are compared."""


def reasons(
    alerts: Sequence[Alert], rules: Mapping[str, Rule], silences: Sequence[Silence], now: datetime
) -> dict[str, str]:
    """Why an alert notifies nobody, by fingerprint of those that do not.

    An inhibitor comes before a silence: when the cause is over the silence still holds.
    """
    firing = _firing(alerts, rules)
    active = [silence for silence in silences if silence.is_active(now)]
    found: dict[str, str] = {}
    for alert in alerts:
        reason = _inhibited(alert, rules.get(alert.rule), firing)
        if reason is None and active and (silence := first_covering(active, alert, now)):
            reason = silence.reason(now)
        if reason is not None:
            found[alert.fingerprint] = reason
    return found


def _firing(alerts: Iterable[Alert], rules: Mapping[str, Rule]) -> dict[Key, set[tuple[str, ...]]]:
    """Label values of firing alerts, by rule and labels, as far as any rule asks for them."""
    firing: dict[Key, set[tuple[str, ...]]] = {
        key: set() for rule in rules.values() for key in rule.inhibited_by.items()
    }
    asked: dict[str, list[Key]] = {}
    for key in firing:
        asked.setdefault(key[0], []).append(key)
    for alert in alerts:
        for key in asked.get(alert.rule, ()) if alert.state is AlertState.FIRING else ():
            values = _values(alert, key[1])
            if values is not None:
                firing[key].add(values)
    return firing


def _inhibited(
    alert: Alert, rule: Rule | None, firing: Mapping[Key, set[tuple[str, ...]]]
) -> str | None:
    for key in rule.inhibited_by.items() if rule else ():
        values = _values(alert, key[1])
        if values is not None and values in firing[key]:
            where = ", ".join(f"{name} {value}" for name, value in zip(key[1], values, strict=True))
            return f"inhibited by {key[0]}" + (f" on {where}" if where else "")
    return None


def _values(alert: Alert, labels: tuple[str, ...]) -> tuple[str, ...] | None:
    """Values of the labels; None where the alert lacks one: it is the same as nothing."""
    values = tuple(alert.labels.get(name) for name in labels)
    return None if None in values else values  # type: ignore[return-value]


def graph_problems(rules: Sequence[Rule]) -> list[FileProblem]:
    """What is wrong in the graph: unknown rules, labels that the other rule lacks, cycles."""
    known = {rule.name: rule for rule in rules}
    problems = []
    for rule in rules:
        for name, equal in rule.inhibited_by.items():
            if name not in known:
                problems.append(_problem(rule, name, f"there is no rule {name!r}"))
                continue
            lacking = [label for label in equal if label not in known[name].labels]
            if lacking:
                problems.append(_problem(rule, name, f"{name} has no label {lacking[0]!r}"))
    try:
        TopologicalSorter({r.name: [*r.inhibited_by] for r in rules}).prepare()
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        rule = known[cycle[0]]
        way = " is inhibited by ".join(cycle)
        problems.append(_problem(rule, cycle[1], f"a cycle would hide all of it: {way}"))
    return problems


def _problem(rule: Rule, inhibitor: str, message: str) -> FileProblem:
    return rule.problem(f"inhibited_by.{inhibitor}", f"inhibited_by: {message}")
