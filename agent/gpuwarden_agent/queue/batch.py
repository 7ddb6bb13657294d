"""Collects rows until they are sealed as one batch.

The number of rows is bounded by `rows_max`. The bound is reached only while the spool stores nothing
(its disk is full or hangs): then the oldest rows are dropped and counted. A row whose key is already
there is dropped, because the collector would refuse the whole batch for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.probe import Row, Value

ROWS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TakenRows:
    """Rows taken out of the open batch to be sealed."""

    by_table: dict[str, list[Row]]
    last_ts_ms: int | None

    @property
    def count(self) -> int:
        """Number of rows in all tables."""
        return sum(map(len, self.by_table.values()))


class OpenBatch:
    """Collects rows by table until they are sealed."""

    def __init__(
        self,
        *,
        rows_max: int = ROWS_MAX,
        on_rows: Callable[[str, Sequence[Row]], None] | None = None,
    ) -> None:
        """`on_rows` sees each row as it enters."""
        self._rows_max = rows_max
        self._on_rows = on_rows
        self._rows: dict[str, dict[tuple[Value, ...], Row]] = {}
        self.count = 0
        self.last_ts_ms: int | None = None
        """The newest tick that has started."""
        self.seal_requested = asyncio.Event()
        """Set when the rows must be sealed within a second."""

    def add(self, table: str, row: Row) -> int:
        """Add a checked row. Returns how many rows were dropped: this one as a duplicate, or the oldest."""
        rows = self._rows.setdefault(table, {})
        key = tuple([row.get(name) for name in WIRE_TABLES[table].key])
        if key in rows:
            return 1
        rows[key] = row
        self._notify(table, row)
        self.count += 1
        return self._shrink()

    def replace(self, table: str, row: Row) -> int:
        """Add a row, or replace the one with the same key. Returns how many rows were dropped."""
        rows = self._rows.get(table, {})
        key = tuple([row.get(name) for name in WIRE_TABLES[table].key])
        if key in rows:
            rows[key] = row
            self._notify(table, row)
            return 0
        return self.add(table, row)

    def take(self) -> TakenRows:
        """Take all rows out of the batch."""
        taken = TakenRows(
            {name: list(rows.values()) for name, rows in self._rows.items()}, self.last_ts_ms
        )
        self._rows, self.count = {}, 0
        return taken

    def put_back(self, taken: TakenRows) -> int:
        """Put rows that could not be sealed back, before newer ones. Returns how many rows were dropped."""
        newer = self.take()
        lost = 0
        for rows in (taken, newer):
            for table, several in rows.by_table.items():
                add = self.replace if table in ("nodes", "gpus") else self.add
                lost += sum(add(table, row) for row in several)
        return lost

    def _notify(self, table: str, row: Row) -> None:
        if self._on_rows is not None:
            self._on_rows(table, (row,))

    def _shrink(self) -> int:
        """Drop the oldest row of the largest table when there are too many; events go last."""
        if self.count <= self._rows_max:
            return 0
        samples = {name: rows for name, rows in self._rows.items() if rows and name != "events"}
        rows = max((samples or self._rows).values(), key=len)
        del rows[next(iter(rows))]
        self.count -= 1
        return 1
