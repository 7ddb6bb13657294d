"""Listeners get events when their rows can be read."""

import asyncio
from collections.abc import Collection
from typing import Any


async def test_kinds_are_told_once_their_rows_can_be_read(start: Any, wire: Any, post: Any) -> None:
    told: list[list[str]] = []
    counts: asyncio.Queue[int] = asyncio.Queue()
    async with start() as collector, asyncio.TaskGroup() as tasks:

        async def count() -> None:
            found = await collector.rules_querier.query("SELECT count(*) FROM events")
            counts.put_nowait(found.rows[0][0])

        def hear(kinds: Collection[str]) -> None:
            told.append(sorted(kinds))
            tasks.create_task(count())

        collector.events.listen(hear)
        samples = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(1, [0])))
        assert (await post(collector.url, samples, 1))[0] == 204
        rows = [
            {**wire.gpu_row(), "kind": kind, "severity": "critical", "message": "m"}
            for kind in ("xid", "xid", "port_down")
        ]
        events = [{k: v for k, v in row.items() if k != "util_percent"} for row in rows]
        body = wire.zstd(wire.stream("events", events))
        assert (await post(collector.url, body, 2))[0] == 204
        async with asyncio.timeout(10):
            assert await counts.get() == 3
    assert told == [["port_down", "xid"]]
