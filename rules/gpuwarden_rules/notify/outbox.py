"""Stores messages until their receiver has accepted them, and the state of the planner.

One SQLite file `notify.sqlite` (WAL, synchronous=FULL) in the data folder:

    messages  sequence, id, receiver, grp, is_repeat, made_ms, attempts, body (JSON, `message.py`)
    notices   key, body: the planner's state, `planner.IncidentNotice` as JSON
    handles   receiver, grp, handle, made_ms: a receiver's handle of a message that can be replaced
    digests   name, done_ms: when the last of each digest and report was due, or when it was first seen

Invariants
- Messages and the new state of the planner are stored in one transaction. After a crash before it, they are
  planned again; after a crash behind it, they are sent.
- A message leaves when its receiver accepted or refused it, or when too many or too old messages wait, which
  is counted. A crash between the answer and its record sends the message again, with the same id.
- Messages of a group leave in order. A group whose message fails does not delay other groups.
- A file that SQLite cannot read is renamed, never deleted.
- Space for messages is reserved when the file is opened, so that a full disk can still be reported.
"""

import contextlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gpuwarden.clock import Clock, to_ms
from gpuwarden.lifecycle import StartError
from gpuwarden.sqlite_file import NOTIFICATIONS, move_aside, transaction
from gpuwarden_rules.notify.message import Notification, from_json, to_json
from gpuwarden_rules.notify.planner import IncidentNotice, NoticeState

log = logging.getLogger(__name__)

FILE_NAME = NOTIFICATIONS
FORMAT_VERSION = 1
MESSAGES_MAX = 10_000
"""Most messages that wait for one receiver; above it the oldest is dropped."""
HANDLES_KEPT_MS = 30 * 86_400_000
ROOM_BYTES = 4 * 1024**2

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE messages (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    receiver TEXT NOT NULL,
    grp TEXT NOT NULL,
    is_replaceable INTEGER NOT NULL,
    made_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    body BLOB NOT NULL
);
CREATE INDEX messages_of_group ON messages (receiver, grp, sequence);
CREATE TABLE notices (key TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE handles (
    receiver TEXT, grp TEXT, handle TEXT NOT NULL, made_ms INTEGER NOT NULL, PRIMARY KEY (receiver, grp)
) WITHOUT ROWID;
CREATE TABLE digests (name TEXT PRIMARY KEY, done_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE room (filler BLOB);
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""
_HEAD = """
SELECT sequence, body FROM messages m
WHERE receiver = ? AND NOT EXISTS (
    SELECT 1 FROM messages o
    WHERE o.receiver = m.receiver AND o.grp = m.grp AND o.sequence < m.sequence
)
ORDER BY attempts, sequence LIMIT 1
"""
_HANDLE = "SELECT handle FROM handles WHERE receiver = ? AND grp = ?"
_KEEP_HANDLE = """
INSERT OR REPLACE INTO handles
SELECT receiver, grp, ?, made_ms FROM messages WHERE sequence = ?
"""


class OutboxError(Exception):
    """The outbox cannot be read or written (disk full, I/O error); nothing was changed."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A waiting message."""

    sequence: int
    message: Notification


class Outbox:
    """Messages and the state of the planner; for one thread at a time."""

    def __init__(
        self, path: Path | None, clock: Clock, *, messages_max: int = MESSAGES_MAX
    ) -> None:
        """Open the file, or an outbox in memory for None. Raises StartError, one line."""
        self._path = path
        self._messages_max = messages_max
        self._db = _opened(path, to_ms(clock.now()))
        self._left: dict[int, str | None] = {}
        """Sequences of sent messages that could not be deleted yet, with their handles: they are not sent again."""
        self.waiting: Counter[str] = Counter()
        """Messages that wait, by receiver."""
        self.dropped: Counter[str] = Counter()
        """Messages that were dropped because too many waited, by receiver."""
        with contextlib.suppress(sqlite3.OperationalError):  # the disk is full
            old_ms = to_ms(clock.now()) - HANDLES_KEPT_MS
            self._db.execute("DELETE FROM handles WHERE made_ms < ?", (old_ms,))
        query = "SELECT receiver, count(*) FROM messages GROUP BY receiver"
        self.waiting.update(dict(self._db.execute(query)))

    def state(self) -> dict[str, IncidentNotice]:
        """The state of the planner; notices that cannot be read are left out, and logged."""
        notices = {}
        for key, body in self._db.execute("SELECT key, body FROM notices"):
            try:
                notices[str(key)] = msgspec.json.decode(body, type=IncidentNotice)
            except ValueError as error:
                log.error(
                    "notice not read; its incident is sent again", extra={"reason": str(error)}
                )
        return notices

    def digests(self) -> dict[str, int]:
        """When the last of each digest and report was due, or when it was first seen, in ms since the epoch, by name."""
        return dict(self._db.execute("SELECT name, done_ms FROM digests"))

    def commit(
        self,
        before: NoticeState,
        after: NoticeState,
        messages: Sequence[Notification],
        *,
        digests: Mapping[str, int] | None = None,
    ) -> None:
        """Store messages and the changes of the state, durably.

        Raises OutboxError.
        """
        counts = self.waiting.copy()
        dropped: Counter[str] = Counter()
        with self._transaction():
            for key in before.keys() - after.keys():
                self._db.execute("DELETE FROM notices WHERE key = ?", (key,))
            changed = [(k, msgspec.json.encode(n)) for k, n in after.items() if before.get(k) != n]
            self._db.executemany("INSERT OR REPLACE INTO notices VALUES (?, ?)", changed)
            self._db.executemany(
                "INSERT OR REPLACE INTO digests VALUES (?, ?)", (digests or {}).items()
            )
            for message in messages:
                self._put(message, counts)
            for receiver in {message.receiver for message in messages}:
                gone = self._trim(receiver, counts[receiver] - self._messages_max)
                counts[receiver] -= gone
                dropped[receiver] += gone
        self.waiting = counts
        self.dropped += dropped
        for receiver, gone in (+dropped).items():
            log.error(
                "messages dropped: too many wait", extra={"receiver": receiver, "messages": gone}
            )

    def head(self, receiver: str) -> Queued | None:
        """The next message to send: of the first messages of all groups the one with the fewest attempts, then the oldest.

        Raises OutboxError.
        """
        self._retry_deletes()
        with self._guarded():
            row = self._db.execute(_HEAD, (receiver,)).fetchone()
        if row is None or row[0] in self._left:
            return None
        try:
            message = from_json(row[1])
            with self._guarded():
                known = self._db.execute(_HANDLE, (receiver, message.group)).fetchone()
            return Queued(row[0], replace(message, handle=known[0] if known else None))
        except ValueError as error:
            log.error(
                "message not read, dropped", extra={"receiver": receiver, "reason": str(error)}
            )
            self.dropped[receiver] += 1
            self.remove(receiver, row[0])
            return self.head(receiver)

    def remove(self, receiver: str, sequence: int, handle: str | None = None) -> None:
        """Remove a sent message; `handle`: the receiver's handle of it.

        Raises OutboxError if it is not deleted yet: then only this process knows that it was sent.
        """
        self._left[sequence] = handle
        self.waiting[receiver] -= 1
        self._retry_deletes()

    def put_back(self, sequence: int) -> None:
        """Count a failed attempt. Raises OutboxError."""
        with self._transaction():
            self._db.execute(
                "UPDATE messages SET attempts = attempts + 1 WHERE sequence = ?", (sequence,)
            )

    def retire(self, receivers: set[str]) -> dict[str, int]:
        """Delete messages to other receivers than these; returns their numbers. Raises OutboxError."""
        gone = {name: count for name, count in self.waiting.items() if name not in receivers}
        with self._transaction():
            for name in gone:
                self._db.execute("DELETE FROM messages WHERE receiver = ?", (name,))
        for name in gone:
            del self.waiting[name]
        return {name: count for name, count in gone.items() if count}

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _put(self, message: Notification, counts: Counter[str]) -> None:
        made_ms = to_ms(message.made_at)
        if message.is_replaceable:
            # The newest state of an open incident replaces the ones that were not delivered.
            replaced = self._db.execute(
                "DELETE FROM messages WHERE receiver = ? AND grp = ? AND is_replaceable AND made_ms < ?",
                (message.receiver, message.group, made_ms),
            )
            counts[message.receiver] -= replaced.rowcount
        values = (message.id, message.receiver, message.group, message.is_replaceable, made_ms)
        put = self._db.execute(
            "INSERT OR IGNORE INTO messages (id, receiver, grp, is_replaceable, made_ms, body)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (*values, to_json(message)),
        )
        counts[message.receiver] += put.rowcount

    def _trim(self, receiver: str, excess: int) -> int:
        if excess <= 0:
            return 0
        return self._db.execute(
            "DELETE FROM messages WHERE sequence IN"
            " (SELECT sequence FROM messages WHERE receiver = ? ORDER BY sequence LIMIT ?)",
            (receiver, excess),
        ).rowcount

    def _retry_deletes(self) -> None:
        if not self._left:
            return
        with self._transaction():
            handles = [(handle, left) for left, handle in self._left.items() if handle]
            self._db.executemany(_KEEP_HANDLE, handles)
            self._db.executemany(
                "DELETE FROM messages WHERE sequence = ?", [(left,) for left in self._left]
            )
        self._left.clear()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._guarded(), transaction(self._db):
            yield

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise OutboxError(f"{self._path}: {error}") from error


def _opened(path: Path | None, now_ms: int) -> sqlite3.Connection:
    if path is None:
        return _connect(":memory:")
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        try:
            return _connect(str(path))
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            aside = move_aside(path, now_ms)
            log.error("outbox renamed; open incidents are sent again",
                      extra={"to": str(aside), "reason": str(error)})  # fmt: skip
            return _connect(str(path))
    except (sqlite3.Error, OSError) as error:
        raise StartError(
            f"{path}: messages cannot be stored: {error}; is the disk full or read-only?"
        ) from error


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > FORMAT_VERSION:
            raise StartError(
                f"{path}: written by a newer gpuwarden (outbox version {version}, this one knows"
                f" {FORMAT_VERSION}): upgrade, or move the file away"
            )
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = FULL")
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        if version == 0:
            db.executescript(_SCHEMA)
        _reserve(db)
    except BaseException:
        db.close()
        raise
    return db


def _reserve(db: sqlite3.Connection) -> None:
    """Make the file and its WAL large enough for messages while the disk is full."""
    free = db.execute("PRAGMA freelist_count").fetchone()[0]
    page = db.execute("PRAGMA page_size").fetchone()[0]
    if free * page < ROOM_BYTES // 2:
        with contextlib.suppress(sqlite3.OperationalError):  # the disk is full already
            db.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM_BYTES,))
    db.execute("DELETE FROM room")
