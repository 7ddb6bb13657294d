"""Reads the XML of `nvidia-smi -q -x`, schemas v10 to v13: one document or several in sequence."""

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from gpuwarden_importing.file import LogFile
from gpuwarden_importing.identity import Identities, ReportedIdentity
from gpuwarden_importing.model import (
    ImportTally,
    Origin,
    Row,
    TableRow,
    Value,
    mig_uuid,
    place_uuid,
)
from gpuwarden_importing.smi_fields import INSTANT_NOTE, REASONS, XML_FIELDS, sums
from gpuwarden_importing.values import (
    GPUS,
    HEALTH,
    PROCESS_TYPES,
    PROCESSES,
    SAMPLES,
    Converter,
    LogField,
    bus_id,
    converter,
    executable,
    flag,
    plain,
    text,
)

DOCUMENT_BYTES_MAX = 64 * 1024 * 1024
_BEGIN, _END = "<nvidia_smi_log", "</nvidia_smi_log>"
_BEGINS = re.compile(r"<nvidia_smi_log[\s>]")
_BROKEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|<supported_clocks>.*?</supported_clocks>", re.DOTALL
)
"""What some drivers write that is not XML: bytes of a process's name, and a list that nothing reads."""
_NOT_NAMED = ("supported_clocks", "processes", "mig_devices", "accounted_processes")
"""Lists below `<gpu>` that other methods read, or that have no current values."""
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons/clocks_(?:event|throttle)_reason_(\w+)\Z")

_CONVERTERS = {path: converter(f.quantity, f.unit) for path, f in XML_FIELDS.items()}
_BYTES, _COUNT = converter("bytes", "MiB"), converter("count")


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader`."""
    file = SmiDocuments(origin, tally)
    for document, line in documents(lines, tally):
        file.take(document, line)
        yield from file.rows()
    yield from file.rest()


def documents(lines: Iterator[str], tally: ImportTally) -> Iterator[tuple[str, int]]:
    """The documents, without a DOCTYPE or other text between them, with their first lines."""
    parts: list[str] = []
    size = begun = 0
    for number, line in enumerate(lines, 1):
        rest = line
        while rest:
            if not begun:
                found = _BEGINS.search(rest)
                if found is None:
                    break
                rest, begun = rest[found.start() :], number
            again = _BEGINS.search(rest, 1 if not parts else 0)
            end = rest.find(_END)
            if again is not None and (end < 0 or again.start() < end):
                tally.skip("a document that is cut short", begun)
                rest, parts, size, begun = rest[again.start() :], [], 0, number
                continue
            if end >= 0:
                yield "".join((*parts, rest[: end + len(_END)])), begun
                rest, parts, size, begun = rest[end + len(_END) :], [], 0, 0
                continue
            parts.append(rest)
            size += len(rest)
            if size > DOCUMENT_BYTES_MAX:
                tally.skip("a document of more than 64 MiB", begun)
                parts, size, begun = [], 0, 0
            break
    if begun:
        tally.skip("a document that is cut short", begun)


class SmiDocuments(LogFile):
    """A file of documents."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self.gpus = Identities()
        self.averaged: set[str] = set()
        """GPUs that gave an average power."""

    def take(self, document: str, line: int) -> None:
        """Take a document."""
        try:
            root = ElementTree.fromstring(_BROKEN.sub("", document))
        except ElementTree.ParseError as error:
            self.tally.skip(f"a document that is not XML ({error.msg.partition(':')[0]})", line)
            return
        self.take_root(root, line)

    def take_root(self, root: ElementTree.Element, line: int) -> None:
        """Take a parsed document."""
        ts_ms = self._time(root, line)
        if ts_ms is None:
            return
        gpus = root.findall("gpu")
        # There are no indices. All GPUs are listed in order; a single one may be any.
        is_all = _text(root, "attached_gpus") == str(len(gpus))
        for index, gpu in enumerate(gpus):
            _Gpu(self, gpu, line, ts_ms, index, is_all=is_all).take()
        node = self.origin.node_or(self._host(root))
        facts: Row = {
            "driver_version": text(_text(root, "driver_version")),
            "cuda_version": text(_text(root, "cuda_version")),
        }
        if (attached := _text(root, "attached_gpus")).isdecimal():
            facts["gpus"] = int(attached[:6])
        self.inventory.add_node(node, facts)

    def _time(self, root: ElementTree.Element, line: int) -> int | None:
        said = _text(root, "timestamp")
        if not said:
            self.tally.note(f"no timestamp in a document: it is of {self.origin.at_source}")
            return self.origin.at()
        return self.time(said, line)

    def _host(self, root: ElementTree.Element) -> str | None:
        for gpu in root.findall("gpu"):
            if (host := plain(_text(gpu, "hostname"))) is not None:
                return host
        return None


class _Gpu:
    """A GPU of a document."""

    def __init__(
        self,
        file: SmiDocuments,
        gpu: ElementTree.Element,
        line: int,
        ts_ms: int,
        position: int,
        *,
        is_all: bool,
    ) -> None:
        self._file = file
        self._gpu = gpu
        self._line = line
        self._ts_ms = ts_ms
        self._index = index = position if is_all else None
        self._node = file.origin.node_or(plain(_text(gpu, "hostname")))
        bus = self._read("pci_bus_id", gpu.get("id") or _text(gpu, "pci/pci_bus_id"), bus_id)
        self._bus_id = bus
        told = ReportedIdentity(self._node, plain(_text(gpu, "uuid")), bus, None if bus else index)
        file.gpus.learn(told)
        self._uuid = file.gpus.uuid(told) or place_uuid(None, position, self._node)
        if told.uuid is None:
            file.tally.note("a GPU has no uuid: its PCI bus id identifies it")

    def take(self) -> None:
        """Add its rows to the file's."""
        values: dict[str, dict[str, tuple[int, Value]]] = {SAMPLES: {}, GPUS: {}}
        mask = None
        for path, said in _leaves(self._gpu):
            if path.startswith(_NOT_NAMED):
                continue
            known = XML_FIELDS.get(path)
            if known is not None:
                self._take(values, known, self._read(path, said, _CONVERTERS[path]))
            elif reason := _REASON.match(path):
                is_active = self._read(path, said, flag)
                if is_active is not None and reason[1] in REASONS:
                    mask = (mask or 0) | (REASONS[reason[1]] if is_active else 0)
            elif plain(said) is not None and path not in ("uuid", "pci/pci_bus_id", "hostname"):
                self._file.tally.unmapped[path] += 1
        self._add_sums(values)
        if mask is not None:
            values[SAMPLES]["clocks_event_reasons"] = (0, mask)
        self._fill_power(values[SAMPLES])
        for table, columns in values.items():
            row = {name: value for name, (_, value) in columns.items()}
            if table == GPUS:
                total = values[SAMPLES].get("memory_total_bytes", (0, None))[1]
                self._add_inventory(row | {"memory_total_bytes": total})
            elif row:
                self._add(table, row)
        parts = self._add_mig_devices()
        self._add_processes(parts)

    def _take(
        self, values: dict[str, dict[str, tuple[int, Value]]], known: LogField, value: Value
    ) -> None:
        columns = values.setdefault(known.table, {})
        before = columns.get(known.column)
        if value is not None and (before is None or known.rank < before[0]):
            columns[known.column] = (known.rank, value)

    def _fill_power(self, samples: dict[str, tuple[int, Value]]) -> None:
        """Take the instant reading as `power_watts` of a GPU that has given no average."""
        if "power_watts" in samples:
            self._file.averaged.add(self._uuid)
        elif "power_instant_watts" in samples and self._uuid not in self._file.averaged:
            samples["power_watts"] = samples["power_instant_watts"]
            self._file.tally.note(INSTANT_NOTE)

    def _add_sums(self, values: dict[str, dict[str, tuple[int, Value]]]) -> None:
        for since in ("volatile", "aggregate"):
            parity, secded, column = sums(since)
            both = [self._read(path, _text(self._gpu, path), _COUNT) for path in (parity, secded)]
            for path in (parity, secded):
                self._file.tally.unmapped.pop(path, None)
            if isinstance(both[0], int) and isinstance(both[1], int):
                values.setdefault(HEALTH, {})[column] = (0, both[0] + both[1])

    def _add_mig_devices(self) -> dict[str, str]:
        """Add MIG devices; their UUIDs by instance."""
        found: dict[str, str] = {}
        for part in self._gpu.findall("mig_devices/mig_device"):
            instance = f"{_text(part, 'gpu_instance_id')}/{_text(part, 'compute_instance_id')}"
            uuid = plain(_text(part, "uuid")) or mig_uuid(self._uuid, instance)
            found[instance] = uuid
            memory: Row = {
                f"memory_{name}_bytes": self._read(
                    f"mig_device/fb_memory_usage/{name}",
                    _text(part, f"fb_memory_usage/{name}"),
                    _BYTES,
                )
                for name in ("total", "used", "free", "reserved")
            }
            identity: Row = {"gpu_uuid": uuid, "mig_instance": instance}
            if any(value is not None for value in memory.values()):
                self._add(SAMPLES, memory | identity)
            facts: Row = {
                "mig_instance": instance,
                "memory_total_bytes": memory["memory_total_bytes"],
                "parent_gpu_uuid": self._uuid,
                "gpu": self._index,
                "vendor": "nvidia",
            }
            self._file.inventory.add_gpu(uuid, self._node, facts)
        return found

    def _add_processes(self, parts: dict[str, str]) -> None:
        for process in self._gpu.findall("processes/process_info"):
            pid = self._read("process_info/pid", _text(process, "pid"), _COUNT)
            if pid is None:
                self._file.tally.skip("a process without its id", self._line)
                continue
            instance: str | None = (
                f"{_text(process, 'gpu_instance_id')}/{_text(process, 'compute_instance_id')}"
            )
            if instance not in parts:
                instance = None
            uuid = self._uuid if instance is None else parts[instance]
            row: Row = {
                "gpu_uuid": uuid,
                "mig_instance": instance,
                "pid": pid,
                "process_type": PROCESS_TYPES.get(_text(process, "type")),
                "process_name": executable(_text(process, "process_name")),
                "gpu_memory_bytes": self._read(
                    "process_info/used_memory", _text(process, "used_memory"), _BYTES
                ),
            }
            self._add(PROCESSES, row)

    def _add_inventory(self, row: Row) -> None:
        row |= {"gpu": self._index, "vendor": "nvidia", "pci_bus_id": self._bus_id}
        self._file.inventory.add_gpu(self._uuid, self._node, row)

    def _add(self, table: str, row: Row) -> None:
        identity: Row = {
            "ts": self._ts_ms,
            "node": self._node,
            "gpu": self._index,
            "gpu_uuid": self._uuid,
        }
        self._file.add(table, identity | row)

    def _read(self, name: str, said: str, convert: Converter) -> Value:
        return self._file.read(name, said, convert, self._line)


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _leaves(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Paths and texts of the leaf elements."""
    waiting = [("", element)]
    while waiting:
        path, found = waiting.pop()
        children = list(found)
        if not children and path:
            yield path, (found.text or "").strip()
        waiting += [(f"{path}/{c.tag}" if path else c.tag, c) for c in reversed(children)]
