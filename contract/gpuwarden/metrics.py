"""The catalogue: one row per metric, the single source of every column, unit and meaning.

Arrow schemas, DuckDB tables, `docs/metrics.md` and the exporters are made from it. Adding a metric
is one row (in `metrics_gpu.py` or `metrics_host.py`) and one line in a probe. The last part of a
name is its unit; `_total` marks a counter, which only grows until its source is reset. A reading
that a device cannot give is absent (NULL), never 0.

Sources: NVML names as in nvidia-ml-py 13.615.71 and nvml.h, where "FI n" is field id n of
nvmlDeviceGetFieldValues and "GPM n" metric n of nvmlGpmMetricsGet. DCGM names: `dcgm` up to 4.8,
`dcgm_49` since 4.9.
"""

from collections.abc import Iterator

from gpuwarden.metric import Kind, Metric, Type
from gpuwarden.metrics_gpu import (
    GPU_DETAIL_METRICS,
    GPU_HEALTH_METRICS,
    GPU_METRICS,
    LINK_METRICS,
)
from gpuwarden.metrics_host import HOST_METRICS, INFINIBAND_METRICS, PROCESS_METRICS

__all__ = ["CLOCKS_EVENT_REASONS", "METRICS", "Kind", "Metric", "Type", "reason_names"]

METRICS: dict[str, tuple[Metric, ...]] = {
    "gpu_samples": GPU_METRICS,
    "gpu_detail_samples": GPU_DETAIL_METRICS,
    "gpu_health_samples": GPU_HEALTH_METRICS,
    "link_samples": LINK_METRICS,
    "host_samples": HOST_METRICS,
    "infiniband_samples": INFINIBAND_METRICS,
    "process_samples": PROCESS_METRICS,
}

CLOCKS_EVENT_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "voltage reliability",
}
"""Bits of `clocks_event_reasons`, nvml.h nvmlClocksEventReason*; 0x200 and 0x400 as older headers name them."""


def reason_names(bits: int) -> Iterator[str]:
    """Names of the bits that are set; an unknown bit is named by its value, never dropped."""
    remaining = bits
    while remaining:
        bit = remaining & -remaining
        yield CLOCKS_EVENT_REASONS.get(bit, f"unknown {bit:#x}")
        remaining ^= bit
