"""Reads a collector over HTTP: its SQL API as a `Querier`, and whether its rules have judged the fleet."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwarden.judgement import unjudged
from gpuwarden.query import QueryError, Result
from gpuwarden_client.http import CallError, CollectorEndpoint, RefusedError, ask, timestamp_param

TIMEOUT_S = 60.0
JUDGEMENT_TIMEOUT_S = 5.0


class RemoteQuerier:
    """A `gpuwarden.query.Querier` over HTTP; each query waits in a thread."""

    def __init__(
        self, url: str | None = None, call: Callable[..., Awaitable[Any]] = asyncio.to_thread
    ) -> None:
        """`call` runs a function in a thread. The default's threads are joined when the process ends."""
        self._url = url
        self._call = call

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        """Raises QueryError when the collector refuses the query, CallError when none answers."""
        bound = {name: _param(value) for name, value in (params or {}).items()}
        try:
            limit_s = timeout_s or TIMEOUT_S
            answer = await self._call(
                ask, sql, bound, url=self._url, timeout_s=limit_s, row_limit=row_limit
            )
        except RefusedError as error:
            raise QueryError(str(error)) from error
        return Result(
            answer.columns,
            answer.types,
            [
                tuple(_value(v, kind) for v, kind in zip(row, answer.types, strict=True))
                for row in answer.rows
            ],
            truncated=answer.truncated,
        )


def _param(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp_param(value)
    return value


def _value(value: Any, kind: str) -> Any:
    """A JSON value as its Python type; JSON has timestamps as text and intervals as seconds."""
    if value is None:
        return None
    if kind.startswith("TIMESTAMP"):
        return datetime.fromisoformat(value).astimezone(UTC)
    if kind == "INTERVAL":
        return timedelta(seconds=value)
    return value


def unjudged_at(url: str | None) -> str | None:
    """A sentence on why a collector's rules have not judged the fleet; None: they have, or it does not answer."""
    try:
        found = CollectorEndpoint.of(url).call(
            "GET", "/v1/judgement", timeout_s=JUDGEMENT_TIMEOUT_S
        )
    except CallError:
        return None
    return unjudged(found)
