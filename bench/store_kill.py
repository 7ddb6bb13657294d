"""Kills a collector at random under load, repeatedly, and counts the rows that the store has.

`python -m bench.store_kill --kills 100`: agents send batches that nobody else could have made and
retry until each is acknowledged; the collector seals every second, merges, expires and cleans up all
the time. At random points one of its processes is killed (SIGKILL), which one alternately: the ingest
process with all the others, or the storage process, a query process or the fork server alone, after
which the same ingest process must continue. Beside it a reader asks for rows and distinct rows without a
pause; only a query whose process was killed may fail. At the end every acknowledged row must be
there, each once, and the store must be whole.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from bench import killed
from bench.killed import ROWS, KnownBatches
from bench.this_host import children_of

from gpuwarden_collector.storage.check import check
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

EVERYTHING = "everything"
PROCESSES = (EVERYTHING, "storage", "query", "fork server")
_NAMES = {"storage": "gpuwarden-store", "query": "gpuwarden-query"}
_STEADY_S = 5.0
"""Within it of a child's kill, reads may fail and the collector must have a new one."""
_COUNT = "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples"


@dataclass(slots=True)
class Tally:
    """Counts of one run."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills by process."""
    acknowledged: int = 0
    retries: int = 0
    reads: int = 0
    failed_reads: int = 0
    killed_reads: int = 0
    """Reads that failed because a process had just been killed."""
    wrong: list[str] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)


def named(pid: int, process: str) -> list[int]:
    """The processes of a collector that do this work."""
    if process == "fork server":
        return [
            child
            for child in children_of(pid)
            if children_of(child) or "hurried" in _read(child, "cmdline")
            if _read(child, "comm").strip() not in (name[:15] for name in _NAMES.values())
        ]
    return [c for c in children_of(pid) if _read(c, "comm").strip() == _NAMES[process][:15]]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


class Run:
    """One collector's lives, its agents and its reader."""

    def __init__(
        self, data_dir: Path, agents: int, seed: int, processes: Sequence[str] = PROCESSES
    ) -> None:
        self.processes = processes
        self.steady_from_s = 0.0
        """Monotonic time from which reads may not fail."""
        self.data_dir = data_dir
        self.agents = agents
        self.chance = random.Random(seed)
        self.tally = Tally()
        self.sent = [0] * agents
        self.acknowledged = [0] * agents
        self.url: str | None = None
        self.is_over = False
        self.batches = KnownBatches(datetime.now(UTC).replace(microsecond=0))

    async def run(self, kills: int) -> Tally:
        """Start, kill `kills` times under load, stop and verify."""
        async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
            work = [group.create_task(self._send(n, session)) for n in range(self.agents)]
            work.append(group.create_task(self._read(session)))
            process = await self._start()
            for number in range(kills):
                await asyncio.sleep(self.chance.expovariate(1 / 2.5))
                which = self.processes[number % len(self.processes)]
                if which == EVERYTHING:
                    self.url = None
                    process.kill()
                    await process.wait()
                    process = await self._start()
                    self.tally.kills[which] += 1
                elif await self._kill_child(process, which):
                    self.tally.kills[which] += 1
            await asyncio.sleep(2 + _STEADY_S)
            self.is_over = True
            await asyncio.wait(work)
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
        self._verify()
        return self.tally

    async def _kill_child(self, process: asyncio.subprocess.Process, which: str) -> bool:
        """Kill one child; whether there was one. Batches must be taken again within a bounded time."""
        children = named(process.pid, which)
        if not children:
            self.tally.wrong.append(f"there was no {which} process to be killed")
            return False
        self.steady_from_s = time.monotonic() + _STEADY_S
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(children), signal.SIGKILL)
        before = sum(self.acknowledged)
        try:
            async with asyncio.timeout(2 * _STEADY_S):
                while sum(self.acknowledged) < before + 2 * self.agents:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.tally.wrong.append(f"no batch was taken after the {which} process was killed")
        if process.returncode is not None:
            self.tally.wrong.append(f"the collector has ended with its {which} process")
        return True

    async def _start(self) -> asyncio.subprocess.Process:
        began_s = time.monotonic()
        process, self.url = await killed.start("bench.store_kill", "--serve", str(self.data_dir))
        self.tally.start_s.append(time.monotonic() - began_s)
        return process

    async def _send(self, agent: int, session: aiohttp.ClientSession) -> None:
        while not self.is_over:
            sequence = self.sent[agent] + 1
            request = self.batches.request(agent, sequence)
            self.sent[agent] = sequence
            while not await self._post(session, request):
                self.tally.retries += 1
                await asyncio.sleep(0.05)
            self.acknowledged[agent] = sequence

    async def _post(
        self, session: aiohttp.ClientSession, request: tuple[bytes, dict[str, str]]
    ) -> bool:
        is_acknowledged, refusal = await killed.post(session, self.url, request)
        if refusal:
            self.tally.wrong.append(refusal)
        return is_acknowledged

    async def _read(self, session: aiohttp.ClientSession) -> None:
        while not self.is_over:
            await asyncio.sleep(0.01)
            if self.url is None:
                continue
            least = sum(self.acknowledged) * ROWS
            with suppress(aiohttp.ClientError, OSError):
                async with session.post(f"{self.url}/v1/sql", data=_COUNT) as answer:
                    said = await answer.json()
                most = sum(self.sent) * ROWS
                self.tally.reads += 1
                if answer.status != 200 and time.monotonic() < self.steady_from_s:
                    self.tally.killed_reads += 1
                    continue
                if answer.status != 200:
                    self.tally.failed_reads += 1
                    self.tally.wrong.append(f"read: {said}")
                    continue
                rows, distinct = said["rows"][0]
                if rows != distinct or not least <= rows <= most:
                    self.tally.wrong.append(
                        f"read {rows} rows, {distinct} distinct, of {least} to {most}"
                    )

    def _verify(self) -> None:
        wrong = self.tally.wrong
        self.tally.acknowledged = sum(self.acknowledged)
        database = Database.open(self.data_dir, EngineLimits(memory="512MiB", threads=1))
        try:
            with database.reading() as cursor:
                found = cursor.execute(
                    "SELECT gpu_uuid, count(*), count(DISTINCT ts), min(ts), max(ts) "
                    "FROM gpu_samples GROUP BY 1"
                ).fetchall()
        finally:
            database.close()
        by_gpu = {row[0]: row[1:] for row in found}
        for agent, sequence in enumerate(self.acknowledged):
            edges = [self.batches.rows(agent, n)[at]["ts"] for n, at in ((1, 0), (sequence, -1))]
            span = [edge.replace(tzinfo=None) for edge in edges if isinstance(edge, datetime)]
            if by_gpu.get(f"GPU-{agent}") != (sequence * ROWS, sequence * ROWS, *span):
                wrong.append(f"agent {agent}: {sequence * ROWS} rows, {span}, found {by_gpu}")
        wrong += [problem.what for problem in check(self.data_dir, reads_all=True).problems]


def main() -> int:
    """Run, print the figures as JSON; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--processes", default=",".join(PROCESSES), help="which are killed, alternately"
    )
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(killed.serve(args.serve, "bench.hurried"))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), args.agents, args.seed, args.processes.split(","))
        tally = asyncio.run(run.run(args.kills))
        lake = Path(folder) / "lake" / "data"
        files = len(list(lake.rglob("*.parquet")))
    figures = {
        "kills": tally.kills,
        "batches_acknowledged": tally.acknowledged,
        "rows": tally.acknowledged * ROWS,
        "retries": tally.retries,
        "reads": tally.reads,
        "killed_reads": tally.killed_reads,
        "start_s_median": round(sorted(tally.start_s)[len(tally.start_s) // 2], 2),
        "start_s_most": round(max(tally.start_s), 2),
        "lake_files": files,
        "wrong": tally.wrong[:20],
    }
    print(json.dumps(figures, indent=1))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
