"""Keeps the newest row of every GPU and node, and of its holder, which answer views such as `gpus_now`.

What the views read of the newest row per key is parsed from `views.sql` (`KEPT`), so each has one definition.
The process that appends rows keeps them (`LatestRows`): `add` takes durable rows; `take_stored` takes the
rows of older runs once, those of rollups each minute, and nothing is published before. `publish` writes Arrow files that query processes
map, and only if rows were added. Of rows of a key with the same time that with most of a column is kept if
the view says so, else any one, as in the views.

Rows older than `FORGET_AFTER` are dropped. After a clock was set back by more, those GPUs are missing
until they report again.
"""

import math
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
from gpuwarden.schema import UPSERTED, public_views
from gpuwarden_collector.storage.arrow_files import ArrowFiles
from gpuwarden_collector.storage.retention import ROLLUPS_BY_MINUTE
from gpuwarden_collector.storage.segment import SCHEMAS

FOLDER = "latest"
FORGET_AFTER = timedelta(hours=1)
"""Longer than any of the views looks back."""
_FORGET_EVERY = timedelta(minutes=10)
_ROLLED_EVERY_S = 60.0
"""How often rows of rollups are read: another process stores them."""
_ADDED_ROWS_MIN = 4_096
"""Added rows from which they are merged: this many, or half the number of keys."""

_FEW_ROWS = 256
"""Smaller tables wait for others, up to `_WAITING_ROWS_MAX` rows: choosing the newest rows has a fixed cost for
each column."""
_WAITING_ROWS_MAX = 1_024

_DEFINITION = re.compile(
    r"SELECT (?P<columns>\*|\w+(?:, \w+)*)\s+FROM (?P<tables>\w+|\(FROM \w+(?: UNION ALL BY NAME FROM \w+)*\))\s+"
    r"WHERE ts > now\(\)::TIMESTAMP - (?P<window>INTERVAL \d+ (?:MINUTE|SECOND))"
    r"(?: AND (?P<column>\w+) IS DISTINCT FROM '(?P<unwanted>\w+)')?\s+"
    r"QUALIFY row_number\(\) OVER "
    r"\(PARTITION BY (?P<key>\w+) ORDER BY ts DESC(?:, (?P<most>\w+) DESC)?\) = 1"
)
_TABLE = re.compile(r"\w+_(?:samples|1m)")
_QUALIFY = re.compile(r"\bQUALIFY\b")


@dataclass(frozen=True, slots=True)
class Kept:
    """The newest row per key of some tables, as a view defines it."""

    tables: tuple[str, ...]
    """The first one names the file."""
    columns: tuple[str, ...]
    key: str
    most: str | None
    """Column that chooses among rows with the same time: the greatest, then those without one."""
    unwanted: tuple[str, str] | None
    """A column and its value in rows that are left out."""
    newest_sql: str
    """The SELECT of the rows, from the view's definition."""

    @property
    def name(self) -> str:
        """The first table."""
        return self.tables[0]

    @property
    def is_rolled(self) -> bool:
        """Whether they are rows of a rollup, which never come to `add`."""
        return self.name in ROLLUPS_BY_MINUTE

    @property
    def schema(self) -> Any:
        """Arrow schema of the rows."""
        return pa.schema([SCHEMAS[self.name].field(column) for column in self.columns])

    def rows_of(self, rows: Any) -> Any:
        """The rows of one of the tables that count; columns that it has not are NULL."""
        if self.unwanted is not None and self.unwanted[0] in rows.column_names:
            is_unwanted = pc.equal(rows[self.unwanted[0]], self.unwanted[1])
            rows = rows.filter(pc.invert(pc.fill_null(is_unwanted, False)))
        if rows.schema == self.schema:
            return rows
        columns = [
            rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class KeptView:
    """A view of newest rows."""

    kept: tuple[Kept, ...]
    sql: str
    """Its SELECT over `kept_table(name)`, which has one row per key."""
    state_tables: frozenset[str]
    """Tables of the state file that the view reads too."""


def kept_table(name: str) -> str:
    """The name under which a query process sees the newest rows of a table."""
    return f"newest_{name}"


def _views() -> dict[str, KeptView]:
    """Views of newest rows, of tables of the state file, and of such views."""
    views: dict[str, KeptView] = {}
    for view in public_views():
        kept = [_kept(match) for match in _DEFINITION.finditer(view.sql)]
        rest = view._replace(sql=_DEFINITION.sub(_of_kept, view.sql))
        of_views = [views[name] for name in rest.reads if name in views]
        others = {*rest.reads} - UPSERTED - views.keys() - {kept_table(one.name) for one in kept}
        if (kept or of_views) and not others:
            kept += [one for of in of_views for one in of.kept]
            state_tables = (UPSERTED & {*rest.reads}).union(*(of.state_tables for of in of_views))
            views[view.name] = KeptView(tuple(kept), rest.sql, state_tables)
    return views


def _kept(match: re.Match[str]) -> Kept:
    tables = tuple(_TABLE.findall(match["tables"]))
    columns = SCHEMAS[tables[0]].names if match["columns"] == "*" else match["columns"].split(", ")
    unwanted = (match["column"], match["unwanted"]) if match["column"] else None
    return Kept(tables, tuple(columns), match["key"], match["most"], unwanted, match[0])


def _of_kept(match: re.Match[str]) -> str:
    rows = kept_table(_TABLE.findall(match["tables"])[0])
    return f"SELECT * FROM {rows} WHERE ts > now()::TIMESTAMP - {match['window']}"


KEPT: Mapping[str, KeptView] = _views()
"""Views by name."""
_NAMES = re.compile(rf"\b(?:{'|'.join(KEPT)})\b", re.IGNORECASE)


def named_views(sql: str) -> set[str]:
    """Views of `KEPT` that a query may read."""
    return {name.lower() for name in _NAMES.findall(sql)}


def kept_of(views: Iterable[str]) -> Mapping[str, Kept]:
    """The newest rows that these views read, by name."""
    return {kept.name: kept for view in views for kept in KEPT[view].kept}


def newest_part_sql(kept: Kept, part: int, parts: int) -> str:
    """The SELECT of one of `parts` shares of the rows, by hash of the key."""
    where = f" AND hash({kept.key}) % {parts} = {part}" if parts > 1 else ""
    return _QUALIFY.sub(lambda found: f"{where}\n{found[0]}", kept.newest_sql)


class LatestRows:
    """The newest rows of each table of `KEPT`. Any thread may use it."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """`folder`: for its files. Raises OSError."""
        folder.mkdir(exist_ok=True)
        self._kept = {
            name: _Latest(kept, folder / name, clock) for name, kept in kept_of(KEPT).items()
        }

    def add(self, tables: Mapping[str, Any]) -> None:
        """Add durable rows, by table, in their stored types."""
        for latest in self._kept.values():
            for name in latest.kept.tables:
                if (rows := tables.get(name)) is not None and rows.num_rows:
                    latest.add(latest.kept.rows_of(rows))

    def restart(self) -> None:
        """Drop all rows after `add` failed; `missing` then names every view again."""
        for latest in self._kept.values():
            latest.restart()

    def missing(self) -> list[Kept]:
        """Rows that still need `take_stored`."""
        return [latest.kept for latest in self._kept.values() if latest.is_unread]

    def take_stored(self, kept: Kept, rows: Sequence[Any]) -> None:
        """Add the results of all parts of `newest_part_sql`. Rows stored since that query also came to `add`."""
        latest = self._kept[kept.name]
        for table in rows:
            latest.add(table.select(kept.columns).cast(kept.schema))
        latest.note_read()

    def publish(self, views: Iterable[str]) -> dict[str, str]:
        """Write the newest rows of these views; files by name, without those that cannot be written yet."""
        files = {}
        for name in kept_of(views):
            path = self._kept[name].publish()
            if path is not None:
                files[name] = str(path)
        return files

    def published(self, views: Iterable[str]) -> dict[str, str] | None:
        """Files that `publish` would give, if none must be written; None: call `publish`."""
        files = {}
        for name in kept_of(views):
            latest = self._kept[name]
            if not latest.is_whole:
                continue
            path = latest.published
            if path is None:
                return None
            files[name] = str(path)
        return files


class _Latest:
    """The newest rows of one `Kept`."""

    def __init__(self, kept: Kept, stem: Path, clock: Clock) -> None:
        self.kept = kept
        self._clock = clock
        self._lock = threading.Lock()
        self._files = ArrowFiles(stem)
        self.restart()

    def restart(self) -> None:
        """Drop all rows."""
        with self._lock:
            self._read_s = -math.inf
            """When stored rows were added."""
            self._rows: Any = self.kept.schema.empty_table().combine_chunks()
            self._places: dict[str, int] = {}
            self._waiting: list[Any] = []
            self._waiting_rows = 0
            self._added: list[Any] = []
            self._added_rows = 0
            self._forgotten_at = self._clock.now()
            self._is_changed = True

    @property
    def is_whole(self) -> bool:
        """Whether the rows of older runs were added."""
        return self._read_s > -math.inf

    @property
    def is_unread(self) -> bool:
        """Whether rows that are stored must be read."""
        is_old = self._clock.monotonic() - self._read_s >= _ROLLED_EVERY_S
        return not self.is_whole or (self.kept.is_rolled and is_old)

    def note_read(self) -> None:
        """Note that the stored rows were added."""
        self._read_s = self._clock.monotonic()

    @property
    def published(self) -> Path | None:
        """The newest file, if no rows were added since."""
        with self._lock:
            return None if self._is_changed else self._files.newest

    def add(self, rows: Any) -> None:
        is_few = rows.num_rows < _FEW_ROWS
        if not is_few:
            # At once: the rows are slices that keep their whole batch in memory.
            rows = newest(rows, self.kept)
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
        """Write the rows if any were added; the newest file. None: rows of older runs are missing, or the disk failed."""
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
        """Move the newest of the waiting rows to the added ones."""
        if self._waiting:
            rows = newest(pa.concat_tables(self._waiting), self.kept)
            self._waiting, self._waiting_rows = [], 0
            self._added.append(rows)
            self._added_rows += rows.num_rows

    def _merge(self) -> None:
        """Merge the newest of the added rows into the rows."""
        self._choose()
        if self._added:
            added = newest(pa.concat_tables(self._added), self.kept)
            self._added, self._added_rows = [], 0
            self._replace(added)
        now = self._clock.now()
        if now - self._forgotten_at >= _FORGET_EVERY or now < self._forgotten_at:
            self._forgotten_at = now
            self._forget(now)

    def _replace(self, added: Any) -> None:
        """Replace older rows, one per key, and append rows with new keys."""
        keys = added[self.kept.key].to_pylist()
        count = len(self._places)
        places = np.fromiter(
            (self._places.setdefault(key, len(self._places)) for key in keys), np.int64, len(keys)
        )
        order = np.argsort(places)
        places = places[order]
        is_known = places < count
        is_newer = is_known.copy()
        is_newer[is_known] = self._is_newer(added, order[is_known], places[is_known])
        is_replaced = np.zeros(count, bool)
        is_replaced[places[is_newer]] = True
        self._rows = _replaced(
            self._rows,
            pa.array(is_replaced),
            added.take(pa.array(order[is_newer])),
            added.take(pa.array(order[~is_known])),
        )

    def _is_newer(self, added: Any, rows: Any, places: Any) -> Any:
        """Whether these of the added rows come before those in these places."""
        times, old_times = _times(added)[rows], _times(self._rows)[places]
        amounts = _amounts(added, self.kept)[rows]
        is_more = amounts >= _amounts(self._rows, self.kept)[places]
        return (times > old_times) | ((times == old_times) & is_more)

    def _forget(self, now: datetime) -> None:
        since = np.datetime64((now - FORGET_AFTER).replace(tzinfo=None), "us").astype(np.int64)
        is_recent = _times(self._rows) >= since
        if is_recent.all():
            return
        self._rows = self._rows.filter(pa.array(is_recent)).combine_chunks()
        keys = self._rows[self.kept.key].to_pylist()
        self._places = {key: at for at, key in enumerate(keys)}


def newest(rows: Any, kept: Kept) -> Any:
    """The newest row of each key."""
    keys = rows[kept.key].combine_chunks().dictionary_encode()
    codes = keys.indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((_amounts(rows, kept), _times(rows)))
    at = np.empty(len(keys.dictionary), np.int64)
    at[codes[order]] = order  # the last of several wins
    return rows.take(pa.array(at))


def _times(rows: Any) -> Any:
    return rows["ts"].combine_chunks().cast(pa.int64()).to_numpy()


def _amounts(rows: Any, kept: Kept) -> Any:
    """What chooses among rows with the same time."""
    if kept.most is None:
        return np.zeros(len(rows), np.int64)
    return pc.fill_null(rows[kept.most].combine_chunks(), -1).to_numpy(zero_copy_only=False)


def _replaced(rows: Any, mask: Any, better: Any, new: Any) -> Any:
    """Rows with the masked ones replaced, in order, and new ones at the end."""
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
