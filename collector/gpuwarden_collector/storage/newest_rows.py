"""Keeps the newest row of every GPU and node, from which `gpus_now` and its like are answered.

The views of `views.sql` that show the newest row per key are read from that file (`KEPT`), so there is
one definition. The process that appends rows keeps them (`LatestRows`): `add` takes what was made
durable, `take_stored` once what older runs had stored, and until then nothing is given out. `publish`
writes them to an Arrow file that query processes map, anew only when something was added. Of rows of
a key with the same time any one is kept, as the views do.

Rows older than `FORGET_AFTER` are forgotten, so a clock that is set back by more finds those GPUs only
when they report again.
"""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.clock import Clock
from gpuwarden.schema import UPSERTED, views_sql
from gpuwarden_collector.storage.arrow_files import ArrowFiles
from gpuwarden_collector.storage.segment import SCHEMAS

FOLDER = "latest"
FORGET_AFTER = timedelta(hours=1)
"""Longer than the time that any of the views looks back."""
_FORGET_EVERY = timedelta(minutes=10)
_ADDED_ROWS_MIN = 4_096
"""So many rows, or half as many as there are keys, are put in their places at once."""

_FEW_ROWS = 256
"""Rows that come fewer at a time wait for others, up to `_WAITING_ROWS_MAX`: choosing the newest costs a time
for each column, however few rows there are."""
_WAITING_ROWS_MAX = 1_024

_DEFINITION = re.compile(
    r"SELECT \* FROM (?P<table>\w+)\s+"
    r"WHERE ts > now\(\)::TIMESTAMP - (?P<window>INTERVAL \d+ MINUTE)\s+"
    r"QUALIFY row_number\(\) OVER \(PARTITION BY (?P<key>\w+) ORDER BY ts DESC\) = 1"
)
_QUALIFY = re.compile(r"\bQUALIFY\b")
_VIEW = re.compile(r"CREATE OR REPLACE VIEW (?P<view>\w+) AS\s+(?P<select>[^;]+)")


@dataclass(frozen=True, slots=True)
class Kept:
    """A view of the newest row per key of one table."""

    view: str
    table: str
    key: str
    newest_sql: str
    """The rows by definition."""
    view_sql: str
    """The view over `kept_table(table)`, which has no more than one row per key."""
    beside: frozenset[str]
    """Tables of the state file that it reads, too."""


def kept_table(name: str) -> str:
    """Name under which a query process has the newest rows of a table."""
    return f"newest_{name}"


def _kept() -> dict[str, Kept]:
    found = {}
    for view in _VIEW.finditer(views_sql()):
        newest = _DEFINITION.search(view["select"])
        if newest is None:
            continue
        rows = (
            f"SELECT * FROM {kept_table(newest['table'])} "
            f"WHERE ts > now()::TIMESTAMP - {newest['window']}"
        )
        select = view["select"][: newest.start()] + rows + view["select"][newest.end() :]
        name, beside = view["view"], UPSERTED & set(re.findall(r"\w+", select))
        found[name] = Kept(name, newest["table"], newest["key"], newest[0], select, beside)
    return found


KEPT: Mapping[str, Kept] = _kept()
"""By name of the view."""
_NAMES = re.compile(rf"\b(?:{'|'.join(KEPT)})\b", re.IGNORECASE)


def named_views(sql: str) -> set[str]:
    """Views of `KEPT` that a text may read."""
    return {name.lower() for name in _NAMES.findall(sql)}


def newest_part_sql(kept: Kept, part: int, parts: int) -> str:
    """Every so-many-th key of the rows by definition."""
    where = f" AND hash({kept.key}) % {parts} = {part}" if parts > 1 else ""
    return _QUALIFY.sub(lambda found: f"{where}\n{found[0]}", kept.newest_sql)


class LatestRows:
    """The newest rows of each table of `KEPT`; for any thread."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """`folder`: of its own. Raises OSError."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._tables = {
            kept.table: _Latest(kept, folder / kept.table, clock) for kept in KEPT.values()
        }

    def add(self, tables: Mapping[str, Any]) -> None:
        """Take over rows that are durable, by table, in their stored types."""
        for name, rows in tables.items():
            if name in self._tables and rows.num_rows:
                self._tables[name].add(rows)

    def restart(self) -> None:
        """Forget all, after `add` has failed: `missing` names every view again."""
        for table in self._tables.values():
            table.restart()

    def missing(self) -> list[Kept]:
        """Views for which `take_stored` is still to be called."""
        return [table.kept for table in self._tables.values() if not table.is_whole]

    def take_stored(self, kept: Kept, rows: Sequence[Any]) -> None:
        """Take over all that `newest_part_sql` gave; it ran when each later row came to `add`."""
        latest = self._tables[kept.table]
        for table in rows:
            latest.add(table.select(SCHEMAS[kept.table].names).cast(SCHEMAS[kept.table]))
        latest.is_whole = True

    def publish(self, views: Iterable[str]) -> dict[str, str]:
        """Files with the newest rows that the views are of, by table; those that there are."""
        found = {}
        for table in {KEPT[view].table for view in views}:
            path = self._tables[table].publish()
            if path is not None:
                found[table] = str(path)
        return found

    def published(self, views: Iterable[str]) -> dict[str, str] | None:
        """As `publish`, where nothing is to be written; None: call that."""
        found = {}
        for table in {KEPT[view].table for view in views}:
            latest = self._tables[table]
            if not latest.is_whole:
                continue
            path = latest.published
            if path is None:
                return None
            found[table] = str(path)
        return found


class _Latest:
    """Of one table."""

    def __init__(self, kept: Kept, stem: Path, clock: Clock) -> None:
        self.kept = kept
        self._clock = clock
        self._lock = threading.Lock()
        self._files = ArrowFiles(stem)
        self.restart()

    def restart(self) -> None:
        """Have no rows."""
        with self._lock:
            self.is_whole = False
            """Whether rows of older runs are among them."""
            self._rows: Any = SCHEMAS[self.kept.table].empty_table().combine_chunks()
            self._places: dict[str, int] = {}
            self._waiting: list[Any] = []
            self._waiting_rows = 0
            self._added: list[Any] = []
            self._added_rows = 0
            self._forgotten_at = self._clock.now()
            self._is_changed = True

    @property
    def published(self) -> Path | None:
        """The newest file, if it has all rows."""
        with self._lock:
            return None if self._is_changed else self._files.newest

    def add(self, rows: Any) -> None:
        is_few = rows.num_rows < _FEW_ROWS
        if not is_few:
            # At once, as rows are slices of all that came with them.
            rows = newest(rows, self.kept.key)
        with self._lock:
            self._is_changed = True
            if is_few:
                self._waiting.append(rows)
                self._waiting_rows += rows.num_rows
                if self._waiting_rows <= _WAITING_ROWS_MAX:
                    return
                self._choose()
            else:
                self._added.append(rows)
                self._added_rows += rows.num_rows
            if self._added_rows > max(_ADDED_ROWS_MIN, len(self._places) // 2):
                self._merge()

    def publish(self) -> Path | None:
        """None: not all rows are here, or the disk did not take them."""
        with self._lock:
            if not self.is_whole:
                return None
            if self._is_changed or self._files.newest is None:
                self._merge()
                try:
                    self._files.write([self._rows])
                except OSError:
                    return None
                self._is_changed = False
            return self._files.newest

    def _choose(self) -> None:
        """Take the newest of the rows that wait."""
        if self._waiting:
            rows = newest(pa.concat_tables(self._waiting), self.kept.key)
            self._waiting, self._waiting_rows = [], 0
            self._added.append(rows)
            self._added_rows += rows.num_rows

    def _merge(self) -> None:
        """Put the newest of the rows that were added in their places."""
        self._choose()
        if self._added:
            added = newest(pa.concat_tables(self._added), self.kept.key)
            self._added, self._added_rows = [], 0
            self._take(added)
        now = self._clock.now()
        if now - self._forgotten_at >= _FORGET_EVERY or now < self._forgotten_at:
            self._forgotten_at = now
            self._forget(now)

    def _take(self, added: Any) -> None:
        """Put rows, one per key, in the places of older ones, and new keys behind them."""
        keys = added[self.kept.key].to_pylist()
        count = len(self._places)
        places = np.fromiter(
            (self._places.setdefault(key, len(self._places)) for key in keys), np.int64, len(keys)
        )
        order = np.argsort(places)
        places = places[order]
        is_known = places < count
        is_newer = is_known.copy()
        is_newer[is_known] = _times(added)[order[is_known]] >= _times(self._rows)[places[is_known]]
        is_replaced = np.zeros(count, bool)
        is_replaced[places[is_newer]] = True
        self._rows = _replaced(
            self._rows,
            pa.array(is_replaced),
            added.take(pa.array(order[is_newer])),
            added.take(pa.array(order[~is_known])),
        )

    def _forget(self, now: datetime) -> None:
        since = np.datetime64((now - FORGET_AFTER).replace(tzinfo=None), "us").astype(np.int64)
        is_recent = _times(self._rows) >= since
        if is_recent.all():
            return
        self._rows = self._rows.filter(pa.array(is_recent)).combine_chunks()
        keys = self._rows[self.kept.key].to_pylist()
        self._places = {key: at for at, key in enumerate(keys)}


def newest(rows: Any, key: str) -> Any:
    """The newest row of each key, one of them where several are."""
    keys = rows[key].combine_chunks().dictionary_encode()
    codes = keys.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(_times(rows), kind="stable")
    at = np.empty(len(keys.dictionary), np.int64)
    at[codes[order]] = order  # of several the last one stays
    return rows.take(pa.array(at))


def _times(rows: Any) -> Any:
    return rows["ts"].combine_chunks().cast(pa.int64()).to_numpy()


def _replaced(rows: Any, mask: Any, better: Any, new: Any) -> Any:
    """Rows with those that the mask says replaced, in their order, and new ones at the end."""
    columns = []
    for old, by, behind in zip(rows.columns, better.columns, new.columns, strict=True):
        column = _one(old)
        if by.length():
            column = pc.replace_with_mask(column, mask, _one(by))
        columns.append(pa.concat_arrays([column, _one(behind)]))
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _one(column: Any) -> Any:
    """A column in one piece."""
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
