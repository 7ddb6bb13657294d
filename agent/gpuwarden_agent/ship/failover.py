"""Chooses which of several collectors to ship to: pure functions of the results of earlier tries.

It stays with one until that one has failed a few times in a row, goes on to the next in its order of
preference, and looks now and then whether the first is back. The order is the agent's own, so that
the agents of a collector that is gone spread over all the others.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

PATIENCE = 2
"""Tries in a row after which a collector is given up."""
PATIENCE_BUSY = 5
"""The same when it said that it has too much to do: it will have done it, and the others have theirs."""
HOME_FIRST_S = 60.0
HOME_MAX_S = 600.0
"""First and longest pause between looks whether the first collector is back."""


def preference(agent_id: str, urls: Sequence[str]) -> list[int]:
    """Positions in `urls` in the agent's order: any, but for one agent always the same."""
    return sorted(range(len(urls)), key=lambda at: random.Random(f"{agent_id} {urls[at]}").random())


@dataclass(frozen=True, slots=True)
class Failover:
    """Where batches go. Collectors are numbered in the order of preference."""

    at: int = 0
    failures: int = 0
    """Tries in a row that failed there."""
    given_up: int = 0
    """Collectors given up since a batch was last taken."""
    home_at_s: float | None = None
    """When it is next looked whether the first is back; None: it is the one."""
    is_looking: bool = False
    looks: int = 0
    """How often it was not."""


def aimed(failover: Failover, now_s: float) -> tuple[int, Failover]:
    """The collector for the next batch. One batch at a time looks whether the first is back."""
    if failover.home_at_s is None or failover.is_looking or now_s < failover.home_at_s:
        return failover.at, failover
    return 0, replace(failover, is_looking=True)


def after_success(failover: Failover, place: int) -> Failover:
    """A batch was taken, or refused for good, at `place`."""
    if place == 0:
        return Failover()
    if place == failover.at:
        return replace(failover, failures=0, given_up=0)
    return failover


def after_failure(
    failover: Failover, place: int, places: int, now_s: float, rng: random.Random, *, is_busy: bool
) -> Failover:
    """A try at `place`, one of `places`, failed. `is_busy`: it asked for time."""
    if place != failover.at:
        if place == 0 and failover.is_looking:
            looks = failover.looks + 1
            home_at_s = now_s + _home_pause_s(looks, rng)
            return replace(failover, is_looking=False, looks=looks, home_at_s=home_at_s)
        return failover  # sent before the last change of failover
    failures = failover.failures + 1
    if failures < (PATIENCE_BUSY if is_busy else PATIENCE):
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
    """Whether to wait before the next try, after one that failed: not when another collector is to be
    tried that has not been yet."""
    return after.given_up == before.given_up or after.given_up % places == 0


def _home_pause_s(looks: int, rng: random.Random) -> float:
    # A fleet must not come back in the same instant.
    return min(HOME_MAX_S, HOME_FIRST_S * 2.0 ** min(looks, 16)) * rng.uniform(0.5, 1.0)
