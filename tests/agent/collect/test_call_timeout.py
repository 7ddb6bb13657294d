"""Waiting for a call that may never return."""

import threading

import pytest

from gpuwarden_agent.collect.call_timeout import within


def test_what_the_call_gives_or_raises_is_passed_on() -> None:
    assert within(30, lambda: 7, "call") == 7
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 // 0, "call")


def test_a_call_that_does_not_return_is_left_behind() -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"^it has not answered for 0\.01 s$"):
            within(0.01, lambda: release.wait(30), "call")
    finally:
        release.set()
