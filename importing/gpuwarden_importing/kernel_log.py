"""Reads Xids and SXids from the kernel log (dmesg, journalctl, syslog, kmsg) and from fabricmanager.log.

The agent's `xid_lines.py` and `xid_rows.py` parse the messages; this module parses timestamps and hosts.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuwarden_agent.events.kernel_log import parse_records
from gpuwarden_agent.events.xid_lines import Found, GpuNamed, Sxid, bus_id, step
from gpuwarden_agent.events.xid_rows import Falls, row_of
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.instants import Instants
from gpuwarden_importing.model import ImportTally, Origin, Row, TableRow, place_uuid

_KMSG = re.compile(r"\d{1,5},\d{1,18},\d{1,18},[^;\n]*;")
_LEVEL = re.compile(r"(?:kern|user|daemon|syslog)\s*:\s*\w+\s*:\s*")
_PRIORITY = re.compile(r"<\d{1,3}>\s*")
_SINCE_BOOT = re.compile(r"\[\s*(?P<s>\d{1,10})\.(?P<us>\d{6})\]\s?(?P<text>.*)", re.DOTALL)
_BRACKETS = re.compile(r"\[(?P<time>[^\]]{15,40})\]\s?(?P<text>.*)", re.DOTALL)
_JOURNAL = re.compile(
    r"(?P<time>\S.{6,38}?)\s(?P<host>[\w.-]+)\skernel(?:\[\d+\])?:\s(?P<text>.*)", re.DOTALL
)
_PLAIN = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\S+|\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d\S*)\s(?P<text>.*)",
    re.DOTALL,
)
_GPU_AT = re.compile(r"NVRM: GPU at PCI:(?P<bus_id>[0-9a-fA-F:.]+): (?P<uuid>GPU-[0-9a-fA-F-]{36})")
_SAYS = ("NVRM", "SXid")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log, with time and host if it has them."""

    text: str
    ts_ms: int | None = None
    us: int | None = None
    """Microseconds since boot, in logs without other timestamps."""
    host: str | None = None
    sequence: int | None = None


def line_of(line: str, instants: Instants) -> Line:
    """Parse a line. Raises ValueError for a wrong timestamp."""
    line = line.rstrip("\r\n")
    if line.startswith("{"):
        return _of_json(line)
    if _KMSG.match(line):
        for record in parse_records(line.encode(errors="replace")):
            return Line(record.text, us=record.us, sequence=record.sequence)
    line = _PRIORITY.sub("", _LEVEL.sub("", line, count=1), count=1)
    if found := _SINCE_BOOT.match(line):
        return Line(found["text"], us=int(found["s"]) * 1_000_000 + int(found["us"]))
    if found := _BRACKETS.match(line):
        return Line(found["text"], instants.parse(found["time"]))
    if line.startswith("NVRM:"):
        return Line(line)
    if found := _JOURNAL.match(line):
        said = found["text"]
        if stamped := _SINCE_BOOT.match(said):
            said = stamped["text"]
        return Line(said, instants.parse(found["time"]), host=found["host"])
    if found := _PLAIN.match(line):
        return Line(found["text"], instants.parse(found["time"]))
    return Line(line)


def _of_json(line: str) -> Line:
    """A line of `journalctl -o json`."""
    try:
        entry = json.loads(line)
        message = entry["MESSAGE"]
        if isinstance(message, list):  # bytes that are no UTF-8
            message = bytes(message).decode(errors="replace")
        us = int(entry["__REALTIME_TIMESTAMP"])
        host = entry.get("_HOSTNAME")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("is not an entry of the journal") from error
    return Line(str(message), us // 1000, host=str(host) if host else None)


def is_kernel_log(lines: list[str]) -> bool:
    """Whether the start of a file looks like a kernel log."""
    told = 0
    for line in lines:
        if "NVRM: " in line or "SXid (" in line or '"__REALTIME_TIMESTAMP"' in line:
            return True
        bare = _LEVEL.sub("", line, count=1)
        is_shaped = (
            bare != line
            or _KMSG.match(line)
            or _SINCE_BOOT.match(_PRIORITY.sub("", bare, count=1))
            or ("kernel: " in line and _JOURNAL.match(line))
        )
        told += bool(is_shaped)
    return told > len(lines) // 2 and told > 0


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader`."""
    file = _KernelLog(origin, tally, origin.at_ms)
    for number, line in enumerate(lines, 1):
        if not any(word in line for word in _SAYS):
            # Note the time, as the last line dates a log with times since boot.
            if found := _SINCE_BOOT.search(line) or _KMSG.match(line):
                file.seen(found, line)
            if line.strip():
                tally.ignore("a line without an Xid", number)
            continue
        try:
            file.take(line_of(line, file.instants), number)
        except ValueError as error:
            tally.skip(f"timestamp {error}", number)
    yield from file.rest()


class _KernelLog(LogFile):
    """A file; its events wait for the end, as later lines name the GPUs and date the log."""

    def __init__(self, origin: Origin, tally: ImportTally, now_ms: int | None) -> None:
        super().__init__(origin, tally, now_ms)
        self.named: GpuNamed | None = None
        self.uuids: dict[str, str] = {}
        """By PCI bus id."""
        self.found: list[tuple[Line, Found]] = []
        self.last_us = 0
        self.falls = Falls()

    def seen(self, found: re.Match[str], line: str) -> None:
        """Take the time of a line without an event."""
        said = found.groupdict()
        if "s" in said:
            us = int(said["s"]) * 1_000_000 + int(said["us"])
        else:
            us = int(line.split(",", 3)[2])
        self.last_us = max(self.last_us, us)

    def take(self, line: Line, number: int) -> None:
        """Take a line that may have an event."""
        self.last_us = max(self.last_us, line.us or 0)
        if told := _GPU_AT.search(line.text):
            place = bus_id(told["bus_id"])
            if place:
                self.uuids[place] = told["uuid"]
        found, self.named = step(self.named, line.text)
        at_s = line.us / 1e6 if line.us is not None else line.ts_ms and line.ts_ms / 1000
        if found is None:
            self.tally.ignore("a line without an Xid", number)
        elif at_s is not None and self.falls.is_repeated(found, at_s):
            self.tally.ignore("the same fall off the bus in another form", number)
        else:
            self.found.append((line, found))

    def rest(self) -> Iterator[TableRow]:
        """Hand on the events."""
        for line, found in self.found:
            self.add("events", self._row(line, found))
        yield from super().rest()

    def _row(self, line: Line, found: Found) -> Row:
        row = _event(found, "kernel log", line.sequence)
        node = self.origin.node_or(line.host)
        uuid = self.uuids.get(found.pci_bus_id)
        if uuid is None and row["kind"] == "xid":
            uuid = place_uuid(found.pci_bus_id, None, node)
            self.tally.note(
                "the log does not name all GPUs: the collector takes the GPU that its inventory has at the"
                " PCI bus id, else bus id and node stand for its UUID"
            )
        return {**row, "gpu_uuid": uuid, "ts": self._time_of(line), "node": node}

    def _time_of(self, line: Line) -> int:
        if line.ts_ms is not None:
            return line.ts_ms
        at_ms = self.origin.at()
        if line.us is None:
            self.tally.note(f"lines without a time are of {self.origin.at_source}")
            return at_ms
        self.tally.note(
            f"times count from boot: the last line is taken to be of {self.origin.at_source}"
        )
        return at_ms - (self.last_us - line.us) // 1000


def _event(found: Found, source: str, sequence: int | None = None) -> Row:
    """The event as the agent makes it, except its source."""
    row = row_of(found, {}, sequence or 0)
    details: dict[str, Any] = json.loads(str(row["details"]))
    if sequence is None:
        details.pop("kmsg_sequence", None)
    return {**row, "details": json.dumps({**details, "source": source}, sort_keys=True)}


FABRIC_LINE = re.compile(
    r"\[(?P<time>[A-Z][a-z]{2} +\d{1,2} \d{4} \d\d:\d\d:\d\d)\] \[(?P<level>[A-Z]+)\] \[tid \d+\] (?P<text>.*)"
)
"""A line of fabricmanager.log."""
_SWITCH_ERROR = re.compile(
    r"detected NVSwitch (?P<fatality>non-fatal|fatal) error (?P<code>\d{1,6})\b.*?pci bus id (?P<bus>[0-9a-fA-F:.]+)"
    r"(?: physical id (?P<switch>\d{1,4}))?(?: port (?P<link>\d{1,4}))?",
    re.IGNORECASE,
)
_BAD = ("ERROR", "CRITICAL", "FATAL")


def read_fabric_manager(
    lines: Iterator[str], origin: Origin, tally: ImportTally
) -> Iterator[TableRow]:
    """A `Reader` of fabricmanager.log.

    Checked against a log of driver 535 on eight A100. A fatal error is assumed to have the words of one that is not.
    """
    file = LogFile(origin, tally)
    for number, line in enumerate(lines, 1):
        found = FABRIC_LINE.match(line.rstrip())
        said = _SWITCH_ERROR.search(found["text"]) if found else None
        place = bus_id(said["bus"]) if said else None
        if found is None or said is None or place is None:
            if found is not None and found["level"] in _BAD:
                tally.ignore("an error of the fabric manager without an SXid", number)
            elif line.strip():
                tally.ignore("a line without an SXid", number)
            continue
        sxid = Sxid(
            code=int(said["code"]),
            pci_bus_id=place,
            text=found["text"],
            is_fatal=said["fatality"].lower() == "fatal",
            switch=None if said["switch"] is None else int(said["switch"]),
            link=None if said["link"] is None else int(said["link"]),
        )
        if (ts_ms := file.time(found["time"], number)) is not None:
            node = origin.node_or(None)
            file.add("events", {**_event(sxid, "fabric manager"), "ts": ts_ms, "node": node})
    yield from file.rest()
