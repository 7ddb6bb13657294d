"""Refreshes two files that queries read instead of the store: newest rows, and waste of the current hours."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from gpuwarden.query import QueryError
from gpuwarden.waste import bounds_sql, running_sql
from gpuwarden_collector.query.querier import BackgroundQuerier
from gpuwarden_collector.storage.newest_rows import Kept, LatestRows, newest_part_sql
from gpuwarden_collector.storage.running_waste import Bounds, RunningWaste

log = logging.getLogger(__name__)

LOOK_S = 1.0
RUNNING_LOOK_S = 15.0
_PARTS_MAX = 4_096


async def take_stored(latest: LatestRows, querier: BackgroundQuerier) -> None:
    """Read the rows that `latest` is missing; after an error the next call tries again."""
    for kept in latest.missing():
        try:
            parts = 1
            while not await _take(latest, querier, kept, parts):
                parts *= 4
        except QueryError as error:
            log.debug("newest rows not read", extra={"table": kept.name, "reason": str(error)})


async def _take(latest: LatestRows, querier: BackgroundQuerier, kept: Kept, parts: int) -> bool:
    """Read the rows in `parts` queries; False: more parts are needed. Raises QueryError."""
    queries = [newest_part_sql(kept, part, parts) for part in range(parts)]
    answers = await _answers(querier, queries)
    if answers is None:
        return False
    await asyncio.to_thread(latest.take_stored, kept, answers)
    return True


async def label_running(running: RunningWaste, querier: BackgroundQuerier) -> None:
    """Compute the rows of `running` if they are due; after an error the next call tries again."""
    try:
        row = (await querier.query(bounds_sql())).records()[0]
        bounds = row["begin_at"], row["end_at"]
        began_s = running.begin(bounds)
        if began_s is None:
            return
        while (answers := await _answers(querier, _running(bounds, running.parts))) is None:
            running.parts *= 4
        await asyncio.to_thread(running.take, answers, bounds, began_s)
    except (QueryError, OSError) as error:
        log.debug("waste of the current hours was not computed", extra={"reason": str(error)})


def _running(bounds: Bounds, parts: int) -> list[str]:
    if parts == 1:
        return [running_sql(*bounds)]
    return [running_sql(*bounds, f"hash(node) % {parts} = {part}") for part in range(parts)]


async def _answers(querier: BackgroundQuerier, parts: Sequence[str]) -> list[Any] | None:
    """Arrow tables of the queries' rows; None: a result is too large, so more parts are needed. Raises QueryError."""
    answers = []
    for sql in parts:
        try:
            answer = await querier.arrow(sql)
        except QueryError as error:
            if len(parts) < _PARTS_MAX and "larger than" in str(error):
                return None
            raise
        if answer.truncated and len(parts) < _PARTS_MAX:
            return None
        answers.append(answer.data)
    return answers
