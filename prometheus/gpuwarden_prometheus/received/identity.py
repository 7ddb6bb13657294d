"""Tells from labels which node, GPU, process, port and owner a series is about; pure."""

import json
import re
from collections.abc import Iterator, Mapping

from gpuwarden.node_name import is_node_name
from gpuwarden.prometheus_names import NODE_LABELS, SLURM_JOB, is_exporter_pod, kernel_bus_id
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import place_uuid

OWNER = "owner:"
"""Begin of the names of facts that name an owner, in the form of JSON."""
_NODES = (*NODE_LABELS, "k8s_node_name", "host_name", "exported_host_name")
_INSTANCES = ("instance", "service_instance_id", "server_address", "net_host_name")
_PORT = re.compile(r":\d{1,5}\Z")
_UUIDS = ("UUID", "uuid", "gpu_uuid", "hw_id")
_BARE_UUID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z", re.IGNORECASE
)
_NVIDIA_UUID = re.compile(r"(?:gpu|mig)-", re.IGNORECASE)
_INDICES = ("gpu", "gpu_id", "index", "gpu_index", "ordinal", "minor_number")
_FACTS: Mapping[str, tuple[str, ...]] = {
    "model": ("modelName", "model", "card_series", "hw_model", "hw_name", "name"),
    "driver_version": (
        "DCGM_FI_DRIVER_VERSION",
        "DCGM_FI_SYSTEM_DRIVER_VERSION",
        "driver_version",
        "hw_driver_version",
    ),
    "cuda_version": ("cuda_version",),
    "vbios_version": ("vbios_version", "DCGM_FI_DEV_VBIOS_VERSION", "hw_firmware_version"),
    "serial": ("serial", "serial_number", "DCGM_FI_DEV_SERIAL", "hw_serial_number"),
    "compute_capability": ("compute_cap",),
    "simulated": ("simulated",),
}
_HOST_FACTS: Mapping[str, tuple[str, ...]] = {
    "nodename": ("nodename",),
    "kernel": ("release", "os_version"),
    "os": ("pretty_name", "os_description"),
    "simulated": ("simulated",),
}
_ABSENT = frozenset({"", "N/A", "[N/A]", "unknown"})


class UnknownDeviceError(Exception):
    """The labels do not say what the series is about; the text is the reason, in a word or two."""


def node_of(labels: Mapping[str, str], *, is_host: bool = False) -> tuple[str, bool]:
    """The node, and whether a label names it: else it is the address that was scraped. Raises UnknownDeviceError.

    `is_host`: of node_exporter one series of a host has its name in `nodename`, and the row gets it from there.
    """
    for name in _NODES:
        if is_host and name == "nodename":
            continue
        found = labels.get(name)
        if found and not is_exporter_pod(found):
            return _named(found), True
    for name in _INSTANCES:
        if found := labels.get(name):
            # An IPv6 address is in brackets.
            return _named(_PORT.sub("", found).strip("[]")), False
    raise UnknownDeviceError("no_node")


def _named(node: str) -> str:
    if not is_node_name(node):
        raise UnknownDeviceError("wrong_node")
    return node


def facts_of(name: str, table: str, labels: Mapping[str, str], node: str) -> dict[str, str]:
    """Columns of the key and texts about the device. Raises UnknownDeviceError."""
    columns = WIRE_TABLES[table].names
    if "gpu_uuid" not in columns:
        facts = _texts(_HOST_FACTS, labels)
        if "nodename" in facts:
            _named(facts["nodename"])
        return facts | _own_columns(table, labels)
    facts = _texts(_FACTS, labels) | dict(_owners(labels))
    if place := kernel_bus_id(labels.get("pci_bus_id") or labels.get("gpu_pci_address", "")):
        facts["pci_bus_id"] = place
    index = next((labels[n] for n in _INDICES if labels.get(n, "").isdecimal()), None)
    if index is not None and len(index) < 6:
        facts["gpu"] = index
    if vendor := _vendor(name, labels):
        facts["vendor"] = vendor
    return facts | _own_columns(table, labels) | _gpu(labels, facts, node)


def key_of(table: str, facts: Mapping[str, str]) -> str:
    """What identifies the row in its node besides the time. Raises UnknownDeviceError."""
    parts = [facts.get(column) for column in WIRE_TABLES[table].key if column not in ("ts", "node")]
    if None in parts:
        raise UnknownDeviceError("incomplete_labels")
    return "\t".join(str(part) for part in parts)


def _gpu(labels: Mapping[str, str], facts: Mapping[str, str], node: str) -> dict[str, str]:
    """Identity of the GPU or MIG device."""
    told = next((labels[name] for name in _UUIDS if labels.get(name)), None)
    uuid = _uuid(told, facts, labels, node)
    instance = labels.get("GPU_I_ID") or labels.get("mig_instance") or labels.get("gpu_instance_id")
    if not instance:
        return {"gpu_uuid": uuid}
    if uuid.startswith("MIG-"):
        return {"gpu_uuid": uuid, "mig_instance": instance}
    # As drivers up to 450 name it.
    return {"gpu_uuid": f"MIG-{uuid}/{instance}", "mig_instance": instance, "parent_gpu_uuid": uuid}


def _uuid(told: str | None, facts: Mapping[str, str], labels: Mapping[str, str], node: str) -> str:
    is_amd = facts.get("vendor") == "amd"
    if told and (_NVIDIA_UUID.match(told) or told.startswith(("AMD-", "pci-"))):
        prefix, _, rest = told.partition("-")
        return f"{prefix.upper()}-{rest}" if prefix.upper() in ("GPU", "MIG") else told
    if told and is_amd:
        return f"AMD-{told}"
    if told and _BARE_UUID.match(told):
        return f"GPU-{told}"
    if is_amd and (serial := labels.get("serial_number")):
        part = labels.get("gpu_partition_id", "0")
        return f"AMD-{serial}" if part == "0" else f"AMD-{serial}.{part}"
    if "pci_bus_id" in facts:
        return place_uuid(facts["pci_bus_id"], node)
    if "gpu" in facts:
        return f"gpu-{facts['gpu']}@{node}"
    if told:
        return f"{told}@{node}"  # unique on its host only
    raise UnknownDeviceError("no_gpu")


def _vendor(name: str, labels: Mapping[str, str]) -> str | None:
    said = (labels.get("card_vendor") or labels.get("hw_vendor") or "").lower()
    for vendor in ("nvidia", "amd"):
        if vendor in said:
            return vendor
    if name.startswith(("gpu_", "pcie_")) and "gpu_id" in labels:
        return "amd"
    return "nvidia" if name.startswith(("DCGM_", "nvidia_")) else None


def _owners(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Owners of the GPU: a pod, with its namespace and container, or a job."""
    for prefix in ("exported_", ""):
        pod, namespace = labels.get(f"{prefix}pod"), labels.get(f"{prefix}namespace")
        container = labels.get(f"{prefix}container", "")
        if pod and namespace and not is_exporter_pod(pod) and "exporter" not in container:
            yield OWNER + json.dumps(["kubernetes", namespace, pod, container]), ""
            break
    job = labels.get("hpc_job") or (labels.get("job_id") if labels.get("job_user") else None)
    if job and job not in _ABSENT:
        yield OWNER + json.dumps(["slurm", job, labels.get("job_user", ""), ""]), ""


def _own_columns(table: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Labels that are columns of the table's key or identity."""
    columns = {*WIRE_TABLES[table].key, *_TEXT_COLUMNS.get(table, ())} - {"node", "ts", "gpu_uuid"}
    found = {name: labels[name] for name in columns if labels.get(name)}
    pod = labels.get("exported_pod") or labels.get("pod", "")
    # Our own exporter's is namespace/pod, and a target's label `pod` the exporter's.
    if table == "process_samples":
        found |= {"pod": pod} if "/" in pod else {}
        job = labels.get(SLURM_JOB) or found.get("pod")
        found |= {"job": job} if job else {}
    return found


_TEXT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "process_samples": ("process_name", "username", "container_id"),
    "infiniband_samples": ("link_layer",),
}


def _texts(facts: Mapping[str, tuple[str, ...]], labels: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for fact, names in facts.items():
        text = next((labels[n] for n in names if labels.get(n, "") not in _ABSENT), None)
        if text is not None:
            found[fact] = text
    return found
