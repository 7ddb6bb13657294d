"""Stands in for DuckDB and DuckLake: runs the statements of a seal against files of a watched disk.

What is real about it are the steps, in the order in which the product takes them: a file is written by INSERT and
nobody has synced it; COMMIT has the catalogue on disk at once, as SQLite in WAL mode has it; a killed process
leaves files behind that no catalogue names. What is in a file are the rows' keys, in JSON.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.hot import HotRows
from gpuwarden_collector.storage.segment import FOLDER

Key = tuple[str, int]
"""Node and instant, in milliseconds since 1970, of a row of `events`."""
_MAGIC = b"PAR1"


@dataclass
class Catalogue:
    """The rows of the lake's catalogue on its disk."""

    sealed: int = 0
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By path: segment, rows and bytes."""
    files_ever: int = 0


def keys_of(table: Any) -> list[Key]:
    """Keys of the rows of an Arrow table of `events`."""
    return list(
        zip(
            table["node"].to_pylist(),
            (at // 1000 for at in table["ts"].cast("timestamp[us]").cast("int64").to_pylist()),
            strict=True,
        )
    )


def keys_in(content: bytes) -> list[Key] | None:
    """Keys of the rows in a file; None: it is not whole."""
    if len(content) < 12 or content[:4] != _MAGIC or content[-4:] != _MAGIC:
        return None
    try:
        return [(node, at) for node, at in json.loads(content[4:-4])]
    except ValueError:
        return None


class Cursor:
    """Takes the statements that sealing makes."""

    def __init__(self, catalogue: Catalogue, root: Path, step: Callable[[str, str], None]) -> None:
        self._catalogue = catalogue
        self._root = root
        self._step = step
        self._tables: Mapping[str, Any] = {}
        self._sealed: int | None = None
        self._files: dict[str, tuple[int, int]] = {}
        self._found: list[tuple[Any, ...]] = []

    def see(self, tables: Mapping[str, Any]) -> None:
        """Have these Arrow tables for INSERT."""
        self._tables = tables

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> "Cursor":
        """Raises AssertionError for what is not a part of sealing."""
        self._found = []
        words = sql.split()
        if words[0] == "BEGIN":
            self._sealed, self._files = None, {}
        elif words[0] == "COMMIT":
            self._commit()
        elif words[0] == "INSERT" and words[2] == "lake.main.collectors":
            self._sealed = parameters[1]
        elif words[0] == "INSERT":
            self._found = [(self._insert(words[2].rpartition(".")[2]),)]
        elif "max(segment)" in sql or "sealed" in sql:
            self._found = [(self._catalogue.sealed or None,)]
        elif "ducklake_snapshot_changes" in sql:
            until = parameters[1]
            self._found = [(s,) for s, _, _ in self._catalogue.files.values() if s <= until]
        elif "ducklake_data_file" in sql:
            folders = "", True, "", True
            self._found = [
                (0, "events", *folders, path, False, rows, size, False, None)
                for path, (segment, rows, size) in self._catalogue.files.items()
                if parameters[0] is None or segment in parameters[0]
            ]
        else:
            assert words[0] in ("ROLLBACK", "CALL"), sql
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Stand in for DuckDB's."""
        return self._found[0] if self._found else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Stand in for DuckDB's."""
        return self._found

    def interrupt(self) -> None:
        """Nothing takes long here."""

    def close(self) -> None:
        """Nothing is open here."""

    def _insert(self, name: str) -> int:
        rows = self._tables[name]
        if name != "events":
            return int(rows.num_rows)
        self._catalogue.files_ever += 1
        path = str(self._root / "events" / f"{self._catalogue.files_ever:08d}.parquet")
        content = _MAGIC + json.dumps(keys_of(rows)).encode() + _MAGIC
        number = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            written = 0
            while written < len(content):
                end = written + max(1, len(content) // 2)
                written += os.pwrite(number, content[written:end], written)
        finally:
            os.close(number)
        self._files[path] = rows.num_rows, len(content)
        return int(rows.num_rows)

    def _commit(self) -> None:
        self._step("commit", "catalogue")
        if self._sealed is not None:
            self._catalogue.sealed = max(self._catalogue.sealed, self._sealed)
            for path, (rows, size) in self._files.items():
                self._catalogue.files[path] = self._sealed, rows, size
        self._sealed, self._files = None, {}
        self._step("committed", "catalogue")


class _Engine:
    """The part of an engine that `Store` needs."""

    connection: Any = Cursor(Catalogue(), Path(), lambda kind, what: None)

    def __init__(self, data_dir: Path, new_cursor: Callable[[], Cursor]) -> None:
        self._hot = HotRows(data_dir / FOLDER)
        self._new_cursor = new_cursor

    @property
    def damaged(self) -> Any:
        return self._hot.damaged

    def forget(self, until: int) -> None:
        self._hot.forget(until)

    def refresh(self) -> None:
        pass

    @contextmanager
    def cursor(self) -> Iterator[Cursor]:
        yield self._new_cursor()

    def register(
        self, cursor: Cursor, names: Iterable[str], after: int, until: int | None = None
    ) -> Mapping[str, Any]:
        tables = self._hot.tables(names, after, until, is_strict=False)
        cursor.see(tables)
        return tables


class StoreWithoutDuckDB(Store):
    """The product's store over such a lake."""

    def __init__(
        self, data_dir: Path, address: Any, state: Any, catalogue: Catalogue, step: Any
    ) -> None:
        self.catalogue = catalogue
        self._step = step
        super().__init__(data_dir, None, address, state, data_dir)  # type: ignore[arg-type]

    def _new_engine(self) -> Any:
        root = Path(self.address.data)
        return _Engine(self.data_dir, lambda: Cursor(self.catalogue, root, self._step))

    def keys(self) -> list[Key]:
        """Keys of all rows of `events` that a query would see; those of files that are cut off are missing."""
        with self.cursor() as cursor:
            found = keys_of(
                self._engine.register(cursor, ["events"], self.sealed(cursor))["events"]
            )
        for path in self.catalogue.files:
            try:
                found += keys_in(Path(path).read_bytes()) or []
            except FileNotFoundError:
                continue
        return found
