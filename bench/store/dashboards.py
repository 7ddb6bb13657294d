"""Measures dashboards that refresh while agents ship: times of acknowledgements and of each panel's query.

    python -m bench.store.dashboards [--dashboards 50] [--every 10] [--seconds 60]

1,000 agents send as they do, 200 batches a second. Each dashboard is a user of its own (another loopback
address), which queries its panels one after the other at an interval; each answer is checked. After 429 and 503 it
tries again, and the time until the answer counts.
"""

import argparse
import http.client
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.store import ours
from bench.store.batches import BATCH_S, GPUS
from bench.store.load import Beside, Setup, load

NOW = "SELECT count(*), count(DISTINCT node) FROM gpus_now"
TOP = "SELECT node, avg(util_percent) AS util FROM gpus_now GROUP BY node ORDER BY util DESC, node LIMIT 10"
LINE = """SELECT epoch_ms(ts), util_percent FROM gpu_samples
    WHERE gpu_uuid = $gpu AND ts > now()::TIMESTAMP - INTERVAL 1 MINUTE ORDER BY ts"""
NODE = """SELECT gpu, count(*), avg(power_watts) FROM gpu_samples
    WHERE node = $node AND ts > now()::TIMESTAMP - INTERVAL 1 MINUTE GROUP BY gpu ORDER BY gpu"""
PANELS = {"count": NOW, "top ten": TOP, "line of a GPU": LINE, "means of a node": NODE}


def check(name: str, rows: list[list[Any]], agents: int) -> None:
    """Raise AssertionError for a wrong answer."""
    match name:
        case "count":
            assert rows == [[agents * GPUS, agents]], rows
        case "top ten":
            assert len(rows) == min(10, agents), rows
            assert rows == sorted(rows, key=lambda row: (-row[1], row[0]))
        case "line of a GPU":
            times = [int(row[0]) for row in rows]
            assert times, "no rows of a GPU"
            assert {b - a for a, b in itertools.pairwise(times)} <= {1000}, times
            assert time.time() * 1000 - times[-1] < 60_000
        case _:
            assert [row[0] for row in rows] == list(range(GPUS)), rows
            assert len({row[1] for row in rows}) == 1, rows  # all GPUs of a node come together


class Dashboards(Beside):
    """Ask for as long as the block runs."""

    def __init__(
        self, port: int, asked: argparse.Namespace, places: Sequence[tuple[str, str]]
    ) -> None:
        """`places`: node and GPU of each."""
        self._port, self._every_s, self._places = port, asked.every, places
        self._agents, number = asked.agents, asked.dashboards
        super().__init__(*(partial(self._show, at, number) for at in range(number)))
        self.took_s: dict[str, list[float]] = {name: [] for name in PANELS}
        self.others: Counter[int] = Counter()
        self.failures: list[str] = []

    def _show(self, at: int, number: int) -> None:
        node, gpu = self._places[at % len(self._places)]
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=60, source_address=(f"127.0.1.{at + 1}", 0)
        )
        if self.stop.wait(self._every_s * at / number):
            return
        while True:
            due_s = time.monotonic() + self._every_s
            for name, sql in PANELS.items():
                used = {"gpu": gpu, "node": node}
                params = {key: value for key, value in used.items() if f"${key}" in sql}
                began_s = time.monotonic()
                rows = self._rows(connection, json.dumps({"sql": sql, "params": params}))
                self.took_s[name].append(time.monotonic() - began_s)
                try:
                    check(name, rows, self._agents)
                except AssertionError as error:
                    self.failures.append(f"{name}: {error}"[:300])
            if self.stop.wait(max(0.0, due_s - time.monotonic())):
                return

    def _rows(self, connection: http.client.HTTPConnection, body: str) -> list[list[Any]]:
        while True:
            connection.request("POST", "/v1/sql", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status == 200:
                found: list[list[Any]] = json.loads(said)["rows"]
                return found
            assert answer.status in (429, 503), said
            self.others[answer.status] += 1
            time.sleep(float(answer.headers["Retry-After"]))


def quantiles(taken_s: Sequence[float]) -> str:
    """p50 and p99."""
    ordered = sorted(taken_s)
    p50, p99 = (1000 * ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    return f"p50 {p50:.0f} p99 {p99:.0f} ms"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dashboards", type=int, default=50)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between refreshes")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument(
        "--making", type=float, default=30.0, help="seconds in which the batches are made"
    )
    asked = parser.parse_args(arguments)
    agents, rate = asked.agents, asked.agents / BATCH_S
    begin_ms = int((time.time() + asked.making) * 1000)
    with (
        TemporaryDirectory(prefix="gpuwarden-bench-") as folder,
        ours.collector(Path(folder)) as child,
        load(Setup(child.port, agents, begin_ms, nodes=min(16, agents))) as sender,
    ):
        # Enough also where a busy host takes long to make them.
        sender.make(round(rate * 2 * (asked.seconds + max(asked.making, 8 * BATCH_S))))
        time.sleep(max(0.0, begin_ms / 1000 + 2 * BATCH_S - time.time()))
        # Catch up with the clock.
        assert not sender.run(agents, time.time() - begin_ms / 1000, 2 * rate).ran_out
        places = child.query(
            "SELECT DISTINCT node, gpu_uuid FROM gpus_now ORDER BY gpu_uuid LIMIT 500"
        )
        for is_beside in (False, True):
            shown = Dashboards(child.port, asked, places)
            used_s = child.cpu_s()
            with shown if is_beside else nullcontext():
                tally = sender.run(agents, asked.seconds, rate)
            cores = (child.cpu_s() - used_s) / tally.seconds
            assert tally.batches, "no batch was acknowledged"
            assert not (tally.others or tally.ran_out), tally.others
            print(
                f"{f'beside {asked.dashboards} dashboards' if is_beside else 'alone'}: acknowledged "
                f"{quantiles(tally.acknowledge_s)}, {cores:.2f} cores"
            )
        assert all(shown.took_s.values()), "a panel was never asked"
        for name, taken_s in shown.took_s.items():
            print(f"  {name}: {quantiles(taken_s)} of {len(taken_s)}")
        every = [one for taken_s in shown.took_s.values() for one in taken_s]
        print(
            f"  all: {quantiles(every)} of {len(every)}; answered with 429 or 503: {dict(shown.others)}"
        )
        assert not shown.failures, shown.failures[:5]


if __name__ == "__main__":
    main()
