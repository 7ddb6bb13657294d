"""Records what happens to the agent as events: rows for the collector and lines in the log."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden.clock import Clock, to_ms
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.probe import Row

log = logging.getLogger(__name__)

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}


@dataclass(frozen=True, slots=True)
class PendingCount:
    """A number of occurrences that is not reported yet."""

    pending: int = 0
    reported_at_s: float | None = None


def tally(state: PendingCount, more: int, now_s: float, every_s: float) -> tuple[PendingCount, int]:
    """Add `more`; the second value is the number to report now, at most once in `every_s`, or 0."""
    pending = state.pending + more
    is_due = state.reported_at_s is None or now_s - state.reported_at_s >= every_s
    if pending == 0 or not is_due:
        return PendingCount(pending, state.reported_at_s), 0
    return PendingCount(0, now_s), pending


class EventRecorder:
    """Turns what happens into `events` rows, each with a timestamp of its own."""

    def __init__(
        self,
        node: str,
        clock: Clock,
        write: Callable[[Row], None],
        *,
        simulated: bool,
        is_quiet: bool = False,
    ) -> None:
        """`is_quiet`: log events at level debug only, as for one of many nodes."""
        self._node = node
        self._clock = clock
        self._write = write
        self._simulated = simulated
        self._is_quiet = is_quiet
        self._last_ts_ms: dict[str, int] = {}
        self._tallies: dict[str, tuple[PendingCount, float, Callable[[int], None]]] = {}

    def record(
        self, kind: str, message: str, *, simulated: bool | None = None, **columns: Any
    ) -> None:
        """Write an event; `columns` as `gpuwarden_agent.events.kinds.event` takes them."""
        row = event(kind, message, **columns)
        log.log(
            logging.DEBUG if self._is_quiet else _LEVELS[str(row["severity"])],
            "event",
            extra={"node": self._node, "kind": kind, "what": message},
        )
        stamp: Row = {
            "ts": self._unique_ts_ms(kind, to_ms(self._clock.now())),
            "node": self._node,
            "simulated": self._simulated if simulated is None else simulated,
        }
        self._write(stamp | row)

    def stamp(self, row: Mapping[str, Any], ts_ms: int, *, simulated: bool) -> Row:
        """Complete an event of a probe, with a timestamp that makes its key unique."""
        unique_ms = self._unique_ts_ms(str(row.get("kind")), ts_ms)
        return {**row, "ts": unique_ms, "node": self._node, "simulated": simulated}

    def count(self, what: str, more: int, *, every_s: float, write: Callable[[int], None]) -> None:
        """Count what may happen often: calls `write(number)` once in `every_s`."""
        state = self._tallies[what][0] if what in self._tallies else PendingCount()
        state, due = tally(state, more, self._clock.monotonic(), every_s)
        self._tallies[what] = (state, every_s, write)
        if due:
            write(due)

    def flush(self, *, is_last: bool = False) -> None:
        """Report the counts that are due; call it regularly. `is_last`: report all counts."""
        for what, (state, every_s, write) in list(self._tallies.items()):
            if state.pending:
                self.count(what, 0, every_s=0.0 if is_last else every_s, write=write)

    def _unique_ts_ms(self, kind: str, ts_ms: int) -> int:
        """`ts_ms`, or the next millisecond free, so that no two events of a kind share their key."""
        last = self._last_ts_ms.get(kind)
        # After the clock was set back by more, events get the new time.
        if last is not None and ts_ms <= last < ts_ms + 1000:
            ts_ms = last + 1
        self._last_ts_ms[kind] = ts_ms
        return ts_ms
