"""Makes a store as of years by the real writer, sealer and upkeep under a fast clock, and prints how it grows.

`python -m bench.years --days 365 --nodes 1000`. Every simulated day has `--seals` seals, a batch an agent and seal, and
one round of upkeep (merge, expire, clean up, drop after 30 days). Thinned: a batch has one row of `host_samples`, a day
one seal where a collector makes some 24, and there are no rollups, alerts, inventory and queries of others. By quarter
of the run: times of a seal and of a question in the median, of a start, memory, files, and what catalogue and state hold.
A question that does not find the rows of the days that are kept ends the run.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from gpuwarden.clock import ManualClock
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch
from gpuwarden_collector.ingest.decode import BatchRows, Decoded
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.address import local_address
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.disk import Budget, DiskMonitor
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.maintenance import Maintainer, MaintenancePolicy
from gpuwarden_collector.storage.retention import Tier
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS
from gpuwarden_collector.storage.seal import Sealer, SealPolicy
from gpuwarden_collector.storage.stats import StorageStats

LIMITS = EngineLimits(memory="1GiB", threads=1)
QUARTERS = 4
KEPT_DAYS = 30
_BOOT = "boot"


class Years:
    """One store, and the time that passes in it."""

    def __init__(self, folder: Path, nodes: int, seals: int) -> None:
        self._folder = folder
        self._nodes = [f"node{n:05d}" for n in range(nodes)]
        self._step = timedelta(days=1) / seals
        self._seals = seals
        self._sequence = 0
        self.clock = ManualClock(datetime.now(UTC))
        self.seal_s: list[float] = []
        self.ask_s: list[float] = []
        self.upkeep_s: list[float] = []

    async def live(self, days: int) -> dict[str, Any]:
        """So many days of one opening; what there is then."""
        began_s = time.perf_counter()
        database = Database.open(self._folder, LIMITS)
        stats = Stats()
        writer = Writer(database, load_known(database, self.clock.now()), stats, self.clock)
        start_s = time.perf_counter() - began_s
        writer.start()
        sealer = Sealer(database, writer, StorageStats(), self.clock, SealPolicy(0.0, 0))
        disk = DiskMonitor(self._folder, Budget(0, 0))
        disk.look()
        policy = MaintenancePolicy(dict.fromkeys(Tier, KEPT_DAYS))
        upkeep = Maintainer(database, writer, StorageStats(), self.clock, sealer, disk, policy)
        self.seal_s, self.ask_s, self.upkeep_s = [], [], []
        try:
            for _ in range(days):
                for _ in range(self._seals):
                    await self._seal(writer, sealer)
                began_s = time.perf_counter()
                await upkeep.run_once()
                self.upkeep_s.append(time.perf_counter() - began_s)
                began_s = time.perf_counter()
                rows = self._ask(database, "SELECT count(*) FROM host_samples")
                self.ask_s.append(time.perf_counter() - began_s)
                self._check(rows)
            return {
                "start s": start_s,
                "seal ms": statistics.median(self.seal_s) * 1e3,
                "upkeep ms": statistics.median(self.upkeep_s) * 1e3,
                "question ms": statistics.median(self.ask_s) * 1e3,
                "MiB": psutil.Process().memory_info().rss / 2**20,
                "files": sum(1 for _ in self._folder.rglob("*.parquet")),
                **self._counts(database),
            }
        finally:
            await writer.stop()
            database.close()

    async def _seal(self, writer: Writer, sealer: Sealer) -> None:
        self.clock.advance(self._step.total_seconds())
        self._sequence += 1
        now = self.clock.now()
        schema = STORED_SCHEMAS["host_samples"]
        rows = [{"ts": now, "node": node, "simulated": True} for node in self._nodes]
        whole = pa.Table.from_pylist(rows, schema=schema)
        batches = [
            Batch(
                BatchId(node, _BOOT, self._sequence, self._sequence),
                Decoded({"host_samples": BatchRows(whole, place, 1)}, 500),
            )
            for place, node in enumerate(self._nodes)
        ]
        await asyncio.gather(*(writer.store(batch) for batch in batches))
        began_s = time.perf_counter()
        await sealer.run_once(is_forced=True)
        self.seal_s.append(time.perf_counter() - began_s)

    def _ask(self, database: Database, sql: str) -> Any:
        with database.reading() as cursor:
            return cursor.execute(sql).fetchall()[0][0]

    def _check(self, rows: int) -> None:
        """Raise SystemExit where a question does not find the rows of the days that are kept."""
        per_day = len(self._nodes) * self._seals
        sent = len(self._nodes) * self._sequence
        # A day is dropped once the whole of it is too old.
        kept = min(sent, KEPT_DAYS * per_day)
        if not kept - per_day <= rows <= min(sent, kept + 2 * per_day):
            raise SystemExit(f"the store has {rows} rows of {sent}, expected about {kept}")

    def _counts(self, database: Database) -> dict[str, int]:
        return {
            "seals kept": self._ask(database, "SELECT count(*) FROM lake.main.collectors"),
            "snapshots": self._ask(database, "SELECT count(*) FROM ducklake_snapshots('lake')"),
            "catalogue KiB": Path(local_address(self._folder).catalog).stat().st_size // 1024,
            "ledger": len(database.state.rows("ledger")),
            "state KiB": (self._folder / "state.sqlite").stat().st_size // 1024,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--seals", type=int, default=1, help="of a day")
    options = parser.parse_args()
    if options.days < QUARTERS:
        parser.error(f"--days: {QUARTERS} or more")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        years = Years(Path(folder), options.nodes, options.seals)
        for quarter in range(QUARTERS):
            found.append(asyncio.run(years.live(options.days // QUARTERS)))
            figures = ", ".join(f"{name} {value:,.4g}" for name, value in found[-1].items())
            print(f"day {(quarter + 1) * options.days // QUARTERS}: {figures}", flush=True)
    for name, last in found[-1].items():
        # The first quarter fills what is kept for 30 days.
        print(f"{name}: {last / max(found[1][name], 1e-9):.2f} times as much as at the half")


if __name__ == "__main__":
    main()
