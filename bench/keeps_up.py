"""Checks whether a collector with all rules keeps up with a fleet in real time: seals, rollups, rules and acknowledgements.

    python -m bench.keeps_up [--nodes 1000 2000 3000] [--seconds 600]

For each size a collector of its own (`gpuwarden collector run`) gets batches of five seconds of simulated nodes with
8 GPUs, at the pace at which they are made. At the end it must have: acknowledged every batch; rolled up each minute
but the last three for every GPU; no segment older than three intervals of sealing; every rule that can run
evaluated within three of its intervals. Prints what is late, else that it kept up; 1 where the smallest did not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bench.rest import usages
from bench.store.batches import BATCH_S, GPUS
from bench.store.load import Setup, Tally, load
from bench.this_host import free_port

from gpuwarden_collector.settings import CollectorSettings

ROLLED_AFTER_S = 180
"""A minute is rolled up once its last samples cannot be late any more, and then soon."""
CONNECTIONS_MAX = 1_000
_START_S = 60


@dataclass(frozen=True, slots=True)
class Server:
    """A collector that runs."""

    root: psutil.Process
    port: int
    folder: Path

    def get(self, path: str, body: bytes | None = None) -> bytes:
        """Rows of a query."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
            content: bytes = answer.read()
            return content

    def rows(self, sql: str) -> list[list[Any]]:
        """Rows of a query."""
        found: list[list[Any]] = json.loads(self.get("/v1/sql", sql.encode()))["rows"]
        return found


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """The command, with rules, ended with the block."""
    port = free_port()
    gpuwarden = str(Path(sys.executable).with_name("gpuwarden"))
    command = [
        gpuwarden,
        "collector",
        "run",
        "--port",
        str(port),
        "--data-dir",
        str(folder / "store"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = Server(psutil.Process(process.pid), port, folder / "store")
        until_s = time.monotonic() + _START_S
        while True:
            try:
                server.get("/healthz")
                break
            except OSError as error:
                if time.monotonic() > until_s or process.poll() is not None:
                    raise SystemExit((folder / "log").read_text()[-2000:]) from error
                time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait(120)


def late(server: Server, began_s: float, nodes: int) -> list[str]:
    """Names of what has not kept up."""
    found = []
    now_s = time.time()
    whole = range(int(began_s // 60) + 1, int((now_s - ROLLED_AFTER_S) // 60))
    sql = "SELECT epoch(ts)::BIGINT // 60, count(*) FROM gpu_1m GROUP BY 1"
    rolled: dict[int, int] = dict(map(tuple, server.rows(sql)))
    if not whole:
        raise SystemExit("too short: no minute could be rolled up")
    if short := [minute for minute in whole if rolled.get(minute, 0) != nodes * GPUS]:
        found.append(f"{len(short)} of {len(whole)} minutes are not rolled up, from {short[0]}")
    sealed_s = 3 * CollectorSettings().seal_interval_s
    ages_s = [now_s - path.stat().st_ctime for path in (server.folder / "segments").glob("*.seg")]
    # The oldest is written until it is frozen: its age is that of its last frame.
    if max(ages_s, default=0.0) > sealed_s:
        found.append(f"a segment waits for {max(ages_s):.0f} s to be sealed")
    metrics = server.get("/metrics").decode().splitlines()
    since = {
        line.split('"')[1]: float(line.rpartition(" ")[2])
        for line in metrics
        if line.startswith("gpuwarden_rules_since_success_seconds{")
    }
    rules = json.loads(server.get("/v1/rules"))["rules"]
    slow = [
        f"{rule['rule']} {since[rule['rule']]:.0f} s"
        for rule in rules
        if rule["rule"] in since and since[rule["rule"]] > 3 * rule["interval_s"] + 5
    ]
    if not since:
        found.append("no rule was evaluated")
    if slow:
        found.append(f"{len(slow)} of {len(rules)} rules: {', '.join(slow[:5])}")
    return found


def measure(nodes: int, seconds: float) -> bool:
    """One size; whether all kept up."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as name,
        running(Path(name)) as server,
    ):
        began_s = time.time()
        setup = Setup(server.port, nodes, int(began_s) * 1000 - 1000 * BATCH_S, is_endless=True)
        with load(setup) as sender:
            before = usages(server.root)
            tally: Tally = sender.run(min(CONNECTIONS_MAX, nodes), seconds, nodes / BATCH_S)
            after = usages(server.root)
        found = late(server, began_s, nodes)
    if tally.others:
        found.append(f"told to come back: {dict(tally.others)}")
    cores = sum(u.cpu_s - (before[p].cpu_s if p in before else 0) for p, u in after.items())
    print(
        f"{nodes:8,} nodes, {nodes * GPUS:8,} GPUs  {tally.values / tally.seconds / 1e6:5.2f} M values/s"
        f"  p50 {tally.quantile_ms(0.5):4.0f} p99 {tally.quantile_ms(0.99):5.0f} ms"
        f"  {cores / tally.seconds:5.2f} cores  {sum(u.pss_bytes for u in after.values()) >> 20:5} MiB"
        f"  {'; '.join(found) or 'kept up'}",
        flush=True,
    )
    return not found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 2000, 3000])
    parser.add_argument("--seconds", type=float, default=600)
    chosen = parser.parse_args(arguments)
    kept = [measure(nodes, chosen.seconds) for nodes in chosen.nodes]
    return 0 if kept[0] else 1


if __name__ == "__main__":
    sys.exit(main())
