"""Describes the API as an OpenAPI document, served at `GET /v1/openapi.json`.

ENDPOINTS has every endpoint of a collector, as `auth/scopes.py` has its scope; tests hold the two, the routes
and docs/api.md together. The document names those that this process serves.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gpuwarden import __version__
from gpuwarden.query import ARROW_TYPE, NDJSON_TYPE, PARQUET_TYPE
from gpuwarden.wire import CONTENT_TYPE
from gpuwarden_collector.auth.scopes import Anyone, Holder, need_of

PATH = "/v1/openapi.json"
_JSON, _HTML, _TEXT = "application/json", "text/html", "text/plain"
_ERRORS: Mapping[int, str] = {
    400: "The request is wrong.",
    401: "A token is needed.",
    403: "The token does not allow it.",
    404: "There is no such thing.",
    405: "The endpoint does not take that method.",
    406: "The answer is of another type than asked for.",
    409: "It does not fit to what is there.",
    413: "The body is too large.",
    415: "The body is of another type.",
    422: "What it names is wrong.",
    429: "Too much at once: see Retry-After.",
    501: "An optional package is not installed.",
    503: "Not now: see Retry-After.",
    504: "It took too long.",
}
_TEXT_SCHEMA: Mapping[str, Any] = {"type": "string"}
_INSTANT: Mapping[str, Any] = {"type": "integer", "description": "Milliseconds since 1970."}
_SPAN = ("gpu_uuid", "node", "begin", "end", "columns", "job", "metrics")
_INTEGERS = frozenset({"begin", "end", "columns", "last", "active_at"})
_PARAMETER: Mapping[str, Any] = {
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {"type": "array", "items": {"type": ["string", "number", "boolean", "null"]}},
        {
            "type": "object",
            "properties": {"timestamp": {"type": "string", "format": "date-time"}},
            "required": ["timestamp"],
            "additionalProperties": False,
        },
    ]
}


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a client must know of an endpoint."""

    summary: str
    answers: tuple[str, ...] = (_JSON,)
    """Media types."""
    status: int = 200
    query: tuple[str, ...] = ()
    bodies: Mapping[str, Mapping[str, Any]] | None = None
    """Schema by media type."""
    errors: tuple[int, ...] = ()


_SQL = _object(
    ["sql"],
    sql={"type": "string", "description": "One SELECT; $name takes a parameter."},
    params={"type": ["object", "null"], "additionalProperties": _PARAMETER},
    row_limit={"type": ["integer", "null"], "minimum": 0},
) | {"additionalProperties": False}
_NAMED = {"name": {"type": "string", "minLength": 1, "maxLength": 80}}
_SILENCE = _object(
    ["author"],
    matchers={"type": "array", "items": _TEXT_SCHEMA},
    fingerprint=_TEXT_SCHEMA,
    author=_TEXT_SCHEMA,
    comment=_TEXT_SCHEMA,
    starts_at=_TEXT_SCHEMA,
    ends_at=_TEXT_SCHEMA,
) | {"description": "Matchers or fingerprint; `for` or `ends_at`."}


def _page(summary: str, *query: str, errors: tuple[int, ...] = (400, 404, 503)) -> Endpoint:
    return Endpoint(summary, (_HTML,), query=query, errors=errors)


def _data(summary: str, *query: str) -> Endpoint:
    return Endpoint(summary, query=query, errors=(400, 404, 503))


ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    ("POST", "/v1/ingest"): Endpoint(
        "Takes a batch from an agent (docs/wire.md).", (), 204,
        bodies={CONTENT_TYPE: {"type": "string", "format": "binary"}}, errors=(400, 409, 413, 415, 426, 429, 503),
    ),
    ("POST", "/v1/sql"): Endpoint(
        "Runs one read-only query.", (_JSON, NDJSON_TYPE, "text/csv", ARROW_TYPE, PARQUET_TYPE),
        bodies={_JSON: _SQL, _TEXT: _TEXT_SCHEMA}, errors=(400, 413, 429, 503, 504),
    ),
    ("POST", "/mcp"): Endpoint(
        "A message of the Model Context Protocol.", bodies={_JSON: _object(["jsonrpc"], jsonrpc=_TEXT_SCHEMA)},
        errors=(400, 405, 406, 413, 415, 501),
    ),
    ("GET", "/v1/queries"): Endpoint("Saved queries.", errors=(503,)),
    ("POST", "/v1/queries"): Endpoint(
        "Saves a query.", status=201, errors=(400, 409, 413, 415, 503),
        bodies={_JSON: _object(["name", "sql"], sql=_TEXT_SCHEMA, **_NAMED)},
    ),
    ("DELETE", "/v1/queries/{name}"): Endpoint("Deletes a saved query.", (), 204, errors=(404, 503)),
    ("POST", "/v1/enroll"): Endpoint(
        "Registers the token that a node has made.", status=201, errors=(400, 409, 413, 415, 503),
        bodies={_JSON: _object(["node", "id", "sha256"], node=_TEXT_SCHEMA, id=_TEXT_SCHEMA, sha256=_TEXT_SCHEMA)},
    ),
    ("GET", "/v1/token"): Endpoint("The caller's token."),
    ("GET", "/v1/ca"): Endpoint(
        "The certificate of the collector's authority.", ("application/x-pem-file",), errors=(404,)
    ),
    ("GET", PATH): Endpoint("This document."),
    ("GET", "/v1/rules"): Endpoint("Rules with their state.", errors=(503,)),
    ("GET", "/v1/rules/{name}"): Endpoint("A rule with its text.", errors=(404, 503)),
    ("POST", "/v1/rules/reload"): Endpoint("Reads rules and routing again.", errors=(422, 503)),
    ("GET", "/v1/alerts/{fingerprint}/explanation"): Endpoint(
        "Why an alert fires.", query=("active_at",), errors=(400, 404, 503)
    ),
    ("GET", "/v1/silences"): Endpoint("Silences and acknowledgements.", errors=(503,)),
    ("GET", "/v1/silences/preview"): Endpoint(
        "What a silence would cover.", query=("matcher",), errors=(400, 503)
    ),
    ("POST", "/v1/silences"): Endpoint(
        "Makes a silence.", status=201, bodies={_JSON: _SILENCE}, errors=(400, 404, 413, 415, 503)
    ),
    ("DELETE", "/v1/silences/{id}"): Endpoint("Ends a silence.", (), 204, errors=(404, 503)),
    ("POST", "/v1/backtests"): Endpoint(
        "Begins a backtest.", status=201, errors=(400, 404, 409, 413, 415, 503),
        bodies={_JSON: _object(["rule"], rule=_TEXT_SCHEMA, since=_TEXT_SCHEMA)},
    ),
    ("GET", "/v1/backtests"): Endpoint("The backtest that runs.", errors=(503,)),
    ("GET", "/v1/backtests/{id}"): Endpoint("A backtest.", errors=(404, 503)),
    ("DELETE", "/v1/backtests/{id}"): Endpoint("Cancels a backtest.", (), 204, errors=(404, 503)),
    ("DELETE", "/v1/nodes/{node}"): Endpoint(
        "Takes a silent node as one that has left.", (), 204, errors=(404, 409, 503)
    ),
    ("GET", "/healthz"): Endpoint("Whether the process answers."),
    ("GET", "/readyz"): Endpoint("Whether batches can be stored.", errors=(503,)),
    ("GET", "/metrics"): Endpoint("The collector about itself, for Prometheus.", (_TEXT,)),
    ("GET", "/v1/schema"): _data("Tables and views with meanings."),
    ("GET", "/v1/map"): _data("Reading and state of every GPU.", "colour"),
    ("GET", "/v1/map/names"): _data("Which GPUs those are."),
    ("GET", "/v1/map/nodes"): _data("Power, CPU and memory of nodes.", "node"),
    ("GET", "/v1/fleet"): _data("Totals, and the gravest incidents and alerts."),
    ("GET", "/v1/fleet/past"): _data("The last hours of the fleet.", "by"),
    ("GET", "/v1/fleet/week"): _data("What seven days of waste cost."),
    ("GET", "/v1/search"): _data("Nodes, GPUs, users and jobs by name.", "q"),
    ("GET", "/v1/series"): _data("Metrics over a span.", *_SPAN),
    ("GET", "/v1/timeline"): _data("What happened over a span.", *_SPAN),
    ("GET", "/v1/health"): _data("Errors and repairs over a span.", *_SPAN),
    ("GET", "/v1/coverage"): _data("What was read and missed over a span.", *_SPAN),
    ("GET", "/v1/topology"): _data("How the GPUs of a node are connected.", "node", "end"),
    ("GET", "/"): _page("The fleet.", "colour", "group", "filter"),
    ("GET", "/nodes/{node}"): _page("A node.", "gpu", "last", "begin", "end", "metrics", "compare"),
    ("GET", "/gpus/{gpu_uuid}"): _page("A GPU.", "last", "begin", "end", "metrics", "compare"),
    ("GET", "/incidents"): _page(
        "Incidents.", "state", "since", "node", "rule", "gpu", "user", "job", "severity"
    ),
    ("GET", "/incidents/{id}"): _page("An incident."),
    ("GET", "/alerts"): _page("Alerts.", "state", "since", "node", "rule", "gpu", "user", "job", "severity"),
    ("GET", "/alerts/{fingerprint}"): _page("An alert.", "active_at"),
    ("GET", "/silences"): _page("Silences.", "matcher"),
    ("GET", "/rules"): _page("Rules."),
    ("GET", "/rules/{name}"): _page("A rule.", "backtest"),
    ("GET", "/usage"): _page("Usage.", "by", "since", "begin", "end", "sort"),
    ("GET", "/jobs/{name}"): _page("A job.", "since", "begin", "end"),
    ("GET", "/users/{name}"): _page("A user.", "since", "begin", "end", "sort"),
    ("GET", "/waste"): _page("The waste report.", "by", "since", "begin", "end"),
    ("GET", "/collector"): _page("The collector and its agents.", "state", "filter"),
    ("GET", "/sql"): _page("SQL.", "q"),
    ("GET", "/login"): _page("Asks for a token.", "next", "why"),
    ("POST", "/login"): Endpoint(
        "Takes a token.", (), 303, errors=(400, 403, 413, 415),
        bodies={"application/x-www-form-urlencoded": _object(["token"], token=_TEXT_SCHEMA, next=_TEXT_SCHEMA)},
    ),
    ("POST", "/logout"): Endpoint("Takes the cookie out of the browser.", (), 303, errors=(403,)),
    ("GET", "/assets/{version}/{name}"): Endpoint("Scripts and styles.", ("*/*",), errors=(404,)),
}  # fmt: skip


def document(served: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The document of the endpoints that are served, by method and path."""
    there = set(served)
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), endpoint in ENDPOINTS.items():
        if (method, path) in there:
            paths.setdefault(path, {})[method.lower()] = _operation(method, path, endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpuwarden collector",
            "version": __version__,
            "description": "docs/api.md has the full text.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_ERROR = _object(
    ["error", "status"],
    error={"type": "string", "description": "One sentence: what is wrong, and what to do."},
    status={"type": "integer"},
    hint={"type": "string", "description": "What was likely meant."},
    position=_object(
        ["line", "column", "offset"],
        **{name: {"type": "integer"} for name in ("line", "column", "offset")},
    ),
)


def _operation(method: str, path: str, endpoint: Endpoint) -> dict[str, Any]:
    need = need_of(method, path)
    done: dict[str, Any] = {"description": "Done."}
    if endpoint.answers:
        done["content"] = {media_type: {} for media_type in endpoint.answers}
    responses: dict[str, Any] = {str(endpoint.status): done}
    errors = {*endpoint.errors, 403, *(() if need is Anyone else (401,))}
    kinds = [_JSON] if _HTML not in endpoint.answers else [_JSON, _HTML, _TEXT]
    for status in sorted(errors):
        schema = {"$ref": "#/components/schemas/Error"}
        responses[str(status)] = {
            "description": _ERRORS.get(status, "Refused."),
            "content": {kind: {"schema": schema} if kind == _JSON else {} for kind in kinds},
        }
    named = [_parameter(name, "path") for name in re.findall(r"\{(\w+)\}", path)]
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": [*named, *(_parameter(name, "query") for name in endpoint.query)],
        "responses": responses,
        "security": [] if need is Anyone else [{"token": []}],
        "x-scope": "any" if need in (Anyone, Holder) else str(need),
    }
    if endpoint.bodies is not None:
        content = {kind: {"schema": schema} for kind, schema in endpoint.bodies.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(name: str, place: str) -> dict[str, Any]:
    schema = _INSTANT if name in _INTEGERS else _TEXT_SCHEMA
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def openapi_routes(served: Iterable[tuple[str, str]]) -> Iterable[web.AbstractRouteDef]:
    """For the application; `served` is read when it is first asked, when all routes are there."""
    body: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        if not body:
            body.append(json.dumps(document(served)).encode())
        return web.Response(body=body[0], content_type="application/json")

    return [web.get("/v1/openapi.json", answer)]
