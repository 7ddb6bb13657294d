"""The store of a replay: the public tables in memory, filled by the hour and emptied behind it.

Inventory says what it said at the instant of the question: when a node last reported follows from the
silences, not from the rows that are there already.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from bench.fidelity.fleet import SCHEMAS, START_MS, Board, Hour, Silence

from gpuwarden.clock import from_ms, to_ms
from gpuwarden.diagnosis import Diagnosis
from gpuwarden.query import Result, timestamp_sql
from gpuwarden.rollups import GPU_1H, GPU_1M, PROCESS_1M, Rollup
from gpuwarden_collector.rule_stores import diagnosis_row
from gpuwarden_collector.storage.rollup import minutes
from gpuwarden_collector.storage.rollup_sql import WindowSpan, rollup_sql
from gpuwarden_rules.evaluation.fleet import SILENT_AFTER
from gpuwarden_rules.testing import MemoryDatabase

HOUR_S = 3600
KEPT_S: Mapping[str, int] = {
    "gpu_samples": 1800,
    "host_samples": 1800,
    "process_samples": 1800,
    "allocation_samples": 3600,
    "gpu_detail_samples": 3600,
    "link_samples": 1800,
    "infiniband_samples": 1800,
    "coverage": 1800,
    "gpu_health_samples": 2 * HOUR_S,
    "gpu_1m": 4 * HOUR_S,
    "process_1m": 7 * HOUR_S,
    "gpu_1h": 8 * 24 * HOUR_S,
}
"""How far back any rule looks, and some; the rest is kept: a week of events and hours is small."""
LAST_SEEN = """
CREATE VIEW {table} AS SELECT t.* REPLACE (least(t.last_seen_at,
    coalesce((SELECT min(s.begin_at) FROM absences s WHERE s.node = t.node
              AND s.begin_at <= getvariable('now') AND (s.end_at IS NULL OR s.end_at > getvariable('now'))),
             getvariable('now'))::TIMESTAMP) AS last_seen_at{more})
FROM {table}_described t
WHERE coalesce(t.first_seen_at <= getvariable('now'), true)
"""
"""Without the boards that are yet to come; those that were replaced reported until then."""
REPLACED = """,
    CASE WHEN t.last_seen_at <= getvariable('now') THEN t.replaced_by END AS replaced_by"""
"""Sets the board that replaced one, from then on."""


class Warehouse:
    """A Querier whose inventory is that of the instant `now`, bound by this query or the latest that did."""

    def __init__(self, inventory: Mapping[str, list[Mapping[str, Any]]]) -> None:
        self.db = MemoryDatabase()
        self.db.execute(
            "CREATE TABLE absences (node VARCHAR, begin_at TIMESTAMP, end_at TIMESTAMP)"
        )
        self.db.execute("SET threads = 1")  # the next hour is simulated on the other core
        self._silences: dict[tuple[str, int], Silence] = {}
        for table, more in (("nodes", ""), ("gpus", REPLACED)):
            self.db.insert(table, inventory[table])
            self.db.execute(f"ALTER TABLE {table} RENAME TO {table}_described")
            self.db.execute(LAST_SEEN.format(table=table, more=more))

    def load(self, hour: Hour, begin_s: int) -> None:
        """Take in the rows of an hour that begins so long after the beginning, and roll them up."""
        for name, table in hour.tables.items():
            self._insert(name, table)
        self._silence(hour.silences)
        self._replace(hour.boards)
        begin = from_ms(START_MS + begin_s * 1000)
        end = from_ms(START_MS + (begin_s + HOUR_S) * 1000)
        for rollup in (GPU_1M, PROCESS_1M):
            self._roll(rollup, begin.replace(tzinfo=None), end.replace(tzinfo=None))
        if begin_s:  # the hour before is over; this one has yet to be lived
            earlier = from_ms(START_MS + (begin_s - HOUR_S) * 1000)
            hour = rollup_sql(GPU_1H, WindowSpan(earlier, begin))
            self.db.execute(f"INSERT INTO gpu_1h BY NAME {hour}")
        self._forget(begin)

    def keep(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Insert or update diagnoses by (subject, began_at); the last of several counts."""
        latest = {(d.subject, d.began_at): d for d in diagnoses}
        known = "SELECT unnest($subjects), unnest($begun)::TIMESTAMP"
        self.db.run(
            f"DELETE FROM diagnoses WHERE (subject, began_at) IN ({known})",
            {
                "subjects": [subject for subject, _ in latest],
                "begun": [at.replace(tzinfo=None) for _, at in latest],
            },
        )
        self.db.insert("diagnoses", [diagnosis_row(d) for d in latest.values()])

    def _insert(self, name: str, table: pa.Table) -> None:
        columns = [f.name for f in SCHEMAS[name] if table[f.name].null_count < table.num_rows]
        batch = table.select(columns)
        connection = self.db.connection
        connection.register("_batch", batch)
        names = ", ".join(columns)
        connection.execute(f"INSERT INTO {name} ({names}) SELECT {names} FROM _batch")
        connection.unregister("_batch")

    def _roll(self, rollup: Rollup, begin: datetime, end: datetime) -> None:
        """Rows of minutes, in parts: a part holds all samples of its time."""
        span = timedelta(minutes=5)
        connection = self.db.connection
        while begin < end:
            rows = minutes(connection, rollup, begin, min(begin + span, end))
            connection.register("_batch", rows)
            connection.execute(f"INSERT INTO {rollup.table.name} BY NAME FROM _batch")
            connection.unregister("_batch")
            begin += span

    def _silence(self, silences: Iterable[Silence]) -> None:
        for silence in silences:
            self._silences[silence.node, silence.begin_ms] = silence
        self.db.execute("DELETE FROM absences")
        for silence in self._silences.values():
            end = f"make_timestamp_ms({silence.end_ms})" if silence.end_ms else "NULL"
            self.db.execute(
                f"INSERT INTO absences VALUES ('{silence.node}', make_timestamp_ms({silence.begin_ms}), {end})"
            )

    def _replace(self, boards: Iterable[Board]) -> None:
        for board in boards:
            since = from_ms(board.since_ms)
            row = {**board.row, "first_seen_at": since}
            self.db.insert("gpus", [row], into="gpus_described")
            last = timestamp_sql(from_ms(board.replaced_ms))
            self.db.execute(
                f"UPDATE gpus_described SET last_seen_at = {last}, replaced_by = '{board.row['gpu_uuid']}'"
                f" WHERE gpu_uuid = '{board.replaced_uuid}'"
            )

    def _forget(self, begin: datetime) -> None:
        """Write tables again without what no rule reads any more: memory stays as it is."""
        for table, kept_s in KEPT_S.items():
            since = f"TIMESTAMP '{begin.replace(tzinfo=None)}' - INTERVAL {kept_s} SECOND"
            self.db.execute(
                f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM {table} WHERE ts >= {since}"
            )

    def silent(self, at: datetime) -> frozenset[str]:
        """Nodes that had sent nothing for SILENT_AFTER, as the engine asks."""
        heard_until_ms = to_ms(at - SILENT_AFTER)
        return frozenset(
            silence.node
            for silence in self._silences.values()
            if silence.begin_ms <= heard_until_ms
            and (silence.end_ms is None or to_ms(at) < silence.end_ms)
        )

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        """The Querier port."""
        now: datetime | None = (params or {}).get("now")
        if now is not None:
            self.db.execute(f"SET VARIABLE now = {timestamp_sql(now)}")
        return await self.db.query(sql, params, timeout_s=timeout_s, row_limit=row_limit)
