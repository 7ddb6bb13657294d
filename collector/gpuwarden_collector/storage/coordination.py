"""Coordinates the collectors of one lake through PostgreSQL: elects who maintains it, and orders seals.

Both are advisory locks, each held by a session of its own for as long as a transaction is open on
it: a collector that dies takes its session with it, and the lock is free. At READ COMMITTED an open
transaction that waits holds no snapshot, so it does not keep PostgreSQL from vacuuming.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb

from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.extensions import load_extension

_SPACE = 0x67707577
"""First half of the locks' numbers: "gpuw"."""
_MAINTAINING, _SEALING = 1, 2
SEAL_WAIT_S = 60.0
"""Most time to wait for the other collectors' sealing."""
_LOOK_S = 0.2


class Coordination:
    """Agreement with the other collectors; with a local catalogue there are none."""

    def __init__(self, address: LakeAddress) -> None:
        self._address = address
        self._turn = threading.Lock()
        self._server: duckdb.DuckDBPyConnection | None = None
        self._leading: _Session | None = None
        self._interrupted = threading.Event()

    @property
    def is_shared(self) -> bool:
        """Whether there may be other collectors."""
        return self._address.is_shared

    def is_leader(self) -> bool:
        """Whether this collector is the one that maintains the lake, taking the office if it is free.

        False while PostgreSQL cannot be asked. Blocks for as long as PostgreSQL takes to answer.
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

    @contextmanager
    def sealing(self, *, is_exclusive: bool) -> Iterator["Sealing"]:
        """A turn at sealing: alone, or beside others that are not alone.

        Raises StoreUnavailableError when PostgreSQL cannot be asked, or others take too long.
        """
        if not self.is_shared:
            yield Sealing(None)
            return
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
            yield Sealing(session)
        finally:
            if session is not None:
                session.close()

    def interrupt(self) -> None:
        """End the wait for a turn at sealing, for good: the collector stops."""
        self._interrupted.set()

    def close(self) -> None:
        """Let go of everything."""
        with self._turn:
            self._forget()
            if self._server is not None:
                self._server.close()
                self._server = None

    def _forget(self) -> None:
        if self._leading is not None:
            self._leading.close()
            self._leading = None

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor of a DuckDB that has nothing but the way to the server: one for the samples would
        show it to whoever may ask."""
        if self._server is None:
            server = duckdb.connect(config={"threads": 1, "memory_limit": "64MiB"})
            load_extension(server, "postgres_scanner")
            conninfo = self._address.catalog.replace("'", "''")
            server.execute(
                f"ATTACH '{conninfo}' AS server (TYPE postgres, ISOLATION_LEVEL 'READ COMMITTED')"
            )
            self._server = server
        return self._server.cursor()


class Sealing:
    """A turn at sealing that lasts until its block ends, or the connection is lost."""

    def __init__(self, session: "_Session | None") -> None:
        self._session = session

    def check(self) -> None:
        """Raise StoreUnavailableError when the turn has been lost."""
        if self._session is None:
            return
        try:
            is_same = self._session.is_same()
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error
        if not is_same:
            raise StoreUnavailableError("the connection that kept the turn at sealing was lost")


class _Session:
    """A transaction on one connection to PostgreSQL, which DuckDB's pool leaves alone until its end."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._cursor.execute("BEGIN")
        self._pid = self._ask("SELECT pg_backend_pid()::INT")

    def locks(self, number: int, *, is_exclusive: bool) -> bool:
        """Whether the lock is this session's, taking it if it is free."""
        function = f"pg_try_advisory_xact_lock{'' if is_exclusive else '_shared'}"
        return bool(self._ask(f"SELECT {function}({_SPACE}, {number})"))

    def is_same(self) -> bool:
        """Whether the connection is still the one that took the locks."""
        return self._ask("SELECT pg_backend_pid()::INT") == self._pid

    def _ask(self, sql: str) -> object:
        row = self._cursor.execute("SELECT * FROM postgres_query('server', $1)", [sql]).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        with suppress(duckdb.Error):
            self._cursor.execute("ROLLBACK")
        self._cursor.close()
