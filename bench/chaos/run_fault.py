"""Runs a fault against a stage, and compares what was acknowledged with what is stored.

`python -m bench.chaos.run_fault FAULT SEED FOLDER` runs in the collector's namespace and prints a `Verdict` as
JSON; `run_fault` makes the namespaces and calls it.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from bench.chaos.faults import FAULTS, LASTS_S, LASTS_VARIABLE, Fault, Verdict
from bench.chaos.stage import (
    COLLECTOR_NS,
    NAMESPACE,
    NAMESPACE_VARIABLE,
    TABLES,
    URL,
    Stage,
    namespaces,
    staged,
)

from gpuwarden_agent.queue.spool import FILE_NAME as SPOOL_FILE
from gpuwarden_collector.ingest.decode import RefusedBody, decode

STEADY_S = min(6.0, LASTS_S)
RUN_S = 600.0
CATCH_UP_S = 120.0
LATER_S = 10.0
"""When rows that were missing are queried again: an incomplete read is not a loss."""
BATCH_S = 6
"""Seconds that a batch may span."""


async def watch_readiness(stage: Stage, verdict: Verdict) -> None:
    """Note whether /readyz says 503."""
    timeout = aiohttp.ClientTimeout(total=2)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with session.get(f"{URL}/readyz") as answer:
                    verdict.was_unready |= answer.status == 503
            await asyncio.sleep(0.3)


async def judge(stage: Stage, verdict: Verdict) -> None:
    """Compare what was acknowledged with what is stored."""
    for table, keys in stage.acknowledged().items():
        names = TABLES[table]
        texts = ", ".join("epoch_ms(ts)" if n == "ts" else f"coalesce({n}, '')" for n in names)
        sql = f"SELECT {texts}, count(*) FROM {table} GROUP BY ALL"
        stored = {tuple(key): count for *key, count in await stage.ask(sql)}
        owed = {
            tuple(
                round(v.timestamp() * 1000) if n == "ts" else v or ""
                for n, v in zip(names, k, strict=True)
            )
            for k in ((*map(_utc, key),) for key in keys)
        }
        verdict.acknowledged += len(owed)
        lost = [key for key in owed if key not in stored]
        verdict.lost += len(lost)
        if lost:
            await asyncio.sleep(LATER_S)
            later = {tuple(key) for *key, _ in await stage.ask(sql)}
            verdict.wrong.append(
                f"{table} lacks {len(lost)} rows from {min(lost)} to {max(lost)}; "
                f"{sum(key in later for key in lost)} of them were there {LATER_S} s later"
            )
        doubled = sum(count - 1 for key, count in stored.items() if table != "events")
        verdict.doubled += doubled
        if doubled:
            verdict.wrong.append(f"{table} has {doubled} rows twice")
    verdict.unexplained_s = await unexplained_s(stage)


def _utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and not value.tzinfo else value


async def unexplained_s(stage: Stage) -> int:
    """Seconds without a sample of a GPU between its first and its last, beyond those that events of its node,
    `coverage` and refused batches account for."""
    missing = await stage.ask(
        "SELECT node, max(s) FROM (SELECT node, gpu_uuid, "
        "date_diff('second', min(ts), max(ts)) + 1 - count(DISTINCT ts) AS s "
        "FROM gpu_samples GROUP BY ALL) GROUP BY node"
    )
    told = {
        node: seconds or 0
        for node, seconds in await stage.ask(
            "SELECT node, sum(s) FROM (SELECT node, duration_seconds + 6 AS s FROM events "
            "WHERE kind IN ('agent_gap', 'ticks_missed') UNION ALL SELECT node, max(s) FROM (SELECT node, gpu_uuid, "
            "sum(expected - taken) AS s FROM coverage WHERE table_name = 'gpu_samples' GROUP BY ALL) "
            "GROUP BY node) GROUP BY node"
        )
    }
    refused = {node: await asyncio.to_thread(set_aside, stage.spools / node) for node, _ in missing}
    return sum(max(int(s) - int(told.get(node, 0)) - refused[node], 0) for node, s in missing)


def waiting(spools: Path, before_ms: int) -> int:
    """Batches in the agents' spools that were made before that."""
    sql = "SELECT count(*) FROM batches WHERE created_ms < ?"
    return sum(count for path in spools.iterdir() for (count,) in in_spool(path, sql, before_ms))


def set_aside(spool: Path) -> int:
    """Seconds of samples in batches of an agent that were refused permanently, and what a batch may lack."""
    told = [decode(body, "zstd") for (body,) in in_spool(spool, "SELECT body FROM refused")]
    ts = {
        row
        for one in told
        if not isinstance(one, RefusedBody) and "gpu_samples" in one.tables
        for row in one.tables["gpu_samples"]["ts"].to_pylist()
    }
    return len(ts) + (BATCH_S if told else 0)


def in_spool(folder: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Rows of an agent's spool; none where it cannot be read."""
    uri = f"{(folder / SPOOL_FILE).as_uri()}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as spool:
        return spool.execute(sql, parameters).fetchall()
    return []


async def caught_up(stage: Stage, since_s: float) -> float | None:
    """Seconds until no sample from before `since_s` waits in a spool; None: not within CATCH_UP_S."""
    before_ms = round(since_s * 1000)
    sql = f"SELECT count(DISTINCT node) FROM gpu_samples WHERE epoch_ms(ts) >= {before_ms}"
    began_s = time.monotonic()
    while time.monotonic() - began_s < CATCH_UP_S:
        with suppress(aiohttp.ClientError, OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(10):
                is_told = (await stage.ask(sql))[0][0] >= stage.nodes
                # What is new goes beside what is old, so that a new row alone says little.
                if is_told and not await asyncio.to_thread(waiting, stage.spools, before_ms):
                    return round(time.monotonic() - began_s, 1)
        await asyncio.sleep(0.3)
    return None


async def play(fault: Fault, seed: int, folder: Path) -> Verdict:
    """Run a fault in the namespaces of `run_fault`."""
    verdict = Verdict(fault.name, seed)
    async with staged(folder, seed) as stage:
        await fault.prepare(stage)
        await stage.start_collector()
        stage.start_agents()
        started_s = time.time()
        if await caught_up(stage, started_s) is None:
            raise RuntimeError(f"no samples come; see {folder}")
        watching = asyncio.ensure_future(watch_readiness(stage, verdict))
        await asyncio.sleep(STEADY_S)
        await fault.strike(stage)
        ended_s = time.time()
        verdict.catch_up_s = await caught_up(stage, ended_s)
        if verdict.catch_up_s is None:
            verdict.wrong.append("did not catch up")
        watching.cancel()
        await asyncio.sleep(2)
        # What waits in spools is sent before the agents end.
        assert stage.agents is not None
        stage.agents.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(stage.agents.wait, 30)
        await judge(stage, verdict)
        fired = await stage.ask(
            "SELECT DISTINCT rule FROM alerts WHERE state <> 'pending' ORDER BY 1"
        )
        verdict.alerts = [rule for (rule,) in fired]
        verdict.wrong += fault.wrong(verdict)
        verdict.said = sorted(
            {f"{status}\t{said}" for _, status, said in stage.answers() if status != 204}
        )
    return verdict


def run_fault(name: str, seed: int, folder: Path, lasts_s: float = LASTS_S) -> Verdict:
    """Run a fault, for about `lasts_s`, in namespaces of its own."""
    words = [sys.executable, "-m", __name__, name, str(seed), str(folder)]
    with namespaces():
        done = subprocess.run(
            ["ip", "netns", "exec", COLLECTOR_NS, *words],
            env=os.environ | {NAMESPACE_VARIABLE: NAMESPACE, LASTS_VARIABLE: str(lasts_s)},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Verdict(name, seed, wrong=[why[-1]])
    return Verdict(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run a fault within the namespace."""
    name, seed, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    print(json.dumps(asdict(asyncio.run(play(FAULTS[name], seed, folder)))))


if __name__ == "__main__":
    main()
