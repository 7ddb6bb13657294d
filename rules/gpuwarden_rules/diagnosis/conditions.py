"""Defines conditions on features in three-valued logic: an absent feature makes a condition unknown.

Every test names its threshold, so that all numbers are in one table, and evidence shows value and threshold.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwarden.diagnosis import Evidence
from gpuwarden_rules.diagnosis.features import UNITS, WORDS, Features, shown
from gpuwarden_rules.diagnosis.thresholds import THRESHOLDS


@dataclass(frozen=True, slots=True)
class FeatureTest:
    """A feature is at least a threshold, or below it."""

    feature: str
    threshold: str
    is_least: bool

    def holds(self, features: Features) -> bool | None:
        """Whether the test holds; None: the feature is absent."""
        value: float | None = getattr(features, self.feature)
        if value is None:
            return None
        limit: float = getattr(THRESHOLDS, self.threshold)
        return (value >= limit) is self.is_least

    def evidence(self, features: Features) -> Evidence:
        """The measurement as evidence; the feature must not be absent."""
        value: float = getattr(features, self.feature)
        limit: float = getattr(THRESHOLDS, self.threshold)
        text = f"{WORDS[self.feature]}: {shown(self.feature, value)}"
        if UNITS[self.feature] != "boolean":
            text += f" ({'from' if self.is_least else 'below'} {shown(self.feature, limit)})"
        comparison = ">=" if self.is_least else "<"
        return Evidence(self.feature, round(value, 6), comparison, limit, text)


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """All parts hold, or at least one."""

    parts: tuple["Condition", ...]
    needs_all: bool

    def holds(self, features: Features) -> bool | None:
        """Whether it holds; None where a part that is unknown decides."""
        result: bool | None = self.needs_all
        for part in self.parts:
            held = part.holds(features)
            if held is not None and held is not self.needs_all:
                return held
            if held is None:
                result = None
        return result


@dataclass(frozen=True, slots=True)
class Unless:
    """The part is not known to hold: an absent feature does not prevent this condition."""

    part: "Condition"

    def holds(self, features: Features) -> bool:
        """False only if the part holds."""
        return self.part.holds(features) is not True


Condition = FeatureTest | ConditionGroup | Unless


def least(feature: str, threshold: str) -> FeatureTest:
    """The feature is at least the threshold of that name."""
    return FeatureTest(feature, threshold, True)


def below(feature: str, threshold: str) -> FeatureTest:
    """The feature is below the threshold of that name."""
    return FeatureTest(feature, threshold, False)


def every(*parts: Condition) -> ConditionGroup:
    """All of them hold."""
    return ConditionGroup(parts, needs_all=True)


def some(*parts: Condition) -> ConditionGroup:
    """At least one of them holds."""
    return ConditionGroup(parts, needs_all=False)


def supporting(condition: Condition, features: Features) -> Iterator[Evidence]:
    """Evidence of the tests that make a condition hold."""
    match condition:
        case FeatureTest():
            if condition.holds(features):
                yield condition.evidence(features)
        case ConditionGroup(parts, needs_all):
            for part in parts:
                if needs_all or part.holds(features):
                    yield from supporting(part, features)
        case Unless():
            return


def opposing(condition: Condition, features: Features) -> Iterator[str]:
    """Evidence against a condition: measurements, and absent features."""
    if condition.holds(features) is True:
        return
    match condition:
        case FeatureTest(feature, _, _):
            if getattr(features, feature) is None:
                yield f"{WORDS[feature]}: no data"
            else:
                text = condition.evidence(features).text
                head, _, bound = text.rpartition("(")
                yield f"{head}(not {bound}" if head else text
        case ConditionGroup(parts, needs_all=True):
            for part in parts:
                yield from opposing(part, features)
        case ConditionGroup(parts):
            against = [list(opposing(part, features)) for part in parts]
            yield min(against, key=len)[0] if against else "nothing"
        case Unless(part):
            yield from (e.text for e in supporting(part, features))
