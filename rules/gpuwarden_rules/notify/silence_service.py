"""Keeps silences here and in an Alertmanager equal, as `silence_sync.step` decides.

Each round reads both sides, stores the new state, and then does what the step asks for. What fails is asked again in the
next round.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, assert_never

from gpuwarden.alert import Silence
from gpuwarden.clock import Clock
from gpuwarden.lifecycle import until
from gpuwarden.query import QueryError
from gpuwarden_rules.notify.outbox import OutboxError
from gpuwarden_rules.notify.receivers.alertmanager_silences import (
    AlertmanagerSilences,
    SilencesError,
)
from gpuwarden_rules.notify.silence_sync import (
    KEPT,
    CreateThere,
    Effect,
    ExpireThere,
    RuleLabels,
    SaveHere,
    SyncState,
    created,
    step,
)

log = logging.getLogger(__name__)

ROUND_S = 10.0
"""Time between two rounds: shorter than alerts wait for each other."""


class OwnSilences(Protocol):
    """The silences of this collector."""

    async def recent_silences(self, since: datetime) -> Sequence[Silence]:
        """Silences that end after an instant. Raises QueryError and TimeoutError."""
        ...

    async def silence(self, silence: Silence) -> None:
        """Insert or replace one, durably. Raises QueryError and TimeoutError."""
        ...

    @property
    def label_names(self) -> RuleLabels:
        """Labels of alerts by the name of their rule."""
        ...


class SilenceSync:
    """Silences of one Alertmanager. `run` it."""

    def __init__(
        self, name: str, there: AlertmanagerSilences, here: OwnSilences, clock: Clock
    ) -> None:
        """`name`: of the receiver."""
        self.name = name
        self._there = there
        self._here = here
        self._clock = clock
        self._state: SyncState | None = None
        self._stored: SyncState | None = None
        self.failing: str | None = None
        """Why the last round failed; None: it did not."""
        self.not_carried: Mapping[str, str] = {}
        """Why a silence is on one side only, by its id."""

    async def run(
        self,
        load: Callable[[], Awaitable[SyncState | None]],
        save: Callable[[SyncState], Awaitable[None]],
        stop: asyncio.Event,
    ) -> None:
        """Sync until `stop`. `load` and `save`: the durable state; they raise OutboxError."""
        try:
            while not stop.is_set():
                try:
                    if self._state is None:
                        self._stored = await load()
                        self._state = self._stored or SyncState(installation=secrets.token_hex(4))
                    await self.round(save)
                    self._failed(None)
                except (SilencesError, OutboxError, QueryError, TimeoutError) as error:
                    self._failed(str(error) or type(error).__name__)
                await until(stop, ROUND_S)
        finally:
            await self._there.close()

    async def round(self, save: Callable[[SyncState], Awaitable[None]]) -> None:
        """Compare both sides once, and do what follows. Raises what `run` counts."""
        before = self._state
        assert before is not None
        theirs = await self._there.listed()
        now = self._clock.now()
        ours = await self._here.recent_silences(now - KEPT - timedelta(hours=1))
        plan = step(before, {s.id: s for s in ours}, theirs, self._here.label_names, now)
        if plan.state != self._stored:
            await save(plan.state)
        self._state = self._stored = plan.state
        for silence_id, reason in plan.not_carried.items():
            if self.not_carried.get(silence_id) != reason:
                log.warning(
                    "silence is on one side only",
                    extra={"receiver": self.name, "silence": silence_id, "reason": reason},
                )
        self.not_carried = plan.not_carried
        failed: Exception | None = None
        for effect in plan.effects:
            try:
                await self._do(effect, save)
            except (SilencesError, QueryError, TimeoutError) as error:
                failed = error
        if failed is not None:
            raise failed

    async def _do(self, effect: Effect, save: Callable[[SyncState], Awaitable[None]]) -> None:
        assert self._state is not None
        match effect:
            case CreateThere(silence):
                theirs_id = await self._there.create(silence, self._state.installation)
                self._state = created(self._state, silence.id, theirs_id)
                await save(self._state)
                self._stored = self._state
            case ExpireThere(theirs_id):
                await self._there.expire(theirs_id)
            case SaveHere(silence):
                await self._here.silence(silence)
            case _:
                assert_never(effect)

    def _failed(self, reason: str | None) -> None:
        if reason is not None and self.failing is None:
            log.warning(
                "silences are not carried; will retry",
                extra={"receiver": self.name, "reason": reason},
            )
        elif reason is None and self.failing is not None:
            log.info("silences are carried again", extra={"receiver": self.name})
        self.failing = reason
