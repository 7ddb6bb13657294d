"""Runs the process that reads the store for processes of teams, which have no way to it.

SQL of a team's readers runs in a process of the team (`team_store.py`), which gets the team's rows alone. This process
reads them with SQL of its own; it never gets SQL of people. For each query the querier connects the two processes by a
pair of sockets, and tells this one whose rows may go there. On that socket messages are JSON:

    {"tables": [names]}                 the tables that a query reads; all later rows are of this moment
    {"table": name, "columns": [names], "conditions": [[column, operator, value]]}
                                        with one end of a pair of sockets, which gets an Arrow stream of the rows
    <- {"kind": "away", "wrong" or "unreadable", "reason": text}    the stream ended early

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
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from gpuwarden.query import LakeAwayError, text_sql, timestamp_sql
from gpuwarden.schema import ADMINS_ONLY, TABLES, UPSERTED, public_views, stored_sql
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
from gpuwarden_collector.query.guard import NOBODY
from gpuwarden_collector.query.lake_away import refuse_before, refuse_rollups
from gpuwarden_collector.query.sources import with_hot
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.errors import (
    StoreUnavailableError,
    is_fault,
    one_line,
    store_error,
    too_much_memory,
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
_BATCH_ROWS = 16_384
_BUFFER_BYTES = 1024 * 1024
_OF_HOLDERS = "gpu_uuid ts username pod"
"""Columns that say who held a GPU when."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors of a message that no process of ours sends."""


class ProcessMemory(Protocol):
    """The memory of this process."""

    @property
    def is_spent(self) -> bool:
        """Whether a new process should answer the next query."""
        ...

    def give_back_if_grown(self) -> None:
        """Return free memory to the kernel."""
        ...


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose rows a socket gets."""

    team: Team
    log_of: str = NOBODY
    """The token whose own rows of admins' tables it gets, or NOBODY."""
    spill_bytes_max: int = 1 << 62
    """Limit of the bytes that all queries here may spill."""


class TeamRows:
    """Reads rows of teams from an engine, for several queries at a time."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        """Raises what `open_engine` raises."""
        self._store_thread = ThreadPoolExecutor(1, "store")
        """The one thread that opens the engine and refreshes it: SQLite's connections belong to their thread."""
        self._engine = self._store_thread.submit(open_engine).result()
        self._lock = threading.Lock()
        self._open = 0
        self._spill_bytes_max = -1

    def serve(
        self, sock: socket.socket, reader: Reader, memory: ProcessMemory | None = None
    ) -> None:
        """Answer on a socket until its other end is closed; closes it. With `memory`, ends this process once that is
        spent and no query is open: those that come get another process."""
        with self._lock:
            self._open += 1
        query = _Query(self._engine, self._store_thread, sock, reader)
        try:
            if reader.spill_bytes_max != self._spill_bytes_max:
                self._spill_bytes_max = reader.spill_bytes_max
                self._store_thread.submit(self._engine.limit_spill, reader.spill_bytes_max).result()
            query.serve()
        except (*_MALFORMED, OSError):
            pass  # the other process has ended, or is none of ours
        finally:
            query.close()
            with self._lock:
                self._open -= 1
                if memory is not None:
                    memory.give_back_if_grown()
                    if not self._open and memory.is_spent:
                        os._exit(0)


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition of a scan that leaves out rows which the query does not need."""

    sql: str
    since: datetime | None
    """Bounds of `ts`."""
    until: datetime | None


@dataclass(frozen=True, slots=True)
class _Scan:
    """Rows of a table that a query needs."""

    name: str
    schema: Any
    conditions: Sequence[_Condition]


@dataclass(slots=True)
class _Moment:
    """The store as it was when a query began."""

    names: frozenset[str] = frozenset()
    lake: dict[str, LakeTable] = field(default_factory=dict)
    """Files of each table of samples."""
    inlined: dict[str, Any] = field(default_factory=dict)
    """Rows in the lake's catalogue, by table."""
    segments: dict[str, Any] = field(default_factory=dict)
    """Rows that are in no file of the lake, by table."""
    state: dict[str, Any] = field(default_factory=dict)
    """The team's rows of tables of the state file, by table."""
    own_nodes: Any = None
    local_since: datetime | None = None
    """As `Engine.local_since`, where the lake is away."""


class _Query:
    """Reads the rows of one query."""

    def __init__(
        self, engine: Engine, store_thread: ThreadPoolExecutor, sock: socket.socket, reader: Reader
    ) -> None:
        self._engine = engine
        self._store_thread = store_thread
        self._sock = sock
        self._team, self._log_of = reader.team, reader.log_of
        self._lock = threading.Lock()
        """Of what its scans change."""
        self._scans: dict[socket.socket, duckdb.DuckDBPyConnection] = {}
        """Open scans by their streams."""
        self._is_ended = False
        self._moment = _Moment()
        self._refused: Mapping[str, str] = {}
        """Why the store could not be read, as the answer to each scan; empty: it could."""

    def serve(self) -> None:
        """Answer until the other end is closed. Raises OSError, and an error of `_MALFORMED`."""
        while True:
            message, ends, _, _ = socket.recv_fds(self._sock, MESSAGE_BYTES_MAX, 1)
            stream = _socket_of(ends)
            try:
                if not message:
                    return
                request = json.loads(message)
                if stream is None:
                    self._refused = self._open_moment(frozenset(request["tables"]))
                elif self._refused:
                    self._answer(self._refused)
                else:
                    scan = self._scan_of(**request)
                    if self._start(stream, scan):
                        stream = None
            finally:
                if stream is not None:
                    stream.close()

    def close(self) -> None:
        """Interrupt its scans, and close the socket."""
        with self._lock:
            self._is_ended = True
            for stream, cursor in self._scans.items():
                with suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)
                with suppress(duckdb.Error):
                    cursor.interrupt()
        self._sock.close()

    def _open_moment(self, names: frozenset[str]) -> Mapping[str, str]:
        """Read the store's state of now; why that failed, as an answer, or empty."""
        try:
            tables = names & TEAM_SCHEMAS.keys()
            self._moment = self._store_thread.submit(self._read_moment, tables).result()
        except (duckdb.Error, StoreUnavailableError, LakeAwayError, OSError, MemoryError) as error:
            return _refusal(error)
        return {}

    def _read_moment(self, names: frozenset[str]) -> _Moment:
        """Raises duckdb.Error, LakeAwayError, StoreUnavailableError."""
        engine, samples = self._engine, set(names & set(TABLE_NAMES))
        if OTHERS_1H in names:
            samples.add(WASTE_1H.table.name)
        if HELD & names and self._team.has_people:
            samples.update(HOLDERS)
        if engine.is_lake_away:
            refuse_rollups(samples)
        moment = _Moment(names)

        def record_lake(cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
            assert engine.lake is not None
            for name in names:
                moment.inlined.pop(name, None)  # of an earlier try
                moment.lake[name], inlined = engine.lake.table(cursor, name)
                if inlined is not None:
                    moment.inlined[name] = inlined

        with closing(engine.new_cursor()) as cursor:
            moment.segments = dict(engine.look_at(cursor, samples, record_lake))
            if engine.is_lake_away and samples:
                moment.local_since = engine.local_since()
            nodes = cursor.execute(own_nodes_sql(self._team))
            moment.own_nodes = nodes.to_arrow_table(_BATCH_ROWS)
            for name in names & UPSERTED:
                cursor.register(OWN_NODES, moment.own_nodes)
                rows = f"SELECT {stored_sql(TABLES[name])} FROM main.{name} WHERE {visible_sql(self._team, name)}"
                moment.state[name] = cursor.execute(rows).to_arrow_table(_BATCH_ROWS)
        for name, rows in moment.inlined.items():
            listed = [moment.segments[name], rows.cast(TEAM_SCHEMAS[name])]
            moment.segments[name] = pa.concat_tables(listed)
        return moment

    def _scan_of(
        self, table: str, columns: Sequence[str], conditions: Sequence[tuple[str, str, str]]
    ) -> _Scan:
        """Check a request for rows. Raises an error of `_MALFORMED`."""
        if table not in self._moment.names or len({*columns}) != len(columns):
            raise LookupError(table)
        fields = [TEAM_SCHEMAS[table].field(column) for column in columns]
        return _Scan(table, pa.schema(fields), [_condition(table, *one) for one in conditions])

    def _start(self, stream: socket.socket, scan: _Scan) -> bool:
        """Send the rows of a scan in a thread of its own, which closes the stream; False: that cannot begin now."""
        if len(self._scans) >= SCANS_MAX:
            reason = f"the query reads more than {SCANS_MAX} tables at once"
            self._answer({"kind": "wrong", "reason": reason})
            return False
        try:
            cursor = self._engine.new_cursor()
        except duckdb.Error as error:
            self._answer(_refusal(error))
            return False
        with self._lock:
            self._scans[stream] = cursor
        try:
            threading.Thread(target=self._run, args=(stream, scan), daemon=True).start()
        except RuntimeError as error:  # there is no memory for one
            with self._lock:
                self._scans.pop(stream).close()
            self._answer({"kind": "unreadable", "reason": str(error)})
            return False
        return True

    def _run(self, stream: socket.socket, scan: _Scan) -> None:
        cursor = self._scans[stream]
        try:
            self._send(stream, cursor, scan)
        except Exception as error:  # noqa: BLE001  the other process waits for an answer
            # The stream's own errors have a number, DuckDB's have none.
            is_of_stream = isinstance(error, OSError) and error.errno is not None
            if not self._is_ended and not is_of_stream:
                self._answer(_refusal(error))
        finally:
            with self._lock:
                self._scans.pop(stream, None)
                cursor.close()
                stream.close()

    def _answer(self, answer: Mapping[str, str]) -> None:
        with suppress(OSError):
            self._sock.send(json.dumps(answer).encode(), socket.MSG_DONTWAIT)

    def _send(self, stream: socket.socket, cursor: duckdb.DuckDBPyConnection, scan: _Scan) -> None:
        """Raises duckdb.Error, pa.ArrowException, OSError, LakeAwayError."""
        moment = self._moment
        if scan.name in moment.state:
            reader = moment.state[scan.name].select(scan.schema.names).to_reader(_BATCH_ROWS)
        else:
            sql = self._rows_sql(scan)
            words = frozenset(re.findall(r"\w+", sql))
            for name, rows in moment.segments.items():
                if hot_table(name) in words:
                    listed = [column for column in rows.schema.names if column in words]
                    cursor.register(hot_table(name), rows.select(listed))
            cursor.register(OWN_NODES, moment.own_nodes)
            if self._is_ended:
                return
            reader = cursor.execute(sql).to_arrow_reader(_BATCH_ROWS)
        with (
            stream.makefile("wb", _BUFFER_BYTES) as file,
            pa.ipc.new_stream(file, scan.schema) as writer,
        ):
            for batch in reader:
                is_same = batch.schema == scan.schema
                writer.write_batch(batch if is_same else batch.cast(scan.schema))
            writer.close()
            file.write(WHOLE)

    def _rows_sql(self, scan: _Scan) -> str:
        """Return a SELECT of the team's rows of a table, or of `others_1h`. Raises LakeAwayError."""
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
            # A GPU is held by whole minutes.
            first = since and since.replace(second=0, microsecond=0)
            last = until and until.replace(second=59, microsecond=999_999)
            holders = {name: self._stored_sql(name, first, last, _OF_HOLDERS) for name in HOLDERS}
            held = held_minutes_sql(self._team, holders)
        rows = self._stored_sql(scan.name, since, until, f"{listed} {where}")
        return f"{held} SELECT {listed} FROM ({rows}) WHERE {where}"

    def _stored_sql(
        self, name: str, since: datetime | None, until: datetime | None, sql: str
    ) -> str:
        """Return a SELECT of all rows of a table that may be of that time, and some others. `sql`: names the columns that
        it gives. Raises LakeAwayError."""
        if self._engine.is_lake_away:
            refuse_before(self._moment.local_since, since)
        words = frozenset(re.findall(r"\w+", sql))
        columns = [column for column in TEAM_SCHEMAS[name].names if column in words]
        table = self._moment.lake.get(name)
        of_lake = files_sql(name, table, since, until, columns) if table else ()
        return with_hot(name, " UNION ALL ".join(of_lake), columns)

    def _others_sql(self) -> str:
        """Return a SELECT of sums of the rows that the team may not see."""
        rolled = WASTE_1H.table.name
        select = next(view.sql for view in public_views() if view.name == OTHERS_1H)
        hidden = f"WHERE NOT ({visible_sql(self._team, rolled)})"
        rows = self._stored_sql(rolled, None, None, select + hidden)
        return select.replace("WHERE false", hidden).replace(f"FROM {rolled}", f"FROM ({rows})")


def _condition(table: str, column: str, operator: str, value: str) -> _Condition:
    """Check a condition. Raises an error of `_MALFORMED`."""
    kind = TEAM_SCHEMAS[table].field(column).type
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
    """Return the answer to a scan that failed. Ends this process after an error that may have harmed it."""
    if isinstance(error, StoreUnavailableError):
        return {"kind": "unreadable", "reason": str(error)}
    refused = error if isinstance(error, LakeAwayError) else store_error(error)
    if isinstance(refused, LakeAwayError):
        return {"kind": "away", "reason": refused.reason}
    if refused is not None:
        return {"kind": "wrong", "reason": refused.reason}
    if (reason := too_much_memory(error)) is not None:
        return {"kind": "wrong", "reason": reason}
    if is_fault(error):
        log.error("the process that reads the store for teams ends", extra={"error": str(error)})
        os._exit(1)  # all that use it get another one
    return {"kind": "unreadable", "reason": one_line(error)}


def _socket_of(ends: Sequence[int]) -> socket.socket | None:
    """Return the socket that came with a message; None: none came. Raises OSError for another kind of file."""
    if not ends:
        return None
    try:
        sock = socket.socket(fileno=ends[0])
    except OSError:
        os.close(ends[0])
        raise
    sock.setblocking(True)
    return sock


def serve_readers(gate: socket.socket, rows: TeamRows, memory: ProcessMemory) -> None:
    """Serve each socket that comes, in a thread, until the other side closes the gate."""
    while True:
        message, ends, _, _ = socket.recv_fds(gate, MESSAGE_BYTES_MAX, 1)
        if not message:
            return
        sock = _socket_of(ends)
        if sock is None:
            continue
        reader: Reader = pickle.loads(message)
        try:
            threading.Thread(target=rows.serve, args=(sock, reader, memory), daemon=True).start()
        except RuntimeError:  # no memory for a thread: the query gets another process
            sock.close()


def lend(gate: socket.socket, sock: socket.socket, reader: Reader | None = None) -> None:
    """Send a process one end of a query's sockets. Raises OSError."""
    message = b"-" if reader is None else pickle.dumps(reader)
    socket.send_fds(gate, [message], [sock.fileno()], socket.MSG_DONTWAIT)


def borrowed(gate: socket.socket) -> socket.socket:
    """Return the end that came with a query. Raises OSError."""
    _, ends, _, _ = socket.recv_fds(gate, MESSAGE_BYTES_MAX, 1)
    sock = _socket_of(ends)
    if sock is None:
        raise ConnectionError("the querier has ended")
    return sock


def pair() -> tuple[socket.socket, socket.socket]:
    """Make a pair of sockets that keep messages apart. Raises OSError."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
