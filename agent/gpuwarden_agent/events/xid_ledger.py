"""Deduplicates Xids of two sources, the kernel's log and NVML's events: each Xid is one event.

The kernel's line has process and text, and is reported at once. NVML's event has only GPU and code, so
it waits for its line: until the log was read half a second later, and for 1.5 seconds at most. If the
log cannot be read, it does not wait. A line and an event are the same Xid when GPU and code are the
same and their times are near. Each is matched at most once, the oldest first: N lines and N events
are N Xids, N lines and M events are max(N, M).

`step` is pure. Times are monotonic seconds.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuwarden_agent.probe import Row

SAME_S = 10.0
"""How far the times of one Xid's line and event may be apart."""
LINE_SETTLE_S = 0.5
"""A log read this long after an event contains the event's line, if there is one."""
LINE_WAIT_S = 1.5
"""Longest wait of an event for a log that is not read to its end."""
LINES_KEPT_S = 60.0
"""How long a line waits for its event, which a slow driver delivers late."""
KEPT_MAX = 10_000
"""Most unmatched reports of each kind."""
UNKNOWN_CODE = 999
"""NVML's code for an unknown error."""
NEVER_S = float("-inf")


@dataclass(frozen=True, slots=True)
class XidReport:
    """An Xid as one source gives it."""

    pci_bus_id: str
    code: int
    since_s: float
    until_s: float
    """It happened between these; a line of the kernel's log has the exact time."""
    row: Row = field(compare=False)
    """The row of `events` to write if this report is the one that is used."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Unmatched reports, oldest first."""

    waiting: tuple[XidReport, ...] = ()
    """Of NVML: not reported yet."""
    reported_events: tuple[XidReport, ...] = ()
    """Of NVML: reported without a line."""
    reported_lines: tuple[XidReport, ...] = ()
    """Of the kernel: reported without an event."""
    log_read_s: float | None = None
    """When the kernel's log was last read to its end; None: it cannot be read."""


def step(
    ledger: Ledger, now_s: float, lines: Iterable[XidReport] = (), events: Iterable[XidReport] = ()
) -> tuple[Ledger, list[XidReport]]:
    """Take new `lines` of the kernel's log and `events` of NVML. Returns what to report now, also events
    that waited for long enough.
    """
    told: list[XidReport] = []
    waiting, reported_events = list(ledger.waiting), list(ledger.reported_events)
    reported_lines = list(ledger.reported_lines)
    for line in lines:
        if _take_match(reported_events, line):
            continue
        told.append(line)
        if not _take_match(waiting, line):
            reported_lines.append(line)
    waiting += [event for event in events if not _take_match(reported_lines, event)]
    log_read_s = ledger.log_read_s
    due = [event for event in waiting if _is_due(event, now_s, log_read_s)]
    told += due
    reported_events += due
    return Ledger(
        waiting=tuple(event for event in waiting if not _is_due(event, now_s, log_read_s)),
        # A log that could not be read may be read later from its beginning.
        reported_events=_newest(
            event
            for event in reported_events
            if log_read_s is None or log_read_s - event.until_s <= SAME_S
        ),
        reported_lines=_newest(
            line for line in reported_lines if now_s - line.until_s <= LINES_KEPT_S
        ),
        log_read_s=log_read_s,
    ), told


def _is_due(event: XidReport, now_s: float, log_read_s: float | None) -> bool:
    if log_read_s is None or now_s - event.until_s >= LINE_WAIT_S:
        return True
    return log_read_s - event.until_s >= LINE_SETTLE_S


def _take_match(others: list[XidReport], report: XidReport) -> bool:
    """Remove the oldest report of the same Xid; False if there is none."""
    for place, other in enumerate(others):
        if _are_same(other, report):
            del others[place]
            return True
    return False


def _are_same(one: XidReport, other: XidReport) -> bool:
    return (
        one.pci_bus_id == other.pci_bus_id
        and (one.code == other.code or UNKNOWN_CODE in (one.code, other.code))
        and one.since_s - SAME_S <= other.until_s
        and other.since_s - SAME_S <= one.until_s
    )


T = TypeVar("T")


def _newest(reports: Iterable[T]) -> tuple[T, ...]:
    return tuple(reports)[-KEPT_MAX:]


class XidLedger:
    """The ledger of a node, shared by probes on several threads."""

    def __init__(self, *, has_log: bool) -> None:
        """`has_log`: the kernel's log is read, too."""
        self._lock = threading.Lock()
        self._ledger = Ledger(log_read_s=NEVER_S if has_log else None)

    def take_lines(self, lines: Sequence[XidReport], now_s: float) -> list[Row]:
        """Rows to report after lines of the kernel's log."""
        return self._step(now_s, lines=lines)

    def take_events(self, events: Sequence[XidReport], now_s: float) -> list[Row]:
        """Rows to report after events of NVML, also of events that waited for long enough."""
        return self._step(now_s, events=events)

    def log_is_read(self, now_s: float) -> list[Row]:
        """Rows of events that waited until the log was read to its end."""
        with self._lock:
            self._ledger = replace(self._ledger, log_read_s=now_s)
        return self._step(now_s)

    def log_is_unreadable(self) -> None:
        """Do not wait for lines until the log is read again."""
        with self._lock:
            self._ledger = replace(self._ledger, log_read_s=None)

    def _step(
        self, now_s: float, lines: Sequence[XidReport] = (), events: Sequence[XidReport] = ()
    ) -> list[Row]:
        with self._lock:
            self._ledger, told = step(self._ledger, now_s, lines, events)
        return [report.row for report in told]
