"""Asks the store for the newest rows that older runs have stored, after a start."""

import asyncio
import logging

from gpuwarden.query import QueryError
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.storage.newest_rows import Kept, LatestRows, newest_part_sql

log = logging.getLogger(__name__)

LOOK_S = 1.0
_PARTS_MAX = 4_096


async def take_stored(latest: LatestRows, querier: SqlQuerier) -> None:
    """Have `latest` take over what is missing; what cannot be read now is left for the next call."""
    for kept in latest.missing():
        try:
            parts = 1
            while not await _take(latest, querier, kept, parts):
                parts *= 4
        except QueryError as error:
            log.debug("newest rows not read", extra={"view": kept.view, "reason": str(error)})


async def _take(latest: LatestRows, querier: SqlQuerier, kept: Kept, parts: int) -> bool:
    """In so many queries, as answers are bounded; False: they must be more. Raises QueryError."""
    found = []
    for part in range(parts):
        try:
            answer = await querier.arrow(newest_part_sql(kept, part, parts))
        except QueryError as error:
            if parts < _PARTS_MAX and "larger than" in str(error):
                return False
            raise
        if answer.truncated and parts < _PARTS_MAX:
            return False
        found.append(answer.data)
    await asyncio.to_thread(latest.take_stored, kept, found)
    return True
