"""Serves Prometheus' HTTP API for queries below /prometheus/api/v1.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/. Errors have its form, and its status codes.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from gpuwarden import __version__
from gpuwarden.parameters import whole_number_of
from gpuwarden.query import QUERY_SEND_S, LakeAwayError, QueryError, QueryTimeoutError
from gpuwarden_collector.query.port import HttpFrontContext, Refusal, RowStream
from gpuwarden_prometheus.kept_answers import (
    ANSWER_CHARACTERS_MAX,
    KEPT_STEPS_MIN,
    JoinedAnswer,
    KeptAnswers,
    KnownSteps,
    RangeQuestion,
    may_be_kept,
    read_series,
)
from gpuwarden_prometheus.metrics import is_label, named_metrics
from gpuwarden_prometheus.relations import Grid
from gpuwarden_prometheus.request import (
    RangeTimes,
    TimeSpan,
    blocks_text,
    federate_text,
    instant_text,
    labels_text,
    range_text,
    series_text,
)
from gpuwarden_prometheus.retained import DURATION, duration_ms, retention_warnings
from gpuwarden_prometheus.tiers import RolledUntil

PATH = "/prometheus/api/v1"
EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOKBACK_MS = 300_000
"""As Prometheus' default of `query.lookback-delta`."""
POINTS_MAX = 11_000
"""Most steps of a range query, as in Prometheus."""
FORM_BYTES_MAX = 1024 * 1024
"""Largest body; above it 413."""
_HOUR_MS = 3_600_000
_TIME_MS_MAX = 253_402_300_799_000
_LIMIT_MAX = 999_999_999
_PART_BYTES = 256 * 1024
_MATRIX_BEGIN = b'{"status":"success","data":{"resultType":"matrix","result":['
_MATRIX_END = b"]}}"
_CUT = b',"warnings":["results truncated due to limit"]}'
_MATRIX_CUT = b"]}" + _CUT
COMPATIBLE_VERSION = "2.45.0"
"""The Prometheus whose PromQL is parsed; Grafana decides by it which functions it offers."""

Parameters = Mapping[str, Sequence[str]]


class _BadRequest(Exception):  # noqa: N818  an outcome
    """The request is answered with an error of type bad_data."""


class _RefusedForm(Exception):  # noqa: N818  an outcome
    """The body is not taken."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class PrometheusApi:
    """The handlers."""

    def __init__(self, context: HttpFrontContext) -> None:
        self._context = context
        self._queries = context.queries
        self._clock = context.clock
        self._kept = KeptAnswers()

    def _rolled_until(self) -> RolledUntil:
        minutes, hours = self._context.rolled_until()
        return RolledUntil(_ms(minutes), _ms(hours))

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes for the application."""
        both = {
            "query": self.query,
            "query_range": self.query_range,
            "series": self.series,
            "labels": self.labels,
            "query_exemplars": self.exemplars,
        }
        alone = {
            "label/{name}/values": self.label_values,
            "metadata": self.metadata,
            "status/buildinfo": self.buildinfo,
        }
        yield web.get("/prometheus/federate", _answering(self.federate))
        for path, handler in both.items():
            yield web.get(f"{PATH}/{path}", _answering(handler))
            yield web.post(f"{PATH}/{path}", _answering(handler))
        for path, handler in alone.items():
            yield web.get(f"{PATH}/{path}", _answering(handler))

    async def query(self, request: web.Request) -> web.StreamResponse:
        """GET and POST query: an expression at one instant."""
        asked = await self._parameters(request)
        at_ms = _time_ms(asked, "time", self._now_ms())
        query = _one(asked, "query")
        text = instant_text(query, at_ms, _lookback_ms(asked), self._rolled_until())
        return await self._answer(request, text, asked, warnings=self._warnings(query, at_ms))

    async def query_range(self, request: web.Request) -> web.StreamResponse:
        """GET and POST query_range: an expression at each step of a time span."""
        asked = await self._parameters(request)
        start_ms, end_ms = _time_ms(asked, "start"), _time_ms(asked, "end")
        step_ms = _duration_ms(_one(asked, "step"), "step")
        if end_ms < start_ms:
            raise _BadRequest(
                'invalid parameter "end": end timestamp must not be before start time'
            )
        if step_ms <= 0:
            raise _BadRequest(
                'invalid parameter "step": zero or negative query resolution step widths are not accepted'
            )
        steps = (end_ms - start_ms) // step_ms + 1
        if steps > POINTS_MAX:
            raise _BadRequest(
                f"exceeded maximum resolution of {POINTS_MAX:,} points per timeseries: choose a longer step"
            )
        query, grid = _one(asked, "query"), Grid(start_ms, step_ms, steps)
        warnings = self._warnings(query, start_ms)
        times = RangeTimes(grid, end_ms, _lookback_ms(asked), self._rolled_until())
        is_for_all = _limit(asked) is None and _first(asked, "nocache") in (None, "", "0")
        if not (is_for_all and steps >= KEPT_STEPS_MIN and start_ms >= 0 and may_be_kept(query)):
            return await self._answer(request, range_text(query, times), asked, warnings=warnings)
        reader = self._context.reader_of(request)
        question = RangeQuestion(reader, query, grid, times.lookback_ms)
        known = self._kept.known(question, self._clock.monotonic())
        async with self._run(request, blocks_text(query, times, known.steps), asked) as rows:
            answer = _warned(self._joined(rows, question, known, times.rolled), warnings)
            return await self._send(request, answer, "application/json")

    async def _joined(
        self, rows: RowStream, question: RangeQuestion, known: KnownSteps, rolled: RolledUntil
    ) -> AsyncIterator[bytes]:
        """The JSON of an answer whose first steps are known; its new blocks are kept."""
        answer = JoinedAnswer(known)
        found: dict[int, dict[str, str]] = {}
        characters = 0
        waiting = [_MATRIX_BEGIN]
        while part := await rows.whole():
            text = bytes(part).decode()
            characters += len(text)
            series = [*read_series(text)]
            if characters <= ANSWER_CHARACTERS_MAX:
                for one in series:
                    for block, points in one.points.items():
                        found.setdefault(block, {})[one.labels] = points
            waiting.append(answer.of(series).encode())
            if sum(map(len, waiting)) > _PART_BYTES:
                yield b"".join(waiting)
                waiting = []
        end = _MATRIX_CUT if rows.truncated else _MATRIX_END
        yield b"".join([*waiting, answer.rest().encode(), end])
        if characters <= ANSWER_CHARACTERS_MAX and not rows.truncated:
            self._kept.keep(question, known.steps, found, rolled, self._clock.monotonic())

    async def series(self, request: web.Request) -> web.StreamResponse:
        """GET and POST series: labels of the series that selectors match."""
        asked = await self._parameters(request)
        selectors = asked.get("match[]", ())
        if not selectors:
            raise _BadRequest("no match[] parameter provided")
        return await self._answer(request, series_text(selectors, self._span(asked)), asked)

    async def federate(self, request: web.Request) -> web.StreamResponse:
        """GET federate: the newest values of the series that selectors match, in Prometheus' text format."""
        asked = await self._parameters(request)
        selectors = asked.get("match[]", ())
        if not selectors:
            raise _BadRequest("no match[] parameter provided")
        text = federate_text(selectors, self._now_ms(), _lookback_ms(asked))
        return await self._answer(request, text, asked, EXPOSITION_TYPE)

    async def labels(self, request: web.Request) -> web.StreamResponse:
        """GET and POST labels: names of labels."""
        asked = await self._parameters(request)
        return await self._answer(
            request, labels_text(asked.get("match[]", ()), self._span(asked)), asked
        )

    async def label_values(self, request: web.Request) -> web.StreamResponse:
        """GET label/NAME/values: values of a label."""
        asked = await self._parameters(request)
        name = request.match_info["name"]
        if not is_label(name):
            raise _BadRequest(f'invalid label name: "{name}"')
        text = labels_text(asked.get("match[]", ()), self._span(asked), name)
        return await self._answer(request, text, asked)

    async def exemplars(self, request: web.Request) -> web.StreamResponse:
        """GET and POST query_exemplars: there are none."""
        await self._parameters(request)
        return _success([])

    async def metadata(self, request: web.Request) -> web.StreamResponse:
        """GET metadata: type and help of each metric."""
        asked = await self._parameters(request)
        only, limit = _first(asked, "metric"), _limit(asked)
        found = {
            name: [{"type": metrics[0].kind, "help": metrics[0].help, "unit": ""}]
            for name, metrics in named_metrics().items()
            if only in (None, "", name)
        }
        return _success(dict([*found.items()][: limit or None]))

    async def buildinfo(self, request: web.Request) -> web.StreamResponse:
        """GET status/buildinfo: the version of Prometheus that this API is compatible with, and our own."""
        return _success(
            {
                "version": COMPATIBLE_VERSION,
                "revision": f"gpuwarden {__version__}",
                "branch": "",
                "buildUser": "",
                "buildDate": "",
                "goVersion": "",
            }
        )

    async def _parameters(self, request: web.Request) -> Parameters:
        """Parameters of the address and of a form in the body."""
        found: dict[str, list[str]] = {}
        for name, value in request.query.items():
            found.setdefault(name, []).append(value)
        if request.method == "POST" and request.body_exists:
            for name, value in await self._form(request):
                found.setdefault(name, []).append(value)
        return found

    async def _form(self, request: web.Request) -> list[tuple[str, str]]:
        if request.content_type != "application/x-www-form-urlencoded":
            raise _BadRequest("the body must be application/x-www-form-urlencoded")
        body = await self._context.bodies.read(request, FORM_BYTES_MAX)
        if isinstance(body, Refusal):
            raise _RefusedForm(body)
        try:
            return parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
        except ValueError as error:
            raise _BadRequest("the body is not a valid form") from error
        finally:
            self._context.bodies.release(len(body))

    def _now_ms(self) -> int:
        return round(self._clock.now().timestamp() * 1000)

    def _warnings(self, query: str, start_ms: int) -> list[str]:
        kept_ms = round(self._context.samples_kept.total_seconds() * 1000)
        return retention_warnings(query, start_ms, self._now_ms() - kept_ms)

    def _span(self, asked: Parameters) -> TimeSpan:
        end_ms = _time_ms(asked, "end", self._now_ms())
        return TimeSpan(_time_ms(asked, "start", end_ms - _HOUR_MS), end_ms)

    async def _answer(
        self,
        request: web.Request,
        text: str,
        asked: Parameters,
        content_type: str = "application/json",
        warnings: Sequence[str] = (),
    ) -> web.StreamResponse:
        """Run a query and send its rows as they come."""
        async with self._run(request, text, asked) as rows:
            return await self._send(request, _warned(_parts(rows), warnings), content_type)

    def _run(
        self, request: web.Request, text: str, asked: Parameters
    ) -> AbstractAsyncContextManager[RowStream]:
        timeout = _first(asked, "timeout")
        return self._queries.run(
            "prometheus",
            text,
            {},
            grant=self._context.grant_of(request),
            address=request.remote or "",
            timeout_s=None if timeout is None else _duration_ms(timeout, "timeout") / 1000,
            row_limit=_limit(asked),
            dialect="promql",
        )

    async def _send(
        self, request: web.Request, parts: AsyncIterator[bytes], content_type: str
    ) -> web.StreamResponse:
        first = await anext(parts, b"")
        headers = {"Content-Type": content_type}
        following = await anext(parts, b"") if first else b""
        if not following:
            return web.Response(body=first, headers=headers)
        answer = web.StreamResponse(headers=headers)
        try:
            async with asyncio.timeout(QUERY_SEND_S):
                await answer.prepare(request)
                await answer.write(first)
                while following:
                    await answer.write(following)
                    following = await anext(parts, b"")
                await answer.write_eof()
        except (QueryError, TimeoutError, ConnectionError):
            # The status is sent: only an aborted connection tells the client that rows are missing.
            if request.transport is not None:
                request.transport.abort()
        return answer


async def _parts(rows: RowStream) -> AsyncIterator[bytes]:
    while part := await rows.whole():
        yield bytes(part)


async def _warned(parts: AsyncIterator[bytes], warnings: Sequence[str]) -> AsyncIterator[bytes]:
    """The parts of a JSON answer, with these warnings added at its end."""
    tail = b""
    async for part in parts:
        tail += part
        if warnings:
            part, tail = tail[: -len(_MATRIX_CUT)], tail[-len(_MATRIX_CUT) :]
        else:
            part, tail = tail, b""
        if part:
            yield part
    if not tail:
        return
    added = ",".join(map(json.dumps, warnings)).encode()
    if tail.endswith(_CUT):
        yield tail[:-2] + b"," + added + b"]}"
    else:
        yield tail[:-1] + b',"warnings":[' + added + b"]}"


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _answering(handler: _Handler) -> _Handler:
    """Answer errors in Prometheus' form."""

    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except _BadRequest as error:
            return _failure(400, "bad_data", str(error))
        except _RefusedForm as error:
            return _refused(request, error.refusal)
        except QueryTimeoutError as error:
            return _failure(503, "timeout", str(error))
        except LakeAwayError as error:
            return _failure(503, "unavailable", str(error))
        except QueryError as error:
            status = getattr(error, "status", 0)
            if status in (429, 503):
                answer = _failure(status, "unavailable", str(error))
                answer.headers["Retry-After"] = str(getattr(error, "retry_after_s", 1))
                return answer
            is_invalid = str(error).startswith("invalid PromQL")
            return (
                _failure(400, "bad_data", str(error))
                if is_invalid
                else _failure(422, "execution", str(error))
            )

    return answered


def _ms(at: datetime | None) -> int:
    """Milliseconds of naive UTC; 0: there is no time."""
    return 0 if at is None else round(at.replace(tzinfo=UTC).timestamp() * 1000)


def _failure(status: int, kind: str, reason: str) -> web.Response:
    return web.json_response({"status": "error", "errorType": kind, "error": reason}, status=status)


def _refused(request: web.Request, refusal: Refusal) -> web.Response:
    """The answer to a body that is not taken. What was not read of it must not be read as a request."""
    is_wrong = refusal.retry_after_s is None
    answer = _failure(refusal.status, "bad_data" if is_wrong else "unavailable", refusal.reason)
    if not is_wrong:
        answer.headers["Retry-After"] = str(refusal.retry_after_s)
    if not request.content.is_eof():
        answer.force_close()
    return answer


def _success(data: Any) -> web.Response:
    return web.Response(
        text=json.dumps({"status": "success", "data": data}), content_type="application/json"
    )


def _first(asked: Parameters, name: str) -> str | None:
    values = asked.get(name)
    return values[0] if values else None


def _one(asked: Parameters, name: str) -> str:
    value = _first(asked, name)
    if not value:
        raise _BadRequest(f'invalid parameter "{name}": it is missing')
    return value


def _limit(asked: Parameters) -> int | None:
    text = _first(asked, "limit")
    if not text or text == "0":
        return None
    try:
        return whole_number_of(text, 0, _LIMIT_MAX)
    except ValueError as error:
        raise _BadRequest(f'invalid parameter "limit": it {error}') from error


def _lookback_ms(asked: Parameters) -> int:
    text = _first(asked, "lookback_delta")
    found = LOOKBACK_MS if not text else _duration_ms(text, "lookback_delta")
    if found <= 0:
        raise _BadRequest('invalid parameter "lookback_delta": it must be positive')
    return found


def _time_ms(asked: Parameters, name: str, default: int | None = None) -> int:
    """A Unix time in seconds, or an RFC 3339 time."""
    text = _first(asked, name)
    if not text:
        if default is None:
            raise _BadRequest(f'invalid parameter "{name}": it is missing')
        return default
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError as error:
            raise _BadRequest(
                f'invalid parameter "{name}": cannot parse {text!r} to a valid timestamp'
            ) from error
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds) or abs(seconds * 1000) > _TIME_MS_MAX:
        raise _BadRequest(f'invalid parameter "{name}": {text!r} is out of range')
    return round(seconds * 1000)


def _duration_ms(text: str, name: str) -> int:
    """Seconds, or a duration such as 1h30m."""
    try:
        seconds = float(text)
    except ValueError:
        parts = DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text or len(text) > 50:
            raise _BadRequest(
                f'invalid parameter "{name}": cannot parse {text!r} to a valid duration'
            ) from None
        seconds = duration_ms(text) / 1000
    if not 0 <= seconds * 1000 <= _TIME_MS_MAX:
        raise _BadRequest(f'invalid parameter "{name}": {text!r} is out of range')
    return round(seconds * 1000)
