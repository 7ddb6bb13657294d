"""Requests for bursts: what is accepted, that the order of reports does not matter, and that nothing runs twice."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.burst_request import (
    AN_HOUR_MAX,
    EXPIRES_AFTER,
    OFFERED_MAX,
    RESULT_WITHIN,
    BurstOffer,
    BurstOutcome,
    BurstRequest,
    BurstRequestError,
    BurstState,
    NotAgain,
    TakenBurst,
    after_deadline,
    after_restart,
    burst_request_of,
    header_of,
    merged,
    offers_in,
    offers_of,
    why_not_taken,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
ID = "0123456789ab"


def request(at: datetime = NOW, **change: Any) -> BurstRequest:
    return replace(BurstRequest(ID, "n1", 3, 20, 30, "ada", at), **change)


def asked(*known: BurstRequest, **document: Any) -> BurstRequest:
    return burst_request_of(document, known, name=ID, asked_by="ada", now=NOW)


instants = st.integers(0, 300).map(lambda s: NOW + timedelta(seconds=s))
reports = st.builds(
    BurstOutcome,
    st.sampled_from(BurstState),
    st.none() | instants,
    st.none() | instants,
    st.none() | st.sampled_from(["a", "b"]),
)
assumed = st.builds(
    BurstOutcome, st.just(BurstState.FAILED), st.none() | instants, reason=st.just("late"), is_assumed=st.just(True)
)  # fmt: skip
outcomes = reports | assumed
offers = st.builds(
    BurstOffer,
    st.text("0123456789abcdef", min_size=12, max_size=12),
    st.integers(0, 1024),
    st.integers(10, 50),
    st.integers(1, 60),
    st.integers(1, 120),
)


def test_a_request_has_usual_values() -> None:
    assert asked(node="n1", gpu=3) == request()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "node: give the name"),
        ({"node": "a\n", "gpu": 0}, "node: give the name"),
        ({"node": "n"}, "gpu: it must be a whole number from 0"),
        ({"node": "n", "gpu": True}, "gpu: it must be"),
        ({"node": "n", "gpu": 0, "hz": 9}, "hz: it must be a whole number from 10 to 50"),
        ({"node": "n", "gpu": 0, "hz": 20.0}, "hz: it must be"),
        ({"node": "n", "gpu": 0, "seconds": 61}, "seconds: it must be a whole number from 1 to 60"),
        ({"node": "n", "gpu": 0, "colour": 1}, "colour: there is no such key"),
    ],
)
def test_what_is_wrong_is_one_line(document: Any, said: str) -> None:
    with pytest.raises(BurstRequestError, match=said):
        asked(**document)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["node", "gpu", "hz", "seconds", "x"]), inner)))  # fmt: skip
def test_any_json_makes_a_request_or_one_line(document: Any) -> None:
    try:
        made = burst_request_of(document, (), name=ID, asked_by=None, now=NOW)
    except BurstRequestError as error:
        assert "\n" not in str(error)
    else:
        assert offers_in(header_of(offers_of([made], {made.node}, NOW)))


def test_a_gpu_has_one_burst_at_a_time() -> None:
    for state in (BurstState.ASKED, BurstState.RUNNING):
        known = request(outcome=BurstOutcome(state))
        with pytest.raises(BurstRequestError, match=f"GPU 3 of n1 is {state}: ask again"):
            asked(known, node="n1", gpu=3)
        assert asked(known, node="n1", gpu=2)
        assert asked(known, node="n2", gpu=3)
    assert asked(request(outcome=BurstOutcome(BurstState.DONE)), node="n1", gpu=3)


def test_a_node_has_so_many_in_an_hour() -> None:
    done = BurstOutcome(BurstState.DONE)
    begin = NOW - timedelta(minutes=50)
    known = [request(begin + timedelta(minutes=n), outcome=done) for n in range(AN_HOUR_MAX)]
    assert asked(*known[1:], node="n1", gpu=0)
    with pytest.raises(BurstRequestError, match="limit: ask again in 10 min"):
        asked(*known, node="n1", gpu=0)


@given(outcomes, outcomes, outcomes)
def test_reports_may_come_in_any_order_and_twice(
    a: BurstOutcome, b: BurstOutcome, c: BurstOutcome
) -> None:
    assert merged(a, a) == a
    assert merged(a, b) == merged(b, a)
    assert merged(merged(a, b), c) == merged(a, merged(b, c))
    assert merged(a, b).is_over == (a.is_over or b.is_over)


@given(outcomes, assumed)
def test_an_assumption_replaces_no_end_that_an_agent_reported(
    one: BurstOutcome, late: BurstOutcome
) -> None:
    if one.is_over and not one.is_assumed:
        assert merged(one, late) == one
    done = BurstOutcome(BurstState.DONE, NOW, NOW)
    assert merged(merged(one, late), done).state is BurstState.DONE


@given(st.lists(st.sampled_from([BurstState.ASKED, BurstState.RUNNING])), st.integers(1, 60))
def test_every_request_ends(states: list[BurstState], seconds: int) -> None:
    one = request(seconds=seconds)
    for state in states:
        one = replace(one, outcome=merged(one.outcome, BurstOutcome(state)))
    assert after_deadline(one, NOW + EXPIRES_AFTER) == one.outcome
    end = after_deadline(one, NOW + EXPIRES_AFTER + RESULT_WITHIN + timedelta(seconds=60))
    assert (end.state, end.is_assumed) == (BurstState.FAILED, True)
    assert end.reason
    assert after_deadline(replace(one, outcome=end), NOW + timedelta(days=1)) == end


def test_an_offer_stays_until_the_agent_reports_or_the_time_is_over() -> None:
    def offered(one: BurstRequest, s: float, node: str = "n1") -> list[int]:
        return [o.within_s for o in offers_of([one], {node}, NOW + timedelta(seconds=s))]

    assert offered(request(), 0) == [120]
    assert offered(request(), 100.5) == [19]
    assert offered(request(), 120) == []
    assert offered(request(), -500) == [120]  # the clock was set back
    assert offered(request(), 0, "n2") == []
    assert offered(request(outcome=BurstOutcome(BurstState.RUNNING)), 1) == []


@given(st.lists(offers, max_size=OFFERED_MAX))
def test_a_header_carries_offers(several: list[BurstOffer]) -> None:
    value = header_of(several)
    assert list(offers_in(value)) == several
    assert len(value or "") < 2048
    assert (value is None) == (not several)


@given(st.text(max_size=60) | offers.map(lambda one: (header_of([one]) or "")[:-1]))
def test_a_wrong_header_is_skipped(value: str) -> None:
    assert all(1 <= one.seconds <= 60 and 10 <= one.hz <= 50 for one in offers_in(value))


@pytest.mark.parametrize("wrong", ["hz=51", "hz=9", "seconds=0", "seconds=61", "within=0", "within=121", "gpu=1025"])  # fmt: skip
def test_an_offer_outside_the_limits_is_skipped(wrong: str) -> None:
    name = wrong.partition("=")[0]
    fields = {"gpu": "gpu=1", "hz": "hz=20", "seconds": "seconds=5", "within": "within=9"}
    right = ";".join([ID, *fields.values()])
    value = ";".join([ID, *(fields | {name: wrong}).values()])
    assert offers_in(f"{value}, {right}") == offers_in(right)
    assert len(offers_in(right)) == 1


def test_an_agent_takes_an_id_once_and_has_limits_of_its_own() -> None:
    offer = BurstOffer(ID, 3, 20, 30, 60)

    def why(*taken: TakenBurst, is_allowed: bool = True, gpus: tuple[int, ...] = (0, 3)) -> Any:
        return why_not_taken(offer, taken, gpus, NOW, is_allowed=is_allowed)

    assert why() is None
    assert why(TakenBurst(ID, 3, NOW, is_over=True), is_allowed=False) is NotAgain.TAKEN
    assert why(is_allowed=False) == "the agent's settings forbid bursts by request"
    assert why(gpus=(0,)) == "there is no GPU 3"
    assert why(TakenBurst("b", 3, NOW)) == "another burst of GPU 3 runs"
    assert why(TakenBurst("b", 0, NOW)) is None
    ended = [TakenBurst(str(n), 0, NOW, is_over=True) for n in range(AN_HOUR_MAX)]
    assert why(*ended[1:]) is None
    assert why(*ended) == "12 bursts ran in an hour, which is the limit"
    old = [replace(one, taken_at=NOW - timedelta(hours=2)) for one in ended]
    assert why(*old) is None


def test_bursts_that_a_restart_cut_off_have_failed() -> None:
    taken = [TakenBurst("a", 0, NOW, is_over=True), TakenBurst("b", 1, NOW)]
    found = after_restart(taken, NOW)
    assert set(found) == {"b"}
    assert found["b"].state is BurstState.FAILED
    done = BurstOutcome(BurstState.DONE, NOW, NOW)
    assert merged(found["b"], done) == done  # it was killed after the result was sealed
