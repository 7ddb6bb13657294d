"""Chooses one of several collectors to ship to: pure functions of the results of earlier tries.

The agent stays with one collector until it has failed a few times in a row, then uses the next one in
its order of preference, and tries sometimes whether the first is back. Each agent has its own
order, so that the agents of a failed collector spread over all the others.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

TRIES = 2
"""Failed tries in a row after which the agent leaves a collector."""
TRIES_BUSY = 5
"""The same for a collector that is overloaded: it recovers, and the others have work, too."""
HOME_FIRST_S = 60.0
HOME_MAX_S = 600.0
"""First and longest pause between tries whether the first collector is back."""


def preference(agent_id: str, urls: Sequence[str]) -> list[int]:
    """Positions in `urls` in the agent's order: random, but always the same for one agent."""
    return sorted(range(len(urls)), key=lambda at: random.Random(f"{agent_id} {urls[at]}").random())


@dataclass(frozen=True, slots=True)
class Failover:
    """State of failover. Collectors are numbered in the order of preference."""

    at: int = 0
    failures: int = 0
    """Failed tries in a row at this collector."""
    given_up: int = 0
    """Collectors left since a batch was last accepted."""
    home_at_s: float | None = None
    """When to try the first collector again; None: it is the current one."""
    is_looking: bool = False
    looks: int = 0
    """Tries at which the first was not back."""


def aimed(failover: Failover, now_s: float) -> tuple[int, Failover]:
    """The collector for the next batch. One batch at a time tries whether the first is back."""
    if failover.home_at_s is None or failover.is_looking or now_s < failover.home_at_s:
        return failover.at, failover
    return 0, replace(failover, is_looking=True)


def after_success(failover: Failover, place: int) -> Failover:
    """The state after the collector `place` accepted a batch, or refused it permanently."""
    if place == 0:
        return Failover()
    if place == failover.at:
        return replace(failover, failures=0, given_up=0)
    return failover


def after_failure(
    failover: Failover, place: int, places: int, now_s: float, rng: random.Random, *, is_busy: bool
) -> Failover:
    """The state after a try at `place`, one of `places`, failed. `is_busy`: the collector is overloaded."""
    if place != failover.at:
        if place == 0 and failover.is_looking:
            looks = failover.looks + 1
            home_at_s = now_s + _home_pause_s(looks, rng)
            return replace(failover, is_looking=False, looks=looks, home_at_s=home_at_s)
        return failover  # sent before the last change of collector
    failures = failover.failures + 1
    if failures < (TRIES_BUSY if is_busy else TRIES):
        return replace(failover, failures=failures)
    if places == 1:
        return replace(failover, failures=failures, given_up=failover.given_up + 1)
    at = (failover.at + 1) % places
    if at == 0:
        return Failover(given_up=failover.given_up + 1)
    return replace(
        failover,
        at=at,
        failures=0,
        given_up=failover.given_up + 1,
        home_at_s=failover.home_at_s or now_s + _home_pause_s(0, rng),
    )


def is_pause_due(before: Failover, after: Failover, places: int) -> bool:
    """Whether to wait before the next try, after one failed: not while there is another collector that
    was not tried yet."""
    return after.given_up == before.given_up or after.given_up % places == 0


def _home_pause_s(looks: int, rng: random.Random) -> float:
    # The agents of a fleet must not come back in the same instant.
    return min(HOME_MAX_S, HOME_FIRST_S * 2.0 ** min(looks, 16)) * rng.uniform(0.5, 1.0)
