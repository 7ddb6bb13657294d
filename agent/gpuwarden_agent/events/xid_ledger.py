"""Deduplicates Xids of two sources, the kernel's log and NVML's events: each is one event.

The kernel's line has the process and the text, and is told at once. NVML's event has GPU and code
alone, so it waits for its line: until the log was read half a second after it was found, and for a
second and a half at most. Where the log cannot be read it does not wait. A line and an event belong
together when GPU and code are the same and their times are near; each belongs to one other at most,
the oldest first, so that N lines and N events are N Xids, and N lines and M events the larger of
both.

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
"""A log read this long after an event was found has the event's line, if there is one."""
LINE_WAIT_S = 1.5
"""The most that an event waits for a log that is not read to its end meanwhile."""
LINES_KEPT_S = 60.0
"""How long a line waits for its event, which comes late where the driver is slow to give it."""
KEPT_MAX = 10_000
"""Reports of each sort that wait for their other half."""
UNKNOWN_CODE = 999
"""What NVML says where it does not know the code."""
NEVER_S = float("-inf")


@dataclass(frozen=True, slots=True)
class XidReport:
    """An Xid as one source gives it."""

    pci_bus_id: str
    code: int
    since_s: float
    until_s: float
    """It happened between these; a line of the kernel's log knows the instant."""
    row: Row = field(compare=False)
    """Its row of `events`, if this report is the one that is told."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Reports without their other half, oldest first."""

    waiting: tuple[XidReport, ...] = ()
    """Of NVML: not told yet."""
    told_events: tuple[XidReport, ...] = ()
    """Of NVML: told without a line."""
    told_lines: tuple[XidReport, ...] = ()
    """Of the kernel: told without an event."""
    log_read_s: float | None = None
    """When the kernel's log was last read to its end; None: it cannot be read."""


def step(
    ledger: Ledger, now_s: float, lines: Iterable[XidReport] = (), events: Iterable[XidReport] = ()
) -> tuple[Ledger, list[XidReport]]:
    """What to tell after new `lines` of the kernel's log and `events` of NVML, and of what waited
    for long enough.
    """
    told: list[XidReport] = []
    waiting, told_events = list(ledger.waiting), list(ledger.told_events)
    told_lines = list(ledger.told_lines)
    for line in lines:
        if _take_other_half(told_events, line):
            continue
        told.append(line)
        if not _take_other_half(waiting, line):
            told_lines.append(line)
    waiting += [event for event in events if not _take_other_half(told_lines, event)]
    log_read_s = ledger.log_read_s
    due = [event for event in waiting if _is_due(event, now_s, log_read_s)]
    told += due
    told_events += due
    return Ledger(
        waiting=tuple(event for event in waiting if not _is_due(event, now_s, log_read_s)),
        # A log that could not be read may be read later from its beginning.
        told_events=_newest(
            event
            for event in told_events
            if log_read_s is None or log_read_s - event.until_s <= SAME_S
        ),
        told_lines=_newest(line for line in told_lines if now_s - line.until_s <= LINES_KEPT_S),
        log_read_s=log_read_s,
    ), told


def _is_due(event: XidReport, now_s: float, log_read_s: float | None) -> bool:
    if log_read_s is None or now_s - event.until_s >= LINE_WAIT_S:
        return True
    return log_read_s - event.until_s >= LINE_SETTLE_S


def _take_other_half(others: list[XidReport], report: XidReport) -> bool:
    """Remove the oldest that is the same Xid, if there is one."""
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
    """The ledger of a node, for probes on several threads; rows come in the order of telling."""

    def __init__(self, *, has_log: bool) -> None:
        """`has_log`: there is a kernel log to wait for."""
        self._lock = threading.Lock()
        self._ledger = Ledger(log_read_s=NEVER_S if has_log else None)

    def take_lines(self, lines: Sequence[XidReport], now_s: float) -> list[Row]:
        """Rows to tell after lines of the kernel's log."""
        return self._step(now_s, lines=lines)

    def take_events(self, events: Sequence[XidReport], now_s: float) -> list[Row]:
        """Rows to tell after events of NVML, and of those that waited for long enough."""
        return self._step(now_s, events=events)

    def log_is_read(self, now_s: float) -> list[Row]:
        """The log was read to its end: rows of events that waited for that."""
        with self._lock:
            self._ledger = replace(self._ledger, log_read_s=now_s)
        return self._step(now_s)

    def log_is_unreadable(self) -> None:
        """Wait for no lines until it is read again."""
        with self._lock:
            self._ledger = replace(self._ledger, log_read_s=None)

    def _step(
        self, now_s: float, lines: Sequence[XidReport] = (), events: Sequence[XidReport] = ()
    ) -> list[Row]:
        with self._lock:
            self._ledger, told = step(self._ledger, now_s, lines, events)
        return [report.row for report in told]
