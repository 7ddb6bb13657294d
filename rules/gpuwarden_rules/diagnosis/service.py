"""Diagnoses the fleet every fifteen seconds and keeps the `diagnoses` table.

A look that fails changes nothing; the next one says how things are. Looks rest four times as long as
they took, so that they never crowd out ingest.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.diagnosis import Bottleneck, Diagnosis, DiagnosisStore
from gpuwarden.query import Querier
from gpuwarden_rules.diagnosis import episodes
from gpuwarden_rules.diagnosis.classify import classify
from gpuwarden_rules.diagnosis.features import ObservedGpu
from gpuwarden_rules.diagnosis.jobs import JobView, Judged, judge_jobs
from gpuwarden_rules.diagnosis.observe import read_rows, seen_of
from gpuwarden_rules.diagnosis.sentences import diagnosis_of, diagnosis_of_job
from gpuwarden_rules.diagnosis.window_sql import WINDOW_S

log = logging.getLogger(__name__)

LOOK_S = 15.0
CAUGHT_UP = timedelta(minutes=15)
"""How much of the time in which there was nothing to look at is looked at afterwards: agents bring it along."""
REST_FACTOR = 4.0
SAVE_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
"""A look that still runs this long after the stop is cut off."""
UNSAVED_MAX = 100_000
"""Changes kept while the store fails; what is beyond is dropped, the oldest first, and counted."""


def judged_of(seen: Sequence[ObservedGpu]) -> tuple[list[Judged], list[JobView]]:
    """Verdicts of all GPUs, and of the jobs on several."""
    return judge_jobs([Judged(one, classify(one.place, one.features)) for one in seen])


def diagnoses_of(seen: Sequence[ObservedGpu], now: datetime) -> list[Diagnosis]:
    """What is said of all GPUs, and of the jobs on several."""
    judged, jobs = judged_of(seen)
    return [
        *(diagnosis_of(one, now) for one in judged),
        *(diagnosis_of_job(view, now) for view in jobs),
    ]


class Diagnoser:
    """Keeps the diagnoses of a fleet. `run` it, or call `start` and `look` by hand."""

    def __init__(self, querier: Querier, store: DiagnosisStore, clock: Clock) -> None:
        self._querier = querier
        self._store = store
        self._clock = clock
        self._state = episodes.EpisodeState()
        self._unsaved: dict[tuple[str, datetime], Diagnosis] = {}
        self._is_behind = True
        """Nobody was heard of at the latest look: what comes then may have much to tell of before."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="diagnosis")
        self.looks = 0
        self.failures = 0
        self.dropped = 0
        """Changes that were never saved, because the store failed for too long."""
        self.last_seconds: float | None = None

    @property
    def open(self) -> Sequence[Diagnosis]:
        """Episodes that hold, as of the last look."""
        return list(self._state.open.values())

    async def run(self, stop: asyncio.Event) -> None:
        """Look until asked to stop."""
        await self.start()
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._keep_looking(stop), name="looks")
            await stop.wait()
            _, late = await asyncio.wait({looking}, timeout=STOP_TIMEOUT_S)
            for task in late:
                task.cancel()
        self._threads.shutdown(wait=False)

    async def _keep_looking(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.look()
            rest_s = max(LOOK_S, REST_FACTOR * (self.last_seconds or 0.0))
            try:
                async with asyncio.timeout(rest_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def start(self) -> None:
        """Take up the episodes of the store."""
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                self._state = episodes.restored(await self._store.open_diagnoses())
        except Exception as error:  # noqa: BLE001 - without them episodes begin anew, which is no reason to stop
            self._failed("diagnoses of before cannot be read", error)

    async def look(self) -> list[Diagnosis]:
        """Look once; what changed. Failures are counted and logged, never raised."""
        started_s = self._clock.monotonic()
        now = from_ms(to_ms(self._clock.now()))
        changed: list[Diagnosis] = []
        self.looks += 1
        try:
            rows = await read_rows(self._querier, now)
            if rows and self._is_behind:
                for at in self._missed(now):
                    found = await self._judge(await read_rows(self._querier, at), at)
                    # Windows that are empty in part say nothing of before.
                    known = [d for d in found if d.bottleneck is not Bottleneck.UNKNOWN]
                    changed += self._step(known, at)
            self._is_behind = not rows
            changed += self._step(await self._judge(rows, now), now)
            await self._save(changed)
        except Exception as error:  # noqa: BLE001 - one look's failure must not stop the others
            self._failed("diagnosis failed", error)
        self.last_seconds = self._clock.monotonic() - started_s
        return changed

    def _missed(self, now: datetime) -> Iterator[datetime]:
        """When nobody looked before now; the windows of these looks lie end to end."""
        step = timedelta(seconds=WINDOW_S)
        latest = max((d.seen_at for d in self.open), default=now - CAUGHT_UP)
        at = max(latest, now - CAUGHT_UP) + step
        while at < now:
            yield at
            at += step

    async def _judge(self, rows: Sequence[dict[str, Any]], at: datetime) -> list[Diagnosis]:
        loop = asyncio.get_running_loop()
        # A second of work for ten thousand GPUs, for which ingest does not wait.
        return await loop.run_in_executor(
            self._threads, lambda: diagnoses_of(seen_of(rows, at), at)
        )

    def _step(self, looked: Sequence[Diagnosis], at: datetime) -> list[Diagnosis]:
        self._state, changed = episodes.step(self._state, looked, at)
        return changed

    async def _save(self, changed: Sequence[Diagnosis]) -> None:
        self._unsaved |= {(d.subject, d.began_at): d for d in changed}
        while len(self._unsaved) > UNSAVED_MAX:
            del self._unsaved[next(iter(self._unsaved))]
            self.dropped += 1
        if not self._unsaved:
            return
        saving = dict(self._unsaved)
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            await self._store.save_diagnoses(list(saving.values()))
        self._unsaved.clear()

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        reason = str(error).partition("\n")[0] or type(error).__name__
        log.warning(what, extra={"reason": reason, "failures": self.failures})
