"""Coordinates the collectors of one lake through PostgreSQL: elects the maintenance leader, orders seals,
takes claims, shares silences and what must continue when a node moves.

The first two are advisory locks. A session of its own holds each lock while a transaction is open on it; when a
collector dies, its session ends and the lock is free. At READ COMMITTED an idle transaction holds no
snapshot, so PostgreSQL can vacuum.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import duckdb

from gpuwarden.alert import SharedSilence
from gpuwarden.cluster import ClusterAnswer, ClusterAsk, MovingState, NodeClaim
from gpuwarden.query import text_sql
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.extensions import load_extension
from gpuwarden_collector.storage.sql import scalar

_SPACE = 0x67707577
"""First half of the locks' numbers: "gpuw"."""
_MAINTAINING, _SEALING = 1, 2
SEAL_WAIT_S = 60.0
"""Longest wait for other collectors to finish sealing."""
_LOOK_S = 0.2
_CLAIMS = (
    "CREATE TABLE IF NOT EXISTS gpuwarden_claims (name TEXT PRIMARY KEY, collector TEXT NOT NULL, "
    "claimed_at TIMESTAMPTZ NOT NULL DEFAULT now())"
)
_OLD_CLAIMS = "DELETE FROM gpuwarden_claims WHERE claimed_at < now() - INTERVAL '400 days'"

_SILENCES = (
    "CREATE TABLE IF NOT EXISTS gpuwarden_silences (id TEXT PRIMARY KEY, changes BIGINT NOT NULL, "
    "ends_ms BIGINT NOT NULL, body TEXT NOT NULL)"
)
_OLD_SILENCES = "DELETE FROM gpuwarden_silences WHERE ends_ms < extract(epoch FROM now() - INTERVAL '400 days') * 1000"
"""A collector that was away for a shorter time learns which of its silences were ended."""

_NODES = "CREATE TABLE IF NOT EXISTS gpuwarden_nodes (node TEXT PRIMARY KEY, collector TEXT NOT NULL, claimed_ms BIGINT NOT NULL)"
_STATE = (
    "CREATE TABLE IF NOT EXISTS gpuwarden_state (kind TEXT NOT NULL, id TEXT NOT NULL, node TEXT NOT NULL, "
    "collector TEXT NOT NULL, put_ms BIGINT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, id))"
)
_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::BIGINT"
_OLD_STATE = f"DELETE FROM gpuwarden_state WHERE put_ms < {_NOW_MS} - 30 * 86400000::BIGINT"


class Coordination:
    """Locks that the collectors of a lake share; a local catalogue has one collector and needs none."""

    def __init__(self, address: LakeAddress) -> None:
        self._address = address
        self._turn = threading.Lock()
        self._server: duckdb.DuckDBPyConnection | None = None
        self._leading: _Session | None = None
        self._interrupted = threading.Event()
        self._made: frozenset[str] = frozenset()
        """Statements of tables that this process has run."""

    @property
    def is_shared(self) -> bool:
        """Whether there may be other collectors."""
        return self._address.is_shared

    def is_leader(self) -> bool:
        """Try to become the maintenance leader; whether this collector is it.

        False while PostgreSQL does not answer. Blocks until it answers or fails.
        """
        if not self.is_shared:
            return True
        with self._turn:
            try:
                self._leading = self._leading or _Session(self._cursor())
                return self._leading.locks(_MAINTAINING, is_exclusive=True)
            except duckdb.Error:
                self._forget()
                return False

    def claim(self, name: str, collector: str) -> bool:
        """Claim what only one collector may do; whether it is this one's, also if it was claimed before.

        Raises StoreUnavailableError when PostgreSQL does not answer.
        """
        if not self.is_shared:
            return True
        insert = (
            f"INSERT INTO gpuwarden_claims (name, collector) VALUES ({text_sql(name)}, {text_sql(collector)}) "
            "ON CONFLICT (name) DO NOTHING"
        )
        find = f"SELECT collector FROM gpuwarden_claims WHERE name = {text_sql(name)}"
        ((found,),) = self._ask((_CLAIMS,), (_OLD_CLAIMS, insert), find)
        return bool(found == collector)

    def share_silences(
        self, ours: Sequence[SharedSilence], known: Sequence[str], since_ms: int
    ) -> list[SharedSilence]:
        """Store silences that are newer than those that are stored; all that end after `since_ms`, and those of `known`.

        Of two versions the one that was changed more often is newer, and of equal ones that with the earlier end. Empty
        with a local catalogue. Raises StoreUnavailableError when PostgreSQL does not answer.
        """
        if not self.is_shared:
            return []
        values = ", ".join(
            f"({text_sql(one.id)}, {one.changes:d}, {one.ends_ms:d}, {text_sql(one.body)})"
            for one in ours
        )
        insert = (
            f"INSERT INTO gpuwarden_silences AS old VALUES {values} ON CONFLICT (id) DO UPDATE SET "
            "changes = excluded.changes, ends_ms = excluded.ends_ms, body = excluded.body "
            "WHERE (excluded.changes, -excluded.ends_ms) > (old.changes, -old.ends_ms)"
        )
        ids = ", ".join(["NULL", *map(text_sql, known)])
        find = (
            "SELECT id, changes, ends_ms, body FROM gpuwarden_silences "
            f"WHERE ends_ms > {since_ms:d} OR id IN ({ids})"
        )
        rows = self._ask((_SILENCES,), (_OLD_SILENCES, insert) if ours else (), find)
        return [SharedSilence(*row) for row in rows]

    def exchange(self, collector: str, asked: ClusterAsk) -> ClusterAnswer:
        """Claim nodes, store and delete state of this collector, and answer what was asked for; nothing with a local
        catalogue. Raises StoreUnavailableError when PostgreSQL does not answer."""
        if not self.is_shared:
            return ClusterAnswer([], [])
        me = text_sql(collector)
        owners = f"SELECT node, collector = {me}, claimed_ms FROM gpuwarden_nodes WHERE claimed_ms >= {asked.since_ms:d}"
        nodes = ", ".join(map(text_sql, asked.take))
        state = (
            f"SELECT kind, id, node, body FROM gpuwarden_state WHERE collector <> {me} "
            f"AND (kind = 'notice' OR node IN ({nodes}))"
        )
        found = self._ask((_NODES, _STATE), _changes(me, asked), owners)
        rows = self._ask((), (), state) if asked.take else []
        return ClusterAnswer(
            [NodeClaim(*row) for row in found], [MovingState(*row) for row in rows]
        )

    @contextmanager
    def sealing(self, *, is_exclusive: bool) -> Iterator["SealingTurn"]:
        """Hold the lock for sealing in a shared lake, shared with other collectors unless `is_exclusive`.

        Raises StoreUnavailableError when PostgreSQL does not answer, or others hold the lock too long.
        """
        session = None
        try:
            try:
                with self._turn:
                    session = _Session(self._cursor())
                until_s = time.monotonic() + SEAL_WAIT_S
                while not session.locks(_SEALING, is_exclusive=is_exclusive):
                    if self._interrupted.wait(_LOOK_S) or time.monotonic() >= until_s:
                        raise StoreUnavailableError("other collectors are sealing")
            except duckdb.Error as error:
                raise StoreUnavailableError(one_line(error)) from error
            yield SealingTurn(session)
        finally:
            if session is not None:
                session.close()

    def interrupt(self) -> None:
        """End the wait for the lock for sealing permanently: the collector stops."""
        self._interrupted.set()

    def close(self) -> None:
        """Release the locks and close the connections."""
        with self._turn:
            self._forget()
            if self._server is not None:
                self._server.close()
                self._server = None

    def _ask(
        self, tables: Iterable[str], changes: Iterable[str], query: str
    ) -> list[tuple[Any, ...]]:
        """Create tables, once a process, make changes, and the rows of a query, all in PostgreSQL's SQL.

        Raises StoreUnavailableError when PostgreSQL does not answer.
        """
        try:
            with self._turn:
                cursor = self._cursor()
            with closing(cursor):
                made = [sql for sql in tables if sql not in self._made]
                for sql in (*made, *changes):
                    cursor.execute("CALL postgres_execute('server', $1)", [sql])
                self._made = self._made.union(made)
                asked = cursor.execute("SELECT * FROM postgres_query('server', $1)", [query])
                return asked.fetchall()
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error

    def _forget(self) -> None:
        if self._leading is not None:
            self._leading.close()
            self._leading = None

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor of a DuckDB instance of its own: in the instance with the samples a query could read
        the server's tables."""
        if self._server is None:
            server = duckdb.connect(config={"threads": 1, "memory_limit": "64MiB"})
            load_extension(server, "postgres_scanner")
            conninfo = text_sql(self._address.catalog)
            server.execute(
                f"ATTACH {conninfo} AS server (TYPE postgres, ISOLATION_LEVEL 'READ COMMITTED')"
            )
            self._server = server
        return self._server.cursor()


def _changes(me: str, asked: ClusterAsk) -> Iterator[str]:
    """Statements that store what a collector tells. `me`: its identity as SQL."""
    if asked.heard:
        rows = ", ".join(f"({text_sql(node)}, {me}, {_NOW_MS})" for node in asked.heard)
        yield (
            f"INSERT INTO gpuwarden_nodes AS old VALUES {rows} ON CONFLICT (node) DO UPDATE SET "
            "collector = excluded.collector, claimed_ms = excluded.claimed_ms WHERE old.collector <> excluded.collector"
        )
    if asked.put:
        rows = ", ".join(
            f"({text_sql(one.kind)}, {text_sql(one.id)}, {text_sql(one.node)}, {me}, {_NOW_MS}, {text_sql(one.body)})"
            for one in asked.put
        )
        yield (
            f"INSERT INTO gpuwarden_state VALUES {rows} ON CONFLICT (kind, id) DO UPDATE SET node = excluded.node, "
            "collector = excluded.collector, put_ms = excluded.put_ms, body = excluded.body"
        )
        yield _OLD_STATE
    if asked.gone:
        keys = ", ".join(f"({text_sql(kind)}, {text_sql(name)})" for kind, name in asked.gone)
        yield f"DELETE FROM gpuwarden_state WHERE collector = {me} AND (kind, id) IN ({keys})"


class SealingTurn:
    """The lock for sealing, held until its block ends or the connection is lost."""

    def __init__(self, session: "_Session") -> None:
        self._session = session

    def check(self) -> None:
        """Raise StoreUnavailableError when the lock was lost."""
        try:
            is_same = self._session.is_same()
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error
        if not is_same:
            raise StoreUnavailableError("the connection that held the lock for sealing was lost")


class _Session:
    """A transaction on one connection to PostgreSQL; DuckDB's pool does not reuse it before the end."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._cursor.execute("BEGIN")
        self._pid = self._ask("SELECT pg_backend_pid()::INT")

    def locks(self, number: int, *, is_exclusive: bool) -> bool:
        """Try to take the lock; whether this session holds it."""
        function = f"pg_try_advisory_xact_lock{'' if is_exclusive else '_shared'}"
        return bool(self._ask(f"SELECT {function}({_SPACE}, {number})"))

    def is_same(self) -> bool:
        """Whether the connection is still the one that took the locks."""
        return self._ask("SELECT pg_backend_pid()::INT") == self._pid

    def _ask(self, sql: str) -> object:
        return scalar(self._cursor, "SELECT * FROM postgres_query('server', $1)", [sql])

    def close(self) -> None:
        with suppress(duckdb.Error):
            self._cursor.execute("ROLLBACK")
        self._cursor.close()
