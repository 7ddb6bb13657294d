"""Decides which rules are evaluated at once: quick ones never wait for slow ones.

A rule shows by its last evaluation whether it is quick. One that was not evaluated yet is taken at its
word: who asks to run every few seconds, or when an event is stored, is quick.
"""

import asyncio

from gpuwarden_rules.evaluation.runtime import RuleRuntime

QUICK_S = 1.0
"""A rule whose last evaluation took longer is slow."""
SOON_S = 5.0
"""A rule with such an interval, or a shorter one, is quick until it shows otherwise."""
LANE_MAX = 2
"""Evaluations at once in each slot; the rest wait, so that rules never crowd out ingest and people."""
CONCURRENT_MAX = 2 * LANE_MAX


class EvaluationSlots:
    """A slot for quick rules and one for slow ones; each is a limit to enter and leave."""

    def __init__(self) -> None:
        self.quick = asyncio.Semaphore(LANE_MAX)
        self.slow = asyncio.Semaphore(LANE_MAX)

    def of(self, runtime: RuleRuntime) -> asyncio.Semaphore:
        """The slot of the rule's next evaluation."""
        return self.quick if is_quick(runtime) else self.slow


def is_quick(runtime: RuleRuntime) -> bool:
    """Whether the rule's next evaluation is expected to be quick."""
    seconds = runtime.stats.last_seconds
    if seconds is not None:
        return seconds <= QUICK_S
    return runtime.rule.interval_s <= SOON_S or bool(runtime.rule.on_events)
