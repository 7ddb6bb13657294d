"""Exports many rows over HTTP, beside DuckDB that reads the same Parquet files: rate and memory.

    python -m bench.sql_export [--rows 10000000] [--form arrow csv command cursor copy] [--runs 3]

`command` is `gpuwarden sql --format csv` to a file; `cursor` and `copy` are a server-side cursor and COPY of
psycopg, over PostgreSQL's protocol.

A store is filled with hours of samples, and a collector is run over it. The client is the Python client in
a process of its own, which keeps no batch; DuckDB reads the files in another, first with one thread as a
query has it. Both count rows and add columns up, and must agree; the bytes of other forms are counted, and their rows
once before. Memory is the most that a process has
more than when it began (PSS), looked at ten times a second: of the client, and of all of the collector's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench.sql import fill
from bench.store import ours
from bench.this_host import free_port

import gpuwarden_client
from gpuwarden_client.fleet import Fleet
from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.extensions import load_extension

SQL = "SELECT ts, node, gpu, gpu_uuid, util_percent, power_watts, temperature_celsius FROM {}"
ACCEPT = {
    "csv": "text/csv",
    "ndjson": "application/x-ndjson",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
_LOOK_S = 0.1


class Sums:
    """Sums over rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.sums = [0.0, 0.0, 0.0]

    def add(self, batch: Any) -> None:
        """Take some rows."""
        self.rows += batch.num_rows
        names = ("util_percent", "power_watts", "gpu")
        for at, name in enumerate(names):
            values = batch.column(batch.schema.get_field_index(name))
            self.sums[at] += pc.sum(values.cast(pa.float64())).as_py() or 0.0

    def document(self, took_s: float) -> dict[str, Any]:
        """As JSON for the parent process."""
        return {"rows": self.rows, "sums": self.sums, "took_s": took_s}


def export(url: str, port: int, rows: int, form: str) -> dict[str, Any]:
    """All rows, taken by the Python client, or as bytes of another form."""
    found = Sums()
    fleet = gpuwarden_client.connect(url)
    sql = SQL.format("gpu_samples")
    print("begun", flush=True)
    sys.stdin.readline()
    began_s = time.perf_counter()
    if form == "arrow":
        query = fleet.sql(sql, row_limit=rows, timeout_s=600)
        for batch in query.batches():
            found.add(batch)
        assert query.is_truncated is False
        return found.document(time.perf_counter() - began_s)
    if form in OTHERS:
        OTHERS[form](url, port, sql, found)
        return found.document(time.perf_counter() - began_s)
    size = sum(map(len, parts(fleet, rows, form)))
    return {**found.document(time.perf_counter() - began_s), "bytes": size}


def parts(fleet: Fleet, rows: int, form: str) -> Iterator[bytes]:
    """All rows as bytes of a form, as they come."""
    document = {"sql": SQL.format("gpu_samples"), "row_limit": rows}
    with fleet.collector.answer(
        "POST", "/v1/sql", document, accept=ACCEPT[form], timeout_s=600
    ) as answer:
        while part := answer.read(1 << 18):
            yield part


def checked_bytes(url: str, rows: int, form: str) -> int:
    """Bytes of all rows in a form. Raises SystemExit where they have not so many rows."""
    with tempfile.NamedTemporaryFile() as file:
        for part in parts(gpuwarden_client.connect(url), rows, form):
            file.write(part)
        size = file.tell()
        file.seek(0)
        match form:
            case "parquet":
                found = pq.ParquetFile(file).metadata.num_rows
            case "json":
                found = len(json.load(file)["rows"])
            case _:
                found = sum(1 for _ in file) - (form == "csv")  # the header
    if found != rows:
        raise SystemExit(f"{form}: {found} rows, not {rows}")
    return size


def by_command(url: str, _port: int, sql: str, found: Sums) -> None:
    """With `gpuwarden sql` in this process, whose output is a file."""
    from gpuwarden_cli.main import main as command

    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        assert command(["sql", sql, "--format", "csv", "--url", url]) == 0
        os.dup2(kept, 1)
        file.seek(0)
        next(file)  # the header
        for line in file:
            fields = line.split(b",")
            found.rows += 1
            for at, field in enumerate((4, 5, 2)):
                found.sums[at] += float(fields[field])


def _connected(port: int) -> Any:
    import psycopg

    return psycopg.connect(host="127.0.0.1", port=port, user="bench", dbname="gpuwarden")


def by_cursor(_url: str, port: int, sql: str, found: Sums) -> None:
    """A server-side cursor."""
    with _connected(port) as connection, connection.cursor(name="rows") as cursor:
        cursor.itersize = 10_000
        for row in cursor.execute(sql):
            found.rows += 1
            for at, field in enumerate((4, 5, 2)):
                found.sums[at] += row[field]


def by_copy(_url: str, port: int, sql: str, found: Sums) -> None:
    """COPY, as psql's \\copy."""
    with (
        _connected(port) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({sql}) TO STDOUT") as copy,
    ):
        for line in copy:
            fields = bytes(line).split(b"\t")
            found.rows += 1
            for at, field in enumerate((4, 5, 2)):
                found.sums[at] += float(fields[field])


OTHERS = {"command": by_command, "cursor": by_cursor, "copy": by_copy}


def direct(folder: str, threads: int) -> dict[str, Any]:
    """The same rows from the Parquet files."""
    import duckdb

    found = Sums()
    connection = duckdb.connect(config={"threads": threads})
    load_extension(connection, "ducklake")
    load_extension(connection, "sqlite_scanner")
    catalogue = Path(folder) / FOLDER / CATALOGUE
    connection.execute(f"ATTACH 'ducklake:sqlite:{catalogue}' AS fleet (READ_ONLY)")
    listed = "SELECT data_file FROM ducklake_list_files('fleet', 'gpu_samples')"
    there = [path for (path,) in connection.execute(listed).fetchall()]
    assert there, f"no Parquet files of gpu_samples in {folder}"
    files = f"read_parquet({there})"
    print("begun", flush=True)
    sys.stdin.readline()
    began_s = time.perf_counter()
    reader = connection.execute(SQL.format(files)).to_arrow_reader(65_536)
    for batch in reader:
        found.add(batch)
    return found.document(time.perf_counter() - began_s)


def measured(way: list[str], watched: list[int]) -> dict[str, Any]:
    """Run one way in a process; its result, its memory, and what the watched processes need more."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.sql_export", *way],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    idle = [_pss_mib([child.pid]), _pss_mib(watched)]
    most = list(idle)
    child.stdin.write("\n")
    child.stdin.flush()
    while child.poll() is None:
        for at, pids in enumerate(([child.pid], watched)):
            most[at] = max(most[at], _pss_mib(pids))
        time.sleep(_LOOK_S)
    found: dict[str, Any] = json.loads(child.stdout.readline())
    assert child.returncode == 0
    return {**found, "client_mib": most[0] - idle[0], "server_mib": most[1] - idle[1]}


def _wait_idle(child: ours.Child, idle_s: float) -> None:
    """A collector that has just started merges files of what is stored."""
    quiet, used_s = 0, child.cpu_s()
    while quiet < 5:
        time.sleep(idle_s / 5)
        quiet, used_s = (quiet + 1 if child.cpu_s() - used_s < 0.1 else 0), child.cpu_s()


def _pss_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
                with suppress(psutil.Error):
                    total += process.memory_full_info().pss
    return total / 2**20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--form", nargs="+", default=["arrow"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=100)
    parser.add_argument(
        "--idle", type=float, default=10, help="seconds of quiet before the first run"
    )
    parser.add_argument("way", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    match args.way:
        case ["direct", folder, threads]:
            print(json.dumps(direct(folder, int(threads))))
        case ["export", url, port, rows, form]:
            print(json.dumps(export(url, int(port), int(rows), form)))
        case _:
            _compare(args)


def _compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as name:
        folder = Path(name)
        hours = max(1, round(args.rows / args.gpus / 3600))
        fill(folder, args.gpus, hours / 24)
        rows, port = args.gpus * 3600 * hours, free_port()
        with ours.collector(folder, query_timeout_s=300, postgres_port=port) as child:
            child.query("SELECT 1")
            sizes = {f: checked_bytes(child.url, rows, f) for f in args.form if f in ACCEPT}
            _wait_idle(child, args.idle)
            ways = {
                "DuckDB, 1 thread": ["direct", name, "1"],
                "DuckDB, 2 threads": ["direct", name, "2"],
                **{
                    f"gpuwarden, {form}": ["export", child.url, str(port), str(rows), form]
                    for form in args.form
                },
            }
            print(f"{rows:,} rows\n{'':20} {'rows/s':>12} {'MiB client':>11} {'MiB collector':>14}")
            known: Any = None
            for _ in range(args.runs):
                for label, way in ways.items():
                    found = measured(way, [child.pid])
                    if "bytes" not in found:
                        known = known or found["sums"]
                        assert (found["rows"], found["sums"]) == (rows, known), found
                    elif found["bytes"] < 0.9 * sizes[way[-1]]:  # Parquet's depend on the order
                        raise SystemExit(f"{label}: {found['bytes']} bytes, not {sizes[way[-1]]}")
                    print(
                        f"{label:20} {rows / found['took_s']:12,.0f} {found['client_mib']:11.0f}"
                        f" {found['server_mib']:14.0f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
