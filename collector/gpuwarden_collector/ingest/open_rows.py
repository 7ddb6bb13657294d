"""Joins the parts of rows that arrive in many requests; pure.

A row is open from its first part. It is closed when no part has come for a while: longer if its time is long ago, as
the senders of a backlog work side by side and at their own speed. Rows of a device are closed in the order of their
times. A part of a closed row is late: the row is stored, and is not changed. Of two readings with one name the first counts.

For each device the times of its last closed rows are kept, and everything at or before the newest forgotten one is late:
so a row is made once, with any order and repetition of requests.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuwarden_collector.ingest.gpu_owners import GONE_AFTER, NODE_GPUS_MAX
from gpuwarden_collector.ingest.port import RowPart

TIMES_MAX = 1_000
"""Closed rows of a device whose times are kept."""
DEVICES_MAX = 200_000
"""Devices of all tables and senders; GPUs count once a table."""
CELLS_MAX = 20_000
"""Readings of a row: a host with 1,024 CPUs has 8,192 of CPU time."""
FACTS_MAX = 200
FORGET_MS = 3_600_000
"""A device without a part for this long may be forgotten to make room."""
BACKLOG_MS = 60_000
"""A row whose first part is older than this belongs to a backlog."""
BACKLOG_OPEN_MS = 60_000
_GONE_AFTER_MS = round(GONE_AFTER.total_seconds() * 1000)
OPEN_MAX_MS = 600_000
"""A row is closed after this time, even if its sender continues."""


class Device(NamedTuple):
    """A GPU, host or other thing that has rows in a table."""

    sender: str
    source: str
    table: str
    key: str


@dataclass(slots=True)
class OpenRow:
    """The readings of a row so far."""

    first_at_ms: int
    last_at_ms: int
    cells: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    requests: set[int] = field(default_factory=set)
    """Numbers of the requests with parts of it."""
    is_restored: bool = False
    """Whether it was open when the collector ended: its sender waits between attempts."""

    def join(self, part: RowPart) -> Counter[str]:
        """Add a part; the number of its readings by outcome."""
        counts: Counter[str] = Counter()
        for name, value in part.cells.items():
            if name in self.cells:
                counts["repeated"] += 1
            elif len(self.cells) >= CELLS_MAX:
                counts["crowded"] += 1
            else:
                self.cells[name] = value
                counts["joined"] += 1
        for name, text in part.facts.items():
            if len(self.facts) < FACTS_MAX:
                self.facts.setdefault(name, text)
        return counts


class ClosedTimes:
    """Times of the last closed rows of a device."""

    def __init__(self, times: Iterable[int] = ()) -> None:
        self._times = array("q", sorted(times))

    def __contains__(self, ts_ms: int) -> bool:
        at = bisect_left(self._times, ts_ms)
        if at < len(self._times) and self._times[at] == ts_ms:
            return True
        return at == 0 and len(self._times) >= TIMES_MAX

    def add(self, ts_ms: int) -> Sequence[int]:
        """Add a time; returns the times that are forgotten for it."""
        self._times.insert(bisect_left(self._times, ts_ms), ts_ms)
        # In steps: each forgotten time is a deletion on disk.
        if len(self._times) < TIMES_MAX + TIMES_MAX // 4:
            return ()
        gone = self._times[:-TIMES_MAX]
        del self._times[:-TIMES_MAX]
        return gone


class DueRow(NamedTuple):
    """A row that must be closed."""

    device: Device
    ts_ms: int
    row: OpenRow


class OpenRows:
    """The open rows, and the times of closed ones. Only one thread may use it."""

    def __init__(self, open_ms: int) -> None:
        """`open_ms`: how long a row stays open after its last part."""
        self._open_ms = open_ms
        self._open: dict[Device, dict[int, OpenRow]] = {}
        self._closed: dict[Device, ClosedTimes] = {}
        self._heard_ms: dict[Device, int] = {}
        self._uses: Counter[int] = Counter()
        """By request: open rows that have parts of it."""
        self._evicted_ms = 0
        self._gpus: dict[tuple[str, str], dict[str, int]] = {}
        """By sender and source: its GPUs, and when each was last reported."""
        self.rows = 0
        """Number of open rows."""
        self.forgotten: list[Device] = []
        """Devices that were forgotten to make room, for the store to delete."""

    def restore(self, device: Device, times: Iterable[int], now_ms: int) -> None:
        """Set the times of a device's closed rows, at a start."""
        self._closed[device] = ClosedTimes(times)
        self._heard_ms[device] = now_ms

    def take(
        self,
        request: int,
        sender: str,
        parts: Iterable[RowPart],
        now_ms: int,
        *,
        is_restored: bool = False,
    ) -> Counter[str]:
        """Add the parts of a request; the number of readings by outcome: joined, repeated, late, crowded,
        too_many_gpus."""
        counts: Counter[str] = Counter()
        for part in parts:
            device = Device(sender, part.source, part.table, part.key)
            if outcome := self._refusal(device, part.facts.get("gpu_uuid"), now_ms):
                counts[outcome] += len(part.cells)
                continue
            if part.ts_ms in self._closed[device]:
                counts["late"] += len(part.cells)
                continue
            rows = self._open.setdefault(device, {})
            row = rows.get(part.ts_ms)
            if row is None:
                row = rows[part.ts_ms] = OpenRow(now_ms, now_ms)
                row.is_restored = is_restored
                self.rows += 1
            if request not in row.requests:
                row.requests.add(request)
                self._uses[request] += 1
            row.last_at_ms = now_ms
            counts.update(row.join(part))
        return counts

    def is_used(self, request: int) -> bool:
        """Whether an open row has a part of the request."""
        return self._uses[request] > 0

    def due(self, now_ms: int) -> Iterator[DueRow]:
        """Rows that must be closed, of each device in the order of their times. Changes nothing."""
        for device, rows in self._open.items():
            for ts_ms in sorted(rows):
                row = rows[ts_ms]
                if not self._is_due(row, ts_ms, now_ms):
                    break
                yield DueRow(device, ts_ms, row)

    def close(self, due: DueRow) -> tuple[Sequence[int], Sequence[int]]:
        """Close a row; the times that are forgotten of its device, and the requests that no open row has parts of."""
        rows = self._open[due.device]
        del rows[due.ts_ms]
        self.rows -= 1
        if not rows:
            del self._open[due.device]
        gone = self._closed[due.device].add(due.ts_ms)
        unused = []
        for request in due.row.requests:
            self._uses[request] -= 1
            if not self._uses[request]:
                del self._uses[request]
                unused.append(request)
        return gone, unused

    def _is_due(self, row: OpenRow, ts_ms: int, now_ms: int) -> bool:
        if now_ms - row.first_at_ms >= OPEN_MAX_MS:
            return True
        is_backlog = row.is_restored or row.first_at_ms - ts_ms >= BACKLOG_MS
        open_ms = max(self._open_ms, BACKLOG_OPEN_MS) if is_backlog else self._open_ms
        # A clock that was set back must not keep rows open.
        return not 0 <= now_ms - row.last_at_ms < open_ms

    def _refusal(self, device: Device, gpu_uuid: str | None, now_ms: int) -> str | None:
        """The outcome of the readings of a part for which there is no room; None: there is."""
        is_known = device in self._closed
        if not is_known and len(self._closed) >= DEVICES_MAX and not self._evict(now_ms):
            return "crowded"
        if gpu_uuid is not None and not self._may_have(device, gpu_uuid, now_ms):
            return "too_many_gpus"
        if not is_known:
            self._closed[device] = ClosedTimes()
        self._heard_ms[device] = now_ms
        return None

    def _may_have(self, device: Device, gpu_uuid: str, now_ms: int) -> bool:
        """Whether a source may report a GPU: the bound that the owners of GPUs have (`gpu_owners.py`), but before the
        work for its rows."""
        gpus = self._gpus.setdefault((device.sender, device.source), {})
        if gpu_uuid not in gpus and len(gpus) >= NODE_GPUS_MAX:
            # The order is that of the times.
            oldest, at_ms = next(iter(gpus.items()))
            if now_ms - at_ms < _GONE_AFTER_MS:
                return False
            del gpus[oldest]
        gpus.pop(gpu_uuid, None)
        gpus[gpu_uuid] = now_ms
        return True

    def _evict(self, now_ms: int) -> bool:
        """Forget silent devices; at most once a minute, as it looks at all of them."""
        if 0 <= now_ms - self._evicted_ms < 60_000:
            return False
        self._evicted_ms = now_ms
        silent = [
            device
            for device, at_ms in self._heard_ms.items()
            if now_ms - at_ms >= FORGET_MS and device not in self._open
        ]
        for device in silent:
            del self._closed[device], self._heard_ms[device]
        self.forgotten += silent
        for source in {(device.sender, device.source) for device in silent}:
            if all(now_ms - at_ms >= FORGET_MS for at_ms in self._gpus.get(source, {}).values()):
                self._gpus.pop(source, None)
        return len(self._closed) < DEVICES_MAX
