"""Reads the health of GPUs: counters of errors and repairs, their changes over a span, and Xids."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.metrics import METRICS
from gpuwarden.query import Querier, query_all
from gpuwarden_dashboards.read.series import Place, Span

CHANGES_MAX = 300
_WATCHED = (
    "dram_corrected_aggregate_total", "dram_uncorrected_aggregate_total", "sram_corrected_aggregate_total",
    "sram_uncorrected_aggregate_total", "ecc_corrected_aggregate_total", "ecc_uncorrected_aggregate_total",
    "sram_threshold_exceeded", "remapped_rows_corrected_total", "remapped_rows_uncorrected_total", "remap_pending",
    "remap_failed", "retired_pages_corrected_total", "retired_pages_uncorrected_total", "retired_pages_pending",
    "memory_unrepairable", "inforom_valid", "recovery_action", "fabric_state", "fabric_status", "fabric_health",
)  # fmt: skip
"""Columns of gpu_health_samples whose changes are listed."""
_GRAVE = ("uncorrected", "failed", "unrepairable", "pending", "exceeded", "recovery_action")
_MEANINGS = {metric.name: metric.meaning for metric in METRICS["gpu_health_samples"]} | {
    "recovery_action": "What the driver asks for.",
    "fabric_state": "Registration with the NVLink fabric.",
    "fabric_status": "How that registration ended.",
    "fabric_health": "What the NVLink fabric suffers from.",
}
_KINDS = (
    "xid", "sxid", "gpu_lost", "gpu_reset_required", "gpu_unavailable", "ras_errors", "poison", "ecc_uncorrected",
    "ecc_double_bit", "ecc_storm", "row_remapped", "row_remap_pending", "row_remap_failed", "dram_retirement",
    "dram_retirement_failed", "page_retired", "page_retirement_pending", "memory_unrepairable",
    "sram_threshold_exceeded", "inforom_invalid", "recovery_action", "recovery_action_changed", "fabric_unhealthy",
    "link_down", "link_up", "nvml_event",
)  # fmt: skip
"""Kinds of events of the hardware."""


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A counter or state of a GPU that changed, or an event of its hardware."""

    at_ms: int
    node: str
    gpu: int | None
    name: str
    meaning: str
    before: str | None
    after: str | None
    text: str | None
    """Message, for an event."""
    is_grave: bool


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """The newest health sample of a GPU in the span: value by column, without absent ones."""

    node: str
    gpu: int | None
    gpu_uuid: str
    at_ms: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HealthHistory:
    """The newest sample of each GPU, and changes, newest first."""

    now: Sequence[GpuHealth]
    changes: Sequence[HealthChange]
    meanings: Mapping[str, str]


async def read_health(querier: Querier, place: Place, span: Span) -> HealthHistory:
    """Health over the span. Raises QueryError."""
    params = {**place.params, "begin": span.begin, "end": span.end}
    columns = ", ".join(_WATCHED)
    when = "ts >= $begin AND ts < $end"
    queries = (
        # Rows at which a value changed, the rows before them, and the newest row.
        f"""
        WITH looks AS (
            SELECT epoch_ms(ts) AS at_ms, node, gpu, gpu_uuid, {columns}, hash({columns}) AS state
            FROM gpu_health_samples WHERE {place.where} AND {when}
        )
        SELECT * EXCLUDE (state) FROM looks
        WINDOW w AS (PARTITION BY gpu_uuid ORDER BY at_ms)
        QUALIFY state <> lag(state) OVER w OR state <> lead(state) OVER w OR lead(state) OVER w IS NULL
        ORDER BY at_ms DESC LIMIT {20 * CHANGES_MAX}
        """,
        f"""
        SELECT epoch_ms(ts) AS at_ms, node, gpu, kind, severity, message FROM events
        WHERE ({place.where} OR gpu_uuid IS NULL AND {place.where_node}) AND kind IN {_KINDS} AND {when}
        ORDER BY ts DESC LIMIT {CHANGES_MAX}
        """,
    )
    found = await query_all(querier, [(sql, params) for sql in queries])
    looks, events = (result.records() for result in found)
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for look in reversed(looks):
        by_gpu.setdefault(look["gpu_uuid"], []).append(look)
    changes = [change for rows in by_gpu.values() for change in changes_of(rows)]
    changes += [_of_event(event) for event in events]
    newest = [_newest(rows[-1]) for rows in by_gpu.values()]
    return HealthHistory(
        sorted(newest, key=lambda one: (one.node, one.gpu or 0)),
        sorted(changes, key=lambda change: -change.at_ms)[:CHANGES_MAX],
        _MEANINGS,
    )


def changes_of(looks: Sequence[Mapping[str, Any]]) -> Iterator[HealthChange]:
    """Changes between samples of one GPU in their order. An absent value is not a change; what a counter
    gains within an hour is one change."""
    known: dict[str, Any] = {}
    found: dict[tuple[str, int], tuple[Any, Mapping[str, Any]]] = {}
    for look in looks:
        for name in _WATCHED:
            value = look[name]
            if value is None:
                continue
            if known.get(name, value) != value:
                when = look["at_ms"] // (3_600_000 if name.endswith("_total") else 1)
                before, _ = found.get((name, when), (known[name], look))
                found[name, when] = before, look
            known[name] = value
    for (name, _), (before, look) in found.items():
        new = look[name]
        if new == before:
            continue
        is_grave = any(word in name for word in _GRAVE) and new not in (False, "none")
        yield HealthChange(
            look["at_ms"], look["node"], look["gpu"], name, _MEANINGS[name], _text_of(before), _text_of(new), None, is_grave,
        )  # fmt: skip


def _newest(look: Mapping[str, Any]) -> GpuHealth:
    values = {name: _text_of(look[name]) for name in _WATCHED if look[name] is not None}
    return GpuHealth(look["node"], look["gpu"], look["gpu_uuid"], look["at_ms"], values)


def _of_event(event: Mapping[str, Any]) -> HealthChange:
    return HealthChange(
        event["at_ms"], event["node"], event["gpu"], event["kind"], "", None, None,
        event["message"], event["severity"] != "info",
    )  # fmt: skip


def _text_of(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
