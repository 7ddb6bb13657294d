"""Derives the sets of Prometheus names from the catalogue: name, unit and labels of each metric.

own     gpuwarden_<table>_<metric>, base units: hertz for MHz, ratio for percent, seconds.
dcgm    dcgm-exporter up to 4.8: MiB, mJ, ns, percent, MHz, MB/s. Its DCGM_FI_PROF_* are base units.
dcgm49  dcgm-exporter since 4.9: base units.
jobstats  the exporter of Princeton's Jobstats, with the Slurm job and its user as values.

Two kinds of names are not in the catalogue: rates, which the catalogue has as counters of bytes, and
the last Xid, which is not a column.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from gpuwarden.lifecycle import StartError
from gpuwarden.metrics import METRICS, Kind, Metric, Type

Value = float | str | None
Row = Mapping[str, Value]

DCGM_SETS = ("dcgm", "dcgm49")
NAME_SETS = ("own", *DCGM_SETS, "jobstats")
PREFIXES = {
    "gpu_samples": "gpu",
    "gpu_detail_samples": "gpu",
    "gpu_health_samples": "gpu",
    "link_samples": "link",
    "host_samples": "host",
    "infiniband_samples": "infiniband",
    "process_samples": "process",
}

DCGM_TABLES = ("gpu_detail_samples", "gpu_samples", "gpu_health_samples")
"""Tables that the DCGM sets have names for. If two have a value for a name, the first one is used: PCIe
rates that the GPU measures, before rates computed from counters."""

DCGM_XID = {"dcgm": "DCGM_FI_DEV_XID_ERRORS", "dcgm49": "DCGM_FI_DEV_XID_ERROR"}

DCGM_KINDS = {
    "DCGM_FI_DEV_RETIRED_PENDING": "counter",
    "DCGM_FI_DEV_PAGE_RETIRED_PENDING": "counter",
}
"""Names whose TYPE in dcgm-exporter does not fit their value."""

DCGM_LIMITS = ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT")
"""The enforced power limit, and the configured one: the first counts if both are there."""
NODE_LABELS = (
    "node",
    "exported_node",
    "kubernetes_node",
    "node_name",
    "nodename",
    "Hostname",
    "hostname",
    "exported_hostname",
)
"""Labels that name the node, best first. In Kubernetes `Hostname` is the exporter's pod, and Prometheus adds the
node."""
_EXPORTER_POD = re.compile(r"(?:.*-)?(?:dcgm|metrics|gpu)-exporter-[a-z0-9]+(?:-[a-z0-9]+)?\Z")
_DCGM_BLANK = (range(2147483632, 2147483648), range(140737488355328, 140737488355344))
"""DCGM's values for "no value": the last of int32, and the 16 from 2^47 on."""
_NO_INT64 = 9.2233720368547758e18
_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\Z")

KEEP_S = 60.0
KEEP_PERIODS = 2.5
"""A reading is shown for a minute, or for 2.5 of its periods where that is longer."""

SLURM_JOB = "slurm_job_id"
"""Label of a Slurm job; `job` is Prometheus' own."""
SLURM_JOB_SQL = "CASE WHEN {0}job IS DISTINCT FROM {0}pod THEN {0}job END"
_GPU_LABELS = ("gpu", "gpu_uuid", "mig_instance")
_PROCESS_LABELS = ("pid", "process_name", "username", "job", "container_id", "pod")
_LABELS: Mapping[str, tuple[str, ...]] = {
    "host_samples": (),
    "infiniband_samples": ("device", "port"),
    "link_samples": (*_GPU_LABELS, "link_type", "link"),
    "process_samples": (*_GPU_LABELS, *_PROCESS_LABELS),
}
"""Columns that are labels of our own set, in addition to the node; other tables have those of a GPU."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Multiply by `times`, then divide by `over`: two steps, so that 7 percent is exactly 0.07."""

    unit: str
    times: int = 1
    over: int = 1

    def __call__(self, value: float) -> float:
        scaled = value * self.times
        return scaled if self.over == 1 else scaled / self.over


BASE = {
    "percent": Scale("ratio", over=100),
    "mhz": Scale("hertz", times=10**6),
    "ms": Scale("seconds", over=1000),
    "bits_per_second": Scale("bytes_per_second", over=8),
}
"""From the catalogue's unit to the base unit; all other units are base units."""

DCGM = {
    "percent": Scale("%"),
    "mhz": Scale("MHz"),
    "celsius": Scale("C"),
    "watts": Scale("W"),
    "volts": Scale("V"),
    "bytes": Scale("MiB", over=2**20),
    "joules": Scale("mJ", times=1000),
    "seconds": Scale("ns", times=10**9),
}
"""From the catalogue's unit to that of dcgm-exporter up to 4.8."""


JOBSTATS: Mapping[str, tuple[str, Scale]] = {
    "util_percent": ("nvidia_gpu_duty_cycle", Scale("percent")),
    "memory_total_bytes": ("nvidia_gpu_memory_total_bytes", Scale("bytes")),
    "memory_used_bytes": ("nvidia_gpu_memory_used_bytes", Scale("bytes")),
    "power_watts": ("nvidia_gpu_power_usage_milliwatts", Scale("milliwatts", times=1000)),
    "temperature_celsius": ("nvidia_gpu_temperature_celsius", Scale("celsius")),
}
"""Names of Jobstats by metric of gpu_samples. Source: its docs/setup/gpu_node_scripts.md."""
JOBSTATS_JOB, JOBSTATS_UID = "nvidia_gpu_jobId", "nvidia_gpu_jobUid"

OWNER_LABELS: Mapping[str, str] = {
    "namespace": "namespace",
    "pod": "pod",
    "container": "container",
    "hpc_job": "job",
}
"""Labels of dcgm-exporter for the owner of a GPU, and the columns of allocation_samples. Its `pod` has no namespace."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One name of a set, and how to compute its value from a row."""

    name: str
    kind: str
    help: str
    columns: tuple[str, ...]
    """The catalogue's metric; for a rate, the counters to add up."""
    scale: Scale
    is_rate: bool = False


def check_name_sets(names: Iterable[str]) -> None:
    """Raise StartError if a setting names an unknown set."""
    known = ", ".join(NAME_SETS)
    for name in names:
        if name not in NAME_SETS:
            raise StartError(f"exporter_names: no name set {name!r}; choose of {known}")


@cache
def names_of(name_set: str, table: str) -> tuple[Exported, ...]:
    """Names of a set for the metrics of a table, in the catalogue's order."""
    assert name_set in NAME_SETS, f"no name set {name_set!r}; known: {', '.join(NAME_SETS)}"
    if name_set == "own":
        return tuple(_own(table, metric) for metric in METRICS[table])
    if name_set == "jobstats":
        return tuple(_jobstats()) if table == "gpu_samples" else ()
    if table not in DCGM_TABLES:
        return ()
    rates = _dcgm_rates(name_set) if table == "gpu_samples" else ()
    return (*_dcgm(name_set, table), *rates)


class DcgmColumn(NamedTuple):
    """Where a value of dcgm-exporter belongs."""

    table: str
    column: str
    scale: Scale
    """Divide by `times` and multiply by `over`, which restores the exact value."""
    is_whole: bool


@cache
def dcgm_columns() -> Mapping[str, DcgmColumn]:
    """By name of both DCGM sets: its column. Rates of our counters are not in it."""
    whole = {Type.INT16, Type.INT32, Type.INT64}
    types = {(t, m.name): m.type for t, metrics in METRICS.items() for m in metrics}
    found: dict[str, DcgmColumn] = {}
    for name_set in DCGM_SETS:
        for table in DCGM_TABLES:
            for each in names_of(name_set, table):
                if not each.is_rate and each.name not in found:
                    column = each.columns[0]
                    is_whole = types[table, column] in whole
                    found[each.name] = DcgmColumn(table, column, each.scale, is_whole)
    limit = DcgmColumn("gpu_samples", "power_limit_watts", Scale("W"), False)
    return found | dict.fromkeys(DCGM_LIMITS, limit)


def dcgm_value(value: float) -> float | None:
    """The value; None: it is Prometheus' or DCGM's "no value"."""
    if not math.isfinite(value) or value >= _NO_INT64:
        return None
    is_blank = value == int(value) and any(int(value) in blank for blank in _DCGM_BLANK)
    return None if is_blank else value


def is_exporter_pod(name: str) -> bool:
    """Whether a label has the name of an exporter's pod, which changes at each restart."""
    return _EXPORTER_POD.match(name) is not None


def kernel_bus_id(text: str) -> str | None:
    """A PCI bus id as the kernel writes it, 0000:1b:00.0; None: it is none."""
    found = _BUS_ID.match(text.strip().lower())
    if found is None:
        return None
    domain = (found[1] or "0").lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}:{found[3]}.{found[4]}"


def own_label_columns(table: str) -> tuple[str, ...]:
    """Columns that are labels of our own set, besides the node; a row may lack some."""
    return _LABELS.get(table, _GPU_LABELS)


def slurm_job(row: Mapping[str, Value]) -> Value:
    """The job of a row, if it is Slurm's."""
    return None if row.get("job") == row.get("pod") else row.get("job")


def own_labels(table: str, row: Row, gpu: Mapping[str, Value]) -> dict[str, Value]:
    """Labels of our own set. `gpu`: its inventory row, empty where it is not known (yet)."""
    columns = own_label_columns(table)
    labels: dict[str, Value] = {"node": row["node"]} | {name: row.get(name) for name in columns}
    if "job" in columns:
        labels[SLURM_JOB] = slurm_job(row)
        del labels["job"]
    if "gpu_uuid" in columns:
        labels["model"] = gpu.get("model")
    if row.get("simulated"):
        labels["simulated"] = "true"
    return labels


def dcgm_labels(
    name_set: str,
    row: Row,
    gpu: Mapping[str, Value],
    driver_version: Value,
    owner: Mapping[str, Value] | None = None,
) -> dict[str, Value]:
    """Labels of a DCGM set, in dcgm-exporter's order; `gpu` as in `own_labels`. `owner`: the row of allocation_samples
    of the only owner that a scheduler has given the GPU to."""
    is_old = name_set == "dcgm"
    index, instance = row.get("gpu"), row.get("mig_instance")
    return {
        "gpu": index,
        "UUID": row["gpu_uuid"],
        "pci_bus_id": _nvml_bus_id(gpu.get("pci_bus_id")),
        "device": None if index is None else f"nvidia{index}",
        "modelName": gpu.get("model"),
        "GPU_I_ID": None if instance is None else str(instance).partition("/")[0],
        "Hostname" if is_old else "hostname": row["node"],
        "DCGM_FI_DRIVER_VERSION" if is_old else "DCGM_FI_SYSTEM_DRIVER_VERSION": driver_version,
        **(owner_labels(owner) if owner else {}),
    }


def owner_labels(owner: Mapping[str, Value]) -> dict[str, Value]:
    """Labels of a GPU's owner as dcgm-exporter has them, from a row of allocation_samples."""
    labels = {label: owner.get(column) for label, column in OWNER_LABELS.items()}
    labels["hpc_job"] = slurm_job(owner)
    pod = labels["pod"]
    return labels if pod is None else labels | {"pod": str(pod).rpartition("/")[2]}


def jobstats_labels(row: Row, gpu: Mapping[str, Value]) -> dict[str, Value]:
    """Labels of Jobstats; `gpu` as in `own_labels`."""
    index = row.get("gpu")
    return {
        "minor_number": index,
        "name": gpu.get("model"),
        "ordinal": index,
        "uuid": row["gpu_uuid"],
    }


def _jobstats() -> Iterator[Exported]:
    meanings = {metric.name: metric.meaning for metric in METRICS["gpu_samples"]}
    for column, (name, scale) in JOBSTATS.items():
        yield Exported(name, "gauge", f"{meanings[column]} In {scale.unit}.", (column,), scale)


def _own(table: str, metric: Metric) -> Exported:
    scale = BASE.get(metric.unit, Scale(metric.unit))
    name = re.sub(rf"_{metric.unit}(?=(_total)?$)", f"_{scale.unit}", metric.name)
    hint = " Here 1 is 100 percent." if metric.unit == "percent" else ""
    full_name = f"gpuwarden_{PREFIXES[table]}_{name}"
    return Exported(full_name, _kind(metric), metric.meaning + hint, (metric.name,), scale)


def _dcgm(name_set: str, table: str) -> Iterator[Exported]:
    for metric in METRICS[table]:
        name = metric.dcgm if name_set == "dcgm" else metric.dcgm_49
        if name is None:
            continue
        is_base = name_set == "dcgm49" or name.startswith("DCGM_FI_PROF_")
        scale = (BASE if is_base else DCGM).get(metric.unit, Scale(metric.unit))
        is_amount = metric.unit in DCGM or metric.unit in BASE
        text = f"{metric.meaning} In {scale.unit}." if is_amount else metric.meaning
        kind = DCGM_KINDS.get(name, _kind(metric))
        yield Exported(name, kind, text, (metric.name,), scale)


def _dcgm_rates(name_set: str) -> Iterator[Exported]:
    for way, word in (("tx", "sent"), ("rx", "received")):
        yield Exported(
            f"DCGM_FI_PROF_PCIE_{way.upper()}_BYTES",
            "gauge",
            f"Bytes {word} over PCIe a second.",
            (f"pcie_{way}_bytes_total",),
            Scale("bytes a second"),
            is_rate=True,
        )
    columns = ("nvlink_tx_bytes_total", "nvlink_rx_bytes_total")
    text = "Payload sent and received over all NVLinks a second."
    if name_set == "dcgm":
        # Its MB is a thousand KiB, and its TYPE is counter although the value is a rate.
        scale = Scale("MB (of 1000 KiB) a second", over=1024 * 1000)
        name, kind = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter"
    else:
        scale = Scale("bytes a second")
        name, kind = "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", "gauge"
    yield Exported(name, kind, f"{text} In {scale.unit}.", columns, scale, is_rate=True)


def _kind(metric: Metric) -> str:
    return "counter" if metric.kind is Kind.COUNTER else "gauge"


def _nvml_bus_id(bus_id: Value) -> str | None:
    """The kernel's 0000:1b:00.0 as NVML and DCGM write it: 00000000:1B:00.0."""
    if bus_id is None:
        return None
    domain, colon, rest = str(bus_id).partition(":")
    return f"{domain.rjust(8, '0')}{colon}{rest}".upper()
