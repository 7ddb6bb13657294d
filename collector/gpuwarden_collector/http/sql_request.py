"""Reads a request to `/v1/sql`: the statement, its parameters and the form of the answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpuwarden.query import ARROW_TYPE, NDJSON_TYPE, PARQUET_TYPE, QueryError

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
    """A query as it was asked."""

    sql: str
    params: Mapping[str, Any]
    form: Form
    row_limit: int | None = None
    """Most rows that are wanted; None: as many as the settings say."""


def sql_request_of(body: bytes, content_type: str, accept: str) -> SqlRequest:
    """Read a request. `content_type` application/json or text/plain. Raises QueryError."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise QueryError("the body is not UTF-8 text") from error
    form = _form(accept)
    if content_type != "application/json":
        return SqlRequest(text, {}, form)
    try:
        asked = json.loads(text)
        # JSON can escape half a character, which no text in the database can hold.
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
    """The first media type of the Accept header that there is; JSON when it names none."""
    for part in accept.split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type in list(Form):
            return Form(media_type)
    return Form.JSON


def _param(name: str, value: Any) -> Any:
    """A JSON value as a parameter; `{"timestamp": "2026-01-01T00:00:00Z"}` is an instant."""
    if isinstance(value, dict) and value.keys() == {"timestamp"}:
        try:
            instant = datetime.fromisoformat(value["timestamp"])
            return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
        except (TypeError, ValueError, OverflowError) as error:
            raise QueryError(f"parameter ${name} is not an ISO 8601 instant") from error
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list) and all(
        v is None or isinstance(v, (bool, int, float, str)) for v in value
    ):
        return value
    raise QueryError(f"parameter ${name} must be a text, number, boolean, null or a list of them")
