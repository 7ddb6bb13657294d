"""Exports the agent's `Counters` as metrics, with their help texts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gpuwarden import __version__
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.exposition import Family, label_text


@dataclass(frozen=True, slots=True)
class Count:
    """How one field of `Counters` is exported."""

    field: str
    name: str
    meaning: str
    label: str | None = None
    """Label for the keys of a counter by name."""
    kind: str = "counter"


COUNTS = (
    Count("ticks", "ticks_total", "Ticks at which probes were read."),
    Count("ticks_missed", "ticks_missed_total", "Ticks that the agent came too late for."),
    Count(
        "tick_delay_p99_s",
        "tick_delay_p99_seconds",
        "How late 99 of 100 ticks were at most, of the last 600.",
        kind="gauge",
    ),
    Count("readings", "readings_total", "Readings that became samples.", "probe"),
    Count(
        "readings_skipped",
        "readings_skipped_total",
        "Ticks at which a probe was still busy with an earlier call.",
        "probe",
    ),
    Count(
        "readings_late",
        "readings_late_total",
        "Readings dropped because they came after the deadline.",
        "probe",
    ),
    Count("probe_errors", "probe_errors_total", "Calls that failed.", "probe"),
    Count(
        "values_impossible",
        "values_impossible_total",
        "Values left out because they were outside the catalogue's limits.",
        "column",
    ),
    Count("rows", "rows_total", "Rows that entered a batch.", "table"),
    Count("rows_dropped", "rows_dropped_total", "Rows lost before they were sealed."),
    Count("batches_sealed", "batches_sealed_total", "Batches put into the spool."),
    Count("batches_sent", "batches_sent_total", "Requests made to the collector."),
    Count(
        "batches_acknowledged",
        "batches_acknowledged_total",
        "Batches that the collector has made durable.",
    ),
    Count("batches_refused", "batches_refused_total", "Batches that the collector refused."),
    Count(
        "refused_dropped",
        "refused_batches_dropped_total",
        "Refused batches that were deleted for want of room.",
    ),
    Count("batches_dropped", "batches_dropped_total", "Batches that a full spool gave up."),
    Count("bytes_sealed", "sealed_bytes_total", "Bytes of the batches put into the spool."),
    Count("spool_batches", "spool_batches", "Batches that wait for the collector.", kind="gauge"),
    Count("spool_bytes", "spool_bytes", "Bytes that wait for the collector.", kind="gauge"),
    Count(
        "tries_failed",
        "tries_failed",
        "Tries in a row that brought no batch to the collector; 0: it takes them.",
        kind="gauge",
    ),
)
"""`last_error` is text and is not exported."""


def health_families(node: str, counters: Counters, rows_not_kept: int) -> Iterator[Family]:
    """Metrics gpuwarden_agent_*. `rows_not_kept`: rows that the exporter dropped for lack of room."""
    info = Family("gpuwarden_agent_info", "gauge", "Version of the agent; always 1.")
    info.put(label_text({"node": node, "version": __version__}), 1)
    yield info
    for count in COUNTS:
        family = Family(f"gpuwarden_agent_{count.name}", count.kind, count.meaning)
        value = getattr(counters, count.field)
        if isinstance(value, Counter):
            assert count.label is not None, f"{count.field} is counted by what?"
            for key in sorted(value):
                family.put(label_text({"node": node, count.label: key}), value[key])
        else:
            family.put(label_text({"node": node}), value)
        yield family
    meaning = "Rows not shown on this page because there were too many; they were shipped."
    family = Family("gpuwarden_agent_exporter_rows_dropped_total", "counter", meaning)
    family.put(label_text({"node": node}), rows_not_kept)
    yield family
