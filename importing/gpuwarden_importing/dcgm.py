"""Reads metrics of dcgm-exporter: Prometheus text.

Names (of both name sets), units and columns are those that the agent's exporter writes. A change of a GPU's last Xid
becomes an event.
"""

import re
from collections.abc import Iterator, Mapping

from gpuwarden.prometheus_names import (
    DCGM_LIMITS,
    DCGM_XID,
    NODE_LABELS,
    dcgm_columns,
    dcgm_value,
    is_exporter_pod,
)
from gpuwarden.xids import xid_info
from gpuwarden_agent.events.kinds import event
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import (
    ImportTally,
    Origin,
    Row,
    TableRow,
    UnreadableError,
    mig_uuid,
    place_uuid,
)
from gpuwarden_importing.values import bus_id, plain

_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+(?P<ts>\S+))?\s*\Z"
)
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_TABLES_ROWS_MAX = 50_000
_XIDS = frozenset(DCGM_XID.values())


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader` of Prometheus text."""
    file = _File(origin, tally)
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.match(stripped)
        if found is None:
            tally.skip("no line of Prometheus text", number)
            continue
        file.take_line(found, number)
        if len(file.growing) >= _TABLES_ROWS_MAX:
            yield from file.rows()
    yield from file.rest()


class _File(LogFile):
    """A file; its rows grow, as each line is one value of one row."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self._labels: dict[str, tuple[str, Row] | None] = {}
        self.growing: dict[tuple[str, str, int], Row] = {}
        """Rows by table, GPU and time."""
        self._events: list[Row] = []
        self._xids: dict[str, int] = {}

    def rows(self) -> list[TableRow]:
        """Hand on the rows so far."""
        for (table, _, _), row in self.growing.items():
            self.add(table, row)
        self.growing = {}
        return super().rows()

    def rest(self) -> Iterator[TableRow]:
        """Hand on the last rows, the events and the inventory."""
        if self._events:
            self.tally.note(
                "an Xid of DCGM is the last that the GPU had, of the time at which it was first seen"
            )
        for row in self._events:
            self.add("events", row)
        yield from super().rest()

    def take_line(self, found: re.Match[str], line: int) -> None:
        """Take a value."""
        if self._is_known(found["name"]):
            gpu = self._gpu_of_text(found["labels"] or "", line)
            self._take(found["name"], gpu, found["value"], found["ts"], line)

    def _is_known(self, name: str) -> bool:
        if name in dcgm_columns() or name in _XIDS:
            return True
        self.tally.unmapped[name[:100]] += 1
        return False

    def _take(
        self, name: str, gpu: tuple[str, Row] | None, said: str, ts: str | None, line: int
    ) -> None:
        if gpu is None:
            self.tally.skip("no GPU in the labels", line)
            return
        uuid, identity = gpu
        try:
            value = dcgm_value(float(said))
            ts_ms = self._time(ts)
        except (ValueError, OverflowError):
            self.tally.skip("a value that is not a number", line)
            return
        if value is None:
            return
        if name in _XIDS:
            self._take_xid(uuid, identity, round(value), ts_ms)
            return
        table, column, scale, is_whole = dcgm_columns()[name]
        row = self.growing.setdefault((table, uuid, ts_ms), {"ts": ts_ms, **identity})
        # Divide by the exporter's factor, which restores the exact value.
        value = value * scale.over / scale.times
        if column in row and name != DCGM_LIMITS[0]:
            if name != DCGM_LIMITS[1]:
                self.tally.skip("a value that the same GPU and time has already", line)
            return
        row[column] = round(value) if is_whole else value

    def _take_xid(self, uuid: str, identity: Row, code: int, ts_ms: int) -> None:
        """Take the last Xid of a GPU, 0 for none; a change becomes an event."""
        if code == self._xids.get(uuid, 0) or code < 0:
            self._xids[uuid] = max(code, 0)
            return
        self._xids[uuid] = code
        if code == 0:
            return
        info = xid_info(code)
        gpu = identity.get("gpu")
        where = f"GPU {gpu}" if gpu is not None else f"GPU {uuid}"
        place = self.inventory.gpus[uuid].get("pci_bus_id")
        details = {
            "xid": code,
            "action": info.action,
            "mnemonic": info.mnemonic,
            "pci_bus_id": place,
        }
        made = event(
            "xid",
            f"Xid {code} on {where}: {info.meaning}; {info.remedy}",
            severity=info.severity,
            details={n: v for n, v in {**details, "source": "dcgm"}.items() if v is not None},
        )
        own = {"ts": ts_ms, "node": identity["node"], "gpu": gpu, "gpu_uuid": identity["gpu_uuid"]}
        self._events.append({**made, **own})

    def _time(self, said: str | None) -> int:
        if said is None:
            return self.assumed_time()
        value = float(said)
        if not 0 <= value < 1e16:
            raise ValueError(said)
        # Prometheus has whole milliseconds, OpenMetrics seconds.
        return round(value) if value >= 1e11 else round(value * 1000)

    def _gpu_of_text(self, text: str, line: int) -> tuple[str, Row] | None:
        """UUID and identity columns, made once per set of labels."""
        if text not in self._labels:
            if len(self._labels) > 100_000:
                self._labels.clear()
            labels = {
                name: re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], value)
                for name, value in _LABEL.findall(text)
            }
            self._labels[text] = self._identified(labels, line)
        return self._labels[text]

    def _identified(self, labels: Mapping[str, str], line: int) -> tuple[str, Row] | None:
        index = labels.get("gpu", "")
        told = labels.get("UUID") or labels.get("uuid")
        if not told and not index:
            return None
        hosts = (labels.get(name) for name in NODE_LABELS)
        # The name of a pod would make a new node at each restart.
        host = next((h for h in hosts if h and not is_exporter_pod(h)), None)
        if host is None and not self.origin.node and labels.get("Hostname"):
            raise UnreadableError(
                f"its Hostname {labels['Hostname']} is a pod's, and no label `node` names the node: name it with"
                " --node NAME, one file a node"
            )
        node = self.origin.node_or(host)
        try:
            place = bus_id(labels.get("pci_bus_id", ""))
        except ValueError as error:
            self.tally.skip(f"pci_bus_id {error}", line)
            place = None
        number = int(index) if index.isdecimal() and len(index) < 6 else None
        if not told:
            self.tally.note("no UUID in the labels: bus id or index and the node stand for it")
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
