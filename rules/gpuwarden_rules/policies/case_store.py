"""Stores cases, questions to owners, and which dry runs were read: `policies.sqlite` in the data folder.

    cases      id, is_open (something may still be done), body (JSON, `cases.PolicyCase`), to_say: the step that must still be said; NULL: none;
               is_listed: whether table `policy_cases` has this body
    questions  hash (SHA-256 of the link's secret), case, expires_ms
    notes      number, action, target, details: rows that the audit does not have yet
    seen       digest of a policy whose dry run was read, at_ms
    stopped    one row while policies are stopped: at_ms, by

A change is on disk when a method returns (WAL, synchronous=FULL). The link's secret is stored as its hash only.
"""

import hashlib
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwarden.clock import from_ms, to_ms
from gpuwarden.sqlite_file import transaction
from gpuwarden_rules.policies.cases import PolicyCase
from gpuwarden_rules.policies.language import StepKind

FORMAT_VERSION = 1
LISTED_AT_ONCE = 1_000
ENDED_KEPT_MS = 400 * 86_400_000
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS cases (
    id TEXT PRIMARY KEY, is_open INTEGER NOT NULL, ended_ms INTEGER, to_say TEXT, body BLOB NOT NULL,
    is_listed INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_cases ON cases (is_open);
CREATE INDEX IF NOT EXISTS unlisted_cases ON cases (id) WHERE NOT is_listed;
CREATE TABLE IF NOT EXISTS questions (
    hash BLOB PRIMARY KEY, id TEXT NOT NULL, expires_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, action TEXT NOT NULL, target TEXT NOT NULL, details TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS seen (digest TEXT PRIMARY KEY, at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stopped (at_ms INTEGER NOT NULL, by TEXT NOT NULL);
PRAGMA user_version = {FORMAT_VERSION};
"""


class PolicyNote(NamedTuple):
    """A row for the audit."""

    action: str
    target: str
    details: str


class CaseStoreError(Exception):
    """The file cannot be read or written; one line with its path."""


class CaseStore:
    """The file. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        """Raises CaseStoreError."""
        self._path = path
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > FORMAT_VERSION:
                raise CaseStoreError(
                    f"{path} has version {version}, this release reads {FORMAT_VERSION}: install the newer release"
                )
            self._db.executescript(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;"
                + _SCHEMA
            )
        except sqlite3.Error as error:
            raise CaseStoreError(f"{path}: {error}: move it away to begin without cases") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def cases(self, since: datetime, ids: Iterable[str] = ()) -> dict[str, PolicyCase]:
        """Open cases, those that ended since then, and those of `ids`, by id. Raises CaseStoreError."""
        sql = "SELECT body FROM cases WHERE is_open OR ended_ms >= ? OR id IN (SELECT value FROM json_each(?))"
        rows = self._rows(sql, to_ms(since), json.dumps([*ids]))
        return {case.id: case for (body,) in rows if (case := _case(body))}

    def case(self, name: str) -> PolicyCase | None:
        """A case by its id. Raises CaseStoreError."""
        rows = self._rows("SELECT body FROM cases WHERE id = ?", name)
        return _case(rows[0][0]) if rows else None

    def unsaid(self) -> list[tuple[PolicyCase, StepKind]]:
        """What must still be said. Raises CaseStoreError."""
        rows = self._rows("SELECT body, to_say FROM cases WHERE to_say IS NOT NULL")
        return [(_case(body), StepKind(word)) for body, word in rows]

    def save(
        self,
        cases: Iterable[PolicyCase],
        to_say: Mapping[str, StepKind],
        now: datetime,
        notes: Iterable[PolicyNote] = (),
    ) -> None:
        """Store cases, what is to be said about them and rows for the audit, in one transaction. Raises CaseStoreError."""
        with self._writing():
            self._note(notes)
            for case in cases:
                ended = None if case.ended_at is None else to_ms(case.ended_at)
                self._db.execute(
                    "INSERT INTO cases (id, is_open, ended_ms, to_say, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
                    " SET is_open = excluded.is_open, ended_ms = excluded.ended_ms, body = excluded.body,"
                    " to_say = coalesce(excluded.to_say, to_say), is_listed = 0",
                    (
                        case.id,
                        case.is_followed,
                        ended,
                        to_say.get(case.id),
                        msgspec.json.encode(case),
                    ),
                )
            self._db.execute("DELETE FROM cases WHERE ended_ms < ?", (to_ms(now) - ENDED_KEPT_MS,))
            self._db.execute("DELETE FROM questions WHERE expires_ms < ?", (to_ms(now),))

    def unlisted(self) -> list[PolicyCase]:
        """Cases that table `policy_cases` does not have as they are, at most `LISTED_AT_ONCE`. Raises CaseStoreError."""
        rows = self._rows(f"SELECT body FROM cases WHERE NOT is_listed LIMIT {LISTED_AT_ONCE}")
        return [_case(body) for (body,) in rows]

    def were_listed(self, cases: Iterable[PolicyCase]) -> None:
        """Note that the table has these; one that has changed since stays unlisted. Raises CaseStoreError."""
        done = [(case.id, msgspec.json.encode(case)) for case in cases]
        with self._writing():
            self._db.executemany("UPDATE cases SET is_listed = 1 WHERE id = ? AND body = ?", done)

    def notes(self) -> tuple[int, list[PolicyNote]]:
        """Rows that the audit does not have yet, and the number of the last one. Raises CaseStoreError."""
        rows = self._rows("SELECT number, action, target, details FROM notes ORDER BY number")
        return (rows[-1][0] if rows else 0), [PolicyNote(*row[1:]) for row in rows]

    def forget_notes(self, until: int) -> None:
        """Forget rows that the audit has. Raises CaseStoreError."""
        with self._writing():
            self._db.execute("DELETE FROM notes WHERE number <= ?", (until,))

    def _note(self, notes: Iterable[PolicyNote]) -> None:
        self._db.executemany("INSERT INTO notes (action, target, details) VALUES (?, ?, ?)", notes)

    def was_said(self, name: str, note: PolicyNote) -> None:
        """Note that a message is on its way. Raises CaseStoreError."""
        with self._writing():
            self._note([note])
            self._db.execute("UPDATE cases SET to_say = NULL WHERE id = ?", (name,))

    def question(self, case: PolicyCase, expires_at: datetime) -> str:
        """The secret of a link by which the owner of a case answers once. Raises CaseStoreError."""
        secret = secrets.token_urlsafe(32)
        with self._writing():
            self._db.execute(
                "INSERT INTO questions VALUES (?, ?, ?)",
                (_hash(secret), case.id, to_ms(expires_at)),
            )
        return secret

    def asked(self, secret: str, now: datetime) -> PolicyCase | None:
        """The case that a link is about; None: unknown, used or expired. Raises CaseStoreError."""
        rows = self._rows(
            "SELECT body FROM questions JOIN cases USING (id) WHERE hash = ? AND expires_ms > ?",
            *(_hash(secret), to_ms(now)),
        )
        return _case(rows[0][0]) if rows else None

    def answer(self, secret: str, case: PolicyCase, now: datetime, note: PolicyNote) -> bool:
        """Store the case after an answer, and use up all links of the case; False: another answer was first.

        Raises CaseStoreError.
        """
        with self._writing():
            used = self._db.execute(
                "DELETE FROM questions WHERE hash = ? AND expires_ms > ?",
                (_hash(secret), to_ms(now)),
            )
            if not used.rowcount:
                return False
            self._note([note])
            self._db.execute("DELETE FROM questions WHERE id = ?", (case.id,))
            self._db.execute(
                "UPDATE cases SET body = ?, is_listed = 0 WHERE id = ?",
                (msgspec.json.encode(case), case.id),
            )
        return True

    def see(self, digest: str, now: datetime) -> None:
        """Note that the dry run of a policy was read. Raises CaseStoreError."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?)", (digest, to_ms(now)))

    def seen(self) -> frozenset[str]:
        """Digests of policies whose dry run was read. Raises CaseStoreError."""
        return frozenset(digest for (digest,) in self._rows("SELECT digest FROM seen"))

    def stop(self, by: str, now: datetime) -> None:
        """Let nothing be said or done. Raises CaseStoreError."""
        with self._writing():
            self._db.execute("DELETE FROM stopped")
            self._db.execute("INSERT INTO stopped VALUES (?, ?)", (to_ms(now), by))

    def start(self) -> None:
        """End `stop`. Raises CaseStoreError."""
        with self._writing():
            self._db.execute("DELETE FROM stopped")

    def stopped(self) -> tuple[datetime, str] | None:
        """Since when and by whom policies are stopped; None: they are not. Raises CaseStoreError."""
        rows = self._rows("SELECT at_ms, by FROM stopped")
        return (from_ms(rows[0][0]), rows[0][1]) if rows else None

    def _rows(self, sql: str, *params: object) -> list[tuple]:  # type: ignore[type-arg]
        try:
            with self._lock:
                return self._db.execute(sql, params).fetchall()
        except sqlite3.Error as error:
            raise CaseStoreError(f"{self._path}: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction. Raises CaseStoreError."""
        try:
            with self._lock, transaction(self._db):
                yield
        except sqlite3.Error as error:
            raise CaseStoreError(f"{self._path}: {error}") from error


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _case(body: bytes) -> PolicyCase:
    return msgspec.json.decode(body, type=PolicyCase)
