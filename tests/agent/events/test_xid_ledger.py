"""Xids of two sources: each is one event, in any order of the sources."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.events.xid_ledger import (
    LINE_WAIT_S,
    LINES_KEPT_S,
    NEVER_S,
    SAME_S,
    UNKNOWN_CODE,
    Ledger,
    XidLedger,
    XidReport,
    step,
)

GPU = "0000:3b:00.0"
READABLE = Ledger(log_read_s=NEVER_S)


def line(at_s: float, code: int = 79, bus_id: str = GPU) -> XidReport:
    return XidReport(bus_id, code, at_s, at_s, {"message": "line", "code": code})


def event(
    at_s: float, code: int = 79, bus_id: str = GPU, since_s: float | None = None
) -> XidReport:
    since_s = at_s - 1 if since_s is None else since_s
    return XidReport(bus_id, code, since_s, at_s, {"message": "event", "code": code})


def words(told: list[XidReport]) -> list[object]:
    return [report.row["message"] for report in told]


def test_an_event_waits_for_its_line() -> None:
    ledger, told = step(READABLE, 100, events=[event(100)])
    assert told == []
    ledger, told = step(ledger, 100.2, lines=[line(99.9)])
    assert words(told) == ["line"]
    assert step(replace(ledger, log_read_s=110), 110)[1] == []


def test_an_event_goes_out_alone_when_the_log_was_read_and_has_no_line() -> None:
    ledger, _ = step(READABLE, 100, events=[event(100)])
    assert step(replace(ledger, log_read_s=100.1), 100.1)[1] == [], "the line may be on its way"
    ledger, told = step(replace(ledger, log_read_s=101), 101)
    assert words(told) == ["event"]
    assert step(ledger, 101, lines=[line(100)])[1] == [], "a late line is the same Xid"


def test_a_log_that_is_not_read_to_its_end_is_not_waited_for_without_end() -> None:
    ledger, _ = step(READABLE, 100, events=[event(100)])
    assert step(ledger, 100 + LINE_WAIT_S - 0.1)[1] == []
    assert words(step(ledger, 100 + LINE_WAIT_S)[1]) == ["event"]


def test_without_a_log_an_event_is_told_at_once_and_history_does_not_repeat_it() -> None:
    ledger, told = step(Ledger(), 100, events=[event(100)])
    assert words(told) == ["event"]
    ledger, told = step(ledger, 5000)
    ledger, told = step(ledger, 5000, lines=[line(99.5), line(200.0)])
    assert [report.until_s for report in told] == [200.0]


def test_a_log_that_becomes_unreadable_lets_go_of_what_waits() -> None:
    ledger, _ = step(READABLE, 100, events=[event(100)])
    assert words(step(replace(ledger, log_read_s=None), 100)[1]) == ["event"]


@pytest.mark.parametrize(
    "other",
    [event(100, code=48), event(100, bus_id="0000:9b:00.0"), event(100 + SAME_S + 2)],
    ids=["another code", "another GPU", "another time"],
)
def test_what_is_not_the_same_is_told_beside_it(other: XidReport) -> None:
    ledger, first = step(READABLE, 100, lines=[line(99.5)])
    ledger, _ = step(ledger, other.until_s, events=[other])
    _, later = step(replace(ledger, log_read_s=120), 120)
    assert words(first + later) == ["line", "event"]


def test_a_code_that_nvml_does_not_know_is_that_of_the_line() -> None:
    ledger, first = step(READABLE, 100, lines=[line(99.9, code=79)])
    ledger, later = step(ledger, 100, events=[event(100, code=UNKNOWN_CODE)])
    assert words(first + later + step(replace(ledger, log_read_s=110), 110)[1]) == ["line"]


def test_an_event_that_the_driver_kept_while_a_call_hung_belongs_to_its_line() -> None:
    ledger, first = step(READABLE, 100, lines=[line(100)])
    ledger, later = step(ledger, 150, events=[event(150, since_s=99)])
    assert words(first + later + step(replace(ledger, log_read_s=160), 160)[1]) == ["line"]


def test_nothing_is_kept_for_ever() -> None:
    ledger, _ = step(READABLE, 100, lines=[line(100)], events=[event(100, code=48)])
    ledger, _ = step(replace(ledger, log_read_s=101), 101)
    ledger, _ = step(replace(ledger, log_read_s=200 + LINES_KEPT_S), 200 + LINES_KEPT_S)
    assert (ledger.waiting, ledger.reported_events, ledger.reported_lines) == ((), (), ())


xids = st.lists(
    st.tuples(
        st.integers(0, 60),  # when it happens, in tenths of a second
        st.sampled_from([31, 79]),
        st.sampled_from([GPU, "0000:9b:00.0"]),
        st.integers(0, 9),  # how late the line is, in tenths
        st.integers(0, 9),  # how late the event is
        st.sampled_from(["both", "both", "line", "event"]),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(xids, st.integers(0, 10), st.integers(0, 10))
def test_in_any_order_nothing_is_lost_and_nothing_doubled(
    happened: list[tuple[int, int, str, int, int, str]], log_phase: int, nvml_phase: int
) -> None:
    """Both readers look once a second, each in its own phase, at what has arrived by then."""
    lines = sorted(
        (t + late, t, code, bus) for t, code, bus, late, _, by in happened if by != "event"
    )
    events = sorted((t + late, code, bus) for t, code, bus, _, late, by in happened if by != "line")
    ledger, told, drained_s = READABLE, list[XidReport](), 0.0
    for tenth in range(200):
        now_s = tenth / 10
        if tenth % 10 == log_phase % 10:
            new = [
                line(t / 10, code, bus) for at, t, code, bus in lines if tenth - 10 < at <= tenth
            ]
            ledger, more = step(replace(ledger, log_read_s=now_s), now_s, lines=new)
            told += more
        if tenth % 10 == nvml_phase % 10:
            found = [
                event(now_s, code, bus, since_s=drained_s)
                for at, code, bus in events
                if tenth - 10 < at <= tenth
            ]
            drained_s = now_s
            ledger, more = step(ledger, now_s, events=found)
            told += more
    counts = Counter((report.pci_bus_id, report.code) for report in told)
    of_lines = Counter((bus, code) for _, _, code, bus in lines)
    of_events = Counter((bus, code) for _, code, bus in events)
    assert counts == of_lines | of_events
    # Every line is an event of its own, unless its event had to go first.
    assert not ledger.waiting


def test_two_threads_share_one_ledger() -> None:
    ledger = XidLedger(has_log=True)
    assert ledger.take_events([event(100)], 100) == []
    assert [row["message"] for row in ledger.take_lines([line(99.9)], 100)] == ["line"]
    assert ledger.take_events([event(101, code=48)], 101) == []
    assert [row["code"] for row in ledger.log_is_read(102)] == [48]
    ledger.log_is_unreadable()
    assert [row["code"] for row in ledger.take_events([event(103, code=13)], 103)] == [13]
