"""The query process: takes one query at a time, judges it, runs it and sends the encoded rows back.

It holds nothing that would be missed: the lake and the state file are open for reading, segments are
mapped for reading. The kernel bounds its memory (RLIMIT_DATA) and its CPU time (RLIMIT_CPU), and what it
may open (`sandbox.py`); DuckDB bounds what it spills. Whoever asked interrupts a query that is late and
kills the process when that does not help.
"""

import os
import pickle
import queue
import resource
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.lifecycle import StartError
from gpuwarden.query import QueryError
from gpuwarden_collector.footprint import Memory
from gpuwarden_collector.query.channel import ChannelError, receive, send
from gpuwarden_collector.query.encode import encoded
from gpuwarden_collector.query.execute import Interrupted, Runner
from gpuwarden_collector.query.sandbox import Needs, confine, installation
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.engine import Engine, EngineLimits
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.segment import FOLDER
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

RSS_BYTES_MAX = 512 * 1024 * 1024
"""A process that holds more after a query is replaced: what it took it may never give back."""
_CPU_SPARE_S = 5


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a query process is started with."""

    data_dir: Path
    address: LakeAddress
    limits: EngineLimits
    spill: Path
    """Folder of its own for what it spills."""
    data_bytes_max: int
    """Most private memory, as the kernel counts it; 0: no limit."""
    result_bytes_max: int
    newest: Path | None = None
    """Folder of files with the newest rows, to be read."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One query."""

    number: int
    sql: str
    params: Mapping[str, Any]
    row_limit: int
    limit_s: float
    spill_bytes_max: int
    form: str
    """How rows are encoded: `json`, `csv`, `parquet`, `arrow`, or `rows` for the process that asks."""
    newest: Mapping[str, str]
    """Files with the newest rows, by table."""


def work(sock: socket.socket) -> None:
    """Serve queries until the other side closes the socket."""
    try:
        _, body = receive(sock)
    except ChannelError:  # it was not wanted any more
        return
    settings: WorkerSettings = pickle.loads(body)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        # Where memory is short a query goes first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    memory = _Limit()
    try:
        settings.spill.mkdir(parents=True, exist_ok=True)
        held = confine(needs(settings))
        runner = _runner(settings)
    except (duckdb.Error, sqlite3.Error, OSError, StartError, StoreUnavailableError) as error:
        send(sock, {"kind": "failed", "reason": str(error).partition("\n")[0]})
        return
    # Only now: to check an extension's signature DuckDB starts a thread for each MiB of it, whose stacks
    # would need half as much again as this process does afterwards.
    memory.limit(settings.data_bytes_max)
    send(sock, {"kind": "ready", "held": sorted(held)})
    waiting: queue.SimpleQueue[QueryRequest] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(sock, waiting, runner), daemon=True)
    listener.start()
    while True:
        asked = waiting.get()
        _bound_cpu(asked.limit_s, settings.limits.threads)
        header, body = _answer(runner, asked)
        if memory.has_grown:
            runner.let_go()
            memory.give_back()
        is_spent = bool(header.pop("is_spent", False)) or memory.is_spent
        try:
            send(sock, {"number": asked.number, "is_spent": is_spent, **header}, body)
        except OSError:
            return
        del body


def needs(settings: WorkerSettings) -> Needs:
    """What a query process reads and writes."""
    if settings.address.is_shared or settings.address.is_remote:
        # Passwords, certificates and names of hosts are wherever libpq and TLS look for them.
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
    # Who reads an SQLite file notes there how far. Where nobody has the catalogue open there is none, and
    # reading makes it.
    shared = [Path(f"{path}-shm") for path in (state, catalogue)]
    if not shared[1].exists():
        shared.append(catalogue.parent)
    return Needs(readable, (settings.spill, *shared), network=False)


class _Limit(Memory):
    """What this process has in memory, and may have."""

    def __init__(self) -> None:
        super().__init__()
        self._data_bytes_max = 0

    def limit(self, data_bytes_max: int) -> None:
        """Let it take no more private memory than that, as the kernel counts it; 0: no limit."""
        if data_bytes_max and sys.platform == "linux":  # elsewhere it does not count what is mapped
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes_max,) * 2)
            _, data_bytes = self.read()
            # So much stays for the next query that it does not fail for what this one has left.
            self._data_bytes_max = data_bytes + max(0, data_bytes_max - data_bytes) // 4

    @property
    def is_spent(self) -> bool:
        """Whether a new process should answer the next query."""
        rss_bytes, data_bytes = self.read()
        return rss_bytes > RSS_BYTES_MAX or 0 < self._data_bytes_max < data_bytes


def _runner(settings: WorkerSettings) -> Runner:
    state = StateFile(settings.data_dir / FILE_NAME, is_read_only=True)
    engine = Engine(
        settings.data_dir,
        settings.address,
        state,
        settings.limits,
        is_read_only=True,
        spill_dir=settings.spill,
    )
    return Runner(engine, settings.result_bytes_max)


def _listen(
    sock: socket.socket, waiting: "queue.SimpleQueue[QueryRequest]", runner: Runner
) -> None:
    """Take queries, and interrupt the one that runs when told to; with the other side this process ends."""
    try:
        while True:
            header, body = receive(sock)
            if header["kind"] == "interrupt":
                runner.interrupt(header["number"])
            else:
                waiting.put(pickle.loads(body))
    except (ChannelError, OSError):
        os._exit(0)  # whatever runs


def _answer(runner: Runner, asked: QueryRequest) -> tuple[dict[str, Any], bytes]:
    began_s = time.monotonic()
    try:
        runner.limit_spill(asked.spill_bytes_max)
        rows = runner.run(asked.number, asked.sql, asked.params, asked.row_limit, asked.newest)
        body = encoded(asked.form, rows, time.monotonic() - began_s)
        return {"kind": "rows", "truncated": rows.truncated, "types": list(rows.types)}, body
    except Interrupted:
        return {"kind": "interrupted"}, b""
    except QueryError as error:
        return {"kind": "wrong", "reason": str(error)}, b""
    except StoreUnavailableError as error:
        # A new process may reach what this one does not: files that were not there when it began.
        reason = f"the store cannot be read now: {error}"
        return {"kind": "wrong", "reason": reason, "is_spent": True}, b""
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
        reason = str(error).strip()[:2_000]
        is_fatal = isinstance(error, duckdb.FatalException | duckdb.InternalException)
        return {"kind": "wrong", "reason": reason, "is_spent": is_fatal}, b""


def _bound_cpu(limit_s: float, threads: int) -> None:
    """End this process should it compute for much longer than the query may take."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most_s = used.ru_utime + used.ru_stime + (limit_s + _CPU_SPARE_S) * max(threads, 1)
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(most_s) + 1, hard))
