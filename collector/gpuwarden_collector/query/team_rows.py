"""Runs the process that reads a team's rows from the store, for processes of teams, which have no way to the store.

SQL of a team's readers runs in a process of the team (`team_store.py`), which gets the team's rows alone. This process
reads them with SQL of its own; it never gets SQL of people. For each query the querier connects the two processes by a
pair of sockets, and tells this one whose rows may go there. On that socket messages are JSON:

    {"tables": [names]}                 the tables that a query reads; all later rows are of this moment
    <- {}                               or {"kind": "away", "wrong" or "unreadable", "reason": text}
    {"table": name, "columns": [names], "conditions": [[column, operator, value]]}
                                        with one end of a pair of sockets, which gets an Arrow stream of the rows
    <- {"kind": ..., "reason": text}    the stream ended early

The end of the socket ends all of it.
"""

import json
import logging
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.query import LakeAwayError, text_sql, timestamp_sql
from gpuwarden.schema import ADMINS_ONLY, UPSERTED, views_sql
from gpuwarden.teams import (
    HELD,
    HOLDERS,
    OTHERS_1H,
    OWN_NODES,
    Team,
    held_minutes_sql,
    own_nodes_sql,
    visible_sql,
)
from gpuwarden.waste import WASTE_1H
from gpuwarden_collector.processes.footprint import Memory
from gpuwarden_collector.query.guard import NOBODY
from gpuwarden_collector.query.lake_away import refuse_before, refuse_rollups
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.errors import (
    StoreUnavailableError,
    is_fault,
    one_line,
    store_error,
)
from gpuwarden_collector.storage.lake_catalogue import LakeTable
from gpuwarden_collector.storage.lake_reader import files_sql
from gpuwarden_collector.storage.segment import TABLE_NAMES
from gpuwarden_collector.storage.views import TEAM_SCHEMAS, hot_table

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 128 * 1024
SCANS_MAX = 64
"""Streams of one query at a time; each has a thread."""
WHOLE = b"whole"
"""Bytes behind a stream that has all rows: Arrow takes a stream without its end for whole."""
_ROWS = 8_192
"""Rows that are sent together."""
_BUFFER_BYTES = 1024 * 1024
_OF_HOLDERS = "gpu_uuid ts username pod"
"""Columns that say who held a GPU when."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose rows a socket gets."""

    team: Team
    log_of: str = NOBODY
    """The token whose own rows of admins' tables it gets, or NOBODY."""


class TeamRows:
    """Reads rows of teams from an engine, for several queries at a time."""

    def __init__(self, opened: Callable[[], Engine]) -> None:
        """`opened`: opens the engine. Raises what that raises."""
        self._looks = ThreadPoolExecutor(1, "look")
        """One thread looks at the store for all queries: SQLite's connections belong to it."""
        self._engine = self._looks.submit(opened).result()
        self._memory = Memory()

    def serve(self, sock: socket.socket, reader: Reader) -> None:
        """Answer on a socket until its other end is closed; closes it."""
        query = _Query(self._engine, self._looks, sock, reader)
        with suppress(OSError):  # the other process has ended
            query.serve()
        query.close()
        self._memory.give_back_if_grown()


class _Query:
    """Reads the rows of one query."""

    def __init__(
        self, engine: Engine, looks: ThreadPoolExecutor, sock: socket.socket, reader: Reader
    ) -> None:
        self._engine = engine
        self._looks = looks
        self._sock = sock
        self._team, self._log_of = reader.team, reader.log_of
        self._lock = threading.Lock()
        """Of what its scans change."""
        self._scans: set[duckdb.DuckDBPyConnection] = set()
        self._is_ended = False
        self._lake: dict[str, LakeTable] = {}
        self._inlined: dict[str, Any] = {}
        self._segments: dict[str, Any] = {}
        """Rows of the segments by table."""
        self._state: dict[str, Any] = {}
        """The team's rows of tables of the state file, by table."""
        self._own_nodes: Any = None
        self._local_since: datetime | None = None
        self._names: frozenset[str] = frozenset()
        """Tables of this moment."""

    def serve(self) -> None:
        """Answer until the other end is closed. Raises OSError."""
        while True:
            message, ends, _, _ = socket.recv_fds(self._sock, MESSAGE_BYTES_MAX, 1)
            if not message:
                return
            stream = socket.socket(fileno=ends[0]) if ends else None
            try:
                asked = json.loads(message)
                if stream is None:
                    self._answer(self._begin(frozenset(asked["tables"])))
                elif len(self._scans) >= SCANS_MAX:
                    reason = f"the query reads more than {SCANS_MAX} tables at once"
                    self._answer({"kind": "wrong", "reason": reason})
                else:
                    scan = self._scan_of(asked["table"], asked["columns"], asked["conditions"])
                    given = stream, scan
                    threading.Thread(target=self._scan, args=given, daemon=True).start()
                    stream = None
            except (ValueError, LookupError, TypeError, AttributeError):
                return  # no process of ours sends this
            finally:
                if stream is not None:
                    stream.close()

    def close(self) -> None:
        """Interrupt its scans, and close the socket."""
        with self._lock:
            self._is_ended = True
            for cursor in self._scans:
                with suppress(duckdb.Error):
                    cursor.interrupt()
        self._sock.close()

    def _begin(self, names: frozenset[str]) -> Mapping[str, str]:
        """Look at the store; the answer."""
        try:
            self._looks.submit(self._look, names & TEAM_SCHEMAS.keys()).result()
        except (duckdb.Error, StoreUnavailableError, LakeAwayError) as error:
            return _refusal(error)
        return {}

    def _look(self, names: frozenset[str]) -> None:
        """See one moment of these tables. Raises duckdb.Error, LakeAwayError, StoreUnavailableError."""
        engine, samples = self._engine, set(names & set(TABLE_NAMES))
        if OTHERS_1H in names:
            samples.add(WASTE_1H.table.name)
        if HELD & names and self._team.has_people:
            samples.update(HOLDERS)
        if engine.is_lake_away:
            refuse_rollups(samples)
            self._local_since = engine.local_since()
        with closing(engine.new_cursor()) as cursor:
            self._segments = dict(engine.look_at(cursor, samples, self._see_lake))
            self._own_nodes = cursor.execute(own_nodes_sql(self._team)).to_arrow_table(_ROWS)
            cursor.register(OWN_NODES, self._own_nodes)
            for name in names & UPSERTED:
                rows = f"SELECT * FROM main.{name} WHERE {visible_sql(self._team, name)}"
                self._state[name] = cursor.execute(rows).to_arrow_table(_ROWS)
        for name, rows in self._inlined.items():
            listed = [self._segments[name], rows.cast(TEAM_SCHEMAS[name])]
            self._segments[name] = pa.concat_tables(listed)
        self._names = names

    def _see_lake(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        lake = self._engine.lake
        assert lake is not None
        for name in names:
            self._lake[name], inlined = lake.table(cursor, name)
            if inlined is not None:
                self._inlined[name] = inlined

    def _scan_of(
        self, name: str, columns: Sequence[str], asked: Sequence[tuple[str, str, str]]
    ) -> "_Scan":
        """Raises ValueError, LookupError, TypeError for a scan that no process of a team asks for."""
        if name not in self._names:
            raise LookupError(name)
        fields = [TEAM_SCHEMAS[name].field(column) for column in columns]
        conditions = [_condition(name, *condition) for condition in asked]
        return _Scan(name, pa.schema(fields), conditions)

    def _scan(self, stream: socket.socket, scan: "_Scan") -> None:
        """Send the rows of a table."""
        with closing(stream), closing(self._engine.new_cursor()) as cursor:
            with self._lock:
                if self._is_ended:
                    return
                self._scans.add(cursor)
            try:
                self._send(stream, cursor, scan)
            except (OSError, pa.ArrowException, duckdb.Error, LakeAwayError) as error:
                if not self._is_ended and not isinstance(error, ConnectionError):
                    self._answer(_refusal(error))
            finally:
                with self._lock:
                    self._scans.discard(cursor)

    def _answer(self, answer: Mapping[str, str]) -> None:
        with suppress(OSError):
            self._sock.send(json.dumps(answer).encode())

    def _send(
        self, stream: socket.socket, cursor: duckdb.DuckDBPyConnection, scan: "_Scan"
    ) -> None:
        """Raises duckdb.Error, pa.ArrowException, OSError, LakeAwayError."""
        if scan.name in self._state:
            reader = self._state[scan.name].select(scan.schema.names).to_reader(_ROWS)
        else:
            sql = self._rows_sql(scan)
            words = frozenset(re.findall(r"\w+", sql))
            for name, rows in self._segments.items():
                if hot_table(name) in words:
                    listed = [column for column in rows.schema.names if column in words]
                    cursor.register(hot_table(name), rows.select(listed))
            cursor.register(OWN_NODES, self._own_nodes)
            reader = cursor.execute(sql).to_arrow_reader(_ROWS)
        with (
            stream.makefile("wb", _BUFFER_BYTES) as file,
            pa.ipc.new_stream(file, scan.schema) as writer,
        ):
            for batch in reader:
                is_same = batch.schema == scan.schema
                writer.write_batch(batch if is_same else batch.cast(scan.schema))
            writer.close()
            file.write(WHOLE)

    def _rows_sql(self, scan: "_Scan") -> str:
        """A SELECT of the team's rows of a table, or of `others_1h`. Raises LakeAwayError."""
        listed = ", ".join(f'"{column}"' for column in scan.schema.names)
        if scan.name == OTHERS_1H:
            return f"SELECT {listed} FROM ({self._others_sql()})"
        conditions = [f"({visible_sql(self._team, scan.name)})"]
        if scan.name in ADMINS_ONLY:
            conditions.append(f"token = {text_sql(self._log_of)}")
        conditions += [condition.sql for condition in scan.conditions]
        since = max((c.since for c in scan.conditions if c.since), default=None)
        until = min((c.until for c in scan.conditions if c.until), default=None)
        held, where = "", " AND ".join(conditions)
        if scan.name in HELD and self._team.has_people:
            minute = since and since.replace(second=0, microsecond=0)
            holders = {name: self._stored_sql(name, minute, until, _OF_HOLDERS) for name in HOLDERS}
            held = held_minutes_sql(self._team, holders)
        rows = self._stored_sql(scan.name, since, until, f"{listed} {where}")
        return f"{held} SELECT {listed} FROM ({rows}) WHERE {where}"

    def _stored_sql(
        self, name: str, since: datetime | None, until: datetime | None, sql: str
    ) -> str:
        """A SELECT of all rows of a table that may be of that time, and some others. `sql`: names the columns that it
        gives. Raises LakeAwayError."""
        if self._engine.is_lake_away:
            refuse_before(self._local_since, since)
        words = frozenset(re.findall(r"\w+", sql))
        columns = [column for column in TEAM_SCHEMAS[name].names if column in words]
        listed = ", ".join(f'"{column}"' for column in columns)
        hot = f"SELECT {listed} FROM {hot_table(name)}"
        of_lake = self._lake.get(name)
        return " UNION ALL ".join(
            [*(files_sql(name, of_lake, since, until, columns) if of_lake else ()), hot]
        )

    def _others_sql(self) -> str:
        """Sums of the rows that the team may not see."""
        rolled = WASTE_1H.table.name
        view = next(sql for sql in views_sql().split(";") if f"VIEW {OTHERS_1H} AS" in sql)
        hidden = f"WHERE NOT ({visible_sql(self._team, rolled)})"
        return (
            view.partition(" AS\n")[2]
            .replace("WHERE false", hidden)
            .replace(
                f"FROM {rolled}", f"FROM ({self._stored_sql(rolled, None, None, view + hidden)})"
            )
        )


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition of a scan that leaves out rows which the query does not need."""

    sql: str
    since: datetime | None
    """Bounds of `ts`."""
    until: datetime | None


@dataclass(frozen=True, slots=True)
class _Scan:
    """Rows of a table that a query asks for."""

    name: str
    schema: Any
    conditions: Sequence[_Condition]


def _condition(name: str, column: str, operator: str, value: str) -> _Condition:
    """Raises ValueError, LookupError, TypeError."""
    kind = TEAM_SCHEMAS[name].field(column).type
    if operator not in ("=", "<", "<=", ">", ">=") or "\0" in value:
        raise ValueError(operator)
    if not pa.types.is_timestamp(kind):
        if not pa.types.is_string(kind):
            raise TypeError(column)
        return _Condition(f'"{column}" {operator} {text_sql(value)}', None, None)
    instant = datetime.fromisoformat(value)
    sql = f'"{column}" {operator} {timestamp_sql(instant)}'
    is_bound = column == "ts"
    since = instant if is_bound and operator in ("=", ">", ">=") else None
    until = instant if is_bound and operator in ("=", "<", "<=") else None
    return _Condition(sql, since, until)


def _refusal(error: Exception) -> Mapping[str, str]:
    if is_fault(error):
        log.error("the process that reads the store for teams ends", extra={"error": str(error)})
        os._exit(1)  # all that ask it get another one
    found = store_error(error)
    if isinstance(found, LakeAwayError):
        return {"kind": "away", "reason": found.reason}
    return {"kind": "unreadable", "reason": one_line(error) if found is None else found.reason}


def serve_readers(gate: socket.socket, rows: TeamRows) -> None:
    """Serve each socket that comes, in a thread, until the other side closes the gate."""
    while True:
        message, ends, _, _ = socket.recv_fds(gate, MESSAGE_BYTES_MAX, 1)
        if not message:
            return
        sock = socket.socket(fileno=ends[0])
        reader: Reader = pickle.loads(message)
        threading.Thread(target=rows.serve, args=(sock, reader), daemon=True).start()


def lend(gate: socket.socket, sock: socket.socket, reader: Reader | None = None) -> None:
    """Send a process one end of a query's sockets. Raises OSError."""
    message = b"-" if reader is None else pickle.dumps(reader)
    socket.send_fds(gate, [message], [sock.fileno()], socket.MSG_DONTWAIT)


def borrowed(gate: socket.socket) -> socket.socket:
    """The end that came with a query. Raises OSError."""
    _, ends, _, _ = socket.recv_fds(gate, MESSAGE_BYTES_MAX, 1)
    if not ends:
        raise ConnectionError("the querier has ended")
    return socket.socket(fileno=ends[0])


def pair() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets that keep messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
