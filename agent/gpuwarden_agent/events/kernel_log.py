"""Reads the kernel's log as it is written: each Xid and SXid becomes an event.

Each read of /dev/kmsg returns one record, `priority,sequence,microseconds,flags;text`, with bytes that
do not print as `\\xNN`, and then lines ` KEY=value`, which are not used. Sequences count from 0 at boot.
A reader whose next record was overwritten gets EPIPE once and continues with the oldest record.

The position in the log (boot id and sequence of the last record) is kept in a small file, so that a
restart neither repeats nor misses records. It is written at the call after the one that returned the
rows, and at the end: then the agent has the rows. An agent that is killed within that second repeats
them, which is better than a loss. The file is replaced atomically and not synced: only a crash of the
machine could lose it, and the next boot has another log.
"""

import errno
import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.lifecycle import boot_id
from gpuwarden_agent.events.kinds import event, span
from gpuwarden_agent.events.xid_ledger import XidLedger, XidReport
from gpuwarden_agent.events.xid_lines import (
    GpuNamed,
    Sxid,
    Xid,
    step,
)
from gpuwarden_agent.events.xid_rows import FALLEN_OFF_BUS, Falls, Gpus, row_of
from gpuwarden_agent.probe import HostedProbe, ProbeError, Reading, Row

DEVICE = Path("/dev/kmsg")
POSITION_FILE = "kmsg.json"

RECORD_BYTES_MAX = 16_384
"""Twice the longest record of the kernel; a shorter buffer would give EINVAL."""
RECORDS_MAX = 10_000
EVENTS_MAX = 500
"""Limit for one call; the rest waits in the kernel for the next one."""
NAMES_WAIT_S = 10.0
"""How long the first call waits for the PCI bus ids from the probes of the GPUs."""
HISTORY_AGE_S = 13 * 86_400.0
"""A day less than the collector's limit: an older event gets the time of reading, and its age in words."""

log = logging.getLogger(__name__)

_HEADER = re.compile(rb"\d{1,5},(?P<sequence>\d{1,18}),(?P<us>\d{1,18}),[^;\n]*;", re.ASCII)
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


class KernelLog(Protocol):
    """A source of records."""

    def read(self) -> bytes | None:
        """Return the next record or several; None: nothing new.

        Raises BrokenPipeError when records were overwritten before they were read, and OSError.
        """
        ...

    def close(self) -> None:
        """Close the source."""
        ...


class DevKmsg:
    """/dev/kmsg, opened at the oldest record that the kernel still has. Raises OSError."""

    def __init__(self, path: Path = DEVICE) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> bytes | None:
        try:
            return os.read(self._file, RECORD_BYTES_MAX) or None
        except BlockingIOError:
            return None

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the kernel's log."""

    sequence: int
    us: int
    """Microseconds since boot."""
    text: str


@dataclass(frozen=True, slots=True)
class Position:
    """The last record that was processed."""

    boot_id: str
    sequence: int
    us: int


def parse_records(data: bytes) -> Iterator[Record]:
    """The records in the bytes; lines that do not start a record are skipped."""
    for line in data.split(b"\n"):
        header = _HEADER.match(line)
        if header is not None:
            raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), line[header.end() :])
            text = raw.decode(errors="replace")
            yield Record(int(header["sequence"]), int(header["us"]), text)


def load_position(path: Path, boot: str) -> Position | None:
    """The position of an earlier run; None when there was none in this boot."""
    try:
        kept = Position(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        log.warning(
            "position in the kernel's log not readable, it is read again from the start",
            extra={"path": str(path), "error": str(error)},
        )
        return None
    if kept.boot_id != boot or type(kept.sequence) is not int or type(kept.us) is not int:
        return None
    return kept


def save_position(path: Path, position: Position) -> None:
    """Replace the file. Raises OSError."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(position)))
    new.replace(path)


def kmsg_probe(
    state_dir: Path | None,
    clock: Clock,
    gpus: Gpus | None = None,
    *,
    gpu_count: int = 0,
    path: Path = DEVICE,
    boot: str | None = None,
    ledger: XidLedger | None = None,
) -> "KmsgProbe | None":
    """The probe of this host; None where there is no /dev/kmsg, as in most containers.

    `state_dir` None: no position is kept, for a command beside an agent, whose position it must not move.
    `gpus` may fill up while the probe runs: the first call waits up to ten seconds until it has
    `gpu_count` entries. `boot` is the kernel's boot id, `ledger` that of the node if NVML reports
    Xids, too.
    """
    if not path.exists():
        return None
    gpus = {} if gpus is None else gpus
    return KmsgProbe(
        state_dir, clock, gpus, gpu_count=gpu_count, path=path, boot=boot, ledger=ledger
    )


class KmsgProbe(HostedProbe):
    """The kernel's log. Opened by its first read, and again after an error."""

    name = "kmsg"
    tables: Mapping[str, int] = {"events": 1}

    def __init__(
        self,
        state_dir: Path | None,
        clock: Clock,
        gpus: Gpus,
        *,
        gpu_count: int = 0,
        path: Path = DEVICE,
        boot: str | None = None,
        source: KernelLog | None = None,
        ledger: XidLedger | None = None,
    ) -> None:
        """`source`: an open log, instead of `path`. `ledger` None: the log is the only source of Xids."""
        self._path = path
        self._clock = clock
        self._gpus = gpus
        self._gpu_count = gpu_count
        self._boot = boot or boot_id()
        self._source = source
        self._ledger = ledger or XidLedger(has_log=True)
        self._file = None if state_dir is None else state_dir / POSITION_FILE
        self._is_saving = True
        self._began_s: float | None = None
        self._last: Position | None = None
        self._saved: Position | None = None
        self._has_overrun = False
        self._drained_s: float | None = None
        self._named: GpuNamed | None = None
        self._falls = Falls()

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        """Events of the records since the last call, oldest first, each with its own `ts`."""
        self._save()
        now_s = self._clock.monotonic()
        if self._began_s is None:
            self._began_s = now_s
            if self._file is not None:
                self._last = self._saved = load_position(self._file, self._boot)
        if len(self._gpus) < self._gpu_count and now_s - self._began_s < NAMES_WAIT_S:
            return {}
        rows: list[Row] = []
        try:
            self._read_new(rows, now_s, to_ms(self._clock.now()))
        except OSError as error:
            self._close_source()
            self._ledger.log_is_unreadable()
            if not rows:  # rows read before the error are reported first; the error comes again
                raise self._probe_error(error) from error
        return {"events": rows}

    def close(self) -> None:
        """Save the position and close the log."""
        self._save()
        self._close_source()

    def _read_new(self, rows: list[Row], now_s: float, now_ms: int) -> None:
        if self._source is None:
            self._source = DevKmsg(self._path)
        for _ in range(RECORDS_MAX):
            if len(rows) >= EVENTS_MAX:
                return
            try:
                data = self._source.read()
            except BrokenPipeError:
                self._has_overrun = True
                continue
            if data is None:
                self._drained_s = now_s
                rows += self._ledger.log_is_read(now_s)
                return
            for record in parse_records(data):
                self._take(record, rows, now_s, now_ms)

    def _take(self, record: Record, rows: list[Row], now_s: float, now_ms: int) -> None:
        last = self._last
        if last is not None:
            if record.sequence <= last.sequence:
                return  # processed by an earlier run, or before an error
            if self._has_overrun or record.sequence > last.sequence + 1:
                rows.append(_overrun(last, record))
        self._has_overrun = False
        # Records of several CPUs can be microseconds out of order; their events are not.
        us = record.us if last is None else max(record.us, last.us)
        self._last = Position(self._boot, record.sequence, us)
        if "NVRM" not in record.text and "SXid" not in record.text:
            return
        for line in record.text.split("\n"):
            found, self._named = step(self._named, line)
            if found is not None and not self._falls.is_repeated(found, us / 1e6):
                age_s = self._age_s(us, now_s)
                row = _timed(row_of(found, self._gpus, record.sequence), age_s, now_ms)
                if isinstance(found, Sxid):
                    rows.append(row)
                    continue
                code = found.code if isinstance(found, Xid) else FALLEN_OFF_BUS
                at_s = now_s - age_s
                report = XidReport(found.pci_bus_id, code, at_s, at_s, row)
                rows += self._ledger.take_lines([report], now_s)

    def _age_s(self, us: int, now_s: float) -> float:
        """Age of a record, by the monotonic clock.

        The kernel's timestamps drift, by minutes in months. A new record was written after the
        last call that read the log to its end, which bounds the error.
        """
        age_s = max(0.0, now_s - us / 1e6)
        return age_s if self._drained_s is None else min(age_s, now_s - self._drained_s)

    def _save(self) -> None:
        if self._file is None or self._last is None or self._last == self._saved:
            return
        try:
            save_position(self._file, self._last)
        except OSError as error:
            if self._is_saving:
                log.warning(
                    "position in the kernel's log not saved, a restart would repeat its events",
                    extra={"path": str(self._file), "error": str(error)},
                )
            self._is_saving = False
            return
        self._is_saving = True
        self._saved = self._last

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _probe_error(self, error: OSError) -> ProbeError:
        if error.errno in (errno.EACCES, errno.EPERM):
            return ProbeError(
                f"{self._path} may not be read, so Xids are not seen in the kernel's log: give the"
                " agent CAP_SYSLOG (systemd: AmbientCapabilities=CAP_SYSLOG, ProtectKernelLogs=no,"
                " DeviceAllow=/dev/kmsg r)"
            )
        return ProbeError(f"{self._path} cannot be read: {error.strerror or error}")


def _timed(row: Row, age_s: float, now_ms: int) -> Row:
    """The row with its time; one that a collector would refuse as too old becomes information."""
    ts_ms = now_ms - round(age_s * 1000)
    if age_s <= HISTORY_AGE_S:
        return {**row, "ts": ts_ms}
    happened = f"{from_ms(ts_ms):%Y-%m-%d %H:%M} UTC"
    return {**row, "severity": "info", "message": f"{row['message']} (it happened at {happened})"}


def _overrun(last: Position, record: Record) -> Row:
    missed = record.sequence - last.sequence - 1
    lasted_s = max(0.0, (record.us - last.us) / 1e6)
    records = f"{missed} records" if missed else "records"
    return event(
        "kernel_log_overrun",
        f"{records} of the kernel's log, of {span(lasted_s)}, were overwritten before the agent"
        " could read them: Xids among them are not known",
        severity="warning",
        duration_seconds=lasted_s,
        details={
            "after_sequence": last.sequence,
            "before_sequence": record.sequence,
            **({"records": missed} if missed else {}),
        },
    )
