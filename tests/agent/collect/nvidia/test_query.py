"""What a device does not have, what failed, and what ends a read are kept apart."""

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia import nvml_driver as nvml
from gpuwarden_agent.collect.nvidia.nvml_driver import NvmlError
from gpuwarden_agent.collect.nvidia.query import LEARNED_FOR_S, Asker
from gpuwarden_agent.collect.nvidia.timing import TRIAL_CALLS
from gpuwarden_agent.probe import ProbeError


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


class Timed:
    """A device whose calls take some time of a clock that is moved by hand."""

    def __init__(self, clock: ManualClock, takes_ms: float, code: int = 0) -> None:
        self.called = ""
        self.asked = 0
        self._clock = clock
        self._takes_ms = takes_ms
        self._code = code

    def temperature(self) -> int:
        self.called = "nvmlDeviceGetTemperature"
        self.asked += 1
        self._clock.advance(self._takes_ms / 1000)
        if self._code:
            raise NvmlError(self._code, self.called)
        return 41

    def of_link(self, link: int) -> int:
        self._clock.advance(self._takes_ms / 1000)
        if link > 1:
            raise NvmlError(nvml.NOT_SUPPORTED, "nvmlX")
        return link


def test_a_slow_call_is_left_out_until_its_new_tier_is_due(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    device = Timed(clock, takes_ms=40)
    asker = Asker(3, clock, device)
    asker.begin(1, due_s=1)
    answers = [asker.ask(device.temperature) for _ in range(12)]
    assert answers == [41] * TRIAL_CALLS + [None, None]
    asker.begin(1, due_s=10)
    assert asker.ask(device.temperature) == 41
    (record,) = caplog.records
    assert (record.levelname, record.gpu, record.call) == ("INFO", 3, "nvmlDeviceGetTemperature")  # type: ignore[attr-defined]
    assert (record.p50_ms, record.from_s, record.to_s) == (40.0, 1, 10)  # type: ignore[attr-defined]


def test_an_older_call_does_not_stand_in_for_one_that_is_only_slow(clock: ManualClock) -> None:
    slow, older = Timed(clock, takes_ms=40), Timed(clock, takes_ms=0)
    asker = Asker(0, clock, slow)
    asker.begin(1, due_s=1)
    for _ in range(TRIAL_CALLS + 1):
        asker.ask(slow.temperature, older.temperature)
    assert older.asked == 0


def test_a_call_of_descriptions_and_samples_is_in_the_samples_tier(clock: ManualClock) -> None:
    device = Timed(clock, takes_ms=1)
    asker = Asker(0, clock, device)
    asker.begin(60, due_s=60)
    asker.ask(device.temperature)
    asker.begin(1, due_s=1)
    assert asker.ask(device.temperature) == 41
    assert [report.tier_s for report in asker.calls()] == [1]


def test_calls_are_reported_with_what_they_cost(clock: ManualClock) -> None:
    device = Timed(clock, takes_ms=2)
    asker = Asker(0, clock, device)
    for _ in range(3):
        asker.ask(device.temperature)
    (report,) = asker.calls()
    assert (report.call, report.reading) == ("nvmlDeviceGetTemperature", "temperature")
    assert (report.supported, report.code, report.count) == (True, "SUCCESS", 3)
    assert report.p50_ms == pytest.approx(2, rel=0.01)
    assert report.p99_ms == pytest.approx(2, rel=0.01)


def test_a_call_that_the_gpu_does_not_have_is_reported_so(clock: ManualClock) -> None:
    device = Timed(clock, takes_ms=2, code=nvml.NOT_SUPPORTED)
    asker = Asker(0, clock, device)
    asker.ask(device.temperature)
    (report,) = asker.calls()
    assert (report.supported, report.code) == (False, "NOT_SUPPORTED")


def test_what_one_link_lacks_is_still_asked_of_the_others(clock: ManualClock) -> None:
    device = Timed(clock, takes_ms=0)
    asker = Asker(0, clock)
    for _ in range(2):
        assert [asker.ask_of(device.of_link, link) for link in range(3)] == [0, 1, None]
    (report,) = asker.calls()
    assert report.count == 5


def test_a_part_that_is_not_there_is_no_failure(clock: ManualClock) -> None:
    def fan_percent(fan: int) -> int:
        raise NvmlError(nvml.INVALID_ARGUMENT, "nvmlDeviceGetFanSpeed_v2")

    asker = Asker(0, clock)
    assert [asker.ask_of(fan_percent, 3) for _ in range(3)] == [None] * 3
    (report,) = asker.calls()
    assert (report.count, report.supported) == (1, False)
    assert not asker.failed
