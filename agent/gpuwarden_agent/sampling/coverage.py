"""Counts the due readings of each table, and how many of them were made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import assert_never

from gpuwarden_agent.probe import Reading, Row
from gpuwarden_agent.sampling.health import Outcome, Overdue, ProbeFailed, Read
from gpuwarden_agent.sampling.schedule import cadence_ms, is_due

UNCOUNTED = frozenset({"events"})
"""Tables whose rows come when something happens, so no number is expected."""


@dataclass(slots=True)
class CoverageTally:
    """Readings of one table since the last row of `coverage`."""

    expected: int = 0
    taken: int = 0
    missed: int = 0
    skipped: int = 0
    late: int = 0
    failed: int = 0


class Coverage:
    """The tables of one probe: which are due, and how their readings ended."""

    def __init__(self, cadences: Mapping[str, int], interval_ms: int) -> None:
        """`cadences`: seconds between readings, by table."""
        self._cadences = cadences
        self._interval_ms = interval_ms
        self._last_ts_ms: int | None = None
        self._tallies = {table: CoverageTally() for table in cadences}
        self._pending: set[str] = set()

    @property
    def pending(self) -> bool:
        """Whether any table is due."""
        return bool(self._pending)

    @property
    def unread(self) -> int:
        """Readings due since the last row and not made, also those that the stop interrupted."""
        counted = (self._tallies[table] for table in self._tallies.keys() - UNCOUNTED)
        return sum(tally.expected - tally.taken - tally.missed for tally in counted)

    def tick(self, ts_ms: int, missed_ticks: int = 0) -> None:
        """Add the tables that are due at this tick to those that are still to be read."""
        for table, cadence_s in self._cadences.items():
            if not is_due(cadence_s, ts_ms, self._last_ts_ms, self._interval_ms):
                continue
            tally = self._tallies[table]
            missed = self._missed(cadence_s, ts_ms, missed_ticks)
            tally.expected += 1 + missed
            tally.missed += missed
            tally.skipped += table in self._pending
            self._pending.add(table)
        self._last_ts_ms = ts_ms

    def take(self) -> frozenset[str]:
        """Take the due tables, for a call that starts now."""
        taken = frozenset(self._pending)
        self._pending.clear()
        return taken

    def settle(self, due: frozenset[str], outcome: Outcome, reading: Reading) -> None:
        """Count the outcome of a call for the tables `due`."""
        for table in due:
            tally = self._tallies[table]
            match outcome:
                case Read():
                    is_there = table in reading
                    tally.taken += is_there
                    tally.failed += not is_there
                case ProbeFailed():
                    tally.failed += 1
                case Overdue():
                    tally.late += 1
                case _:
                    assert_never(outcome)

    def rows(self) -> list[Row]:
        """Rows of `coverage`, without identity, for what was counted since the last call."""
        counted = [(t, tally) for t, tally in self._tallies.items() if t not in UNCOUNTED]
        self._tallies = {table: CoverageTally() for table in self._cadences}
        return [
            {"table_name": table, **asdict(tally)}
            for table, tally in counted
            if tally != CoverageTally()
        ]

    def _missed(self, cadence_s: int, ts_ms: int, missed_ticks: int) -> int:
        """Periods that passed without a tick, without those that the clock skipped."""
        if not missed_ticks or self._last_ts_ms is None:
            return 0
        period_ms = cadence_ms(cadence_s, self._interval_ms)
        passed = ts_ms // period_ms - self._last_ts_ms // period_ms - 1
        lived = -(-missed_ticks * self._interval_ms // period_ms)
        return max(0, min(passed, lived))
