"""Serves `POST /v1/sql`: sends rows as they come, without holding them; docs/api.md describes it."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from aiohttp import web

from gpuwarden.query import (
    ARROW_TYPE,
    ERROR,
    NDJSON_TYPE,
    PARQUET_TYPE,
    QUERY_SEND_S,
    LakeAwayError,
    QueryError,
    QueryTimeoutError,
)
from gpuwarden_collector.auth.gate import GRANT
from gpuwarden_collector.http.app import closing, error_response
from gpuwarden_collector.http.bodies import BodyReader, Busy
from gpuwarden_collector.ingest.decode import RefusedBody
from gpuwarden_collector.ops.query_log import QueryNote, QueryService, outcome_of
from gpuwarden_collector.query.fair_queue import QueueFullError
from gpuwarden_collector.query.querier import QueryStream

log = logging.getLogger(__name__)

LOOK_AHEAD_BYTES = 256 * 1024
"""A smaller answer is sent as a whole, with the final status and `Gpuwarden-Truncated`."""

SQL_BODY_BYTES_MAX = 1024 * 1024


class Form(StrEnum):
    """Media types of answers."""

    JSON = "application/json"
    NDJSON = NDJSON_TYPE
    CSV = "text/csv"
    ARROW = ARROW_TYPE
    PARQUET = PARQUET_TYPE


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """A query of a request."""

    sql: str
    params: Mapping[str, Any]
    form: Form
    row_limit: int | None = None
    """Most rows of the answer; None: the limit of the settings."""


def sql_request_of(body: bytes, content_type: str, accept: str) -> SqlRequest:
    """Parse a request. `content_type`: application/json or text/plain. Raises QueryError."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise QueryError("the body is not UTF-8 text") from error
    form = _form(accept)
    if content_type != "application/json":
        return SqlRequest(text, {}, form)
    try:
        asked = json.loads(text)
        # JSON can escape half of a surrogate pair, which is no valid text.
        json.dumps(asked, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise QueryError(f"the body is not valid JSON: {error}") from error
    if not isinstance(asked, dict) or not isinstance(asked.get("sql"), str):
        raise QueryError('the body must be a JSON object with "sql", a text')
    unknown = sorted(asked.keys() - {"sql", "params", "row_limit"})
    if unknown:
        raise QueryError(f"unknown key {unknown[0]!r}; known are sql, params and row_limit")
    params = {} if asked.get("params") is None else asked["params"]
    if not isinstance(params, dict):
        raise QueryError('"params" must be an object of names and values')
    row_limit = asked.get("row_limit")
    if row_limit is not None and (type(row_limit) is not int or row_limit < 0):
        raise QueryError('"row_limit" must be a whole number, 0 or more')
    bound = {name: _param(name, v) for name, v in params.items()}
    return SqlRequest(asked["sql"], bound, form, row_limit)


def _form(accept: str) -> Form:
    """The first supported media type of the Accept header; JSON if it has none."""
    for part in accept.split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type in list(Form):
            return Form(media_type)
    return Form.JSON


def _param(name: str, value: Any) -> Any:
    """A parameter from a JSON value; `{"timestamp": "2026-01-01T00:00:00Z"}` is a time."""
    if isinstance(value, dict) and value.keys() == {"timestamp"}:
        try:
            instant = datetime.fromisoformat(value["timestamp"])
            return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
        except (TypeError, ValueError, OverflowError) as error:
            raise QueryError(f"parameter ${name} is not an ISO 8601 time") from error
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list) and all(
        v is None or isinstance(v, (bool, int, float, str)) for v in value
    ):
        return value
    raise QueryError(f"parameter ${name} must be a text, number, boolean, null or a list of them")


class SqlEndpoint:
    """Runs queries of requests and sends their rows."""

    def __init__(self, queries: QueryService, bodies: BodyReader) -> None:
        self._queries = queries
        self._bodies = bodies

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes for the application."""
        return [web.post("/v1/sql", self.run)]

    async def run(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/sql."""
        async with self._queries.logged(request.get(GRANT), request.remote) as note:
            return await self._run(request, note)

    async def _run(self, request: web.Request, note: QueryNote) -> web.StreamResponse:
        body = await self._bodies.read(request, SQL_BODY_BYTES_MAX)
        match body:
            case RefusedBody(status, reason):
                return closing(request, error_response(status, reason))
            case Busy(reason, retry_after_s, status):
                return closing(request, error_response(status, reason, retry_after_s))
        self._bodies.release(len(body))
        asked: SqlRequest | None = None
        try:
            asked = sql_request_of(body, request.content_type, request.headers.get("Accept", ""))
            return await self._answered(request, asked, note)
        except QueueFullError as error:
            return error_response(error.status, str(error), error.retry_after_s)
        except QueryError as error:
            status = _status_of(error)
            text = "" if asked is None else asked.sql
            return web.json_response(error.document(text, status), status=status)

    async def _answered(
        self, request: web.Request, asked: SqlRequest, note: QueryNote
    ) -> web.StreamResponse:
        """Send the answer as its rows come, within the query's turn, so that unread answers cannot pile up.
        Raises QueryError if nothing is sent yet."""
        form, first = asked.form.name.lower(), bytearray()
        sending = _Sending(request, QUERY_SEND_S, note)
        async with self._queries.answering(
            note, request.get(GRANT), form, asked.sql, asked.params, row_limit=asked.row_limit
        ) as rows:
            async for part in rows:
                first += part
                if len(first) >= LOOK_AHEAD_BYTES:
                    break
            if not rows.is_ended:
                return await sending.rows(asked, first, rows)
            whole = web.Response(body=first, headers=_row_headers(asked.form))
            whole.headers["Gpuwarden-Truncated"] = "true" if rows.truncated else "false"
            note.bytes = len(first)
            return await sending.whole(whole, rows)


class _Sending:
    """Sends an answer; closes the connection of a client that takes too long to receive it."""

    def __init__(self, request: web.Request, most_s: float, note: QueryNote) -> None:
        """`note`: the query's log entry, which gets size and outcome."""
        self._request = request
        self._note = note
        self._left_s = most_s

    async def whole(self, answer: web.Response, rows: QueryStream) -> web.StreamResponse:
        """Send a complete answer."""
        with suppress(ConnectionError):
            await self._within(self._begun(answer, b""))
            await self._within(answer.write_eof())
            self._note.ended(rows)
        return answer

    async def rows(
        self, asked: SqlRequest, first: bytes | bytearray, rows: QueryStream
    ) -> web.StreamResponse:
        """Send rows as they come. If the query fails, the client can see that rows are missing."""
        answer = web.StreamResponse(headers=_row_headers(asked.form))
        with suppress(ConnectionError):
            await self._within(self._begun(answer, first))
            self._note.bytes = len(first)
            try:
                async for part in rows:
                    await self._within(answer.write(part))
                    self._note.bytes += len(part)
            except QueryError as error:
                log.info("a query failed after its first rows", extra={"reason": str(error)})
                self._note.failed(outcome_of(error), str(error))
                if asked.form is not Form.NDJSON:
                    self._abort()
                    return answer
                await self._within(answer.write(_error_line(error, asked.sql)))
                await self._within(answer.write_eof())
                return answer
            await self._within(answer.write_eof())
            self._note.ended(rows)
        return answer

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _begun(self, answer: web.StreamResponse, first: bytes | bytearray) -> None:
        await answer.prepare(self._request)
        if first:
            await answer.write(first)

    async def _within(self, sending: Awaitable[None]) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._left_s):
                await sending
        except TimeoutError:
            log.info(
                "a client did not receive its rows in time", extra={"client": self._request.remote}
            )
            self._abort()
            raise ConnectionResetError("the client did not receive its rows in time") from None
        self._left_s -= asyncio.get_running_loop().time() - began_s


def _row_headers(form: Form) -> dict[str, str]:
    is_text = form in (Form.JSON, Form.NDJSON, Form.CSV)
    return {"Content-Type": form.value + ("; charset=utf-8" if is_text else "")}


def _status_of(error: QueryError) -> int:
    if isinstance(error, LakeAwayError):
        return 503
    return 504 if isinstance(error, QueryTimeoutError) else 400


def _error_line(error: QueryError, sql: str) -> bytes:
    """The last line of incomplete NDJSON."""
    status = _status_of(error)
    return json.dumps({ERROR: error.document(sql, status)}).encode() + b"\n"
