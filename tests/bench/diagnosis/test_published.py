"""Published rules say what their documentation says."""

from bench.diagnosis.published import (
    Series,
    below_half,
    cpu_bottleneck,
    io_bottleneck,
    low_utilization,
)


def series(util: list[float], cpu: float = 50.0, iowait: float = 0.0) -> Series:
    return Series(util, [cpu] * len(util), [iowait] * len(util))


def test_bottlenecks_take_an_idle_gpu_and_a_full_host_for_more_than_half_of_the_time() -> None:
    mostly, half = [5.0] * 60 + [90.0] * 40, [5.0] * 50 + [90.0] * 50
    assert cpu_bottleneck(series(mostly, cpu=95)) and not cpu_bottleneck(series(half, cpu=95))
    assert not cpu_bottleneck(series(mostly, cpu=85))
    assert io_bottleneck(series(mostly, iowait=60)) and not io_bottleneck(series(mostly, iowait=40))


def test_a_gpu_that_is_never_busy_or_goes_up_and_down_is_low() -> None:
    assert low_utilization(series([60.0] * 100))
    assert low_utilization(series([95.0] * 90 + [0.0] * 10))
    assert not low_utilization(series([95.0] * 99 + [0.0]))


def test_below_half_is_of_the_mean() -> None:
    assert below_half(series([100.0] * 49 + [0.0] * 51))
    assert not below_half(series([100.0] * 51 + [0.0] * 49))
