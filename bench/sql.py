"""Answers of SQL over HTTP: views of now, one GPU's last hour, ten panels at once; each answer is checked.

    python -m bench.sql [--gpus 16] [--days 1] [--fleet 100000] [--runs 40]

A store is filled with days of samples a second, an hour a file, and a collector is run over it. Prints
milliseconds from question to answer, and the CPU of all of the collector's processes for one.
"""

import argparse
import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.store import ours
from bench.store.batches import GPUS
from bench.store.load import Load, Setup, load

from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.engine import Limits

PANELS = 10
_WARM = 6
_FILL = """
    INSERT INTO lake.main.gpu_samples BY NAME
    SELECT $begin + to_seconds(i % 3600) AS ts, 'n' || (g // 8) AS node, (g % 8)::INT AS gpu,
        'GPU-' || g AS gpu_uuid, true AS simulated, (g + epoch(ts)::BIGINT) % 100 AS util_percent,
        600 + hash(i) % 50 AS power_watts, 60 + hash(i) % 5 AS temperature_celsius
    FROM (SELECT i, i // 3600 AS g FROM range($gpus * 3600) t(i)) ORDER BY gpu_uuid, ts
"""

Check = Callable[[list[list[Any]]], None]


class Asking:
    """A connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def rows(self, sql: str) -> list[list[Any]]:
        """What a query answers."""
        self._connection.request("POST", "/v1/sql", sql.encode())
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        found: list[list[Any]] = json.loads(body)["rows"]
        return found


def fill(folder: Path, gpus: int, days: float) -> datetime:
    """Whole hours until now; the first instant that has no rows."""
    end = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    database = Database.open(folder, Limits(memory="2GiB", threads=1))
    with database.maintaining() as cursor:
        for hours in range(round(days * 24), 0, -1):
            cursor.execute(_FILL, {"begin": end - timedelta(hours=hours), "gpus": gpus})
    database.close()
    return end


def timed(
    child: ours.Child, runs: int, ask: Callable[[], None], before: Callable[[], None] | None = None
) -> str:
    """Milliseconds of a question asked again and again."""
    for _ in range(_WARM):
        ask()
    cpu_s, taken_s = child.cpu_s(), []
    for _ in range(runs):
        if before is not None:
            before()
        began_s = time.perf_counter()
        ask()
        taken_s.append(time.perf_counter() - began_s)
    cpu_ms = 1000 * (child.cpu_s() - cpu_s) / runs
    taken_s.sort()
    p50, p90 = (1000 * taken_s[int(runs * part)] for part in (0.5, 0.9))
    return f"{1000 * taken_s[0]:8.1f} {p50:8.1f} {p90:8.1f} {cpu_ms:8.1f}"


def asked(asking: Asking, sql: str, check: Check) -> Callable[[], None]:
    """A question whose answer is checked."""

    def ask() -> None:
        check(asking.rows(sql))

    return ask


def last_hour(gpu: int, end: datetime) -> tuple[str, Check]:
    """The question and the check of one GPU's last hour."""
    sql = (
        f"SELECT ts, util_percent FROM gpu_samples WHERE gpu_uuid = 'GPU-{gpu}' "
        "AND ts > now() - INTERVAL 1 HOUR ORDER BY ts"
    )

    def check(rows: list[list[Any]]) -> None:
        now = datetime.now(UTC).replace(tzinfo=None)
        times = [datetime.fromisoformat(ts).replace(tzinfo=None) for ts, _ in rows]
        assert times[-1] == end - timedelta(seconds=1), times[-1]
        assert abs((times[0] - now).total_seconds() + 3_600) <= 5
        assert len(times) == (times[-1] - times[0]).total_seconds() + 1
        for at, (_, util) in zip(times, rows, strict=True):
            assert util == (gpu + at.replace(tzinfo=UTC).timestamp()) % 100

    return sql, check


def at_once(port: int, questions: Sequence[tuple[str, Check]]) -> Callable[[], None]:
    """All of them by connections of their own."""
    ways = [(Asking(port), *question) for question in questions]

    def ask() -> None:
        failures: list[BaseException] = []

        def one(asking: Asking, sql: str, check: Check) -> None:
            try:
                check(asking.rows(sql))
            except BaseException as error:  # noqa: BLE001  raised below
                failures.append(error)

        threads = [threading.Thread(target=one, args=way) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    return ask


def _has(count: int) -> Check:
    def check(rows: list[list[Any]]) -> None:
        assert len(rows) == count, f"{len(rows)} rows, not {count}"

    return check


def _says(*row: Any) -> Check:
    def check(rows: list[list[Any]]) -> None:
        assert rows == [list(row)], f"{rows}, not {row}"

    return check


def _is_ready(child: ours.Child) -> None:
    """Wait until views of now are answered from what is kept."""
    for _ in range(300):
        if "UNION" not in str(child.query("EXPLAIN FROM gpus_now")):
            return
        time.sleep(0.1)
    raise SystemExit("the collector does not keep the newest rows")


def few(folder: Path, gpus: int, days: float, runs: int) -> None:
    """A small fleet with days in the lake."""
    end = fill(folder, gpus, days)
    title = f"{gpus} GPUs, {days:g} days in the lake"
    print(f"{title:50}   min ms   p50 ms   p90 ms   CPU ms")
    with ours.collector(folder) as child:
        begin_ms = int(time.time() * 1000) - 30_000
        with load(Setup(child.port, 2, begin_ms, nodes=2, rounds=24)) as sender:
            sender.make(6 + runs)
            sender.run(2, 2)
            _is_ready(child)
            asking = Asking(child.port)
            live = 2 * GPUS
            now_sql = "SELECT node, gpu, util_percent FROM gpus_now WHERE node LIKE 'node-%'"
            print(f"  {'SELECT 1':48}", timed(child, runs, asked(asking, "SELECT 1", _says(1))))
            print(
                f"  {f'gpus_now, {live} GPUs':48}",
                timed(child, runs, asked(asking, now_sql, _has(live))),
            )
            changed = timed(child, runs, asked(asking, now_sql, _has(live)), lambda: _one(sender))
            print(f"  {'gpus_now, a batch stored before each':48}", changed)
            hour = timed(child, runs, asked(asking, *last_hour(5, end)))
            print(f"  {'last hour of a GPU':48}", hour)
            panels = [last_hour(gpu % gpus, end) for gpu in range(PANELS)]
            print(
                f"  {'ten panels of an hour at once':48}",
                timed(child, runs, at_once(child.port, panels)),
            )


def many(folder: Path, gpus: int, runs: int) -> None:
    """A large fleet that reports while it is asked for."""
    agents = gpus // GPUS
    print(f"{agents * GPUS} GPUs")
    with ours.collector(folder, seal_bytes_max=512 * 2**20) as child:
        begin_ms = int(time.time() * 1000) - 5_000
        with load(Setup(child.port, agents, begin_ms, nodes=4, rounds=2)) as sender:
            _is_ready(child)
            sender.make(agents)
            _send(sender)
            asking = Asking(child.port)
            everything = asked(
                asking,
                "SELECT count(*), count(DISTINCT node) FROM gpus_now",
                _says(agents * GPUS, agents),
            )
            print(f"  {'count of GPUs and nodes':48}", timed(child, runs, everything))
            top = asked(
                asking,
                "SELECT node, avg(util_percent) FROM gpus_now GROUP BY node ORDER BY 2 DESC, 1 LIMIT 10",
                _has(10),
            )
            print(f"  {'top ten nodes':48}", timed(child, runs, top))


def _one(sender: Load) -> None:
    """Store a batch or more."""
    sender.run(1, 0.02)


def _send(sender: Load) -> None:
    tally = sender.run(64, 60)
    assert tally.ran_out or tally.batches, "nothing was stored"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--fleet", type=int, default=100_000, help="0: none")
    parser.add_argument("--runs", type=int, default=40)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as folder:
        few(Path(folder), given.gpus, given.days, given.runs)
    if given.fleet:
        with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as folder:
            many(Path(folder), given.fleet, given.runs)


if __name__ == "__main__":
    main()
