"""The durable outbox: messages until their receiver has taken them, and what the planner remembers.

One SQLite file `notify.sqlite` (WAL, synchronous=FULL) in the data folder:

    messages  sequence, id, receiver, grp, is_repeat, made_ms, attempts, body (JSON, `message.py`)
    notices   key, body: the planner's state, `planner.IncidentNotice` as JSON
    handles   receiver, grp, handle, made_ms: what a receiver calls the message that it can replace
    digests   name, done_ms: until when each digest has been made

Invariants
- What was planned is stored as one: the messages and the state that says they were told. A crash
  before it plans anew, a crash after it sends.
- A message leaves when its receiver took it, refused it for good, or when too many or too old ones
  wait; the last two are counted. A crash between the answer and the note sends it again, with its id.
- Messages of a group leave in the order in which they were made. A group whose message fails does not
  hold up the others.
- A file that SQLite cannot read is set aside under a new name, never deleted.
- Room for messages is taken when the file is opened, so that a disk that fills up can still be told.
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
from gpuwarden.sqlite_file import move_aside, transaction
from gpuwarden_rules.notify.message import Notification, from_json, to_json
from gpuwarden_rules.notify.planner import IncidentNotice, NoticeState

log = logging.getLogger(__name__)

FILE_NAME = "notify.sqlite"
FORMAT_VERSION = 1
MESSAGES_MAX = 10_000
"""Messages that wait for one receiver; above it the oldest is dropped."""
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
    """The outbox cannot be read or written now (disk full, I/O error); nothing has changed."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A message that waits."""

    sequence: int
    message: Notification


class Outbox:
    """Messages and planner state. One thread at a time."""

    def __init__(
        self, path: Path | None, clock: Clock, *, messages_max: int = MESSAGES_MAX
    ) -> None:
        """Open the file, or an outbox in memory for None. Raises StartError, one line."""
        self._path = path
        self._messages_max = messages_max
        self._db = _opened(path, to_ms(clock.now()))
        self._left: dict[int, str | None] = {}
        """Sequences that have left but could not be deleted, with their handles: never sent again."""
        self.waiting: Counter[str] = Counter()
        """Messages that wait, by receiver."""
        self.dropped: Counter[str] = Counter()
        """Messages that a full outbox gave up, by receiver."""
        with contextlib.suppress(sqlite3.OperationalError):  # the disk is full
            old_ms = to_ms(clock.now()) - HANDLES_KEPT_MS
            self._db.execute("DELETE FROM handles WHERE made_ms < ?", (old_ms,))
        query = "SELECT receiver, count(*) FROM messages GROUP BY receiver"
        self.waiting.update(dict(self._db.execute(query)))

    def state(self) -> dict[str, IncidentNotice]:
        """What the planner remembers; notices that cannot be read are left out, and logged."""
        notices = {}
        for key, body in self._db.execute("SELECT key, body FROM notices"):
            try:
                notices[str(key)] = msgspec.json.decode(body, type=IncidentNotice)
            except ValueError as error:
                log.error(
                    "notice not read; its incident is told again", extra={"reason": str(error)}
                )
        return notices

    def digests(self) -> dict[str, int]:
        """Until when each digest has been made, ms since the epoch, by name."""
        return dict(self._db.execute("SELECT name, done_ms FROM digests"))

    def commit(
        self,
        before: NoticeState,
        after: NoticeState,
        messages: Sequence[Notification],
        *,
        digests: Mapping[str, int] | None = None,
    ) -> None:
        """Store messages and what has changed of the state; durable when it returns.

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
        """What to send next: of the oldest messages of each group the least tried, then the oldest.

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
        """The message has left: it is never given again; `handle`: what the receiver calls it.

        Raises OutboxError where only this run knows.
        """
        self._left[sequence] = handle
        self.waiting[receiver] -= 1
        self._retry_deletes()

    def put_back(self, sequence: int) -> None:
        """The message was sent in vain. Raises OutboxError."""
        with self._transaction():
            self._db.execute(
                "UPDATE messages SET attempts = attempts + 1 WHERE sequence = ?", (sequence,)
            )

    def retire(self, receivers: set[str]) -> dict[str, int]:
        """Forget messages to receivers that are not among these; how many of each. Raises OutboxError."""
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
            # The newest word on an incident that is still open stands for those that nobody took.
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
            log.error("outbox set aside; open incidents are told again",
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
        _take_room(db)
    except BaseException:
        db.close()
        raise
    return db


def _take_room(db: sqlite3.Connection) -> None:
    """Make the file and its WAL so long that messages fit in when the disk is full."""
    free = db.execute("PRAGMA freelist_count").fetchone()[0]
    page = db.execute("PRAGMA page_size").fetchone()[0]
    if free * page < ROOM_BYTES // 2:
        with contextlib.suppress(sqlite3.OperationalError):  # it is full already
            db.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM_BYTES,))
    db.execute("DELETE FROM room")
