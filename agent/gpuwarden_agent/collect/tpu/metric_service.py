"""Asks libtpu's metric service, which each process on a TPU has on a port of its own from 8431 on.

Source: the messages and names of `tpu_metric_service.proto` in Google's `tpu-info` 0.14. A value stands
for a device, by number; a metric that this libtpu does not have is refused, and then absent.
"""

import math
import socket
from collections.abc import Callable

from gpuwarden_agent.collect.grpc import GrpcError, call, double, integer, submessages

METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
FIRST_PORT = 8431
MEMORY_TOTAL = "tpu.runtime.hbm.memory.total.bytes"
MEMORY_USED = "tpu.runtime.hbm.memory.usage.bytes"
DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"
MEMORY_BANDWIDTH = "tpu.runtime.hbm.utilization.percent"
LIMIT_S = 1.0
"""For all calls to one port."""


def request_of(name: str) -> bytes:
    """A MetricRequest."""
    data = name.encode()
    return b"\x0a" + bytes((len(data),)) + data


def parse_metric(answer: bytes) -> dict[int, float]:
    """Gauge values by number of device, of a MetricResponse. Raises ValueError."""
    values: dict[int, float] = {}
    for metric in submessages(answer, 1):
        for entry in submessages(metric, 3):
            value = _gauge(entry)
            if value is not None and math.isfinite(value) and value >= 0:
                values[_device(entry)] = value
    return values


def ask(port: int, names: list[str], monotonic: Callable[[], float]) -> dict[str, dict[int, float]]:
    """Values of each metric that the process has, by number of device.

    Raises OSError where nothing listens or answers in time, and ValueError where it is another service.
    """
    until = monotonic() + LIMIT_S
    found: dict[str, dict[int, float]] = {}
    for name in names:
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
            try:
                answer = call(
                    connection, METHOD, request_of(name), lambda: until - monotonic(), "libtpu"
                )
            except GrpcError as error:
                if error.status is None:
                    raise ValueError(str(error)) from error
                continue
        found[name] = parse_metric(answer)
    return found


def _device(entry: memoryview) -> int:
    """Number in the attribute; device 0 may have none, because 0 is not sent."""
    for attribute in submessages(entry, 1):
        for value in submessages(attribute, 2):
            return integer(value, 3) or 0
    return 0


def _gauge(entry: memoryview) -> float | None:
    """The value. Its fields are alternatives, of which one is sent also where it is 0."""
    for gauge in submessages(entry, 3):
        number = integer(gauge, 2)
        return double(gauge, 1) if number is None else float(number)
    return None
