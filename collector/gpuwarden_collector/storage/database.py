"""Opens a store for reading and maintenance (`Store`), or all of it in one process (`Database`).

An operation fails with `StoreUnavailableError` (disk full, I/O error, out of memory: it may succeed later)
or `RowsRefusedError` (the store can never take these rows).
"""

import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.files import sync_folder
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.storage import lake, spill
from gpuwarden_collector.storage.address import LakeAddress, local_address
from gpuwarden_collector.storage.coordination import Coordination
from gpuwarden_collector.storage.engine import Engine, EngineLimits
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line, translating
from gpuwarden_collector.storage.hot import Damage, Tail, read_tail
from gpuwarden_collector.storage.joined_rows import remove_joined
from gpuwarden_collector.storage.lake_files import set_aside
from gpuwarden_collector.storage.segment import (
    FOLDER,
    Frame,
    SegmentError,
    read_header,
    segment_numbers,
    segment_path,
)
from gpuwarden_collector.storage.segment_log import SegmentLog, hot_bytes, progress_of
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

log = logging.getLogger(__name__)

RESTORING = "restoring"
"""Folder in the data folder that a restore fills, and removes when it is done."""
_CLOSE_WAIT_S = 5.0


class Store:
    """Lake, segments and state file: reads them, and moves rows to the lake."""

    def __init__(
        self,
        data_dir: Path,
        limits: EngineLimits,
        address: LakeAddress,
        state: StateFile,
        spill_dir: Path,
    ) -> None:
        """Raises duckdb.Error, OSError, SegmentError, StartError, StoreUnavailableError."""
        self.data_dir = data_dir
        self._limits = limits
        self.address = address
        """The address of its lake."""
        self.coordination = Coordination(address)
        """Locks that the collectors of the lake share."""
        self.state = state
        self.spill_dir = spill_dir
        """The folder that this opening spills to, and nothing else."""
        self._condition = threading.Condition()
        self._cursors: set[duckdb.DuckDBPyConnection] = set()
        self._maintaining: set[duckdb.DuckDBPyConnection] = set()
        self._is_closed = False
        self._reported_damage: set[Damage] = set()
        self._folder = data_dir / FOLDER
        self._begins: dict[int, int] = {}
        self.collector = state.collector
        """The identity of this collector in the lake."""
        self._engine = self._new_engine()

    @property
    def lake_root(self) -> str:
        """The folder or prefix of the lake's files."""
        return self.address.data.rstrip("/")

    @property
    def size_bytes(self) -> int:
        """Segments and the state file on disk."""
        return hot_bytes(self.data_dir)

    @property
    def frozen(self) -> list[int]:
        """Complete segments, oldest first: all except the newest."""
        return segment_numbers(self._folder)[:-1]

    @property
    def segment_bytes(self) -> int:
        """Bytes of the frames of the newest segment."""
        numbers = segment_numbers(self._folder)
        if not numbers:
            return 0
        path = segment_path(self._folder, numbers[-1])
        if numbers[-1] not in self._begins:
            self._begins = {numbers[-1]: read_header(path).end}
        return path.stat().st_size - self._begins[numbers[-1]]

    @property
    def oldest_segment(self) -> int:
        """Number of the oldest segment; 0: there is none."""
        return min(segment_numbers(self._folder), default=0)

    def start_progress(self) -> Mapping[str, datetime | None]:
        """The stored progress of rollups. Raises SegmentError, OSError."""
        tail = read_tail(self._folder, int(self.state.meta("ledger_until")))
        return progress_of(self.state, tail)

    def drop(self, until: int) -> None:
        """Delete segments that the lake holds, up to a number. Raises StoreUnavailableError."""
        for number in self.frozen:
            if number <= until:
                segment_path(self._folder, number).unlink(missing_ok=True)
        self._engine.forget(until)
        with suppress(OSError):
            remove_joined(self._folder, until)
        with self.state.writing() as writing:
            writing.forget_doubtful(until)

    def set_aside(self, until: int) -> list[Path]:
        """Move segments up to a number to `lost/`; their new paths. Raises StoreUnavailableError."""
        paths = [segment_path(self._folder, n) for n in self.frozen if n <= until]
        try:
            return [set_aside(self.data_dir, path) for path in paths]
        except OSError as error:
            raise StoreUnavailableError(f"{error.filename}: {error.strerror}") from error

    def join_hot(self) -> int:
        """Write files of joined segment rows that all processes can map; how many. The caller holds the turn at the
        lake. Raises StoreUnavailableError."""
        with self.maintaining() as cursor:
            return self._engine.join_hot(self.sealed(cursor))

    @contextmanager
    def reading(self, names: Iterable[str] | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor in a transaction that sees one moment of the store.

        `names`: tables (not views) to read; None: any. Raises StoreUnavailableError.
        """
        with self.cursor() as cursor:
            self._engine.begin(cursor, names)
            try:
                yield cursor
            finally:
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """Begin a transaction, as `Engine.begin`."""
        self._engine.begin(cursor, names)

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor that `close` interrupts. Raises StoreUnavailableError."""
        with self._condition:
            if self._is_closed:
                raise StoreUnavailableError("the store is being closed")
            engine = self._engine
        try:
            with engine.cursor() as cursor:
                self._cursors.add(cursor)
                try:
                    yield cursor
                finally:
                    self._cursors.discard(cursor)
        except (duckdb.FatalException, StoreUnavailableError) as error:
            if isinstance(error.__cause__ or error, duckdb.FatalException):
                self._renew()
            raise
        finally:
            with self._condition:
                self._condition.notify_all()

    @contextmanager
    def maintaining(
        self, hot: Iterable[str] = (), *, after: int | None = None, until: int | None = None
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor that writes the lake. The caller holds the turn at the lake.

        `hot`: tables whose rows it sees in the segments behind `after` (None: behind the lake) up to `until`. Errors
        of DuckDB within the block become StoreUnavailableError or RowsRefusedError. Raises StoreUnavailableError.
        """
        with self.cursor() as cursor:
            self._maintaining.add(cursor)
            try:
                self._engine.refresh()
                with translating():
                    if hot:
                        behind = self.sealed(cursor) if after is None else after
                        self._engine.register(cursor, hot, behind, until)
                    yield cursor
            finally:
                self._maintaining.discard(cursor)

    def hot_rows(
        self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str], *, until: int | None = None
    ) -> Mapping[str, Any]:
        """Arrow tables of the rows in segments behind the lake up to `until`; the cursor of `maintaining` then sees
        them too. Raises StoreUnavailableError."""
        with translating():
            return self._engine.register(cursor, names, self.sealed(cursor), until)

    def new_damage(self) -> list[Damage]:
        """Damage in segments that no earlier call returned."""
        found = [damage for damage in self._engine.damaged if damage not in self._reported_damage]
        self._reported_damage.update(found)
        return found

    def sealed(self, cursor: duckdb.DuckDBPyConnection) -> int:
        """The newest segment that the lake holds; 0: none. Raises StoreUnavailableError."""
        try:
            return lake.sealed_segment(cursor, self.collector)
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error

    def interrupt_maintenance(self) -> None:
        """Interrupt the cursors of `maintaining`, and the wait for the lock for sealing."""
        self.coordination.interrupt()
        for cursor in list(self._maintaining):
            with suppress(duckdb.Error):
                cursor.interrupt()

    def limit_spill(self, bytes_max: int) -> None:
        """Limit the bytes that queries may spill, as `Engine.limit_spill`."""
        self._engine.limit_spill(bytes_max)

    def close(self) -> None:
        """Interrupt queries, and close the lake."""
        with self._condition:
            if self._is_closed:
                return
            self._is_closed = True
            for cursor in list(self._cursors):
                # A reader closes its cursor before it takes it off the list.
                with suppress(duckdb.Error):
                    cursor.interrupt()
            self._condition.wait_for(lambda: not self._cursors, _CLOSE_WAIT_S)
        self.coordination.close()
        with suppress(duckdb.Error):
            self._engine.connection.close()

    def _new_engine(self) -> Engine:
        folder = self.spill_dir / "store"
        return Engine(self.data_dir, self.address, self.state, self._limits, spill_dir=folder)

    def _renew(self) -> None:
        """Open a new DuckDB instance: a fatal error has made the old one unusable."""
        with self._condition:
            with suppress(duckdb.Error):
                self._engine.connection.close()
            try:
                self._engine = self._new_engine()
            except (duckdb.Error, OSError, StartError, StoreUnavailableError) as error:
                log.error("the lake cannot be opened again", extra={"reason": str(error)})
            else:
                log.warning("the lake was opened again after a fatal error of DuckDB")


class Database(Store):
    """A whole store in one process: `Store`, and the segment log that rows are appended to."""

    def __init__(
        self, data_dir: Path, limits: EngineLimits, address: LakeAddress | None = None
    ) -> None:
        with ExitStack() as opened:
            self._log = SegmentLog(data_dir)
            opened.callback(self._log.close)
            spill_dir = spill.begin(data_dir)
            opened.callback(spill.end, spill_dir)
            spill.empty_others(spill_dir)
            address = address or local_address(data_dir)
            super().__init__(data_dir, limits, address, self._log.state, spill_dir)
            opened.callback(super().close)
            self._log.begin(self.sealed(self._engine.connection))
            self._opened = opened.pop_all()

    @classmethod
    def open(
        cls, data_dir: Path, limits: EngineLimits, address: LakeAddress | None = None
    ) -> "Database":
        """Open the store in a folder, or create it. `address`: of the lake; None: the lake in the folder. Raises
        StartError."""
        make_data_dir(data_dir)
        with starting(data_dir):
            return cls(data_dir, limits, address)

    @property
    def tail(self) -> Tail:
        """As SegmentLog has it."""
        return self._log.tail

    @property
    def progress(self) -> Mapping[str, datetime | None]:
        """As SegmentLog has it."""
        return self._log.progress

    @property
    def segment_number(self) -> int:
        """As SegmentLog has it."""
        return self._log.segment_number

    @property
    def last_number(self) -> int:
        """As SegmentLog has it."""
        return self._log.last_number

    def append(self, frame: Frame) -> None:
        """As SegmentLog has it."""
        self._log.append(frame)

    def freeze(self) -> int:
        """As SegmentLog has it."""
        return self._log.freeze()

    def close(self) -> None:
        """Close log and store."""
        self._opened.close()


def is_restore_cut_off(data_dir: Path) -> bool:
    """Whether a restore into the folder was interrupted: it moves the state file last."""
    return (data_dir / RESTORING).exists() and not (data_dir / FILE_NAME).exists()


def make_data_dir(data_dir: Path) -> None:
    """Create the folder of a store, if it does not exist. Raises StartError."""
    if is_restore_cut_off(data_dir):
        raise StartError(f"the restore of a backup to {data_dir} was interrupted: run it again")
    try:
        data_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        sync_folder(data_dir.absolute().parent)
    except OSError as error:
        raise StartError(
            f"data folder {data_dir}: {error.strerror}: choose another with --data"
        ) from error
    if not os.access(data_dir, os.W_OK | os.X_OK):
        raise StartError(
            f"data folder {data_dir} is not writable by this user: choose another with --data"
        )


@contextmanager
def starting(data_dir: Path) -> Iterator[None]:
    """Raise errors of opening a store as StartError."""
    try:
        yield
    except (duckdb.Error, sqlite3.Error, SegmentError, StoreUnavailableError) as error:
        raise start_error(data_dir, error) from error
    except OSError as error:
        if _NO_SPACE.search(str(error)):
            raise start_error(data_dir, error) from error
        raise StartError(f"store in {data_dir}: {error}") from error


_NO_SPACE = re.compile(r"No space left|Disk quota exceeded|File too large|disk is full")


def start_error(path: Path, error: Exception) -> StartError:
    """The reason why a store cannot be opened, for the person who starts the collector."""
    text = one_line(error)
    if _NO_SPACE.search(text):
        return StartError(f"{path} cannot be opened: {text}: make room on its disk")
    return StartError(
        f"{path} cannot be opened: {text}: `gpuwarden collector check --data-dir {path}` says "
        "what can be repaired"
    )
