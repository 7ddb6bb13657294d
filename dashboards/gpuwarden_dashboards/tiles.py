"""Puts a GPU into a small cell: its utilization, shade, and all that is known of it as a title."""

from collections.abc import Mapping
from typing import Any

from gpuwarden_dashboards import text
from gpuwarden_dashboards.read.fleet import Record


def tile(gpu: Record) -> Mapping[str, Any]:
    """For a record of `read_tiles`."""
    util = gpu["util_percent"]
    rules = gpu["rules"] or []
    says = ", ".join(
        (
            f"GPU {gpu['gpu']} {gpu['model'] or ''}".strip(),
            *(["not reporting"] if gpu["silent"] else []),
            f"utilization {text.percent(util)}",
            f"memory {text.gigabytes(gpu['memory_used_bytes'])}",
            text.power(gpu["power_watts"]),
            text.celsius(gpu["temperature_celsius"]),
            *rules,
        )
    )
    return {
        "gpu": gpu["gpu"],
        "gpu_uuid": gpu["gpu_uuid"],
        "shade": "" if util is None else f" u{round(util / 10)}",
        "rules": rules,
        "silent": gpu["silent"],
        "title": says,
        "shown": text.ABSENT if util is None else f"{util:.0f}",
    }
