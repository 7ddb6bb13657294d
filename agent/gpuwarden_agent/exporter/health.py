"""Exports the agent's `Counters` as metrics gpuwarden_agent_*."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from gpuwarden import __version__
from gpuwarden_agent.counters import Counters, Recent
from gpuwarden_agent.exporter.exposition import Family, label_text


def health_families(node: str, counters: Counters, rows_not_kept: int) -> Iterator[Family]:
    """The metrics. `rows_not_kept`: rows that the exporter dropped for lack of room."""
    info = Family("gpuwarden_agent_info", "gauge", "Version of the agent; always 1.")
    info.put(label_text({"node": node, "version": __version__}), 1)
    yield info
    for f in fields(counters):
        metric, value = f.metadata, getattr(counters, f.name)
        if not metric:
            continue
        family = Family(f"gpuwarden_agent_{metric['name']}", metric["kind"], metric["meaning"])
        if isinstance(value, Counter):
            for key in sorted(value):
                family.put(label_text({"node": node, metric["label"]: key}), value[key])
        else:
            number = counters.tick_delay_p99_s if isinstance(value, Recent) else value
            family.put(label_text({"node": node}), number)
        yield family
    meaning = "Rows not shown on this page because there were too many; they were shipped."
    family = Family("gpuwarden_agent_exporter_rows_dropped_total", "counter", meaning)
    family.put(label_text({"node": node}), rows_not_kept)
    yield family
