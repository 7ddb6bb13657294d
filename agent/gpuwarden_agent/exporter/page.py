"""Renders /metrics: the newest samples in the chosen name sets, Xids, ages, the agent's health."""

import pwd
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import (
    DCGM_TABLES,
    DCGM_XID,
    JOBSTATS_JOB,
    JOBSTATS_UID,
    NAME_SETS,
    Exported,
    dcgm_labels,
    jobstats_labels,
    names_of,
    own_labels,
    slurm_job,
)
from gpuwarden.xids import xid_info
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.exposition import Family, label_text, text_of
from gpuwarden_agent.exporter.health import health_families
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.exporter.sample_cache import CachedSample
from gpuwarden_agent.probe import Row, Value

GPU_TABLES = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples")
"""Tables with an age for each GPU, because each GPU has its own probe."""


def metrics_page(
    node: str,
    latest: Latest,
    counters: Counters,
    names: Sequence[str] = ("own",),
    *,
    xid_probes: Collection[str] = (),
) -> str:
    """Render the page. `names`: some of `NAME_SETS`, whose order decides when two have the same name.

    `xid_probes`: probes that report Xids. A GPU without an Xid has the Xid 0 once one of them was read;
    before, or without such a probe, it is unknown.
    """
    sees_xids = any(counters.readings[name] for name in xid_probes)
    return text_of(_families(node, latest, counters, names, sees_xids))


def _families(
    node: str, latest: Latest, counters: Counters, names: Sequence[str], sees_xids: bool
) -> Iterator[Family]:
    for name_set in NAME_SETS:
        if name_set not in names:
            continue
        yield from _sample_families(name_set, latest)
        if name_set == "own":
            yield _xids_total(latest)
        elif name_set == "jobstats":
            yield from _jobs(latest)
        else:
            yield _last_xids(name_set, latest, sees_xids)
    yield from _age_families(node, latest)
    yield from health_families(node, counters, latest.rows_dropped)


def _sample_families(name_set: str, latest: Latest) -> Iterable[Family]:
    families: dict[str, Family] = {}
    for table in METRICS if name_set == "own" else DCGM_TABLES:
        labelled = [
            (text, sample)
            for sample in latest.samples(table)
            if (text := _labels(name_set, table, sample.row, latest)) is not None
        ]
        for name in names_of(name_set, table):
            family = families.get(name.name)
            if family is None or not family.series:
                family = families[name.name] = Family(name.name, name.kind, name.help)
            for text, sample in labelled:
                family.put(text, value_of(name, sample))
    return families.values()


def value_of(name: Exported, cached: CachedSample) -> float | None:
    """The value of a name in its unit; None: absent."""
    value = cached.rate(name.columns) if name.is_rate else cached.row.get(name.columns[0])
    return None if value is None or isinstance(value, str) else name.scale(value)


def _labels(name_set: str, table: str, row: Row, latest: Latest) -> str | None:
    """Label text of a row; None: the set does not have this row."""
    gpu = latest.gpu(row.get("gpu_uuid"))
    if name_set == "own":
        return label_text(own_labels(table, row, gpu))
    if gpu.get("vendor") not in (None, "nvidia"):
        return None
    if name_set == "jobstats":
        return label_text(jobstats_labels(row, gpu))
    driver_version = latest.node(row["node"]).get("driver_version")
    owner = latest.owner(row.get("gpu_uuid"))
    return label_text(dcgm_labels(name_set, row, gpu, driver_version, owner))


def _jobs(latest: Latest) -> Iterator[Family]:
    """Slurm job and user of each GPU, as values."""
    jobs = Family(JOBSTATS_JOB, "gauge", "Slurm job that the GPU was given to.")
    uids = Family(JOBSTATS_UID, "gauge", "Numeric id of that job's user.")
    for sample in latest.samples("gpu_samples"):
        row = sample.row
        gpu, owner = latest.gpu(row["gpu_uuid"]), latest.owner(row["gpu_uuid"])
        job = str(slurm_job(owner) or "")
        if not (job.isascii() and job.isdecimal()) or gpu.get("vendor") not in (None, "nvidia"):
            continue
        labels = label_text(jobstats_labels(row, gpu))
        jobs.put(labels, float(job))
        uids.put(labels, _uid(owner.get("username")))
    yield jobs
    yield uids


def _uid(username: Value) -> float | None:
    """The id of a user of this host; None: it is not known here."""
    try:
        return _known_uid(str(username))
    except KeyError:
        return None


@lru_cache(maxsize=256)
def _known_uid(username: str) -> float:
    """Kept, because a directory service may take long to answer. Raises KeyError, which is not kept."""
    return float(pwd.getpwnam(username).pw_uid)


def _xids_total(latest: Latest) -> Family:
    family = Family("gpuwarden_gpu_xids_total", "counter", "Xids since the agent's start.")
    for kind, count in latest.xids.by_kind.items():
        row: Row = {
            "node": kind.node,
            "gpu": kind.gpu,
            "gpu_uuid": kind.gpu_uuid,
            "simulated": kind.simulated,
        }
        labels = own_labels("events", row, latest.gpu(kind.gpu_uuid))
        labels |= {"pci_bus_id": kind.pci_bus_id, "xid": kind.code}
        family.put(label_text(labels), count)
    return family


def _last_xids(name_set: str, latest: Latest, sees_xids: bool) -> Family:
    """The last Xid of each GPU, also of one that fell off the bus and has no samples any more."""
    meaning = "Last Xid since the agent's start; 0: there was none."
    family = Family(DCGM_XID[name_set], "gauge", meaning)
    for gpu in latest.gpus():
        last = latest.xids.last.get(gpu["gpu_uuid"])
        if gpu.get("mig_instance") is not None or gpu.get("vendor") != "nvidia":
            continue
        if last is None and not sees_xids:
            continue
        code = 0 if last is None else last.code
        assert code is not None
        text = xid_info(code).meaning if code else "No Error"
        driver_version = latest.node(gpu["node"]).get("driver_version")
        owner = latest.owner(gpu["gpu_uuid"])
        labels = dcgm_labels(name_set, gpu, gpu, driver_version, owner)
        family.put(label_text(labels | {"err_code": code, "err_msg": text}), code)
    return family


def _age_families(node: str, latest: Latest) -> Iterator[Family]:
    meaning = "Time since the newest sample of the table."
    tables = Family("gpuwarden_sample_age_seconds", "gauge", meaning)
    for table, age_s in latest.ages_s().items():
        tables.put(label_text({"node": node, "table": table}), age_s)
    yield tables
    meaning = "Time since the newest sample of the GPU in the table."
    gpus = Family("gpuwarden_gpu_sample_age_seconds", "gauge", meaning)
    for table in GPU_TABLES:
        newest = {}
        for sample in sorted(latest.samples(table), key=lambda k: k.ts_ms):
            newest[sample.row["gpu_uuid"]] = sample
        for uuid, sample in newest.items():
            labels = own_labels("gpu_samples", sample.row, latest.gpu(uuid))
            gpus.put(label_text(labels | {"table": table}), latest.age_s(sample.ts_ms))
    yield gpus
    meaning = "Time since a value was read that comes more seldom than the rows of its table."
    values = Family("gpuwarden_value_age_seconds", "gauge", meaning)
    for table in METRICS:
        for sample in latest.samples(table):
            if sample.slow:
                labels = own_labels(table, sample.row, latest.gpu(sample.row.get("gpu_uuid")))
                for column, slow in sample.slow.items():
                    text = label_text(labels | {"table": table, "column": column})
                    values.put(text, latest.age_s(slow.ts_ms))
    yield values
