"""The timer wakes on the interval it was last given, and forgets what it is told to."""

import asyncio
import time

import pytest

from gpuwarden_rules.definition.language import parse
from gpuwarden_rules.evaluation import schedule
from gpuwarden_rules.evaluation.group import RuleGroup
from gpuwarden_rules.evaluation.runtime import RuleRuntime
from gpuwarden_rules.evaluation.schedule import QUICK_S, SOON_S, EvaluationSlots, is_quick


async def test_it_wakes_what_it_was_given_last() -> None:
    first, second, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with schedule.running() as running:
        running.every("a", 3600, first.set)
        running.every("a", 0.05, second.set)
        running.every("b", 0.05, gone.set)
        running.forget("b")
        async with asyncio.timeout(10):
            await second.wait()
    assert not first.is_set()
    assert not gone.is_set()


async def test_a_turn_that_was_missed_is_not_made_up_for() -> None:
    """Otherwise a loop that was busy for a minute would wake each rule for every turn of it."""
    woken = []
    async with schedule.running() as running:
        running.every("a", 0.05, lambda: woken.append(1))
        time.sleep(0.5)  # noqa: ASYNC251 - the loop is busy
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(woken) == 1


def group_of(interval_s: float, last_seconds: float | None) -> RuleGroup:
    (rule,) = parse(
        f"""
        rules:
          - {{name: r, severity: info, labels: [], interval: {interval_s:g}s, summary: s, remedy: r,
             sql: "SELECT 1 AS value WHERE $now IS NULL"}}
        """,
        "r.yaml",
    )
    return RuleGroup([RuleRuntime(rule)], last_seconds=last_seconds)


@pytest.mark.parametrize(
    ("interval_s", "last_seconds", "expected"),
    [
        (SOON_S, None, True),
        (SOON_S + 1, None, False),
        (60, QUICK_S, True),
        (60, QUICK_S + 0.1, False),
        (1, QUICK_S + 0.1, False),
    ],
)
def test_a_rule_is_quick_by_its_last_evaluation_or_else_its_interval(
    interval_s: float, last_seconds: float | None, expected: bool
) -> None:
    group, slots = group_of(interval_s, last_seconds), EvaluationSlots()
    assert is_quick(group) is expected
    assert slots.of(group) is (slots.quick if expected else slots.slow)
