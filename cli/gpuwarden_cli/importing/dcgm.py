"""Reads Prometheus text of dcgm-exporter, both name sets, with timestamps or without.

Names, units and columns are the catalogue's own: what the agent's exporter writes, read backwards.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache

from gpuwarden_agent.exporter.names import DCGM_TABLES, Scale, names_of
from gpuwarden_cli.importing.model import (
    ImportedInventory,
    ImportedRows,
    ImportTally,
    Origin,
    Row,
    mig_uuid,
    place_uuid,
)
from gpuwarden_cli.importing.values import bus_id, plain

_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+(?P<ts>\S+))?\s*\Z"
)
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_NEVER = (range(2147483632, 2147483648), range(140737488355328, 140737488355344))
"""What DCGM writes for "no value": the last of int32, and 2^47 and above for numbers."""
_NO_INT64 = 9.2233720368547758e18
_TABLES_ROWS_MAX = 50_000


@cache
def columns() -> Mapping[str, tuple[str, str, Scale, bool]]:
    """By DCGM name: table, column, scale of the export, and whether values are whole."""
    from gpuwarden.metric import Type
    from gpuwarden.metrics import METRICS

    whole = {Type.INT16, Type.INT32, Type.INT64}
    types = {(t, m.name): m.type for t, metrics in METRICS.items() for m in metrics}
    found: dict[str, tuple[str, str, Scale, bool]] = {}
    for name_set in ("dcgm", "dcgm49"):
        for table in DCGM_TABLES:
            for each in names_of(name_set, table):
                if not each.is_rate and each.name not in found:
                    column = each.columns[0]
                    is_whole = types[table, column] in whole
                    found[each.name] = (table, column, each.scale, is_whole)
    return found


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """A `Reader`."""
    file = _File(origin, tally)
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.match(stripped)
        if found is None:
            tally.skip("no line of Prometheus text", number)
            continue
        file.take(found, number)
        if len(file.rows) >= _TABLES_ROWS_MAX:
            yield from file.handed_on()
    yield from file.handed_on()
    yield from file.inventory.rows()
    if file.has_no_time:
        tally.note(f"no timestamps: all rows get the time {origin.at_source}")


class _File:
    """Rows that are being put together, as each line of the text is one value of one row."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        self._origin = origin
        self._tally = tally
        self._labels: dict[str, tuple[str, Row] | None] = {}
        self.inventory = ImportedInventory()
        self.rows: dict[tuple[str, str, int], Row] = {}
        self.has_no_time = False

    def handed_on(self) -> Iterator[ImportedRows]:
        """The rows so far, by table."""
        tables: dict[str, list[Row]] = {}
        for (table, _, _), row in self.rows.items():
            tables.setdefault(table, []).append(row)
        self.rows = {}
        for table, rows in tables.items():
            yield ImportedRows.of(table, rows)

    def take(self, found: re.Match[str], line: int) -> None:
        """One value."""
        name = found["name"]
        known = columns().get(name)
        if known is None:
            self._tally.unmapped[name[:100]] += 1
            return
        table, column, scale, is_whole = known
        gpu = self._gpu(found["labels"] or "", line)
        if gpu is None:
            self._tally.skip("no GPU in the labels", line)
            return
        uuid, identity = gpu
        try:
            value = _number(found["value"])
            ts_ms = self._time(found["ts"])
        except (ValueError, OverflowError):
            self._tally.skip("no number where one has to be", line)
            return
        if value is None:
            return
        row = self.rows.setdefault((table, uuid, ts_ms), {"ts": ts_ms, **identity})
        # Dividing first by what the exporter multiplied with gives back what it had.
        value = value * scale.over / scale.times
        if column in row:
            self._tally.skip("a value that the same GPU and time has already", line)
            return
        row[column] = round(value) if is_whole else value

    def _time(self, said: str | None) -> int:
        if said is None:
            self.has_no_time = True
            return self._origin.at()
        value = float(said)
        if not 0 <= value < 1e16:
            raise ValueError(said)
        # Prometheus has whole milliseconds, OpenMetrics seconds.
        return round(value) if value >= 1e11 else round(value * 1000)

    def _gpu(self, text: str, line: int) -> tuple[str, Row] | None:
        """UUID and identity columns, made once for each set of labels."""
        if text not in self._labels:
            if len(self._labels) > 100_000:
                self._labels.clear()
            self._labels[text] = self._identified(text, line)
        return self._labels[text]

    def _identified(self, text: str, line: int) -> tuple[str, Row] | None:
        labels = {
            name: re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], value)
            for name, value in _LABEL.findall(text)
        }
        index = labels.get("gpu", "")
        told = labels.get("UUID") or labels.get("uuid")
        if not told and not index:
            return None
        host = labels.get("Hostname") or labels.get("hostname") or labels.get("exported_hostname")
        node = self._origin.node_or(host)
        try:
            place = bus_id(labels.get("pci_bus_id", ""))
        except ValueError as error:
            self._tally.skip(f"pci_bus_id {error}", line)
            place = None
        number = int(index) if index.isdecimal() and len(index) < 6 else None
        if not told:
            self._tally.note("no UUID in the labels: bus id or index and the node stand for it")
        whole = uuid = told or place_uuid(place, number, node)
        identity: Row = {"node": node, "gpu": number}
        instance = labels.get("GPU_I_ID")
        if instance:
            identity["mig_instance"] = instance
            uuid = uuid if uuid.startswith("MIG-") else mig_uuid(uuid, instance)
        identity["gpu_uuid"] = uuid
        facts: Row = {
            "gpu": number,
            "vendor": "nvidia",
            "model": plain(labels.get("modelName", "")) if not instance else None,
            "pci_bus_id": place if not instance else None,
            "mig_instance": instance or None,
            "parent_gpu_uuid": whole if instance and uuid != whole else None,
        }
        self.inventory.add_gpu(uuid, node, facts)
        driver = labels.get("DCGM_FI_DRIVER_VERSION") or labels.get("DCGM_FI_SYSTEM_DRIVER_VERSION")
        self.inventory.add_node(node, {"driver_version": plain(driver or "")})
        return uuid, identity


def _number(said: str) -> float | None:
    """None: what Prometheus or DCGM writes where there is no value. Raises ValueError."""
    value = float(said)
    if not math.isfinite(value) or value >= _NO_INT64:
        return None
    is_blank = value == int(value) and any(int(value) in blank for blank in _NEVER)
    return None if is_blank else value
