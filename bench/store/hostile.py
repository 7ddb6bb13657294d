"""Measures what hostile queries do to ingest: 1,000 agents at a fixed rate, alone and beside them.

    python -m bench.store.hostile [--seconds 60] [--rate 700] [--only compute|spill]

Prints the time to an acknowledgement and of `/healthz` for both, memory, and how each query ended. The run
fails where a query was answered, for then it was not hostile, and where rows that were acknowledged are missing.
"""

import argparse
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.store import ours
from bench.store.load import Beside, Setup, load

ASKING = 3
"""Concurrent queries: more than there are query processes."""
COMPUTE = (
    "SELECT len(range(1000000000))",
    "SELECT len(array_resize([1], 2000000000))",
    "SELECT format('{:.1000000000f}', 1.0)",
    "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
    "SELECT count(*) FROM range(1000000000000) a, range(1000) b",
    "PRAGMA json_execute_serialized_sql(sleep_ms(20000)::VARCHAR)",
)
SPILL = (
    "SELECT list_sort(range(500000000))",
    (
        "SELECT a.range + b.range AS x, md5(a.range::VARCHAR) FROM range(40000) a, range(40000) b "
        "ORDER BY x DESC OFFSET 800000000 LIMIT 1"
    ),
    "SELECT string_agg(md5(range::VARCHAR), '') FROM range(100000000)",
)
QUERIES = {"compute": COMPUTE, "spill": SPILL}


class Hostile(Beside):
    """Asks `/healthz` and the queries, if there are any, for as long as the block runs."""

    def __init__(self, url: str, queries: Sequence[str]) -> None:
        starts = range(0, len(queries), len(queries) // ASKING) if queries else ()
        super().__init__(self._watch, *(partial(self._ask, at) for at in starts))
        self._url = url
        self._queries = queries
        self.health_s: list[float] = []
        self.endings: list[tuple[str, float, str]] = []
        """Query, seconds, and how it ended."""
        self.failures: list[str] = []
        """Requests without an answer."""

    def _watch(self) -> None:
        while not self.stop.wait(0.1):
            began_s = time.monotonic()
            try:
                urllib.request.urlopen(self._url + "/healthz", timeout=30).read()
            except OSError as error:
                self.failures.append(f"/healthz: {error}")
            self.health_s.append(time.monotonic() - began_s)

    def _ask(self, first: int) -> None:
        for sql in itertools.islice(itertools.cycle(self._queries), first, None):
            if self.stop.is_set():
                return
            request = urllib.request.Request(self._url + "/v1/sql", sql.encode())
            began_s = time.monotonic()
            try:
                urllib.request.urlopen(request, timeout=120).read()
                said = "answered"
            except urllib.error.HTTPError as error:
                said = f"{error.code} {json.load(error)['error'][:60]}"
            except OSError as error:
                self.failures.append(f"{sql}: {error}")
                return
            self.endings.append((sql, time.monotonic() - began_s, said))


def check(beside: Hostile, stored: int, rows: int, *, is_hostile: bool) -> None:
    """Raise AssertionError for a run whose figures are not valid."""
    assert rows, "no batch was acknowledged"
    # Rows of the collector itself come besides.
    assert stored >= rows, f"{stored} rows are stored, {rows} were acknowledged"
    assert not beside.failures, beside.failures[:5]
    assert beside.health_s, "/healthz was not asked"
    assert bool(beside.endings) is is_hostile, "no hostile query ended"
    answered = [sql for sql, _, said in beside.endings if said == "answered"]
    assert not answered, f"answered, and not hostile: {answered}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=700.0, help="batches a second")
    parser.add_argument("--only", choices=QUERIES, help="queries of one kind (default: all)")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument(
        "--query-timeout", type=float, default=10.0, help="of the collector, in seconds"
    )
    asked = parser.parse_args(arguments)
    queries = QUERIES[asked.only] if asked.only else (*COMPUTE, *SPILL)
    begin_ms = int(time.time() * 1000) - 12 * 60_000
    with (
        TemporaryDirectory(prefix="gpuwarden-bench-") as folder,
        ours.collector(
            Path(folder), seal_bytes_max=64 * 2**20, query_timeout_s=asked.query_timeout
        ) as child,
        load(Setup(child.port, asked.agents, begin_ms, nodes=min(16, asked.agents))) as sender,
    ):
        sender.make(3 * asked.agents)
        rows = sender.run(asked.agents, 3).rows
        for is_hostile in (False, True):
            sender.make(int(asked.rate * asked.seconds) + 1)
            with Hostile(child.url, queries if is_hostile else ()) as beside:
                tally = sender.run(asked.agents, asked.seconds, asked.rate)
            assert not (tally.others or tally.ran_out), tally.others
            rows += tally.rows
            check(beside, child.figures()["rows"], rows, is_hostile=is_hostile)
            health_ms = sorted(1000 * s for s in beside.health_s)
            print(
                f"{'beside hostile queries' if is_hostile else 'alone'}: {tally.batches} batches, "
                f"acknowledged p50 {tally.quantile_ms(0.5):.0f} p99 {tally.quantile_ms(0.99):.0f} ms, "
                f"/healthz p99 {health_ms[int(len(health_ms) * 0.99)]:.0f} "
                f"longest {health_ms[-1]:.0f} ms, {child.pss_mib():.0f} MiB in all"
            )
        for sql, seconds, said in beside.endings:
            print(f"  {seconds:5.1f} s  {said}  <- {sql[:60]}")


if __name__ == "__main__":
    main()
