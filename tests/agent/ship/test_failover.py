"""An agent ships to another collector when one fails, and back when it returns."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.ship.failover import (
    HOME_FIRST_S,
    HOME_MAX_S,
    TRIES,
    TRIES_BUSY,
    Failover,
    after_failure,
    after_success,
    aimed,
    is_pause_due,
    preference,
)

RNG = random.Random(1)


def failed(
    failover: Failover, place: int, *, places: int = 2, now_s: float = 0.0, busy: bool = False
):
    return after_failure(failover, place, places, now_s, RNG, is_busy=busy)


def test_agents_spread_over_the_collectors_and_each_keeps_its_order() -> None:
    urls = ["http://a:8750", "http://b:8750", "http://c:8750"]
    orders = [tuple(preference(f"agent-{number}", urls)) for number in range(600)]
    assert len(set(orders)) == 6
    for first in range(3):
        assert 120 < sum(order[0] == first for order in orders) < 280
    assert preference("agent-7", urls) == preference("agent-7", urls)


def test_a_collector_is_given_up_after_some_tries_in_a_row() -> None:
    failover = Failover()
    for _ in range(TRIES - 1):
        failover = failed(failover, 0)
        assert failover.at == 0
    failover = failed(after_success(failover, 0), 0)
    assert failover.at == 0, "a success in between: begun again"
    for _ in range(TRIES - 1):
        failover = failed(failover, 0)
    assert failover.at == 1
    assert failover.home_at_s is not None


def test_one_that_is_busy_is_given_more_time() -> None:
    failover = Failover()
    for _ in range(TRIES_BUSY - 1):
        failover = failed(failover, 0, busy=True)
    assert failover.at == 0
    assert failed(failover, 0, busy=True).at == 1


def test_one_batch_looks_whether_the_first_is_back_and_the_rest_follow() -> None:
    away = Failover(at=1, home_at_s=60.0)
    assert aimed(away, 59.9) == (1, away)
    place, looking = aimed(away, 60.0)
    assert place == 0
    assert aimed(looking, 60.0)[0] == 1, "one at a time"
    assert after_success(looking, 1).at == 1
    assert after_success(looking, 0) == Failover()
    still_away = failed(looking, 0, now_s=60.0)
    assert still_away.at == 1
    assert still_away.home_at_s is not None
    assert 60.0 + HOME_FIRST_S <= still_away.home_at_s <= 60.0 + 2 * HOME_FIRST_S


def test_a_collector_that_stays_away_is_tried_less_often() -> None:
    failover, now_s = Failover(at=1, home_at_s=0.0), 0.0
    for _ in range(40):
        failover = failed(aimed(failover, now_s)[1], 0, now_s=now_s)
        assert failover.home_at_s is not None
        assert failover.home_at_s - now_s <= HOME_MAX_S
        now_s = failover.home_at_s
    assert now_s > 30 * HOME_MAX_S / 2


def test_what_was_sent_before_the_change_of_course_changes_nothing() -> None:
    failover = Failover(at=1, home_at_s=60.0)
    assert failed(failover, 0) == failover
    assert failed(failover, 2, places=3) == failover


def test_a_pause_is_made_when_all_have_failed() -> None:
    """Each is tried at once that has not been yet."""
    failover, pauses = Failover(), []
    for _ in range(3 * TRIES):
        after = failed(failover, failover.at, places=3)
        pauses.append(is_pause_due(failover, after, 3))
        failover = after
    moves = [pauses[at] for at in range(TRIES - 1, 3 * TRIES, TRIES)]
    assert moves == [False, False, True]
    assert all(pauses[at] for at in range(3 * TRIES) if at % TRIES != TRIES - 1)


def test_with_one_collector_there_is_always_a_pause() -> None:
    failover = Failover()
    for _ in range(10):
        after = failed(failover, 0, places=1)
        assert is_pause_due(failover, after, 1)
        assert (after.at, after.home_at_s) == (0, None)
        failover = after


@settings(max_examples=50)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["ok", "failed", "busy"]), st.floats(0, 400))
    ),
)
def test_whatever_comes_there_is_a_collector_and_a_way_home(
    places: int, outcomes: list[tuple[int, str, float]]
) -> None:
    failover, now_s = Failover(), 0.0
    for place, outcome, seconds in outcomes:
        now_s += seconds
        place %= places
        aim, failover = aimed(failover, now_s)
        assert 0 <= aim < places
        for at in (aim, place):
            if outcome == "ok":
                failover = after_success(failover, at)
            else:
                failover = failed(failover, at, places=places, now_s=now_s, busy=outcome == "busy")
        assert 0 <= failover.at < places
        assert (failover.at == 0) == (failover.home_at_s is None)
        if failover.at:
            assert failover.home_at_s is not None
            assert failover.is_looking or failover.home_at_s <= now_s + HOME_MAX_S
