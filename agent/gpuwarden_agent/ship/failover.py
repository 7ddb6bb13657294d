"""Which of several collectors an agent ships to: pure, from what became of its tries.

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
class Course:
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


def aimed(course: Course, now_s: float) -> tuple[int, Course]:
    """The collector for the next batch. One batch at a time looks whether the first is back."""
    if course.home_at_s is None or course.is_looking or now_s < course.home_at_s:
        return course.at, course
    return 0, replace(course, is_looking=True)


def after_success(course: Course, place: int) -> Course:
    """A batch was taken, or refused for good, at `place`."""
    if place == 0:
        return Course()
    if place == course.at:
        return replace(course, failures=0, given_up=0)
    return course


def after_failure(
    course: Course, place: int, places: int, now_s: float, rng: random.Random, *, is_busy: bool
) -> Course:
    """A try at `place`, one of `places`, failed. `is_busy`: it asked for time."""
    if place != course.at:
        if place == 0 and course.is_looking:
            looks = course.looks + 1
            home_at_s = now_s + _home_pause_s(looks, rng)
            return replace(course, is_looking=False, looks=looks, home_at_s=home_at_s)
        return course  # sent before the last change of course
    failures = course.failures + 1
    if failures < (PATIENCE_BUSY if is_busy else PATIENCE):
        return replace(course, failures=failures)
    if places == 1:
        return replace(course, failures=failures, given_up=course.given_up + 1)
    at = (course.at + 1) % places
    if at == 0:
        return Course(given_up=course.given_up + 1)
    return replace(
        course,
        at=at,
        failures=0,
        given_up=course.given_up + 1,
        home_at_s=course.home_at_s or now_s + _home_pause_s(0, rng),
    )


def is_pause_due(before: Course, after: Course, places: int) -> bool:
    """Whether to wait before the next try, after one that failed: not when another collector is to be
    tried that has not been yet."""
    return after.given_up == before.given_up or after.given_up % places == 0


def _home_pause_s(looks: int, rng: random.Random) -> float:
    # A fleet must not come back in the same instant.
    return min(HOME_MAX_S, HOME_FIRST_S * 2.0 ** min(looks, 16)) * rng.uniform(0.5, 1.0)
