"""Runs a query process: takes one query at a time, checks it, runs it and sends encoded rows as they come.

It waits while the other side does not take rows. It can be killed at any time: it opens lake and state file,
and maps segments, only for reading; a process of a team opens nothing. The kernel limits its memory (RLIMIT_DATA), its CPU time (RLIMIT_CPU)
and the files that it may open (`sandbox.py`); DuckDB limits its spilled bytes. The querier interrupts a late
query, and kills the process if that does not help.
"""

import os
import pickle
import queue
import re
import resource
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.query import ExpectedQuery, LakeAwayError, QueryError
from gpuwarden.teams import Team
from gpuwarden_collector.processes.channel import ChannelError, receive, send
from gpuwarden_collector.processes.footprint import Memory
from gpuwarden_collector.processes.sandbox import Needs, confine, installation
from gpuwarden_collector.query.complaints import complaint
from gpuwarden_collector.query.execute import DatabaseFault, Interrupted, Runner, check_bytes
from gpuwarden_collector.query.formats import encoder_of
from gpuwarden_collector.query.guard import NOBODY
from gpuwarden_collector.query.port import Dialect, Ending
from gpuwarden_collector.query.team_rows import TeamRows, borrowed, serve_readers
from gpuwarden_collector.query.team_store import TeamStore
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.engine import Engine, EngineLimits
from gpuwarden_collector.storage.errors import StoreUnavailableError, is_fault
from gpuwarden_collector.storage.hot import RowsSince
from gpuwarden_collector.storage.recent_rows import RecentRows
from gpuwarden_collector.storage.segment import FOLDER
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

RSS_BYTES_MAX = 512 * 1024 * 1024
"""A process with more memory after a query is replaced, because it may never return that memory."""
PART_BYTES = 256 * 1024
"""Size of encoded rows from which they are sent."""
PART_BYTES_MAX = 1024 * 1024
"""Largest message."""
_CPU_SPARE_S = 5


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a query process."""

    data_dir: Path
    address: LakeAddress
    limits: EngineLimits
    spill: Path
    """Its spill folder."""
    data_bytes_max: int
    """Limit of private memory, as the kernel counts it; 0: no limit."""
    newest: Path | None = None
    """Folder with files of newest rows and waste."""
    is_lake_away: bool = False
    """The lake cannot be opened: answer from segments and state file alone."""
    recent_bytes_max: int = 0
    """Memory for rows that are kept for repeated queries (`storage/recent_rows.py`); 0: none."""
    dialects: Mapping[str, str] = field(default_factory=dict)
    """Classes of dialects other than DuckDB's by name, as `module:class`."""

    def of_team(self, team: Team) -> "TeamSettings":
        """Settings of a process of a team."""
        return TeamSettings(team, self.limits, self.spill, self.data_bytes_max, self.dialects)


@dataclass(frozen=True, slots=True)
class TeamSettings:
    """Settings of a process that runs queries of one team, which name no place of the store."""

    team: Team
    limits: EngineLimits
    spill: Path
    data_bytes_max: int
    dialects: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One query."""

    number: int
    form: str
    """Encoding of the rows: `json`, `ndjson`, `csv`, `parquet`, `arrow`, or one of the dialect's."""
    sql: str
    params: Mapping[str, Any]
    row_limit: int
    limit_s: float
    spill_bytes_max: int = 0
    bytes_max: int | None = None
    """Limit of the rows' bytes, if the querier holds them all; None: no limit."""
    is_own_limit: bool = False
    """Whether the client chose `row_limit`."""
    log_of: str = NOBODY
    """The token whose own rows of admins' tables it may read, `ALL`, or `NOBODY`."""
    newest: Mapping[str, str] = field(default_factory=dict)
    """Files of newest rows and waste, by table."""
    dialect: str = ""
    """One of `WorkerSettings.dialects`; "": DuckDB's."""
    team: Team | None = None
    """The team whose rows it may see; a process of another team refuses it."""
    expected: Sequence[ExpectedQuery] | None = None
    """Queries that will be repeated; None: unchanged."""


def work(sock: socket.socket) -> None:
    """Serve queries of the whole store until the other side closes the socket."""
    memory = _Limit()
    if (runner := _opened(sock, memory, _runner)) is not None:
        _serve(sock, memory, runner)


def work_for_team(sock: socket.socket, gate: socket.socket) -> None:
    """Serve queries of one team, as `work`. With each query a socket for its rows comes through the gate."""
    memory = _Limit()
    if (runner := _opened(sock, memory, _team_runner)) is not None:
        _serve(sock, memory, runner, gate)


def work_on_rows(sock: socket.socket, gate: socket.socket) -> None:
    """Read rows for processes of teams until the other side closes the gate."""
    memory = _Limit()
    rows = _opened(sock, memory, lambda settings: TeamRows(partial(_engine, settings)))
    if rows is not None:
        serve_readers(gate, rows, memory)


T = TypeVar("T")


def _opened(sock: socket.socket, memory: "_Limit", open_rows: Callable[[Any], T]) -> T | None:
    """Receive the settings, confine this process, and open what it reads; None: that failed, or is no longer needed."""
    try:
        _, body = receive(sock)
    except ChannelError:
        return None
    settings: WorkerSettings | TeamSettings = pickle.loads(body)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        # If memory runs out, the kernel should kill a query process first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        settings.spill.mkdir(parents=True, exist_ok=True)
        in_force = confine(needs(settings))
        rows = open_rows(settings)
    except (duckdb.Error, sqlite3.Error, OSError, StartError, StoreUnavailableError) as error:
        send(sock, {"kind": "failed", "reason": str(error).partition("\n")[0]})
        return None
    # Not earlier: to check an extension's signature DuckDB starts a thread for each MiB of it, and their
    # stacks need half as much memory as the process needs later.
    memory.limit(settings.data_bytes_max)
    send(sock, {"kind": "ready", "held": sorted(in_force)})
    return rows


def _serve(
    sock: socket.socket, memory: "_Limit", runner: Runner, gate: socket.socket | None = None
) -> None:
    waiting: queue.SimpleQueue[QueryRequest] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(sock, waiting, runner), daemon=True)
    listener.start()
    while True:
        request = waiting.get()
        _bound_cpu(request.limit_s, runner.threads)
        if request.expected is not None:
            runner.expect(request.expected)
        try:
            with _reading_rows(runner, gate):
                header, last = _answer(runner, request, sock)
            if memory.has_grown:
                runner.release_memory()
                memory.give_back()
            is_spent = bool(header.pop("is_spent", False)) or memory.is_spent
            send(sock, {"number": request.number, "is_spent": is_spent, **header}, last)
        except (OSError, ChannelError):
            return
        del last


@contextmanager
def _reading_rows(runner: Runner, gate: socket.socket | None) -> Iterator[None]:
    """Let a process of a team read its rows within the block. Raises OSError."""
    if gate is None or runner.team_store is None:
        yield
        return
    with runner.team_store.connected(borrowed(gate)):
        yield


def needs(settings: WorkerSettings | TeamSettings) -> Needs:
    """Files that a query process reads and writes."""
    if isinstance(settings, TeamSettings):
        return Needs(installation(), (settings.spill,), network=False)
    if settings.address.is_shared or settings.address.is_remote:
        # libpq and TLS read passwords, certificates and host names from many places.
        return Needs((Path("/"),), (settings.spill,), network=True)
    state = settings.data_dir / FILE_NAME
    catalogue = Path(settings.address.catalog)
    readable = (
        *installation(),
        *(state.with_name(f"{state.name}{end}") for end in ("", "-wal")),
        settings.data_dir / FOLDER,
        catalogue.parent,
        Path(settings.address.data),
        *([settings.newest] if settings.newest else []),
    )
    # A reader of an SQLite file writes its position there. If no process has the catalogue open, the reader
    # creates the file.
    shared = [Path(f"{path}-shm") for path in (state, catalogue)]
    if not shared[1].exists():
        shared.append(catalogue.parent)
    return Needs(readable, (settings.spill, *shared), network=False)


class _Limit(Memory):
    """Memory of this process, with a limit."""

    def __init__(self) -> None:
        super().__init__()
        self._data_bytes_max = 0

    def limit(self, data_bytes_max: int) -> None:
        """Limit private memory, as the kernel counts it; 0: no limit."""
        if data_bytes_max and sys.platform == "linux":  # elsewhere mapped memory does not count
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes_max,) * 2)
            _, data_bytes = self.read()
            # Replace the process before its leftover memory makes the next query fail.
            self._data_bytes_max = data_bytes + max(0, data_bytes_max - data_bytes) // 4

    @property
    def is_spent(self) -> bool:
        """Whether a new process should answer the next query."""
        rss_bytes, data_bytes = self.read()
        return rss_bytes > RSS_BYTES_MAX or 0 < self._data_bytes_max < data_bytes


def _engine(settings: WorkerSettings, rows_since: RowsSince | None = None) -> Engine:
    return Engine(
        settings.data_dir,
        settings.address,
        StateFile(settings.data_dir / FILE_NAME, is_read_only=True),
        settings.limits,
        reads_alone=True,
        is_lake_away=settings.is_lake_away,
        spill_dir=settings.spill,
        rows_since=rows_since,
    )


def _runner(settings: WorkerSettings) -> Runner:
    if not settings.recent_bytes_max or settings.is_lake_away:
        return Runner(_engine(settings), dialects=settings.dialects)
    rows_since = RowsSince()
    engine = _engine(settings, rows_since)
    recent = RecentRows(engine, rows_since, SystemClock(), settings.recent_bytes_max)
    return Runner(engine, recent, settings.dialects)


def _team_runner(settings: TeamSettings) -> Runner:
    store = TeamStore(settings.team, settings.limits, settings.spill)
    return Runner(store, dialects=settings.dialects)


def _listen(
    sock: socket.socket, waiting: "queue.SimpleQueue[QueryRequest]", runner: Runner
) -> None:
    """Receive queries and interrupts; end the process when the other side closes the socket."""
    try:
        while True:
            header, body = receive(sock)
            if header["kind"] == "interrupt":
                runner.interrupt(header["number"])
            else:
                request: QueryRequest = pickle.loads(body)
                # No other message is sent now: the last answer is complete, and this one begins later.
                send(sock, {"number": request.number, "kind": "taken"})
                waiting.put(request)
    except (ChannelError, OSError):
        os._exit(0)  # even while a query runs


class _Sending:
    """A sink that encodes rows as they come, and sends each full part."""

    def __init__(
        self, sock: socket.socket, request: QueryRequest, dialect: Dialect | None = None
    ) -> None:
        self._sock = sock
        self._asked = request
        self._encoder_of = encoder_of if dialect is None else dialect.encoder
        self._began_s = time.monotonic()
        self.has_sent = False

    def begin(self, schema: Any, types: tuple[str, ...]) -> None:
        """Start with these columns."""
        self._schema, self._types = schema, types
        self._encoder = self._encoder_of(self._asked.form, schema, types)
        self._encoded = bytearray(self._encoder.begin())
        self._held: list[Any] = []
        self._held_bytes = self._used_bytes = self._rows = 0

    def take(self, batch: Any) -> None:
        """Add rows. Raises ChannelError when the other side has ended."""
        size = batch.nbytes
        if self._asked.bytes_max is not None:
            self._used_bytes += size
            check_bytes(self._used_bytes, self._asked.bytes_max)
        self._rows += batch.num_rows
        self._held.append(batch)
        self._held_bytes += size
        if self._held_bytes >= self._encoder.batch_bytes:
            self._encode()
            if len(self._encoded) >= PART_BYTES:
                self._send()

    def ended(self, *, truncated: bool) -> tuple[dict[str, Any], bytes | bytearray]:
        """The last message, with the rest of the rows."""
        self._encode()
        took_s = time.monotonic() - self._began_s
        ending = Ending(self._rows, truncated, took_s, self._asked.is_own_limit)
        self._encoded += self._encoder.end(ending)
        if len(self._encoded) > PART_BYTES_MAX:
            self._send()
        return {"kind": "end", "truncated": truncated, "rows": self._rows, **self._columns()}, (
            self._encoded
        )

    def _encode(self) -> None:
        if self._held:
            data = pa.Table.from_batches(self._held, schema=self._schema)
            self._held, self._held_bytes = [], 0
            self._encoded += self._encoder.rows(data)

    def _send(self) -> None:
        header = {"number": self._asked.number, "kind": "part", **self._columns()}
        try:
            for at in range(0, len(self._encoded), PART_BYTES_MAX):
                header["is_whole"] = at + PART_BYTES_MAX >= len(self._encoded)
                send(self._sock, header, memoryview(self._encoded)[at : at + PART_BYTES_MAX])
                self.has_sent = True
                header = {"number": self._asked.number, "kind": "part"}
        except OSError as error:
            raise ChannelError("the other side takes no rows") from error
        self._encoded = bytearray()

    def _columns(self) -> dict[str, Any]:
        if self.has_sent:
            return {}
        return {"names": self._schema.names, "types": list(self._types)}


def _answer(
    runner: Runner, request: QueryRequest, sock: socket.socket
) -> tuple[dict[str, Any], bytes | bytearray]:
    """Run a query and send its rows; the last message of the answer."""
    if request.team != runner.team:
        return {"kind": "wrong", "reason": "the query came to a process of another team"}, b""
    dialect = runner.dialect(request.dialect) if request.dialect else None
    sending, peak_before = _Sending(sock, request, dialect), _peak_bytes()
    try:
        runner.limit_spill(request.spill_bytes_max)
        if request.dialect and request.form.endswith("-describe"):
            description = runner.describe(
                request.number,
                request.sql,
                request.params,
                log_of=request.log_of,
                dialect=request.dialect,
            )
            header = {"truncated": False, "rows": 0, "names": [], "types": []}
            return {"kind": "end", **header}, runner.dialect(request.dialect).described(description)
        truncated = runner.run(
            request.number,
            sending,
            request.sql,
            request.params,
            request.row_limit,
            request.newest,
            log_of=request.log_of,
            dialect=request.dialect,
        )
        header, last = sending.ended(truncated=truncated)
        peak = _peak_bytes()
        return {**header, "memory_bytes": peak if peak > peak_before else None}, last
    except Interrupted:
        return {"kind": "interrupted"}, b""
    except LakeAwayError as error:
        return {"kind": "away", "reason": error.reason}, b""
    except DatabaseFault as error:
        return {"kind": "fault", "reason": str(error), "is_spent": True}, b""
    except QueryError as error:
        if not runner.is_lake_readable():
            return _unreadable(error.reason)
        fields = {"reason": error.reason, "offset": error.offset, "hint": error.hint}
        return {"kind": "wrong", **fields}, b""
    except StoreUnavailableError as error:
        return _unreadable(str(error))
    except RecursionError:
        return {"kind": "wrong", "reason": "the result is nested too deeply"}, b""
    except (MemoryError, duckdb.OutOfMemoryException):
        return {
            "kind": "wrong",
            "reason": "the query needs more memory than the collector gives it: "
            "select a shorter time or fewer columns, or aggregate",
            "is_spent": True,
        }, b""
    except duckdb.Error as error:
        if is_fault(error):
            return {"kind": "fault", "reason": str(error), "is_spent": True}, b""
        return {"kind": "wrong", "reason": complaint(str(error), request.sql).reason}, b""


def _unreadable(reason: str) -> tuple[dict[str, Any], bytes]:
    # A new process may succeed: files may exist now that did not when this one started.
    text = f"the store cannot be read now: {reason}"
    return {"kind": "unreadable", "reason": text, "is_spent": True}, b""


def _peak_bytes() -> int:
    """Peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _bound_cpu(limit_s: float, threads: int) -> None:
    """Let the kernel kill this process if it computes for much longer than the query may take."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most_s = used.ru_utime + used.ru_stime + (limit_s + _CPU_SPARE_S) * threads
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(most_s) + 1, hard))


IDLE_BYTES = 256 * 1024 * 1024
"""Memory of a process before its first query, 210 MiB as the kernel counts it, with some room."""
_SHARE = 8
_LIMIT_BYTES_MAX = 1024 * 1024 * 1024
_LIMIT_BYTES_MIN = 64 * 1024 * 1024
_DATA_FACTOR = 2.5
_RECENT_BYTES_MAX = 128 * 1024 * 1024
"""With more rows a process would soon exceed `RSS_BYTES_MAX`."""
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(B|[KMGT]I?B?)\s*", re.IGNORECASE)


def limits(memory_limit: str | None) -> tuple[str, int]:
    """DuckDB's and the kernel's memory limit of a query process, from the setting or from this machine's memory.

    DuckDB's limit covers buffers, but not a single list or text, nor the result as Python's values. The kernel's
    higher limit covers these. Raises StartError.
    """
    if memory_limit is None:
        size = max(_LIMIT_BYTES_MIN, min(_LIMIT_BYTES_MAX, machine_bytes() // _SHARE))
        memory_limit = f"{size >> 20}MiB"
    return memory_limit, IDLE_BYTES + int(_DATA_FACTOR * size_bytes(memory_limit))


def recent_bytes_max(memory_limit: str) -> int:
    """Memory for rows that a process keeps for rules: a part of DuckDB's limit. Raises StartError."""
    return min(_RECENT_BYTES_MAX, size_bytes(memory_limit) // 4)


def size_bytes(text: str) -> int:
    """Parse a size of DuckDB, such as 512MiB or 8GB. Raises StartError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise StartError(f"query_memory_limit is {text!r}: give a size such as 512MiB or 4GiB")
    unit = match[2].upper().rstrip("B")
    base = 1024 if unit.endswith("I") else 1000
    return int(float(match[1]) * base ** " KMGT".index(unit[:1] or " "))


def machine_bytes(root: Path = Path("/")) -> int:
    """Memory that this process can have: the machine's, or the limit of its control group."""
    return min([_total_bytes(root), *_group_bytes(root)])


def _total_bytes(root: Path) -> int:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    # A service may be unable to read /proc/meminfo (ProcSubset=pid).
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_bytes(root: Path) -> Iterator[int]:
    """Limits of the control group and its parents, for both versions of the interface."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # "max" is not a number
                    yield int((folder / name).read_text())
                if folder == top:
                    break
