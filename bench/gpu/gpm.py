"""Reads all GPM metrics between two instants, and computes what a matrix product should show."""

import time
from typing import Any

from bench.gpu.support import Answer

TENSOR_FLOP_A_CLOCK = {"H200": 132 * 4096, "H100": 132 * 4096}
"""Dense BF16 operations that all SMs together do in a clock, from the data sheets: 989 TFLOPS at
1830 MHz on 132 SMs."""

TENSOR = (5, 7)
"""ANY_TENSOR_UTIL and HMMA_TENSOR_UTIL."""


def between(handle: Any, seconds: float) -> dict[int, float | str]:
    """Every GPM metric over the next `seconds`: its value, or NVML's name of its return code.

    Raises pynvml.NVMLError where the board has no GPM.
    """
    import pynvml

    from gpuwarden_agent.collect.nvidia.nvml import CODE_NAMES

    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    try:
        pynvml.nvmlGpmSampleGet(handle, samples[0])
        time.sleep(seconds)
        pynvml.nvmlGpmSampleGet(handle, samples[1])
        answers: dict[int, float | str] = {}
        ids = list(range(1, pynvml.NVML_GPM_METRIC_MAX))
        for start in range(0, len(ids), 50):
            asked = ids[start : start + 50]
            got = pynvml.c_nvmlGpmMetricsGet_t()
            got.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            got.numMetrics = len(asked)
            got.sample1, got.sample2 = samples
            for place, metric in enumerate(asked):
                got.metrics[place].metricId = metric
            try:
                pynvml.nvmlGpmMetricsGet(got)
            except pynvml.NVMLError as error:
                answers |= dict.fromkeys(asked, CODE_NAMES.get(error.value, str(error.value)))
                continue
            for place, metric in enumerate(asked):
                one = got.metrics[place]
                code = CODE_NAMES.get(one.nvmlReturn, str(one.nvmlReturn))
                answers[metric] = float(one.value) if one.nvmlReturn == 0 else code
        return answers
    finally:
        for sample in samples:
            pynvml.nvmlGpmSampleFree(sample)


def answers_of(metrics: dict[int, float | str], seconds: float) -> list[Answer]:
    """The metrics as rows of the support matrix."""
    return [
        Answer(
            "gpm", f"GPM {metric}", f"over {seconds:g} s",
            "SUCCESS" if isinstance(value, float) else value, 1, 0.0, 0.0, 0.0,
            f"{value:.3f}" if isinstance(value, float) else "",
        )
        for metric, value in metrics.items()
    ]  # fmt: skip


def expected_tensor_percent(gpu_name: str, flops: float, sm_clock_mhz: float) -> float | None:
    """How active the tensor cores must be for so many operations a second at that clock."""
    a_clock = next((n for model, n in TENSOR_FLOP_A_CLOCK.items() if model in gpu_name), None)
    if a_clock is None or not sm_clock_mhz:
        return None
    return 100 * flops / (a_clock * sm_clock_mhz * 1e6)
