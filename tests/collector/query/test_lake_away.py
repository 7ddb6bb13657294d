"""While the lake cannot be read, what segments and state hold is answered, and nothing that needs more."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.query import LakeAwayError, QueryError
from gpuwarden.rollups import ROLLUPS
from gpuwarden.teams import Team
from gpuwarden_collector.processes import forkserver
from gpuwarden_collector.query import querier as querier_module
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.worker import WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_rules.definition.language import builtin_rules

LISTENED = timedelta(minutes=65)
"""Since when the segments have all rows."""


def _own_row(database: Database, at: datetime) -> Any:
    row = {
        "ts": at.replace(tzinfo=None),
        "collector": database.collector,
        "host": "h",
        "version": "1",
        **dict.fromkeys(("batches", "refused_batches", "commit_failures", "task_failures"), 0),
    }
    return pa.Table.from_pylist([row], schema=SCHEMAS["collector_samples"])


@pytest.fixture
def stored(database: Database, wire: Any) -> datetime:
    """Two GPUs' samples, and the collector's own account; the instant of the samples."""
    rows = wire.table("gpu_samples", wire.gpu_rows(2, [0]))
    own = _own_row(database, wire.now - LISTENED)
    commit(database, Changes(appended={"gpu_samples": rows, "collector_samples": own}))
    return wire.now


@pytest.fixture
async def querier(
    worker_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SqlQuerier]:
    monkeypatch.setattr(querier_module, "LAKE_LOOK_S", 0.2)
    async with SqlQuerier(
        worker_settings, Stats(), SystemClock(), queries_max=2, timeout_s=20
    ) as opened:
        yield opened


@contextmanager
def _away(settings: WorkerSettings) -> Iterator[None]:
    """The catalogue cannot be found."""
    catalogue = Path(settings.address.catalog)
    held = catalogue.rename(catalogue.with_name("away"))
    try:
        yield
    finally:
        held.rename(catalogue)


_BOUND = "ts > $now::TIMESTAMP - to_seconds($window) AND ts <= $now::TIMESTAMP"
_WITHIN = (
    f"SELECT count(*) FROM gpu_samples WHERE {_BOUND}",
    f"WITH w AS (FROM gpu_samples WHERE {_BOUND}) SELECT count(DISTINCT gpu_uuid) FROM w JOIN gpus USING (gpu_uuid) RIGHT JOIN (SELECT 2 AS n) ON true HAVING count(*) >= 0",
    f"SELECT count(*) FROM gpu_samples a JOIN gpu_samples b USING (ts, gpu_uuid) WHERE a.{_BOUND.replace(' ts', ' a.ts')}",
)


async def test_queries_within_the_span_of_the_segments_are_answered_and_others_refused(
    querier: SqlQuerier, worker_settings: WorkerSettings, stored: datetime
) -> None:
    now = {"now": stored + timedelta(seconds=5), "window": 60}
    with _away(worker_settings):
        for sql in (_WITHIN[0], _WITHIN[2]):
            assert (await querier.query(sql, now)).rows == [(2,)], sql
        assert (await querier.query(_WITHIN[1], now)).columns
        assert (await querier.query("SELECT count(*) FROM nodes")).rows == [(0,)]
        assert (await querier.query("EXPLAIN SELECT * FROM gpu_samples")).rows
        assert querier.lake_away_since is not None
        for sql, given in (
            (_WITHIN[0], {**now, "window": 7200}),
            ("SELECT count(*) FROM gpu_samples", {}),
            ("SELECT count(*) FROM gpu_samples WHERE ts > $now OR gpu = 0", now),
            ("SELECT * FROM events WHERE ts <= $now", now),
            (f"SELECT count(*) FROM gpu_1m WHERE {_BOUND}", now),
            (f"FROM waste_1h WHERE {_BOUND}", now),
        ):
            with pytest.raises(LakeAwayError, match="the lake's catalogue cannot be read"):
                await querier.query(sql, given)
        with pytest.raises(QueryError, match="oops") as wrong:
            await querier.query("SELECT oops FROM gpu_samples WHERE ts > now()::TIMESTAMP")
        assert not isinstance(wrong.value, LakeAwayError)
    async with asyncio.timeout(30):
        while querier.lake_away_since is not None:  # noqa: ASYNC110  nobody says so
            await asyncio.sleep(0.05)
    assert (await querier.query("SELECT count(*) FROM gpu_samples")).rows == [(2,)]


async def test_a_team_is_answered_from_its_rows_in_segments_while_the_lake_is_away(
    querier: SqlQuerier, worker_settings: WorkerSettings, stored: datetime
) -> None:
    everywhere = Team("everywhere", nodes=("*",))
    now = {"now": stored + timedelta(seconds=5), "window": 60}
    with _away(worker_settings):
        for sql, given in (
            (_WITHIN[0], {**now, "window": 7200}),
            ("SELECT count(*) FROM gpu_samples", {}),
            ("FROM gpu_1m", {}),
            ("FROM waste", {}),
            ("FROM others_1h", {}),
        ):
            with pytest.raises(LakeAwayError, match="the lake's catalogue cannot be read"):
                await querier.query(sql, given, team=everywhere)
        assert (await querier.query("SELECT count(*) FROM nodes", team=everywhere)).rows == [(0,)]
        kept = set(querier.pids)
        assert (await querier.query("SELECT 1", team=everywhere)).rows == [(1,)]
        assert set(querier.pids) == kept, "a refusal ends no process"
    async with asyncio.timeout(30):
        while querier.lake_away_since is not None:  # noqa: ASYNC110  nobody says so
            await asyncio.sleep(0.05)
    assert (await querier.query("SELECT count(*) FROM gpu_1m", team=everywhere)).rows


async def test_a_host_that_is_too_busy_to_start_a_query_process_has_its_lake(
    querier: SqlQuerier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("gpuwarden_collector.query.querier.START_S", 0.0)
        with pytest.raises(QueryError, match="no query process could be started") as failed:
            await querier.query("SELECT count(*) FROM gpu_samples")
        assert not isinstance(failed.value, LakeAwayError)
    assert querier.lake_away_since is None


async def test_a_query_process_that_is_killed_at_its_start_has_not_lost_the_lake(
    querier: SqlQuerier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn_and_kill(ends: Sequence[int], kind: bytes) -> int:
        pid = forkserver.spawn(ends, kind)
        os.kill(pid, signal.SIGKILL)
        return pid

    with monkeypatch.context() as patched:
        patched.setattr("gpuwarden_collector.query.querier.spawn", spawn_and_kill)
        with pytest.raises(QueryError, match="query process"):
            await querier.query("SELECT count(*) FROM gpu_samples")
    assert querier.lake_away_since is None


async def test_rules_of_minutes_are_judged_and_those_of_rollups_are_not(
    querier: SqlQuerier, worker_settings: WorkerSettings, stored: datetime
) -> None:
    judged, refused = set(), set()
    with _away(worker_settings):
        for rule in builtin_rules():
            try:
                await querier.query(rule.sql, rule.bindings(stored + timedelta(seconds=5)))
                judged.add(rule.name)
            except LakeAwayError:
                refused.add(rule.name)
    assert {
        "recovery_action", "ecc_uncorrectable", "temperature_limit_reached", "fabric_unhealthy", "nvlink_errors",
        "storage_stalled", "identity_claimed_twice", "agent_loses_data", "persistence_off",
    } <= judged  # fmt: skip
    for rule in builtin_rules():
        reads_rollups = any(re.search(rf"\b{name}\b", rule.sql) for name in (*ROLLUPS, "idle_1m"))
        spans = [value for value in rule.params.values() if isinstance(value, int | float)]
        looks_far = max(spans, default=0) > LISTENED.total_seconds()
        assert (rule.name in judged) or reads_rollups or looks_far, rule.name
