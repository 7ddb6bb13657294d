"""What a device does not have, what failed, and what ends a read are kept apart."""

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden_agent.probe import ProbeError
from gpuwarden_agent.probes import nvml_driver as nvml
from gpuwarden_agent.probes.asker import LEARNED_FOR_S, Asker
from gpuwarden_agent.probes.nvml_driver import NvmlError


class Calls:
    """Two calls for one reading, the newer of which answers with a return code."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.asked: list[str] = []

    def new(self) -> int:
        self.asked.append("new")
        raise NvmlError(self.code, "new")

    def old(self) -> int:
        self.asked.append("old")
        return 5


@pytest.mark.parametrize(
    "code",
    [
        nvml.NOT_SUPPORTED,
        nvml.FUNCTION_NOT_FOUND,
        nvml.ARGUMENT_VERSION_MISMATCH,
        nvml.DEPRECATED,
    ],
)
def test_a_call_that_is_not_there_is_left_out_until_it_is_time(
    code: int, clock: ManualClock
) -> None:
    calls, asker = Calls(code), Asker(0, clock)
    assert [asker.ask(calls.new, calls.old) for _ in range(3)] == [5, 5, 5]
    assert calls.asked == ["new", "old", "old", "old"]
    clock.advance(LEARNED_FOR_S)
    asker.ask(calls.new, calls.old)
    assert calls.asked[-2:] == ["new", "old"]
    assert not asker.failed


def test_forgetting_asks_for_everything_again(clock: ManualClock) -> None:
    calls, asker = Calls(nvml.NOT_SUPPORTED), Asker(0, clock)
    asker.ask(calls.new)
    asker.forget()
    asker.ask(calls.new)
    assert calls.asked == ["new", "new"]


def test_a_failure_is_counted_each_time_and_logged_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    calls, asker = Calls(nvml.NO_PERMISSION), Asker(2, clock)
    assert [asker.ask(calls.new) for _ in range(3)] == [None, None, None]
    assert asker.failed == {"new: NO_PERMISSION": 3}
    assert [record.error for record in caplog.records] == ["new: NO_PERMISSION"]  # type: ignore[attr-defined]


def test_an_answer_that_ends_everything_is_raised_at_once(clock: ManualClock) -> None:
    calls, asker = Calls(nvml.GPU_IS_LOST), Asker(2, clock)
    with pytest.raises(ProbeError, match="GPU 2 is lost"):
        asker.ask(calls.new, calls.old)
    assert calls.asked == ["new"]
