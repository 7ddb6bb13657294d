"""Lists the kinds of events that agents send; `docs/events.md` explains each, and a test compares both."""

import json
from collections.abc import Mapping
from typing import Any

from gpuwarden_agent.probe import Row

KINDS: dict[str, str] = {
    "agent_started": "info",
    "agent_stopped": "info",
    "agent_gap": "warning",
    "clock_stepped": "warning",
    "ticks_missed": "warning",
    "probe_stuck": "warning",
    "probe_failed": "warning",
    "probe_recovered": "info",
    "progress_refused": "warning",
    "gpu_lost": "critical",
    "gpu_reset_required": "critical",
    "driver_not_loaded": "critical",
    "driver_mismatch": "critical",
    "driver_timeout": "warning",
    "driver_opened": "info",
    "ras_errors": "warning",
    "gpu_appeared": "info",
    "ecc_uncorrected": "critical",
    "row_remapped": "warning",
    "row_remap_pending": "warning",
    "row_remap_failed": "critical",
    "page_retired": "warning",
    "page_retirement_pending": "warning",
    "memory_unrepairable": "critical",
    "sram_threshold_exceeded": "critical",
    "inforom_invalid": "warning",
    "recovery_action": "critical",
    "fabric_unhealthy": "critical",
    "link_down": "critical",
    "link_up": "info",
    "port_down": "critical",
    "port_up": "info",
    "port_rate_lowered": "warning",
    "port_rate_raised": "info",
    "slowdown_began": "warning",
    "slowdown_ended": "info",
    "power_limit_changed": "info",
    "values_impossible": "warning",
    "ecc_double_bit": "critical",
    "ecc_storm": "warning",
    "dram_retirement": "warning",
    "dram_retirement_failed": "critical",
    "poison": "critical",
    "gpu_unavailable": "critical",
    "recovery_action_changed": "warning",
    "nvml_event": "warning",
    "xid": "critical",
    "sxid": "critical",
    "kernel_log_overrun": "warning",
    "rows_dropped": "critical",
    "batches_dropped": "critical",
    "batches_refused": "critical",
    "spool_failed": "critical",
    "spool_recovered": "info",
    "spool_set_aside": "critical",
    "slurm_node_out": "warning",
    "slurm_node_back": "info",
}
"""Kind to its usual severity."""


def event(
    kind: str,
    message: str,
    *,
    severity: str | None = None,
    gpu: int | None = None,
    gpu_uuid: str | None = None,
    duration_seconds: float | None = None,
    details: Mapping[str, Any] | None = None,
) -> Row:
    """An `events` row without ts, node and simulated, which are added later.

    A kind that is not in the list, as a probe may return it, is a warning.
    """
    return {
        "kind": kind,
        "severity": severity or KINDS.get(kind, "warning"),
        "message": message,
        "gpu": gpu,
        "gpu_uuid": gpu_uuid,
        "duration_seconds": duration_seconds,
        "details": json.dumps(dict(details), default=str, sort_keys=True) if details else None,
    }


def span(seconds: float) -> str:
    """A duration for people: "0.4 s", "37 s", "12 min", "3 h 05 min"."""
    if seconds < 1:
        return f"{seconds:.1g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes / 1440:.0f} days"
