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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.store import ours
from bench.store.batches import GPUS
from bench.store.load import Load, Setup, load

from gpuwarden.access import Scope, Token
from gpuwarden.schema import TABLES, stored_sql
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry, scram_of
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.segment import SCHEMAS

PANELS = 10
_WARM = 6
_FILL = """
    INSERT INTO lake.main.gpu_samples BY NAME
    SELECT $begin + to_seconds(i % 3600) AS ts, 'n' || (g // 8) AS node, (g % 8)::INT AS gpu,
        'GPU-' || g AS gpu_uuid, true AS simulated, (g + epoch(ts)::BIGINT) % 100 AS util_percent,
        600 + hash(i) % 50 AS power_watts, 60 + hash(i) % 5 AS temperature_celsius
    FROM (SELECT i, i // 3600 AS g FROM range($gpus * 3600) t(i)) ORDER BY gpu_uuid, ts
"""

_NODES = f"""
    SELECT {stored_sql(TABLES["nodes"])}
    FROM (FROM main.nodes WHERE false UNION ALL BY NAME
    SELECT 'n' || i AS node, 'a' || i AS agent_id, 'b' AS boot_id, '0' AS agent_version, true AS simulated, $end AS first_seen_at, $end AS last_seen_at
    FROM range(-(-$gpus // 8)) t(i))
"""

Check = Callable[[list[list[Any]]], None]


class Asking:
    """A connection."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def rows(self, sql: str) -> list[list[Any]]:
        """Rows of a query."""
        self._connection.request("POST", "/v1/sql", sql.encode(), self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        found: list[list[Any]] = json.loads(body)["rows"]
        return found


def fill(folder: Path, gpus: int, days: float) -> datetime:
    """Fill whole hours until now; return the first instant without rows."""
    end = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    database = Database.open(folder, EngineLimits(memory="2GiB", threads=1))
    with database.maintaining() as cursor:
        for hours in range(round(days * 24), 0, -1):
            cursor.execute(_FILL, {"begin": end - timedelta(hours=hours), "gpus": gpus})
        nodes = cursor.execute(_NODES, {"end": end, "gpus": gpus}).to_arrow_table()
    commit(database, Changes(upserted={"nodes": nodes.cast(SCHEMAS["nodes"])}))
    database.close()
    return end


@dataclass(frozen=True, slots=True)
class Question:
    """A query, and a check of its answer, which raises AssertionError."""

    sql: str
    check: Check


def seconds_at_once(one: Callable[[int], None], count: int) -> float:
    """Seconds until `one` is done with each of `count` numbers, all at once."""
    threads = [threading.Thread(target=one, args=(at,)) for at in range(1, count)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    one(0)
    for thread in threads:
        thread.join()
    return time.perf_counter() - began_s


def timed(
    child: ours.Child,
    runs: int,
    questions: Sequence[Question],
    before: Callable[[], None] | None = None,
    token: str | None = None,
) -> str:
    """Milliseconds until all of the questions, asked at once, are answered: repeatedly."""
    ways = [Asking(child.port, token) for _ in questions]
    found: list[list[list[Any]]] = [[] for _ in questions]

    def one(at: int) -> None:
        found[at] = ways[at].rows(questions[at].sql)

    cpu_s, taken_s = 0.0, []
    for run in range(_WARM + runs):
        if before is not None:
            before()
        if run == _WARM:
            cpu_s = child.cpu_s()
        taken_s.append(seconds_at_once(one, len(questions)))
        if run == _WARM + runs - 1:
            cpu_s = child.cpu_s() - cpu_s
        for question, rows in zip(questions, found, strict=True):
            question.check(rows)
    taken_s = sorted(taken_s[_WARM:])
    p50, p90 = (1000 * taken_s[int(runs * part)] for part in (0.5, 0.9))
    return f"{1000 * taken_s[0]:8.1f} {p50:8.1f} {p90:8.1f} {1000 * cpu_s / runs:8.1f}"


def last_hour(gpu: int, end: datetime) -> Question:
    """One GPU's last hour."""
    sql = (
        f"SELECT ts, util_percent FROM gpu_samples WHERE gpu_uuid = 'GPU-{gpu}' "
        "AND ts > now() - INTERVAL 1 HOUR ORDER BY ts"
    )

    def check(rows: list[list[Any]]) -> None:
        now = datetime.now(UTC).replace(tzinfo=None)
        times = [datetime.fromisoformat(ts).replace(tzinfo=None) for ts, _ in rows]
        assert times[-1] == end - timedelta(seconds=1), times[-1]
        assert abs((times[0] - now).total_seconds() + 3_600) <= 60
        assert len(times) == (times[-1] - times[0]).total_seconds() + 1
        for at, (_, util) in zip(times, rows, strict=True):
            assert util == (gpu + at.replace(tzinfo=UTC).timestamp()) % 100

    return Question(sql, check)


def _has(count: int) -> Check:
    def check(rows: list[list[Any]]) -> None:
        assert len(rows) == count, f"{len(rows)} rows, not {count}"

    return check


def _says(*row: Any) -> Check:
    def check(rows: list[list[Any]]) -> None:
        assert rows == [list(row)], f"{rows}, not {row}"

    return check


def _is_ready(child: ours.Child) -> None:
    """Wait until views of now are answered from the newest rows in memory."""
    for _ in range(300):
        if "UNION" not in str(child.query("EXPLAIN FROM gpus_now")):
            return
        time.sleep(0.1)
    raise SystemExit("the collector does not keep the newest rows")


def few(folder: Path, gpus: int, days: float, runs: int) -> None:
    """A small fleet with days in the lake."""
    end = fill(folder, gpus, days)
    of_a_team(folder, gpus, days, end, runs)
    title = f"{gpus} GPUs, {days:g} days in the lake"
    print(f"{title:50}   min ms   p50 ms   p90 ms   CPU ms")
    with ours.collector(folder) as child:
        begin_ms = int(time.time() * 1000) - 30_000
        with load(Setup(child.port, 2, begin_ms, nodes=2, rounds=24)) as sender:
            sender.make(6 + runs)
            sender.run(2, 2)
            _is_ready(child)
            live = 2 * GPUS
            now = Question(
                "SELECT node, gpu, util_percent FROM gpus_now WHERE node LIKE 'node-%'", _has(live)
            )
            hours = [last_hour(gpu % gpus, end) for gpu in range(PANELS)]
            _show("SELECT 1", timed(child, runs, [Question("SELECT 1", _says(1))]))
            _show(f"gpus_now, {live} GPUs", timed(child, runs, [now]))
            changed = timed(child, runs, [now], lambda: _one(sender))
            _show("gpus_now, a batch stored before each", changed)
            _show("last hour of a GPU", timed(child, runs, hours[:1]))
            _show("ten panels of an hour at once", timed(child, runs, hours))


def of_a_team(folder: Path, gpus: int, days: float, end: datetime, runs: int) -> None:
    """The same store for a reader of all rows, and for one of a team that has half of the nodes."""
    access = folder / "access.toml"
    owned = range(0, -(-gpus // 8), 2)
    names = [f"n{number}" for number in owned]
    access.write_text(f"[teams.half]\nnodes = {json.dumps(names)}\n")
    own_gpus = sum(min(8, gpus - 8 * number) for number in owned)
    tokens = {}
    for team in (None, "half"):
        token = Token.new(Scope.READ)
        entry = TokenEntry(
            token.id, Scope.READ, token.digest, datetime.now(UTC), team=team, scram=scram_of(token)
        )
        edit(folder / NAME, lambda store, entry=entry: (store.with_entry(entry), None))  # type: ignore[misc]
        tokens[team] = token.text
    print(f"{'the same, by token':50}   min ms   p50 ms   p90 ms   CPU ms")
    with ours.collector(folder, require_tokens=True, access_file=access) as child:
        for team, count in ((None, gpus), ("half", own_gpus)):
            who = f"{count} GPUs, {'all rows' if team is None else 'of a team'}"
            hour = "FROM gpu_samples WHERE ts > now() - INTERVAL 1 HOUR"
            by_gpu = (
                f"SELECT gpu_uuid, avg(util_percent), max(power_watts) {hour} GROUP BY gpu_uuid"
            )
            counted = "SELECT count(*), count(DISTINCT gpu_uuid) FROM gpu_samples"
            rows = count * round(days * 24) * 3600
            for name, question in (
                ("SELECT 1", Question("SELECT 1", _says(1))),
                ("last hour of a GPU", last_hour(0, end)),
                ("last hour by GPU", Question(by_gpu, _has(count))),
                ("count of all rows", Question(counted, _says(rows, count))),
            ):
                some = max(3, runs // 4) if name.startswith("count") else runs
                _show(f"{name}, {who}", timed(child, some, [question], token=tokens[team]))


def many(folder: Path, gpus: int, runs: int) -> None:
    """A large fleet that reports while it is asked for."""
    agents = gpus // GPUS
    print(f"{agents * GPUS} GPUs")
    with ours.collector(folder, seal={"bytes_max": 512 * 2**20}) as child:
        # Ahead, so that all are still of now when the last has been sent.
        begin_ms = int(time.time() * 1000) + 120_000
        with load(Setup(child.port, agents, begin_ms, nodes=4, rounds=2)) as sender:
            _is_ready(child)
            sender.make(agents)
            _send(sender)
            count = "SELECT count(*), count(DISTINCT node) FROM gpus_now"
            top = "SELECT node, avg(util_percent) FROM gpus_now GROUP BY node ORDER BY 2 DESC, 1 LIMIT 10"
            every = Question(count, _says(agents * GPUS, agents))
            _show("count of GPUs and nodes", timed(child, runs, [every]))
            _show("top ten nodes", timed(child, runs, [Question(top, _has(min(10, agents)))]))


def _show(name: str, figures: str) -> None:
    print(f"  {name:48}{figures}", flush=True)


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
