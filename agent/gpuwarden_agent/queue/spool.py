"""Keeps sealed batches on disk until the collector has acknowledged them.

Format, version 1: one SQLite file `spool.sqlite` (WAL, synchronous=NORMAL) in the state folder.

    batches  sequence (1, 2, 3 ...), boot_id (with the opening's nonce) and created_ms of the sealing, rows,
             body as sent
    refused  batches that the collector refused permanently, with its reason; a person lists them, and
             sends or deletes them, with `gpuwarden agent refused`
    meta     agent_id, made with the file; last_ts_ms, the newest tick that is sealed;
             stopped_cleanly, there only between a clean stop and the next start; boot_id, the
             one under which the agent last ran

Invariants
- The agent's identity is on disk before it is used.
- A sequence is used once in the life of the file, also after its batch is gone (AUTOINCREMENT). A file
  that was restored (snapshot, power cut) uses it again, under the nonce of another opening; a batch
  keeps the nonce under which it was sealed.
- A batch that `put` has returned survives kill -9; a power cut may take the last few, never the
  file. It leaves by `acknowledge`, by `refuse`, or as the oldest when the spool is full, and then
  the caller gets an error.
- Bodies take at most `bytes_max`, except that the newest batch is always kept; those of refused batches an
  eighth of it besides, the oldest go first and are counted.
- Another process may move batches between the two tables: `put` notices.
- One agent a folder: a lock on `agent.lock` beside the file says so.
- A file that SQLite cannot read is set aside under a new name, never deleted.
- A full disk stops new batches, never the deletion of old ones: `Reserve` holds the room that
  deletion takes.
"""

import contextlib
import fcntl
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.clock import Clock, to_ms
from gpuwarden.files import sync_folder
from gpuwarden.lifecycle import StartError, boot_id
from gpuwarden.sqlite_file import move_aside, transaction
from gpuwarden.wire import BatchId, batch_id_of, headers_of, sealed_under

FORMAT_VERSION = 1
REFUSED_SHARE = 8
"""Refused batches may take this part of `bytes_max`."""
FILE_NAME = "spool.sqlite"
LOCK_NAME = "agent.lock"
RESERVE_NAME = "spool.reserve"
CHECKPOINT_PAGES = 256
"""Pages of 4 KiB that the WAL holds before it is written back: half of the reserve."""
RESERVE_BYTES = 2 * 1024**2
"""Twice what the WAL may hold before it is written back."""


_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS batches (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    boot_id TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS refused (
    sequence INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    refused_ms INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    reason TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""


class SpoolError(Exception):
    """The spool cannot store or read a batch now (disk full, I/O error); nothing has changed."""


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """A batch as it waits in the spool."""

    sequence: int
    boot_id: str
    created_ms: int
    rows: int
    body: bytes
    oldest_sequence: int
    """Smallest sequence of the same boot and opening that still waits."""


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """A batch that the collector refused."""

    sequence: int
    created_ms: int
    refused_ms: int
    rows: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A batch that was dropped because the spool was full."""

    sequence: int
    rows: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Put:
    """A stored batch, and the batches that were dropped to make room for it."""

    sequence: int
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True, slots=True)
class LastRun:
    """What the spool knows about the agent's previous run."""

    last_ts_ms: int | None
    """The newest tick that was sealed; None: this is the first run."""
    stopped_cleanly: bool
    same_boot: bool


class Reserve:
    """Reserves disk space, so that the spool can shrink on a full disk.

    SQLite needs room to delete: a spool that filled the disk during an outage could not delete what
    the collector then acknowledged. The reserve is a file of real blocks beside the spool. Deleting
    may use its space; new batches never get it.
    """

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self.is_held = False

    def hold(self) -> bool:
        """Take the space, unless it is held; False when the disk does not have it."""
        if self.is_held:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                if sys.platform == "linux":
                    os.posix_fallocate(file, 0, self._size_bytes)
                else:
                    os.pwrite(file, bytes(self._size_bytes), 0)
            finally:
                os.close(file)
        except OSError:
            self.give()
            return False
        self.is_held = True
        return True

    def give(self) -> bool:
        """Free the space, also that of an earlier run; False when there was none."""
        self.is_held = False
        with contextlib.suppress(OSError):
            self._path.unlink()
            return True
        return False


class Spool:
    """Sealed batches, oldest first. Threads may share it: one call runs at a time."""

    def __init__(
        self, path: Path | None, *, bytes_max: int, clock: Clock, boot: str | None = None
    ) -> None:
        """Open the file, or a spool in memory for None. Raises StartError, one line."""
        self._path = path
        self.bytes_max = bytes_max
        self._clock = clock
        self.boot_id = boot or boot_id()
        self._sealed_under = sealed_under(self.boot_id, _nonce())
        # A close during a query crashes the process: SQLite's locking does not cover it. A call
        # whose caller was cancelled continues in its thread.
        self._turn = threading.Lock()
        self._is_closed = False
        self.set_aside: Path | None = None
        """New path of an unreadable file, moved when this spool was opened."""
        self._lock = None if path is None else _lock(path.parent)
        self._reserve = None if path is None else Reserve(path.with_name(RESERVE_NAME))
        try:
            if self._reserve is not None:
                self._reserve.give()  # to open a file that filled the disk needs room, too
            self._db = self._opened()
            self._inode = None if path is None else path.stat().st_ino
            self.agent_id, self.last_run = self._begin_run()
            self.count, self.size_bytes = self._measured()
            self._changed_elsewhere = self._data_version()
            self.refused_dropped = 0
            """Refused batches deleted in this run, because they took too much room."""
            self.last_sequence = self._last_sequence()
            """Newest sequence used before this run; 0: none."""
        except SpoolError as error:
            self._unlock()
            raise StartError(f"{error}; is the disk full or read-only?") from error
        except BaseException:
            self._unlock()
            raise

    def put(
        self, body: bytes, rows: int, *, last_ts_ms: int | None = None, is_last: bool = False
    ) -> Put:
        """Make a batch durable; `is_last`: the agent stops cleanly after it.

        Raises SpoolError, and as every call here StartError when the file was damaged or deleted
        under the agent: only a new start can help.
        """
        if self._reserve is not None and not self._reserve.hold():
            raise SpoolError(
                f"{self._path}: the disk is full: fewer than {RESERVE_BYTES // 1024**2} MiB are"
                " free, or it is read-only"
            )
        self._check_in_place()
        with self._reading():
            if (version := self._data_version()) != self._changed_elsewhere:
                self._changed_elsewhere = version
                self.count, self.size_bytes = self._measured()
        with self._transaction():
            cursor = self._db.execute(
                "INSERT INTO batches (boot_id, created_ms, rows, body) VALUES (?, ?, ?, ?)",
                (self._sealed_under, to_ms(self._clock.now()), rows, body),
            )
            sequence = cursor.lastrowid
            assert sequence is not None
            if last_ts_ms is not None:
                self._set("last_ts_ms", str(last_ts_ms))
            if is_last:
                self._set("stopped_cleanly", "yes")
            count, size = self.count + 1, self.size_bytes + len(body)
            dropped = []
            while size > self.bytes_max and count > 1:
                gone, gone_bytes = self._take_oldest()
                dropped.append(gone)
                count, size = count - 1, size - gone_bytes
        self.count, self.size_bytes = count, size
        return Put(sequence, tuple(dropped))

    def oldest(self, limit: int = 1, *, skip: Collection[int] = ()) -> list[SealedBatch]:
        """The oldest batches, without those in `skip`. Raises SpoolError."""
        return self._batches("ASC", limit, skip)

    def newest(self, limit: int = 1, *, skip: Collection[int] = ()) -> list[SealedBatch]:
        """The newest batches, newest first, without those in `skip`. Raises SpoolError."""
        return self._batches("DESC", limit, skip)

    def acknowledge(self, sequence: int) -> bool:
        """Delete a batch that the collector has stored. False when it was no longer here. Raises SpoolError."""
        return self._left(self._with_room(lambda: self._delete(sequence)))

    def refuse(self, sequence: int, reason: str) -> bool:
        """Set a batch aside that the collector will never take. Raises SpoolError."""
        gone = 0

        def move() -> int | None:
            nonlocal gone
            self._db.execute(
                "INSERT OR REPLACE INTO refused SELECT sequence, boot_id, created_ms, ?, rows, ?, body"
                " FROM batches WHERE sequence = ?",
                (to_ms(self._clock.now()), reason, sequence),
            )
            # The newest is kept however large it is.
            gone = self._db.execute(
                "DELETE FROM refused WHERE sequence IN (SELECT sequence FROM (SELECT sequence,"
                " sum(length(body)) OVER newer AS bytes, row_number() OVER newer AS place FROM refused"
                " WINDOW newer AS (ORDER BY refused_ms DESC, sequence DESC)) WHERE bytes > ? AND place > 1)",
                (self.bytes_max // REFUSED_SHARE,),
            ).rowcount
            return self._delete(sequence)

        left = self._left(self._with_room(move))
        self.refused_dropped += gone
        return left

    def refused(self) -> list[RefusedBatch]:
        """Refused batches, oldest first. Raises SpoolError."""
        with self._reading():
            return _refused(self._db)

    def close(self) -> None:
        """Close file and lock after the call that runs; a second close does nothing."""
        with self._turn:
            self._is_closed = True
            self._db.close()
            self._unlock()

    def _opened(self) -> sqlite3.Connection:
        if self._path is None:
            return _connect(":memory:")
        try:
            return _connect(str(self._path))
        except _CorruptError:
            self.set_aside = move_aside(self._path, to_ms(self._clock.now()))
            return _connect(str(self._path))
        except (sqlite3.Error, OSError) as error:
            raise StartError(
                f"{self._path}: the spool cannot be opened: {error}; is the disk full or read-only?"
            ) from error

    def _check_in_place(self) -> None:
        """SQLite would keep writing to a deleted file, whose batches are lost at the end."""
        if self._path is None:
            return
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            inode = None
        except OSError as error:
            raise SpoolError(f"{self._path}: {error.strerror}") from error
        if inode != self._inode:
            raise StartError(
                f"{self._path} was deleted or replaced while the agent ran: start it again, it then"
                " begins a new one"
            )

    def _begin_run(self) -> tuple[str, LastRun]:
        with self._transaction():
            meta = dict(self._db.execute("SELECT key, value FROM meta"))
            agent_id = meta.get("agent_id") or os.urandom(16).hex()
            last_ts_ms = meta.get("last_ts_ms")
            self._set("agent_id", agent_id)
            self._set("boot_id", self.boot_id)
            self._db.execute("DELETE FROM meta WHERE key = 'stopped_cleanly'")
        if "agent_id" not in meta and self._path is not None:
            # If a power cut lost the identity, the next one would look like a second machine.
            self._checkpoint()
            try:
                sync_folder(self._path.parent)
            except OSError as error:
                raise SpoolError(f"{self._path.parent}: {error.strerror}") from error
        return agent_id, LastRun(
            last_ts_ms=None if last_ts_ms is None else int(last_ts_ms),
            stopped_cleanly="stopped_cleanly" in meta,
            same_boot=meta.get("boot_id") == self.boot_id,
        )

    def _data_version(self) -> int:
        """A number that differs after another connection changed the file."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def _measured(self) -> tuple[int, int]:
        query = "SELECT count(*), coalesce(sum(length(body)), 0) FROM batches"
        count, size = self._db.execute(query).fetchone()
        return int(count), int(size)

    def _last_sequence(self) -> int:
        row = self._db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()
        return int(row[0])

    def _batches(self, order: str, limit: int, skip: Collection[int]) -> list[SealedBatch]:
        marks = ",".join("?" * len(skip))
        with self._reading():
            rows = self._db.execute(
                "SELECT sequence, boot_id, created_ms, rows, body, (SELECT sequence FROM"
                " batches older WHERE older.boot_id = batches.boot_id ORDER BY sequence LIMIT 1) FROM batches"
                f" WHERE sequence NOT IN ({marks}) ORDER BY sequence {order} LIMIT ?",
                (*skip, limit),
            ).fetchall()
        return [SealedBatch(*row) for row in rows]

    def _take_oldest(self) -> tuple[Dropped, int]:
        sequence, rows, created_ms, size = self._db.execute(
            "SELECT sequence, rows, created_ms, length(body) FROM batches ORDER BY sequence LIMIT 1"
        ).fetchone()
        self._db.execute("DELETE FROM batches WHERE sequence = ?", (sequence,))
        return Dropped(sequence, rows, created_ms), size

    def _delete(self, sequence: int) -> int | None:
        row = self._db.execute(
            "DELETE FROM batches WHERE sequence = ? RETURNING length(body)", (sequence,)
        ).fetchone()
        return None if row is None else int(row[0])

    def _left(self, size: int | None) -> bool:
        if size is None:
            return False
        self.count, self.size_bytes = self.count - 1, self.size_bytes - size
        if self.count == 0:
            # After an outage the file is mostly free pages: free some each time it is empty.
            with contextlib.suppress(SpoolError):
                self._shrink()
        return True

    def _shrink(self) -> None:
        try:
            with self._reading():
                self._db.executescript("PRAGMA incremental_vacuum(4096)")
        except SpoolError:
            self._make_room()
            with self._reading():
                self._db.executescript("PRAGMA incremental_vacuum(4096)")
        if self._reserve is not None and not self._reserve.is_held:
            self._checkpoint()  # the disk is full: the space is needed now

    def _with_room(self, change: Callable[[], int | None]) -> int | None:
        """Run a transaction that deletes batches; on a full disk it uses the room of the reserve."""
        try:
            with self._transaction():
                return change()
        except SpoolError:
            self._make_room()
        with self._transaction():
            return change()

    def _make_room(self) -> None:
        if self._reserve is not None:
            self._reserve.give()
        self._checkpoint()

    def _checkpoint(self) -> None:
        with self._reading():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reading(), transaction(self._db):
            yield

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._turn:
            if self._is_closed:
                raise SpoolError(f"{self._path}: closed")
            try:
                yield
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if _is_damage(error):
                    raise StartError(
                        f"{self._path} was damaged while the agent ran ({error}): start it again,"
                        " it then sets the file aside and begins a new one"
                    ) from error
                if not isinstance(error, sqlite3.OperationalError):
                    raise  # a bug of ours
                raise SpoolError(f"{self._path}: {error}") from error

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def open_spool(state_dir: Path, *, bytes_max: int, clock: Clock, boot: str | None = None) -> Spool:
    """Open the spool of a state folder; creates the folder. Raises StartError, one line."""
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(state_dir, error) from error
    return Spool(state_dir / FILE_NAME, bytes_max=bytes_max, clock=clock, boot=boot)


def refused_in(state_dir: Path) -> list[RefusedBatch]:
    """The refused batches of an agent, which may be running. Raises StartError."""
    with _beside(state_dir) as db:
        return _refused(db)


def settle_refused(state_dir: Path, sequences: Collection[int], *, is_resent: bool) -> int:
    """Send refused batches again, as new ones, or delete them. Returns how many; the agent may be running.

    Raises StartError, and then has changed nothing.
    """
    marks = ",".join("?" * len(sequences))
    with _beside(state_dir) as db, transaction(db):
        if is_resent:
            db.execute(
                "INSERT INTO batches (boot_id, created_ms, rows, body)"
                " SELECT substr(boot_id, 1, instr(boot_id || '.', '.') - 1) || ?, created_ms, rows, body"
                f" FROM refused WHERE sequence IN ({marks}) ORDER BY sequence",
                (sealed_under("", _nonce()), *sequences),
            )
        return db.execute(
            f"DELETE FROM refused WHERE sequence IN ({marks})", (*sequences,)
        ).rowcount


@contextlib.contextmanager
def _beside(state_dir: Path) -> Iterator[sqlite3.Connection]:
    """Open the file of an agent that may be running. Raises StartError."""
    path = state_dir / FILE_NAME
    if not path.exists():
        raise StartError(f"{path} is not there: name the agent's folder with --state-dir")
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as db:
            yield db
    except sqlite3.Error as error:
        raise StartError(f"{path}: {error}: run this as the agent's user") from error


def _refused(db: sqlite3.Connection) -> list[RefusedBatch]:
    rows = db.execute(
        "SELECT sequence, created_ms, refused_ms, rows, length(body), reason FROM refused ORDER BY sequence"
    )
    return [RefusedBatch(*row) for row in rows]


def _nonce() -> str:
    return os.urandom(8).hex()


class _CorruptError(Exception):
    """SQLite cannot read the file."""


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        _prepare(db, path)
    except BaseException as error:
        db.close()
        if _is_damage(error):
            raise _CorruptError(str(error)) from error
        raise
    return db


def _is_damage(error: BaseException) -> bool:
    """Whether the file is damaged.

    OperationalError is about the disk (full, read-only, no permission), where a new file would not
    help, except with these words: tables that are not ours, an invalid header or text.
    """
    if isinstance(error, sqlite3.OperationalError):
        return any(words in str(error) for words in ("no such", "unsupported file", "decode"))
    # Not the classes below them: ProgrammingError and similar ones are bugs of ours.
    return type(error) in (sqlite3.DatabaseError, sqlite3.IntegrityError, UnicodeDecodeError)


def _prepare(db: sqlite3.Connection, path: str) -> None:
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only has an effect before the first read
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > FORMAT_VERSION:
        raise StartError(
            f"{path}: written by a newer gpuwarden (spool version {version}, this one knows"
            f" {FORMAT_VERSION}): upgrade, or choose another --state-dir"
        )
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _CorruptError(found)
    if version == 0:
        db.executescript(_SCHEMA)
    db.execute("SELECT sequence, boot_id, created_ms, rows, body FROM batches LIMIT 0")
    db.execute("SELECT sequence, refused_ms, reason, body FROM refused LIMIT 0")
    meta = dict(db.execute("SELECT key, value FROM meta"))
    boots = [str(boot) for (boot,) in db.execute("SELECT DISTINCT boot_id FROM batches")]
    # These values go into headers of every request: a flipped bit would stop the shipper for ever.
    if not _are_sound(meta, boots):
        raise _CorruptError("the agent's identity, a boot id or the last tick is junk")


def _are_sound(meta: Mapping[str, str], boots: Iterable[str]) -> bool:
    agent_id = meta.get("agent_id", "new")
    try:
        for boot in ("new", *boots):
            batch_id_of(headers_of(BatchId(agent_id, boot, 1)))
        int(meta.get("last_ts_ms", "0"))
    except ValueError:
        return False
    return True


def _lock(folder: Path) -> int:
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        who = f"process {holder}" if holder else "another process"
        raise StartError(
            f"{folder} is in use by {who}, another agent: stop it or choose another --state-dir"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _unwritable(folder: Path, error: OSError) -> StartError:
    return StartError(
        f"{folder}: cannot be written: {error.strerror}; make it writable for the agent's user,"
        " or choose another folder with --state-dir"
    )
