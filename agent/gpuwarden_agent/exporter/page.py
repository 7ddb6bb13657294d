"""What stands on /metrics: the newest samples in the chosen name sets, their age, the agent's health."""

from collections.abc import Iterator, Sequence

from gpuwarden.metrics import METRICS
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.exposition import Family, label_text, text_of
from gpuwarden_agent.exporter.health import health_families
from gpuwarden_agent.exporter.latest import Kept, Latest
from gpuwarden_agent.exporter.names import (
    GPU_TABLE,
    NAME_SETS,
    dcgm_labels,
    names_of,
    own_labels,
)


def metrics_page(
    node: str, latest: Latest, counters: Counters, names: Sequence[str] = ("own",)
) -> str:
    """The page now. `names`: which of `NAME_SETS`, whose order decides where two share a name."""
    return text_of(_families(node, latest, counters, names))


def _families(
    node: str, latest: Latest, counters: Counters, names: Sequence[str]
) -> Iterator[Family]:
    for name_set in NAME_SETS:
        if name_set in names:
            for table in METRICS:
                yield from _sample_families(name_set, table, latest)
    yield from _age_families(node, latest)
    yield from health_families(node, counters, latest.rows_dropped)


def _sample_families(name_set: str, table: str, latest: Latest) -> Iterator[Family]:
    exported = names_of(name_set, table)
    if not exported:
        return
    labelled = [
        (text, kept)
        for kept in latest.samples(table)
        if (text := _labels(name_set, table, kept, latest)) is not None
    ]
    for name in exported:
        family = Family(name.name, name.kind, name.help)
        for text, kept in labelled:
            family.put(text, name.value(kept))
        yield family


def _labels(name_set: str, table: str, kept: Kept, latest: Latest) -> str | None:
    """Label text of a row; None: the set does not speak of it."""
    row = kept.row
    gpu = latest.gpu(row.get("gpu_uuid"))
    if name_set == "own":
        return label_text(own_labels(table, row, gpu))
    if gpu.get("vendor") not in (None, "nvidia"):
        return None
    driver_version = latest.node(row["node"]).get("driver_version")
    return label_text(dcgm_labels(name_set, row, gpu, driver_version))


def _age_families(node: str, latest: Latest) -> Iterator[Family]:
    meaning = "Time since the newest sample of the table."
    tables = Family("gpuwarden_sample_age_seconds", "gauge", meaning)
    for table, age_s in latest.ages_s().items():
        tables.put(label_text({"node": node, "table": table}), age_s)
    yield tables
    meaning = "Time since the newest sample of the GPU."
    gpus = Family("gpuwarden_gpu_sample_age_seconds", "gauge", meaning)
    for kept in latest.samples(GPU_TABLE):
        labels = own_labels(GPU_TABLE, kept.row, latest.gpu(kept.row["gpu_uuid"]))
        gpus.put(label_text(labels), latest.age_s(kept.ts_ms))
    yield gpus
