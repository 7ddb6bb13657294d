"""Shares silences and acknowledgements with the other collectors of a lake, so that one that is made at any of them holds at all.

`compared` decides, and is pure. Of two versions of a silence the one with more changes holds; of equal ones that which ends
earlier, so an end is not lost to another change at the same time. While PostgreSQL is away each collector keeps its own, and
they agree when it is back.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpuwarden.alert import SharedSilence, Silence, SilenceBoard, matcher_of
from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.lifecycle import until
from gpuwarden.query import QueryError

log = logging.getLogger(__name__)

ROUND_S = 5.0
KEPT = timedelta(days=7)
"""Silences that ended within this time are compared."""


class SharingSilences(Protocol):
    """The silences of this collector."""

    async def recent_silences(self, since: datetime) -> Sequence[Silence]:
        """Silences that end after an instant. Raises QueryError and TimeoutError."""
        ...

    async def take_silences(self, silences: Sequence[Silence]) -> None:
        """Insert or replace them, durably. Raises QueryError and TimeoutError."""
        ...


@dataclass(frozen=True, slots=True)
class SilenceComparison:
    """What each side lacks."""

    to_push: Sequence[Silence]
    to_take: Sequence[Silence]


def compared(ours: Sequence[Silence], theirs: Sequence[Silence]) -> SilenceComparison:
    """Silences whose version here is newer than there, and the other way round."""
    here = {one.id: one for one in ours}
    there = {one.id: one for one in theirs}
    return SilenceComparison(
        [one for one in ours if _is_newer(one, there.get(one.id))],
        [one for one in theirs if _is_newer(one, here.get(one.id))],
    )


def _is_newer(one: Silence, other: Silence | None) -> bool:
    return other is None or (one.changes, -to_ms(one.ends_at)) > (other.changes, -to_ms(other.ends_at))  # fmt: skip


class SilenceShare:
    """Keeps the silences of this collector and those of the others equal. `run` it."""

    def __init__(self, board: SilenceBoard, here: SharingSilences, clock: Clock) -> None:
        self._board = board
        self._here = here
        self._clock = clock
        self.failing: str | None = None
        """Why the last round failed; None: it did not."""

    async def run(self, stop: asyncio.Event) -> None:
        """Share until `stop`."""
        while not stop.is_set():
            try:
                await self.round()
                self._failed(None)
            except (QueryError, TimeoutError) as error:
                self._failed(str(error) or type(error).__name__)
            await until(stop, ROUND_S)

    async def round(self) -> None:
        """Compare both sides once, and give each what it lacks. Raises QueryError and TimeoutError."""
        since = self._clock.now() - KEPT
        ours = await self._here.recent_silences(since)
        ids, since_ms = [one.id for one in ours], to_ms(since)
        theirs = _read(await self._board.share_silences([], ids, since_ms))
        found = compared(ours, theirs)
        if found.to_push:
            shared = [shared_of(one) for one in found.to_push]
            # Another collector may have been faster with a newer version.
            theirs = _read(await self._board.share_silences(shared, ids, since_ms))
            found = compared(ours, theirs)
        if found.to_take:
            await self._here.take_silences(found.to_take)
            log.info(
                "silences of other collectors are taken", extra={"silences": len(found.to_take)}
            )

    def _failed(self, reason: str | None) -> None:
        if reason is not None and self.failing is None:
            log.warning("silences are not shared; will retry", extra={"reason": reason})
        elif reason is None and self.failing is not None:
            log.info("silences are shared again")
        self.failing = reason


def shared_of(silence: Silence) -> SharedSilence:
    """The silence as it is shared."""
    body = {
        "matchers": [str(matcher) for matcher in silence.matchers],
        "fingerprint": silence.fingerprint,
        "author": silence.author,
        "comment": silence.comment,
        "starts_ms": to_ms(silence.starts_at),
    }
    text = json.dumps(body, ensure_ascii=False)
    return SharedSilence(silence.id, silence.changes, to_ms(silence.ends_at), text)


def _read(rows: Sequence[SharedSilence]) -> list[Silence]:
    """The silences that can be read; others are logged and left out: a newer version may have written them."""
    found = []
    for row in rows:
        try:
            found.append(_silence(row, json.loads(row.body)))
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a shared silence cannot be read", extra={"silence": row.id, "reason": str(error)})  # fmt: skip
    return found


def _silence(row: SharedSilence, body: Mapping[str, Any]) -> Silence:
    return Silence(
        id=row.id,
        matchers=tuple(matcher_of(text) for text in body["matchers"]),
        fingerprint=body["fingerprint"],
        author=body["author"],
        comment=body["comment"],
        starts_at=from_ms(body["starts_ms"]),
        ends_at=from_ms(row.ends_ms),
        changes=row.changes,
    )
