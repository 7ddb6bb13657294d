"""A slow call that a thread makes."""

import time
from collections.abc import Callable

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.polling import Poller
from gpuwarden_agent.probe import ProbeError


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_newest_answer_is_there_at_once(clock: ManualClock) -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        return len(asked)

    poller = Poller("acme-smi", ask, clock, 0.01)
    assert poller.newest(5) >= 1
    wait_until(lambda: poller.newest(5) >= 3)
    poller.close()


def test_an_error_is_raised_until_an_answer_comes(clock: ManualClock) -> None:
    broken = [True]

    def ask() -> str:
        if broken:
            raise ProbeError("acme-smi failed")
        return "all well"

    poller = Poller("acme-smi", ask, clock, 0.01)
    with pytest.raises(ProbeError, match="acme-smi failed"):
        poller.newest(5)
    broken.clear()

    def answers() -> bool:
        try:
            return poller.newest(5) == "all well"
        except ProbeError:
            return False

    wait_until(answers)
    poller.close()


def test_an_old_answer_and_a_late_one_are_errors(
    clock: ManualClock,
) -> None:
    poller = Poller("acme-smi", lambda: "once", clock, 3600)
    assert poller.newest(5) == "once"
    clock.advance(6)
    with pytest.raises(ProbeError, match="no answer for 5 s"):
        poller.newest(5)
    poller.close()
    slow = Poller("acme-smi", lambda: time.sleep(0.3), clock, 3600, first_s=0.02)
    assert slow.is_waiting
    with pytest.raises(ProbeError, match="no answer yet"):
        slow.newest(5)
    slow.close()
