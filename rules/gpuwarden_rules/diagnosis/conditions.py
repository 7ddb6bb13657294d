"""Conditions on features, with a third answer: a feature that is absent makes a condition unknown.

Every test names its threshold, so that all numbers stand in one table and the evidence can say both.
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
        """None where the feature is absent."""
        value: float | None = getattr(features, self.feature)
        if value is None:
            return None
        limit: float = getattr(THRESHOLDS, self.threshold)
        return (value >= limit) is self.is_least

    def evidence(self, features: Features) -> Evidence:
        """What was measured; the feature must be there."""
        value: float = getattr(features, self.feature)
        limit: float = getattr(THRESHOLDS, self.threshold)
        text = f"{WORDS[self.feature]}: {shown(self.feature, value)}"
        if UNITS[self.feature] != "boolean":
            text += f" ({'from' if self.is_least else 'below'} {shown(self.feature, limit)})"
        comparison = ">=" if self.is_least else "<"
        return Evidence(self.feature, round(value, 6), comparison, limit, text)


@dataclass(frozen=True, slots=True)
class AllOf:
    """All of them hold."""

    parts: tuple["Condition", ...]

    def holds(self, features: Features) -> bool | None:
        """False where one does not hold, else None where one is unknown."""
        result: bool | None = True
        for part in self.parts:
            held = part.holds(features)
            if held is False:
                return False
            if held is None:
                result = None
        return result


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of them holds."""

    parts: tuple["Condition", ...]

    def holds(self, features: Features) -> bool | None:
        """True where one holds, else None where one is unknown."""
        result: bool | None = False
        for part in self.parts:
            held = part.holds(features)
            if held:
                return True
            if held is None:
                result = None
        return result


@dataclass(frozen=True, slots=True)
class Unless:
    """It is not known to hold: what is absent does not stand in the way."""

    part: "Condition"

    def holds(self, features: Features) -> bool:
        """False only where it does hold."""
        return self.part.holds(features) is not True


Condition = FeatureTest | AllOf | AnyOf | Unless


def least(feature: str, threshold: str) -> FeatureTest:
    """The feature is at least the threshold of that name."""
    return FeatureTest(feature, threshold, True)


def below(feature: str, threshold: str) -> FeatureTest:
    """The feature is below the threshold of that name."""
    return FeatureTest(feature, threshold, False)


def every(*parts: Condition) -> AllOf:
    """All of them hold."""
    return AllOf(parts)


def some(*parts: Condition) -> AnyOf:
    """At least one of them holds."""
    return AnyOf(parts)


def unless(part: Condition) -> Unless:
    """It is not known to hold."""
    return Unless(part)


def supporting(condition: Condition, features: Features) -> Iterator[Evidence]:
    """Evidence of the tests that make a condition hold."""
    match condition:
        case FeatureTest():
            if condition.holds(features):
                yield condition.evidence(features)
        case AllOf(parts):
            for part in parts:
                yield from supporting(part, features)
        case AnyOf(parts):
            for part in parts:
                if part.holds(features):
                    yield from supporting(part, features)
        case Unless():
            return


def opposing(condition: Condition, features: Features) -> Iterator[str]:
    """What keeps a condition from holding: measurements, and features that are absent."""
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
        case AllOf(parts):
            for part in parts:
                yield from opposing(part, features)
        case AnyOf(parts):
            against = [list(opposing(part, features)) for part in parts]
            yield min(against, key=len)[0] if against else "nothing"
        case Unless(part):
            yield from (e.text for e in supporting(part, features))
