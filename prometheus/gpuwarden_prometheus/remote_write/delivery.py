"""Delivers requests to one receiver, in order, until each sample is accepted or refused permanently.

What failed on the way (network, 429, 5xx, wrong credentials or address) is repeated without end. 400, and 500 for
what is too old, is final for the samples that it is about. A receiver such as Prometheus 2 refuses a whole request
for one sample, so the request is divided until the samples that it refuses are alone.
"""

import asyncio
import base64
import logging
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from gpuwarden import __version__
from gpuwarden.clock import Clock
from gpuwarden_collector.forwarding.port import ReceiverState
from gpuwarden_prometheus.remote_write.bodies import BodyEncoder
from gpuwarden_prometheus.remote_write.messages import MEDIA_TYPES
from gpuwarden_prometheus.remote_write.samples import Series
from gpuwarden_prometheus.remote_write.settings import RemoteReceiver

log = logging.getLogger(__name__)

ANSWER_S = 30.0
WAIT_S_MIN, WAIT_S_MAX = 0.5, 30.0
RETRY_AFTER_S_MAX = 300.0
TRIES_MAX = 2_000
"""Most requests into which a refused one is divided; what is still undecided then counts as refused."""
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
_FINAL = frozenset({400, 409, 422})
_STORED = frozenset({"out_of_order", "duplicate"})
"""Reasons to refuse what is stored."""
_REASON_BYTES = 500
_TOO_OLD_FOR_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The receiver's answer to a request."""

    status: int
    text: str = ""
    retry_after_s: float | None = None
    written: int | None = None
    """Samples that it says it has written; None: it says nothing."""


class Post(Protocol):
    """Sends a body; raises OSError or TimeoutError when no answer came."""

    async def __call__(self, body: bytes) -> Reply: ...


class HttpPost:
    """Sends bodies over HTTP."""

    def __init__(self, receiver: RemoteReceiver, session: aiohttp.ClientSession) -> None:
        """Raises OSError when a file of its certificates cannot be read."""
        self._receiver = receiver
        self._session = session
        is_tls = receiver.url.startswith("https")
        self._ssl = ssl.create_default_context(cafile=receiver.tls_ca) if is_tls else True
        self._headers = {
            **receiver.headers,
            "Content-Type": MEDIA_TYPES[receiver.version] if receiver.version == 2 else "application/x-protobuf",
            "Content-Encoding": "snappy",
            "User-Agent": f"gpuwarden/{__version__}",
            "X-Prometheus-Remote-Write-Version": "0.1.0" if receiver.version == 1 else "2.0.0",
        }  # fmt: skip

    async def __call__(self, body: bytes) -> Reply:
        try:
            async with self._session.post(
                self._receiver.url,
                data=body,
                headers={**self._headers, **self._authorization()},
                ssl=self._ssl,
                allow_redirects=False,
            ) as answer:
                content = await answer.content.read(_REASON_BYTES)
                wait, written = answer.headers.get("Retry-After"), answer.headers.get(WRITTEN)
                return Reply(
                    answer.status,
                    " ".join(content.decode("utf-8", "replace").split()),
                    float(wait) if wait and wait.isdecimal() else None,
                    int(written) if written and written.isdecimal() else None,
                )
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error

    def _authorization(self) -> dict[str, str]:
        """Read for each request, so that a new token needs no restart."""
        receiver = self._receiver
        if receiver.bearer_token_file is not None:
            token = receiver.bearer_token_file.read_text().strip()
            return {"Authorization": f"Bearer {token}"}
        if receiver.password_file is not None:
            password = receiver.password_file.read_text().strip()
            pair = base64.b64encode(f"{receiver.username}:{password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a request."""

    reason: str | None = None
    """Why samples were refused; None: all were accepted."""
    refused: int | None = None
    """How many of them; None: perhaps only some, and none of the others is stored."""
    was_lost: bool = False
    """Whether an earlier try ended without an answer, so that the receiver may have had it already."""


class RequestDelivery:
    """Delivers requests to one receiver."""

    def __init__(
        self,
        receiver: RemoteReceiver,
        post: Post,
        encoder: BodyEncoder,
        state: ReceiverState,
        clock: Clock,
    ) -> None:
        self._receiver = receiver
        self._post = post
        self._encoder = encoder
        self._state = state
        self._clock = clock
        self._failing_since_s: float | None = None
        self._too_old: tuple[int, float] = (0, 0.0)
        """Newest time that was refused as too old, and when."""
        self._tries, self._tries_max = 0, TRIES_MAX

    async def deliver(self, request: Sequence[Series], *, is_repeated: bool) -> None:
        """Return when each sample is accepted or refused. `is_repeated`: the receiver may have it already."""
        outcome = await self._answered(request)
        if self._is_settled(request, outcome):
            return
        self._tries, self._tries_max = 0, TRIES_MAX
        rest = request
        if is_repeated or outcome.was_lost:
            # Some of it may be stored, and all of the rest must be.
            self._tries_max = sys.maxsize
            rest = await self._unless_stored(request)
        if rest:
            await self._divide(rest, outcome.reason or "", is_refused=len(rest) == len(request))

    async def _unless_stored(self, request: Sequence[Series]) -> Sequence[Series]:
        """What is not stored of a refused request that may have been accepted before.

        Requests are stored whole and in order. If the receiver has newer samples of the first, the middle and the last
        series, it has the request.
        """
        probes = {id(one): one for one in (request[0], request[len(request) // 2], request[-1])}
        accepted, is_stored = set(), True
        for key, probe in probes.items():
            reason = (await self._answered([probe])).reason
            if reason is None:
                self._state.sent += probe.samples_count
                accepted.add(key)
            is_stored &= reason in _STORED
        if is_stored:
            self._state.refused["repeated"] += _count(request)
            return []
        return [one for one in request if id(one) not in accepted]

    async def _divide(self, request: Sequence[Series], reason: str, *, is_refused: bool) -> None:
        """Deliver the parts of a request, in order. `is_refused`: it was refused itself, and not a larger one."""
        waiting = [(request, reason, is_refused)]
        while waiting:
            refused, reason, is_refused = waiting.pop()
            rest = self._without_too_old(refused)
            if not rest:
                continue
            if self._tries >= self._tries_max:
                self._refuse(rest, "undecided", _count(rest))
                continue
            if len(rest) == 1 and reason != "too_large":
                is_refused = is_refused and _count(rest) == _count(refused)
                await self._divide_series(rest[0], reason, is_refused=is_refused)
                continue
            if _count(rest) == 1:
                self._refuse(rest, reason, 1)
                continue
            parts = []
            for half in _halves(rest):
                outcome = await self._answered(half)
                if not self._is_settled(half, outcome):
                    parts.append((half, outcome.reason or "", True))
            waiting += reversed(parts)

    def _is_settled(self, request: Sequence[Series], outcome: _Outcome) -> bool:
        """Count an answer that says which samples were accepted; False: it does not."""
        if outcome.reason is None:
            self._state.sent += _count(request)
        elif outcome.refused is not None:
            self._state.sent += _count(request) - outcome.refused
            self._refuse(request, outcome.reason, outcome.refused)
        else:
            return False
        return True

    async def _divide_series(self, series: Series, reason: str, *, is_refused: bool) -> None:
        """Of one series a receiver refuses the oldest samples: leave these out one by one.

        `is_refused`: it was refused alone, not with others.
        """
        rest = series
        while True:
            if is_refused:
                oldest = [rest.part(0, 1)]
                self._refuse(oldest, reason, 1)
                self._note_too_old(oldest, reason)
                left = self._without_too_old([rest.part(1, rest.samples_count)])
                if not left:
                    return
                rest = left[0]
            if self._tries >= self._tries_max:
                self._refuse([rest], "undecided", rest.samples_count)
                return
            outcome = await self._answered([rest])
            if self._is_settled([rest], outcome):
                return
            reason, is_refused = outcome.reason or reason, True

    def _without_too_old(self, request: Sequence[Series]) -> list[Series]:
        """Without samples that are older than one that was just refused as too old; these count as refused."""
        until_ms, at_s = self._too_old
        if not until_ms or self._clock.monotonic() - at_s > _TOO_OLD_FOR_S:
            return [series for series in request if series.samples]
        kept = []
        for series in request:
            if not series.samples:
                continue
            old = sum(time <= until_ms for time in series.times_ms)
            if old:
                self._refuse([series], "too_old", old)
            if old < series.samples_count:
                kept.append(series.part(old, series.samples_count) if old else series)
        return kept

    def _note_too_old(self, refused: Sequence[Series], reason: str) -> None:
        if reason == "too_old" and refused:
            newest = max(max(series.times_ms) for series in refused)
            self._too_old = max(self._too_old[0], newest), self._clock.monotonic()

    def _refuse(self, refused: Sequence[Series], reason: str, count: int) -> None:
        if not count:
            return
        before = self._state.refused[reason]
        self._state.refused[reason] += count
        if before.bit_length() == (before + count).bit_length():
            return  # logged when the number has doubled
        labels = refused[0].labels.texts
        pairs = zip(labels[::2], labels[1::2], strict=True)
        log.warning(
            "a receiver refuses samples",
            extra={
                "receiver": self._receiver.name,
                "reason": reason,
                "samples": before + count,
                "one_of": ", ".join(f"{name}={value}" for name, value in pairs),
                "at_ms": refused[0].times_ms[0],
            },
        )

    async def _answered(self, request: Sequence[Series]) -> _Outcome:
        """Send until there is an answer that will not change."""
        body = self._encoder.body(request)
        self._tries += 1
        failures, was_lost = 0, False
        while True:
            wait_s: float | None = None
            try:
                reply = await self._post(body)
            except (OSError, TimeoutError) as error:
                problem, was_lost = str(error) or f"no answer within {ANSWER_S:g} s", True
            else:
                outcome = self._outcome(reply, request, was_lost)
                if outcome is not None:
                    self._state.problem, self._state.failing_s = None, 0.0
                    self._failing_since_s = None
                    return outcome
                problem = self._problem(reply)
                was_lost |= reply.status >= 500
                wait_s = reply.retry_after_s
            failures += 1
            self._note_failure(problem)
            if wait_s is None:
                wait_s = min(WAIT_S_MAX, WAIT_S_MIN * 2 ** min(failures - 1, 10))
            await asyncio.sleep(min(wait_s, RETRY_AFTER_S_MAX))

    def _outcome(self, reply: Reply, request: Sequence[Series], was_lost: bool) -> _Outcome | None:
        """What an answer means for the samples; None: the request is repeated."""
        if 200 <= reply.status < 300:
            if self._receiver.version == 2 and reply.written is None:
                return None
            return _Outcome()
        count = _count(request)
        if reply.status == 413:
            return _Outcome("too_large")
        reason = reason_of(reply.text)
        # Prometheus 2.42 with an `out_of_order_time_window` answers 500 "too old sample", and stores nothing.
        is_final = reply.status in _FINAL or (reply.status == 500 and reason == "too_old")
        if not is_final:
            return None
        if reply.written is not None and reply.written <= count:
            return _Outcome(reason, count - reply.written)
        return _Outcome(reason, None, was_lost)

    def _problem(self, reply: Reply) -> str:
        if 200 <= reply.status < 300:
            return f"it does not speak version 2 (its answer lacks {WRITTEN}): set version = 1"
        if reply.status == 415:
            return f"it does not take version {self._receiver.version}: set the other version"
        said = f": {reply.text}" if reply.text else ""
        return f"it answers {reply.status}{said}"

    def _note_failure(self, problem: str) -> None:
        now_s = self._clock.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
            log.warning(
                "a receiver takes no samples; they wait",
                extra={"receiver": self._receiver.name, "reason": problem},
            )
        self._state.failures += 1
        self._state.problem = problem
        self._state.failing_s = now_s - self._failing_since_s


def reason_of(text: str) -> str:
    """Why samples were refused, from the receiver's words."""
    words = text.lower()
    for reason, signs in (
        ("too_old", ("out of bounds", "too old", "out-of-bounds", "too far in the past")),
        ("out_of_order", ("out of order", "out-of-order")),
        ("duplicate", ("duplicate",)),
    ):
        if any(sign in words for sign in signs):
            return reason
    return "other"


def _count(request: Sequence[Series]) -> int:
    return sum(series.samples_count for series in request)


def _halves(request: Sequence[Series]) -> list[list[Series]]:
    if len(request) > 1:
        middle = len(request) // 2
        return [list(request[:middle]), list(request[middle:])]
    (series,) = request
    middle = series.samples_count // 2
    return [[series.part(0, middle)], [series.part(middle, series.samples_count)]]
