"""Replaces identities in rows by pseudonyms; readings of the hardware do not change.

Every text becomes a stable pseudonym, except in the columns of `KEPT`, so a new column is hidden by
default. Sentences are removed, because they quote names. The same name gets the same pseudonym within
one recording, which does not contain the name.
"""

import json
import secrets
import uuid
from collections.abc import Mapping

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.probe import Reading, Row, Value

KEPT = frozenset(
    {
        "addressing_mode", "architecture", "backend", "compute_capability", "compute_mode", "cpu_affinity", "cpu_model",
        "cpu_numa_nodes", "memory_numa_nodes",
        "cuda_version", "device", "driver_version", "fabric_health", "fabric_manager",
        "fabric_manager_version", "fabric_state", "fabric_status", "gsp_firmware_version",
        "inforom_version", "kernel", "kernel_module", "kind", "link_layer", "link_type",
        "mig_instance", "model", "os", "part_number", "pci_bus_id", "peers", "physical_state",
        "loader_pids", "process_type", "recovery_action", "remote_pci_bus_id", "remote_type",
        "scheduler", "severity", "signals_blocked", "signals_caught", "signals_ignored",
        "signals_pending", "state", "vbios_version", "vendor", "virtualization",
    }
)  # fmt: skip
"""Text columns that do not identify anybody."""

PLAIN_PROCESSES = frozenset({"python", "python3", "pt_main_thread", "pt_data_worker", "nvidia-smi"})
"""Names of common executables."""

_UUIDS = frozenset({"gpu_uuid", "parent_gpu_uuid"})
_TEXTS = {
    name: frozenset(c.name for c in table.columns if c.type is Type.STRING)
    for name, table in WIRE_TABLES.items()
}


class Pseudonyms:
    """The pseudonyms of one recording."""

    def __init__(self) -> None:
        # A secret namespace, so that pseudonyms cannot be found by trying names.
        self._secret = uuid.UUID(bytes=secrets.token_bytes(16))
        self._numbers: dict[str, dict[str, int]] = {}

    def of(self, what: str, name: str) -> str:
        """`user` and `alice` to `user-1`."""
        numbers = self._numbers.setdefault(what, {})
        return f"{what}-{numbers.setdefault(name, len(numbers) + 1)}"

    def uuid(self, name: str) -> str:
        """A UUID that replaces `name`; `GPU-` and `MIG-` stay."""
        return mapped_uuid(self._secret, name)

    def reading(self, rows: Reading) -> Reading:
        """The rows with pseudonyms."""
        return {
            table: [self._row(row, _TEXTS.get(table, frozenset())) for row in several]
            for table, several in rows.items()
        }

    def _row(self, row: Row, texts: frozenset[str]) -> Row:
        return {
            name: self._text(name, value) if isinstance(value, str) or name in texts else value
            for name, value in row.items()
        }

    def _text(self, column: str, value: Value) -> Value:
        if not isinstance(value, str) or column in KEPT:
            return value
        if column in _UUIDS:
            return self.uuid(value)
        if column == "details":
            return _numbers_of(value)
        if column == "message":
            return "left out"
        if column == "process_name" and value in PLAIN_PROCESSES:
            return value
        return self.of(column, value)


def mapped_uuid(namespace: uuid.UUID, name: str) -> str:
    """Another UUID for `name`, the same for the same namespace; a prefix like GPU- stays."""
    prefix = next((known for known in ("GPU-", "MIG-") if name.startswith(known)), "")
    return f"{prefix}{uuid.uuid5(namespace, name)}"


def _numbers_of(details: str) -> str | None:
    """The numbers in the JSON object: codes and counts."""
    try:
        document = json.loads(details)
    except ValueError:
        return None
    if not isinstance(document, Mapping):
        return None
    numbers = {key: v for key, v in document.items() if isinstance(v, (int, float))}
    return json.dumps(numbers, sort_keys=True)
