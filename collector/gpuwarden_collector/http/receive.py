"""Receives a batch: reads, decodes and admits its body, and passes it to the writer."""

import logging

from aiohttp import web

from gpuwarden.clock import Clock, to_ms
from gpuwarden.wire import (
    AGENT_HEADER,
    BODY_BYTES_MAX,
    BOOT_HEADER,
    CONTENT_TYPE,
    IMPORT_HEADER,
    NOW_HEADER,
    OLDEST_HEADER,
    SENT_BEFORE_HEADER,
    SEQUENCE_HEADER,
    VERSION_HEADER,
    BatchId,
    WireError,
    WireVersionError,
    batch_id_of,
    now_ms_of,
)
from gpuwarden_collector.auth.gate import node_of, sender_of
from gpuwarden_collector.http.bodies import BodyReader, Busy
from gpuwarden_collector.ingest.admission import Admission
from gpuwarden_collector.ingest.clock_check import ClockCheck, apart_text
from gpuwarden_collector.ingest.commit_plan import Batch, Outcome, Stored
from gpuwarden_collector.ingest.decode import Decoded, RefusedBody
from gpuwarden_collector.ingest.decode_pool import Body, DecodePool
from gpuwarden_collector.ops.readiness import CLOCK_RETRY_AFTER_S
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.retention import WRONG_S

log = logging.getLogger(__name__)

_ONCE = (
    VERSION_HEADER,
    AGENT_HEADER,
    BOOT_HEADER,
    SEQUENCE_HEADER,
    OLDEST_HEADER,
    SENT_BEFORE_HEADER,
    IMPORT_HEADER,
    NOW_HEADER,
    "Content-Type",
    "Content-Encoding",
)


class Ingest:
    """Takes batches from requests; a collector has one instance."""

    def __init__(
        self,
        admission: Admission,
        bodies: BodyReader,
        decode_pool: DecodePool,
        stats: Stats,
        clock: Clock,
        clock_check: ClockCheck,
    ) -> None:
        self._admission = admission
        self._bodies = bodies
        self._decode_pool = decode_pool
        self._stats = stats
        self._clock = clock
        self._clock_check = clock_check
        self._named_columns: set[tuple[str, str]] = set()

    async def take(self, request: web.Request) -> Outcome | RefusedBody | Busy:
        """Store the batch of a request; the outcome `Stored` means that it is durable."""
        started = self._clock.monotonic()
        if no_room := self._admission.no_room():
            return no_room
        # Of two values a proxy could use one and the collector the other.
        if twice := sorted(name for name in _ONCE if len(request.headers.getall(name, ())) > 1):
            return RefusedBody(400, f"header {twice[0]} occurs more than once")
        try:
            batch_id = batch_id_of(request.headers)
            ahead_s = self._ahead_s(request)
        except WireVersionError as error:
            return RefusedBody(426, str(error))
        except WireError as error:
            return RefusedBody(400, str(error))
        if request.content_type != CONTENT_TYPE:
            return RefusedBody(
                415, f"Content-Type must be {CONTENT_TYPE}, not {request.content_type}"
            )
        body = await self._bodies.read(request, BODY_BYTES_MAX)
        if not isinstance(body, bytes):
            return body
        body_bytes = len(body)
        try:
            encoding = request.headers.get("Content-Encoding", "")
            decoded = await self._decode_pool.admit(
                Body(body, encoding, batch_id.is_import, node_of(request))
            )
            del body
        finally:
            self._bodies.release(body_bytes)
        if isinstance(decoded, RefusedBody) and decoded.admitting_ahead_s is None:
            self._stats.denied["node"] += decoded.status == 403
            return decoded
        # Not before: only agents with valid batches may contradict the collector's clock.
        self._note_clock(request, batch_id, ahead_s)
        if wait := _clock_wait(decoded, ahead_s, self._clock_check):
            return Busy(wait, CLOCK_RETRY_AFTER_S, 503)
        if isinstance(decoded, RefusedBody):
            return decoded
        self._name_unknown(decoded)
        peer = request.remote or ""
        known_s = ahead_s if self._clock_check.is_trusted else None
        outcome = await self._admission.store(
            Batch(batch_id, decoded, body_bytes, sender_of(request), peer, known_s)
        )
        if isinstance(outcome, Stored):
            self._stats.acknowledge_seconds.observe(self._clock.monotonic() - started)
        return outcome

    def _ahead_s(self, request: web.Request) -> float | None:
        """How far the sender's clock is ahead of ours; None: the request has no time. Raises WireError."""
        now_ms = now_ms_of(request.headers)
        return None if now_ms is None else (now_ms - to_ms(self._clock.now())) / 1000

    def _note_clock(self, request: web.Request, batch: BatchId, ahead_s: float | None) -> None:
        if ahead_s is not None and not batch.is_import:
            self._clock_check.note(sender_of(request), batch.agent_id, ahead_s)

    def _name_unknown(self, decoded: Decoded) -> None:
        self._stats.unknown_columns.update({table for table, _ in decoded.unknown_columns})
        fresh = decoded.unknown_columns - self._named_columns
        # Clients choose the names, so remember a bounded number of them.
        if fresh and len(self._named_columns) < 1_000:
            self._named_columns |= fresh
            names = ", ".join(sorted(f"{table}.{column[:64]}" for table, column in fresh)[:20])
            log.warning(
                "unknown columns are left out; a newer agent sends them",
                extra={"columns": names},
            )


def _clock_wait(
    decoded: Decoded | RefusedBody, ahead_s: float | None, check: ClockCheck
) -> str | None:
    """Why a batch must be sent again once a clock is right; None: it is admitted or refused as `decoded` says.

    A batch is refused permanently only if the sender's clock would refuse it, too, and our clock is confirmed. `ahead_s`: how
    far the sender's clock is ahead; None: unknown.
    """
    refused = decoded if isinstance(decoded, RefusedBody) else None
    is_apart = ahead_s is not None and abs(ahead_s) > WRONG_S
    if check.reason is not None and (is_apart or refused):
        return check.reason
    if refused is None or refused.admitting_ahead_s is None:
        return None
    least_s, most_s = refused.admitting_ahead_s
    if ahead_s is not None and (is_apart or least_s <= ahead_s <= most_s):
        return f"this host's clock is {apart_text(ahead_s)} the collector's: set it right ({refused.reason})"
    if not check.is_trusted:
        return (
            "neither an agent nor the kernel has confirmed the collector's clock: run chrony or ntpd there"
            f" ({refused.reason})"
        )
    return None
