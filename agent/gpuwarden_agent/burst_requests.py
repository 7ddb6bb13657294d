"""Runs bursts that the collector asks for, one after another, and puts their samples into the batch."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from gpuwarden.burst import BurstRequest, bursts_of
from gpuwarden.clock import Clock
from gpuwarden.lifecycle import until
from gpuwarden_agent.burst import Burst, HasBursts, run_burst
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.probe import Probe, Row, Value
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

WAITING_MAX = 8
KNOWN_MAX = 200
"""Requests that are remembered: the collector repeats each until it expires."""
ROWS_AT_ONCE = 2_000
"""Rows put into one batch, which then is sealed: a fifth of what it may hold."""
SEAL_WAIT_S = 1.5


class BurstRunner:
    """Takes requests on the loop; reads on a thread."""

    def __init__(
        self,
        node: str,
        probes: Sequence[Probe],
        clock: Clock,
        batch: OpenBatch,
        counters: Counters,
        recorder: EventRecorder,
        *,
        is_allowed: bool,
        gpu_index: Callable[[Value], int | None],
    ) -> None:
        self._node = node
        self._probes = probes
        self._clock = clock
        self._batch = batch
        self._counters = counters
        self._recorder = recorder
        self._is_allowed = is_allowed
        self._gpu_index = gpu_index
        self._known: deque[str] = deque(maxlen=KNOWN_MAX)
        self._waiting: deque[BurstRequest] = deque()
        self._came = asyncio.Event()

    def take(self, header: str | None) -> None:
        """Requests in an answer of the collector. Costs nothing when there are none."""
        for request in bursts_of(header):
            if request.id in self._known:
                continue
            self._known.append(request.id)
            if not self._is_allowed:
                self._refuse(request, "the agent's setting bursts is false")
            elif len(self._waiting) >= WAITING_MAX:
                self._refuse(request, f"{WAITING_MAX} others wait")
            else:
                self._waiting.append(request)
                self._came.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Run requests until `stop`; one that runs then is given up."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake(stop), name="end of bursts")
            worker = Worker("burst")  # its thread starts with the first burst
            try:
                while not stop.is_set():
                    if self._waiting:
                        await self._serve(self._waiting.popleft(), worker, stop)
                    else:
                        await self._woken()
            finally:
                worker.close()

    async def _wake(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._came.set()

    async def _woken(self) -> None:
        """Wait for a request, the end of a reading, or the stop."""
        await self._came.wait()
        self._came.clear()

    async def _serve(self, request: BurstRequest, worker: Worker, stop: asyncio.Event) -> None:
        probe = self._probe_of(request.gpu_uuid)
        if probe is None:
            self._refuse(request, "no source of this agent reads that GPU more than once a second")
            return
        reading = worker.submit(self._read, probe, request, stop)
        reading.add_done_callback(lambda _: self._came.set())
        while not reading.done():
            await self._woken()
            if stop.is_set():
                return
        await self._write(request, probe, reading.result(), stop)

    def _probe_of(self, gpu_uuid: str) -> Probe | None:
        for probe in self._probes:
            if isinstance(probe, HasBursts) and gpu_uuid in (probe.gpu_uuid, *_uuids(probe)):
                return probe
        return None

    def _read(self, probe: Probe, request: BurstRequest, stop: asyncio.Event) -> Burst | str:
        """The samples, or why there are none. Runs on the thread."""
        assert isinstance(probe, HasBursts)

        def sleep(seconds: float) -> None:
            if stop.is_set():
                raise KeyboardInterrupt  # as Ctrl-C ends a burst of the command
            wait.wait(seconds)

        wait = threading.Event()
        try:
            return run_burst([probe.burst()], self._clock, request.hz, request.seconds, sleep)
        except Exception as error:  # a driver may raise anything; the agent continues
            log.exception("a burst failed", extra={"node": self._node})
            return str(error) or type(error).__name__

    async def _write(
        self, request: BurstRequest, probe: Probe, burst: Burst | str, stop: asyncio.Event
    ) -> None:
        gpu = self._gpu_index(request.gpu_uuid)
        if isinstance(burst, str):
            self._refuse(request, burst)
            return
        rows: list[Row] = [
            {
                "ts": sample.at_us // 1000,
                "node": self._node,
                "gpu": sample.gpu,
                "gpu_uuid": request.gpu_uuid,
                "simulated": probe.simulated,
                "burst": request.id,
                "metric": sample.metric,
                "source": sample.source,
                "value": sample.value,
            }
            for sample in burst.samples
            if gpu is None or sample.gpu == gpu
        ]
        if not rows:
            why = "; ".join(burst.failed) or "the driver answered nothing"
            self._refuse(request, why)
            return
        for first in range(0, len(rows), ROWS_AT_ONCE):
            for row in rows[first : first + ROWS_AT_ONCE]:
                self._counters.rows["burst_samples"] += 1
                self._counters.rows_dropped += self._batch.add("burst_samples", row)
            self._batch.seal_requested.set()
            await until(stop, SEAL_WAIT_S)
        self._recorder.record(
            "burst_done",
            f"a burst of {request.seconds:g} s at {request.hz:g} Hz has {len(rows):,} samples",
            gpu=gpu,
            gpu_uuid=request.gpu_uuid,
            duration_seconds=request.seconds,
            details={
                "burst": request.id,
                "hz": request.hz,
                "samples": len(rows),
                "readings": burst.ticks,
                "left_out": burst.missed,
            },
        )

    def _refuse(self, request: BurstRequest, why: str) -> None:
        self._recorder.record(
            "burst_refused",
            f"a burst was not run: {why}",
            gpu=self._gpu_index(request.gpu_uuid),
            gpu_uuid=request.gpu_uuid,
            details={"burst": request.id},
        )


def _uuids(probe: Probe) -> Sequence[str]:
    """GPUs of a probe of several: a simulated node."""
    found: Sequence[str] = getattr(probe, "gpu_uuids", ())
    return found
