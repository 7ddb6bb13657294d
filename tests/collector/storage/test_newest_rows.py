"""The newest rows that are kept are those of the definition of the views, whatever was stored, how and when."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from gpuwarden.clock import Clock, ManualClock, SystemClock
from gpuwarden.query import Querier
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.storage.arrow_files import read_rows
from gpuwarden_collector.storage.newest_rows import (
    KEPT,
    LatestRows,
    kept_table,
)
from gpuwarden_collector.storage.segment import SCHEMAS

_NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
_SAMPLES, _HOLDERS, _IDLENESS = KEPT["gpus_now"].kept
Start = Callable[..., AbstractAsyncContextManager[Collector]]


def _samples(rows: list[tuple[str, int, float | None]]) -> pa.Table:
    """GPU, seconds from now and utilization."""
    at = _NOW.replace(tzinfo=None)
    return pa.Table.from_pylist(
        [
            {
                "ts": at + timedelta(seconds=second),
                "node": f"n{value}",
                "gpu_uuid": gpu,
                "simulated": True,
                "util_percent": value,
            }
            for gpu, second, value in rows
        ],
        schema=SCHEMAS["gpu_samples"],
    )


def _published(latest: LatestRows, name: str = "gpu_samples") -> list[dict[str, Any]]:
    paths = latest.publish(["gpus_now"])
    assert (latest.published(["gpus_now"]) or {})[name] == paths[name], "nothing is written twice"
    return sorted(read_rows(paths[name]).to_pylist(), key=lambda row: row["gpu_uuid"])


_row = st.tuples(
    st.sampled_from([f"GPU-{n}" for n in range(12)]),
    st.integers(-3_000, 60),
    st.none() | st.integers(0, 100).map(float),
)


@settings(max_examples=25, deadline=None)
@given(
    parts=st.lists(st.lists(_row, min_size=1, max_size=30), max_size=8),
    stored=st.lists(_row, max_size=20),
    looks=st.sets(st.integers(0, 8)),
)
def test_the_newest_row_of_each_key_is_kept(
    tmp_path_factory: pytest.TempPathFactory, parts: Any, stored: Any, looks: set[int]
) -> None:
    latest = LatestRows(tmp_path_factory.mktemp("x") / "latest", ManualClock(_NOW))
    latest.take_stored(_SAMPLES, [_samples(stored)])
    best: dict[str, tuple[int, float | None]] = {}
    ties: set[str] = set()
    for at, part in enumerate([stored, *parts]):
        if at:
            latest.add({"gpu_samples": _samples(part), "events": None})
        for gpu, second, value in part:
            if gpu not in best or second > best[gpu][0]:
                best[gpu] = second, value
                ties.discard(gpu)
            elif second == best[gpu][0] and value != best[gpu][1]:
                ties.add(gpu)
        if at in looks or at == len(parts):
            found = {row["gpu_uuid"]: row for row in _published(latest)}
            assert found.keys() == best.keys()
            for gpu, (second, value) in best.items():
                assert found[gpu]["ts"] == (_NOW + timedelta(seconds=second)).replace(tzinfo=None)
                if gpu not in ties:
                    assert found[gpu]["util_percent"] == value
                    assert found[gpu]["node"] == f"n{value}"


def test_the_holder_is_the_newest_process_with_most_memory_else_an_allocation(
    tmp_path: Path,
) -> None:
    """Whatever came first, and in one batch or in several."""
    at = _NOW.replace(tzinfo=None)
    second = timedelta(seconds=1)
    processes = [
        {"gpu_uuid": "A", "username": "ada", "ts": at, "gpu_memory_bytes": 9},
        {"gpu_uuid": "A", "username": "bob", "ts": at, "gpu_memory_bytes": 2},
        {"gpu_uuid": "A", "username": "left", "ts": at - second, "gpu_memory_bytes": 99},
        {"gpu_uuid": "B", "username": "bob", "ts": at, "gpu_memory_bytes": None},
        {"gpu_uuid": "B", "username": "gdm", "ts": at, "gpu_memory_bytes": 5, "process_type": "graphics"},
        {"gpu_uuid": "C", "username": "left", "ts": at - second, "gpu_memory_bytes": 99},
    ]  # fmt: skip
    allocations = [
        {"gpu_uuid": "A", "username": "slurm", "ts": at},
        {"gpu_uuid": "C", "username": "cai", "ts": at},
    ]
    rows = [
        *(("process_samples", row) for row in processes),
        *(("allocation_samples", row) for row in allocations),
    ]
    orders = [rows, rows[::-1], [*rows[1::2], *rows[::2]]]
    for number, order in enumerate(orders):
        latest = LatestRows(tmp_path / str(number), ManualClock(_NOW))
        latest.take_stored(_SAMPLES, [])
        latest.take_stored(_HOLDERS, [])
        for table, row in order:
            latest.add({table: pa.Table.from_pylist([row], schema=SCHEMAS[table])})
            if number:
                latest.publish(["gpus_now"])
        holders = [
            (row["gpu_uuid"], row["username"]) for row in _published(latest, "process_samples")
        ]
        assert holders == [("A", "ada"), ("B", "bob"), ("C", "cai")]


def test_rows_of_a_rollup_are_read_again_each_minute(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    latest = LatestRows(tmp_path / "latest", clock)
    for kept in latest.missing():
        latest.take_stored(kept, [])
    assert latest.missing() == []
    clock.advance(60)
    assert latest.missing() == [_IDLENESS]
    row = {"ts": _NOW.replace(tzinfo=None), "gpu_uuid": "A", "idle_since": None}
    latest.take_stored(_IDLENESS, [pa.Table.from_pylist([row], schema=_IDLENESS.schema)])
    assert latest.missing() == []
    assert _published(latest, "idle_1m") == [row]


def test_many_keys_are_merged_as_few_are_and_forgotten_when_they_are_gone(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    latest = LatestRows(tmp_path / "latest", clock)
    latest.take_stored(_SAMPLES, [])
    every = [f"GPU-{n:05}" for n in range(20_000)]
    latest.add({"gpu_samples": _samples([(gpu, -1, 1.0) for gpu in every])})
    latest.add({"gpu_samples": _samples([(gpu, 0, 2.0) for gpu in every[::3]])})
    assert [row["util_percent"] for row in _published(latest)] == [
        2.0 if at % 3 == 0 else 1.0 for at in range(len(every))
    ]
    clock.advance(3_599.5)
    latest.add({"gpu_samples": _samples([(every[1], 3_599, 3.0)])})
    assert [row["gpu_uuid"] for row in _published(latest)] == sorted([*every[::3], every[1]])
    assert len(list((tmp_path / "latest").iterdir())) <= 2


def test_nothing_is_given_out_until_what_was_stored_before_is_known(tmp_path: Path) -> None:
    latest = LatestRows(tmp_path / "latest", ManualClock(_NOW))
    latest.add({"gpu_samples": _samples([("GPU-1", 0, 1.0)])})
    assert latest.publish(["gpus_now", "nodes_now"]) == {}
    latest.take_stored(_SAMPLES, [_samples([("GPU-2", -9, 1.0), ("GPU-1", -9, 2.0)])])
    assert [row["util_percent"] for row in _published(latest)] == [1.0, 1.0]


def test_a_disk_that_takes_no_file_leaves_queries_to_the_definition(tmp_path: Path) -> None:
    latest = LatestRows(tmp_path / "latest", ManualClock(_NOW))
    latest.take_stored(_SAMPLES, [_samples([("GPU-1", 0, 1.0)])])
    (tmp_path / "latest").rmdir()
    assert latest.publish(["gpus_now"]) == {}
    (tmp_path / "latest").mkdir()
    assert len(_published(latest)) == 1


class _Fleet:
    """What a few nodes report, in no order, about GPUs that move between them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._taken: set[tuple[str, int]] = set()

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        chance = self._random
        found: dict[str, list[dict[str, Any]]] = {}
        for table in (
            *("gpu_samples", "gpu_health_samples", "host_samples"),
            *("process_samples", "allocation_samples"),
        ):
            for _ in range(chance.randint(0, 12)):
                node, gpu = f"n{chance.randint(0, 3)}", f"GPU-{chance.randint(0, 9)}"
                key = node if table == "host_samples" else gpu
                # Away from the ends of the minute and of the five that views look back.
                back_ms = chance.choice(
                    [chance.randint(-20_000, 20_000), chance.randint(100_000, 200_000), 900_000]
                )
                if table in ("process_samples", "allocation_samples") and back_ms < 100_000:
                    back_ms = -chance.randint(30_000, 60_000)  # they count for 30 seconds
                if (table + key, back_ms) in self._taken:
                    continue
                self._taken.add((table + key, back_ms))
                row: dict[str, Any] = {"node": node, "simulated": True, "back_ms": back_ms}
                if table != "host_samples":
                    row |= {"gpu_uuid": gpu, "gpu": chance.choice([0, 1, None])}
                if table == "allocation_samples":
                    row |= {"scheduler": "slurm", "job": "7"}
                if table == "process_samples":
                    row |= {"pid": 7, "process_type": chance.choice(["graphics", "compute"])}
                column, values = {
                    "gpu_samples": ("util_percent", [None, 1, 90]),
                    "gpu_health_samples": ("ecc_corrected_volatile_total", [None, 1, 90]),
                    "host_samples": ("cpu_util_percent", [None, 1, 90]),
                    "process_samples": ("username", [None, "ada", "bob"]),
                    "allocation_samples": ("username", [None, "cai", "dan"]),
                }[table]
                found.setdefault(table, []).append({**row, column: chance.choice(values)})
        return found


async def _same_as_defined(querier: Querier) -> None:
    for view, of in KEPT.items():
        defined = of.sql
        for kept in of.kept:
            defined = defined.replace(
                f"SELECT * FROM {kept_table(kept.name)} WHERE",
                f"SELECT * FROM ({kept.newest_sql}) WHERE",
            )
        rows = [
            (await querier.query(f"{sql} ORDER BY ALL")).rows for sql in (f"FROM {view}", defined)
        ]
        assert rows[0] == rows[1], view
    joined = await querier.query(
        "SELECT count(*) FROM gpus_now n JOIN gpu_samples s USING (gpu_uuid) WHERE s.ts > n.ts"
    )
    assert joined.rows == [(0,)]


async def _kept(querier: Querier) -> bool:
    """Whether the views are answered from what is kept."""
    plans = [await querier.query(f"EXPLAIN FROM {view}") for view in KEPT]
    return all("UNION" not in str(plan.rows) for plan in plans)


@pytest.mark.usefixtures("sealing_each_second")
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
async def test_views_of_now_say_what_their_definition_says(
    seed: int, start: Start, wire: Any, post: Any
) -> None:
    fleet, sequence, began = _Fleet(seed), 0, datetime.now(UTC)
    clock: Clock = SystemClock()
    for _ in range(3):
        async with start(clock=clock, query_processes=1) as collector:
            for turn in range(5):
                tables: Mapping[str, Any] = fleet.tables()
                streams = [
                    wire.stream(
                        name,
                        [
                            {k: v for k, v in row.items() if k != "back_ms"}
                            | {"ts": began - timedelta(milliseconds=row["back_ms"])}
                            for row in rows
                        ],
                    )
                    for name, rows in tables.items()
                ]
                if streams:
                    sequence += 1
                    status, text, _ = await post(
                        collector.url, wire.zstd(b"".join(streams)), sequence
                    )
                    assert status == 204, text
                await _same_as_defined(collector.querier)
                if turn == 1:
                    for _ in range(200):
                        if await _kept(collector.querier):
                            break
                        await asyncio.sleep(0.1)
            assert await _kept(collector.querier)
