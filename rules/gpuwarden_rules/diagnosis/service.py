"""Diagnoses the fleet every fifteen seconds and keeps the table `diagnoses`.

A diagnosis that fails changes nothing; the next one corrects the state. After each one the service rests four
times as long as it took, so that diagnosis does not crowd out ingest.
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

UPDATE_S = 15.0
CAUGHT_UP = timedelta(minutes=15)
"""How far back the fleet is diagnosed afterwards, when agents send data of a time without rows."""
REST_FACTOR = 4.0
SAVE_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
"""A diagnosis that still runs this long after the stop is cancelled."""
UNSAVED_MAX = 100_000
"""Most unsaved changes while the store fails; above it the oldest are dropped and counted."""


def judged_of(seen: Sequence[ObservedGpu]) -> tuple[list[Judged], list[JobView]]:
    """Verdicts of all GPUs, and of jobs on several GPUs."""
    return judge_jobs([Judged(one, classify(one.place, one.features)) for one in seen])


def diagnoses_of(seen: Sequence[ObservedGpu], now: datetime) -> list[Diagnosis]:
    """Diagnoses of all GPUs, and of jobs on several GPUs."""
    judged, jobs = judged_of(seen)
    return [
        *(diagnosis_of(one, now) for one in judged),
        *(diagnosis_of_job(view, now) for view in jobs),
    ]


class Diagnoser:
    """Keeps the diagnoses of a fleet. `run` it, or call `start` and `update`."""

    def __init__(self, querier: Querier, store: DiagnosisStore, clock: Clock) -> None:
        self._querier = querier
        self._store = store
        self._clock = clock
        self._state = episodes.EpisodeState()
        self._unsaved: dict[tuple[str, datetime], Diagnosis] = {}
        self._is_behind = True
        """The last update found no rows: agents that return may send data of the time before."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="diagnosis")
        self.looks = 0
        self.failures = 0
        self.dropped = 0
        """Changes that were never saved, because the store failed for too long."""
        self.last_seconds: float | None = None

    @property
    def open(self) -> Sequence[Diagnosis]:
        """Open episodes at the last update."""
        return list(self._state.open.values())

    async def run(self, stop: asyncio.Event) -> None:
        """Update until `stop` is set."""
        await self.start()
        async with asyncio.TaskGroup() as tasks:
            updating = tasks.create_task(self._keep_updating(stop), name="diagnosis")
            await stop.wait()
            _, late = await asyncio.wait({updating}, timeout=STOP_TIMEOUT_S)
            for task in late:
                task.cancel()
        self._threads.shutdown(wait=False)

    async def _keep_updating(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.update()
            rest_s = max(UPDATE_S, REST_FACTOR * (self.last_seconds or 0.0))
            try:
                async with asyncio.timeout(rest_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def start(self) -> None:
        """Load the stored episodes."""
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                self._state = episodes.restored(await self._store.open_diagnoses())
        except Exception as error:  # noqa: BLE001 - without them episodes begin again
            self._failed("stored diagnoses cannot be read", error)

    async def update(self) -> list[Diagnosis]:
        """Diagnose once; returns the changes. Failures are counted and logged, never raised."""
        started_s = self._clock.monotonic()
        now = from_ms(to_ms(self._clock.now()))
        changed: list[Diagnosis] = []
        self.looks += 1
        try:
            rows = await read_rows(self._querier, now)
            if rows and self._is_behind:
                for at in self._missed(now):
                    found = await self._judge(await read_rows(self._querier, at), at)
                    # A window that is partly empty does not show the time before.
                    known = [d for d in found if d.bottleneck is not Bottleneck.UNKNOWN]
                    changed += self._step(known, at)
            self._is_behind = not rows
            changed += self._step(await self._judge(rows, now), now)
            await self._save(changed)
        except Exception as error:  # noqa: BLE001 - one failure must not stop the next
            self._failed("diagnosis failed", error)
        self.last_seconds = self._clock.monotonic() - started_s
        return changed

    def _missed(self, now: datetime) -> Iterator[datetime]:
        """Instants before now that were not diagnosed, one window apart."""
        step = timedelta(seconds=WINDOW_S)
        latest = max((d.seen_at for d in self.open), default=now - CAUGHT_UP)
        at = max(latest, now - CAUGHT_UP) + step
        while at < now:
            yield at
            at += step

    async def _judge(self, rows: Sequence[dict[str, Any]], at: datetime) -> list[Diagnosis]:
        loop = asyncio.get_running_loop()
        # Ten thousand GPUs take a second; ingest does not wait for it.
        return await loop.run_in_executor(
            self._threads, lambda: diagnoses_of(seen_of(rows, at), at)
        )

    def _step(self, found: Sequence[Diagnosis], at: datetime) -> list[Diagnosis]:
        self._state, changed = episodes.step(self._state, found, at)
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
