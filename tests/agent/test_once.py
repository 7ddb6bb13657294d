"""One reading of everything: stamped, merged, ordered, and never held up by one probe."""

import threading
from collections.abc import Callable, Mapping

import pytest

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.once import Once, read_once
from gpuwarden_agent.probe import ProbeError, Reading


class OneProbe:
    """A probe that does what a test says."""

    blocking = True
    gpu_uuid: str | None = None
    tables: Mapping[str, int] = {}

    def __init__(
        self,
        name: str,
        read: Callable[[int], Reading],
        describe: Callable[[], Reading] = dict,
        simulated: bool = False,
    ) -> None:
        self.name = name
        self.simulated = simulated
        self._read, self._describe = read, describe

    def describe(self) -> Reading:
        return self._describe()

    def read(self, ts_ms: int, due: object = None) -> Reading:
        return self._read(ts_ms)

    def close(self) -> None:
        pass


def once(*probes: OneProbe, clock: ManualClock, limit_s: float = 5.0) -> Once:
    return read_once(probes, clock, node="n1", limit_s=limit_s, between_s=0)


def load(value: float) -> Callable[[int], Reading]:
    return lambda ts_ms: {"host_samples": [{"load_1m": value, "load_5m": None}]}


def test_rows_are_stamped_and_absent_cells_left_out(clock: ManualClock) -> None:
    result = once(OneProbe("host", load(1.5), simulated=True), clock=clock)
    ts = to_ms(clock.now())
    assert result.tables == {
        "host_samples": [{"ts": ts, "node": "n1", "simulated": True, "load_1m": 1.5}]
    }
    assert result.problems == []


def test_rates_exist_because_each_probe_is_read_twice(clock: ManualClock) -> None:
    reads = iter(({"host_samples": [{}]}, {"host_samples": [{"cpu_util_percent": 7.0}]}))
    result = once(OneProbe("host", lambda _: next(reads)), clock=clock)
    assert [row.get("cpu_util_percent") for row in result.tables["host_samples"]] == [7.0]


def test_inventory_comes_first_and_node_facts_are_one_row(clock: ManualClock) -> None:
    host = OneProbe("host", load(1), lambda: {"nodes": [{"cpus": 8, "kernel": "6.1"}]})
    gpu = OneProbe(
        "gpu0",
        lambda _: {"gpu_samples": [{"power_watts": 70.0, "gpu_uuid": "GPU-1"}]},
        lambda: {"gpus": [{"model": "H100", "gpu_uuid": "GPU-1"}], "nodes": [{"gpus": 1}]},
    )
    tables = once(gpu, host, clock=clock).tables
    assert list(tables) == ["nodes", "gpus", "gpu_samples", "host_samples"]
    assert tables["nodes"] == [
        {"node": "n1", "kernel": "6.1", "cpus": 8, "gpus": 1, "simulated": False}
    ]
    order = WIRE_TABLES["gpu_samples"].names
    assert sorted(tables["gpu_samples"][0], key=order.index) == list(tables["gpu_samples"][0])


def fail(error: Exception) -> Callable[[int], Reading]:
    def read(_: int) -> Reading:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ProbeError("GPU 0 is lost", kind="gpu_lost"), "gpu0: GPU 0 is lost"),
        (ZeroDivisionError("division by zero"), "gpu0: ZeroDivisionError: division by zero"),
    ],
)
def test_a_probe_that_fails_is_a_line_and_the_others_go_on(
    error: Exception, line: str, clock: ManualClock
) -> None:
    result = once(OneProbe("gpu0", fail(error)), OneProbe("host", load(1)), clock=clock)
    assert result.problems == [line]
    assert list(result.tables) == ["host_samples"]


def test_a_probe_that_hangs_is_a_line_and_the_others_go_on(clock: ManualClock) -> None:
    returns = threading.Event()

    def hang(_: int) -> Reading:
        returns.wait(30)
        return {}

    try:
        result = once(OneProbe("gpu0", hang), OneProbe("host", load(1)), clock=clock, limit_s=0.2)
    finally:
        returns.set()
    assert result.problems == ["gpu0: no answer within 0.2 s"]
    assert list(result.tables) == ["host_samples"]


def test_a_value_that_cannot_be_true_is_a_line_and_no_value(clock: ManualClock) -> None:
    result = once(OneProbe("host", load(-1.0)), clock=clock)
    assert result.problems == ["host_samples.load_1m = -1.0 cannot be true: left out"]
    assert "load_1m" not in result.tables["host_samples"][0]


def test_readings_that_failed_are_lines_beside_the_rows(clock: ManualClock) -> None:
    probe = OneProbe("gpu0", load(1))
    probe.failed = {"nvmlDeviceGetSerial: UNKNOWN": 2}  # type: ignore[attr-defined]
    result = once(probe, clock=clock)
    assert result.problems == ["gpu0: nvmlDeviceGetSerial: UNKNOWN"]
    assert list(result.tables) == ["host_samples"]
