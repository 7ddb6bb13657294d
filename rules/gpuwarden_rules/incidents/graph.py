"""Holds the graph of causes that the rules declare: which rule follows from which, and what comes together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from gpuwarden.alert import Alert, Severity
from gpuwarden_rules.definition.language import FLEET, REOPENS_S, Rule

GATHER_S = {Severity.CRITICAL: 15.0, Severity.WARNING: 30.0, Severity.INFO: 60.0}
"""How long an alert waits for others of its cause before a notification, unless its rule sets `gather_for`."""
TOGETHER = ("node", "job")
"""Places at which simultaneous alerts of a rule have one cause, unless the rule sets `together`."""

NodeLabels = Mapping[str, Mapping[str, str]]
"""Labels of the inventory (rack, switch, site ...) by node."""
Place = tuple[str, ...]
"""A kind of place and its value; for the fleet, only the kind."""


@dataclass(frozen=True, slots=True)
class CauseGraph:
    """The declarations by rule."""

    causes: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Causes of each rule, the strongest first, with the labels that must be equal."""
    together: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gather_s: Mapping[str, float] = field(default_factory=dict)
    many: Mapping[str, str] = field(default_factory=dict)
    """Verb for several nodes or GPUs: `stopped reporting`."""
    reopens_s: Mapping[str, float] = field(default_factory=dict)

    def wait_s(self, alert: Alert) -> float:
        """How long the alert waits for others of its cause."""
        return self.gather_s.get(alert.rule, GATHER_S[alert.severity])

    def reopens_within(self, rules: Iterable[str]) -> timedelta:
        """How long after its end an alert of these rules may reopen an incident."""
        return timedelta(
            seconds=max((self.reopens_s.get(r, REOPENS_S) for r in rules), default=0.0)
        )

    def places(self, alert: Alert, nodes: NodeLabels) -> list[Place]:
        """Places at which simultaneous alerts of its rule have the same cause."""
        of_node = nodes.get(alert.labels.get("node", ""), {})
        found: list[Place] = []
        for kind in self.together.get(alert.rule, TOGETHER):
            value = alert.labels.get(kind) or of_node.get(kind)
            if kind == FLEET:
                found.append((kind,))
            elif value:
                found.append((kind, value))
        return found


def graph_of(rules: Iterable[Rule]) -> CauseGraph:
    """The graph that rules declare."""
    known = {rule.name: rule for rule in rules}
    return CauseGraph(
        {name: rule.caused_by for name, rule in known.items() if rule.caused_by},
        {name: rule.together for name, rule in known.items() if rule.together is not None},
        {name: rule.gather_s for name, rule in known.items() if rule.gather_s is not None},
        {name: rule.many for name, rule in known.items() if rule.many},
        {name: r.reopens_within_s for name, r in known.items() if r.reopens_within_s != REOPENS_S},
    )


def values(labels: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...] | None:
    """Values of these labels; None where one is missing, which equals nothing."""
    found = tuple(labels.get(name) for name in names)
    return None if None in found else found  # type: ignore[return-value]
