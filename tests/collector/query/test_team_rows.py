"""A process of a team that is not ours any more gets the team's rows from the store, and stops nobody."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.collector.made_up_store import LIMITS, Reader, move_all, reader
from tests.collector.two_teams import OTHERS, OWN, SECRET, VISION, fill, plant
from tests.each import each

from gpuwarden_collector.query import team_rows
from gpuwarden_collector.query.team_rows import MESSAGE_BYTES_MAX, SCANS_MAX, TeamRows, pair
from gpuwarden_collector.storage.database import Database


@pytest.fixture(scope="module")
def of_team(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Reader]:
    """Of a store with rows of the team and of others, for all tests: they only read."""
    folder = tmp_path_factory.mktemp("teams")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    database = Database.open(folder, LIMITS)
    at = datetime.now(UTC).replace(microsecond=0)
    fill(database, OWN, "own", at)
    fill(database, OTHERS, SECRET, at)
    yield reader(folder, folder / "spill", 0, VISION)
    database.close()


@contextmanager
def connected(rows: TeamRows | None) -> Iterator[socket.socket]:
    """A socket of a query of the team; served until it is closed."""
    assert rows is not None
    ours, theirs = pair()
    ours.settimeout(10)
    serving = threading.Thread(target=rows.serve, args=(theirs, team_rows.Reader(VISION)))
    serving.start()
    with ours:
        yield ours
    serving.join(10)
    assert not serving.is_alive()


def ask(sock: socket.socket, message: object, *ends: int) -> None:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    socket.send_fds(sock, [text], [*ends])


def scan(sock: socket.socket, request: object) -> Any:
    """The rows of a scan; None: there are none."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    with ours:
        with theirs:
            ask(sock, request, theirs.fileno())
        with ours.makefile("rb") as file, suppress(pa.ArrowInvalid):
            return pa.ipc.open_stream(file).read_all()
    return None


def of(table: str, *columns: str, conditions: Any = ()) -> dict[str, Any]:
    return {"table": table, "columns": columns, "conditions": conditions}


ODD: tuple[Any, ...] = (
    b"", b"\xff", b"[" * 60_000, b"null", b"7", [], {}, {"tables": 7}, {"tables": [[]]}, {"table": "gpu_samples"},
    of("gpu_samples", "no_such_column"), of("gpu_samples; DROP TABLE nodes", "ts"), of("main.gpu_samples", "ts"),
    of("gpu_samples", *["ts"] * 5_000), of("events", "ts"),
    of("gpu_samples", "ts", conditions=[["node", "OR 1 = 1 OR node =", "x"]]),
    of("gpu_samples", "ts", conditions=[["node) OR (true", "=", "x"]]), of("gpu_samples", "ts", conditions=[["node", "=", 7]]),
    of("gpu_samples", "ts", conditions=[["node", "=", "\0"]]), of("gpu_samples", "ts", conditions=[["ts", "=", "no time"]]),
    of("gpu_samples", "ts", conditions=[["util_percent", "=", "7"]]), of("gpu_samples", "ts", conditions=7),
    {**of("gpu_samples", "ts"), "sql": "SELECT 1"}, {"table": ["gpu_samples"], "columns": ["ts"], "conditions": []},
)  # fmt: skip


@each("message", ODD)
def test_what_no_process_of_ours_asks_ends_its_query_without_a_row(
    of_team: Reader, message: Any
) -> None:
    with connected(of_team.rows) as sock, suppress(OSError):
        ask(sock, {"tables": ["gpu_samples"]})
        assert scan(sock, message) is None
    assert of_team.ask("SELECT count(*) AS n FROM gpu_samples") == [{"n": 1}]


@each("value", ["' OR '' = '", "x'; --", "\\", "v1' OR node <> '", "%"])
def test_a_value_of_a_condition_is_never_sql(of_team: Reader, value: str) -> None:
    with connected(of_team.rows) as sock:
        ask(sock, {"tables": ["gpu_samples"]})
        rows = scan(sock, of("gpu_samples", "node", conditions=[["node", "=", value]]))
        assert rows.num_rows == 0


def test_every_table_gives_the_teams_rows_to_whoever_asks_on_its_socket(of_team: Reader) -> None:
    with connected(of_team.rows) as sock:
        ask(sock, {"tables": ["gpu_samples", "nodes", "events", "query_log", "audit", "silences"]})
        for table in ("gpu_samples", "nodes", "events"):
            assert scan(sock, of(table, "node"))["node"].to_pylist() == ["v1"]
        for table in ("query_log", "audit", "silences"):
            column = "matchers" if table == "silences" else "token"
            assert scan(sock, of(table, column)).num_rows == 0


def test_streams_that_nobody_reads_hold_nothing_after_their_query(of_team: Reader) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    ends = []
    with connected(of_team.rows) as sock:
        ask(sock, {"tables": ["gpu_samples"]})
        for number in range(SCANS_MAX + 20):
            ours, theirs = socket.socketpair()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            if number % 2:
                theirs.setblocking(False)
            ends += [ours, theirs]
            ask(sock, of("gpu_samples", "ts", "node"), theirs.fileno())
        assert of_team.ask("SELECT count(*) AS n FROM gpu_samples") == [{"n": 1}]
    for end in ends:
        end.close()
    with connected(of_team.rows) as sock:
        read, write = os.pipe()
        with suppress(OSError):
            ask(sock, of("gpu_samples", "ts"), write)  # not a socket
        os.close(read)
        os.close(write)
    assert of_team.ask("SELECT count(*) AS n FROM gpu_samples") == [{"n": 1}]
    assert not before or len(os.listdir("/proc/self/fd")) <= before + 8


def test_a_message_of_any_length_is_read_as_one(of_team: Reader) -> None:
    with connected(of_team.rows) as sock, suppress(OSError):
        ask(sock, b"x" * (MESSAGE_BYTES_MAX - 1))
    assert of_team.ask("SELECT count(*) AS n FROM nodes") == [{"n": 1}]


def test_conditions_hold_for_tables_that_are_sent_whole(of_team: Reader) -> None:
    for sql in (
        "SELECT node FROM nodes WHERE node = 'v2'",
        "SELECT * FROM others_1h WHERE model = 'none'",
        "SELECT * FROM gpus WHERE gpu_uuid > 'H' AND last_seen_at > TIMESTAMP '2020-01-01'",
    ):
        assert of_team.ask(sql) == []
    assert of_team.ask("SELECT node FROM nodes WHERE node = 'v1'") == [{"node": "v1"}]


def test_who_held_a_gpu_later_in_a_minute_counts_for_all_of_it(
    data_dir: Path, database: Database
) -> None:
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=5)
    plant(database, "gpu_samples", minute + timedelta(seconds=20), node="shared", gpu_uuid="GPU-a")
    move_all(database)
    held_at = minute + timedelta(seconds=45)
    plant(database, "process_samples", held_at, node="shared", gpu_uuid="GPU-a", username="vera")
    move_all(database)  # into a file that begins after the bound
    of_team = reader(data_dir, data_dir / "spill", 0, VISION)
    until = minute + timedelta(seconds=30)
    sql = f"SELECT count(*) AS n FROM gpu_samples WHERE ts <= TIMESTAMP '{until:%Y-%m-%d %H:%M:%S}'"
    assert of_team.ask(sql) == [{"n": 1}]
