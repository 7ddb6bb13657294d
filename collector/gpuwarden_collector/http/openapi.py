"""Describes the API as an OpenAPI document, served at `GET /v1/openapi.json`.

ENDPOINTS has every endpoint of a collector, and `auth/scopes.py` its scope; tests compare both with the routes and with
docs/api.md. The document has the endpoints that this process serves.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gpuwarden import __version__
from gpuwarden.clock import INSTANT_MAX_MS
from gpuwarden.gpu_test import FAIL, GPU_TESTS_PATH, OK, RESULTS_MAX, SKIPPED, TESTS, GpuTestResult
from gpuwarden.query import ARROW_TYPE, NDJSON_TYPE, PARQUET_TYPE
from gpuwarden.wire import CONTENT_TYPE
from gpuwarden_collector.auth.scopes import Anyone, Holder, need_of
from gpuwarden_collector.ops.readiness import ReadyPart

PATH = "/v1/openapi.json"
_JSON, _HTML, _TEXT = "application/json", "text/html", "text/plain"
_ERRORS: Mapping[int, str] = {
    400: "The request is wrong.",
    401: "A token is needed.",
    403: "The token does not allow it.",
    404: "There is no such thing.",
    405: "The endpoint does not take that method.",
    406: "The answer has another type than requested.",
    409: "It conflicts with the current state.",
    413: "The body is too large.",
    415: "The body has an unsupported type.",
    422: "The content is invalid.",
    429: "Too many requests: see Retry-After.",
    501: "An optional package is not installed.",
    503: "Not now: see Retry-After.",
    504: "It took too long.",
}
_TEXT_SCHEMA: Mapping[str, Any] = {"type": "string"}
_COUNT_SCHEMA: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
_OF_PATHS: Mapping[str, Mapping[str, Any]] = {"segment": _COUNT_SCHEMA}
"""Parameters of paths that are not any text."""
_INSTANT: Mapping[str, Any] = {
    "type": "integer", "minimum": 0, "maximum": INSTANT_MAX_MS, "description": "Milliseconds since 1970.",
}  # fmt: skip
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


def _object(required: Sequence[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter of the query string."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool = False


def _one_of(name: str, *words: str) -> QueryParameter:
    return QueryParameter(name, {"type": "string", "enum": list(words)})


def _integer(name: str, least: int, most: int | None = None) -> QueryParameter:
    schema = {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})
    return QueryParameter(name, schema)


def _texts(name: str, least: int, most: int) -> QueryParameter:
    """A parameter that may be repeated."""
    items = {"type": "array", "items": _TEXT_SCHEMA, "minItems": least, "maxItems": most}
    return QueryParameter(name, items, is_required=least > 0)


_AT = ("begin", "end")
_SPAN: tuple[str | QueryParameter, ...] = (
    "gpu_uuid", "node", *(QueryParameter(name, _INSTANT) for name in _AT), _integer("columns", 1, 4_000), "job", "metrics",
)  # fmt: skip
_EPISODE = QueryParameter("active_at", _INSTANT)
_COLOUR = _one_of(
    "colour", "util_percent", "sm_active_percent", "power_watts", "temperature_margin_celsius", "memory_percent",
    "usd_wasted_per_hour", "state",
)  # fmt: skip
_MONEY_BY = ("username", "node", "job", "account", "team", "model", "gpu", "category")
_PERIODS = ("24h", "7d", "30d", "365d")
_SORT = _one_of(
    "sort",
    "usd",
    "gpu_hours",
    "used",
    "wasted_hours",
    "wasted_usd",
    "wasted_share",
    "energy_kwh",
    "name",
)
_MONEY: tuple[str | QueryParameter, ...] = (
    _one_of("by", *_MONEY_BY), _one_of("since", "24h", "7d", "30d", "month", "last-month", "365d"), *_AT, _SORT, *_MONEY_BY,
)  # fmt: skip
_USAGE: tuple[str | QueryParameter, ...] = (_one_of("since", *_PERIODS), *_AT, _SORT)
_OF_ALERTS: tuple[str | QueryParameter, ...] = (
    _one_of("since", "1h", *_PERIODS),
    "node",
    "rule",
    "gpu",
    "owner",
    "job",
    "severity",
)
_PLACE: tuple[str | QueryParameter, ...] = (
    _integer("last", 0), *(QueryParameter(name, _INSTANT) for name in _AT), "metrics", _one_of("compare", "week", "node", "job"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The description of an endpoint for clients."""

    summary: str
    answers: tuple[str, ...] = (_JSON,)
    """Media types of answers."""
    status: int = 200
    query: tuple[str | QueryParameter, ...] = ()
    bodies: Mapping[str, Mapping[str, Any]] | None = None
    """Schema by media type."""
    errors: tuple[int, ...] = ()
    answer: Mapping[str, Any] | None = None
    """Schema of its JSON answer."""
    error: Mapping[str, Any] | None = None
    """Schema of its errors, if it differs from that of other endpoints."""


_SQL = _object(
    ["sql"],
    sql={"type": "string", "description": "One SELECT; $name takes a parameter."},
    params={"type": ["object", "null"], "additionalProperties": _PARAMETER},
    row_limit={"type": ["integer", "null"], "minimum": 0},
) | {"additionalProperties": False}
_ROWS = _object(
    ["columns", "rows", "truncated", "elapsed_s"],
    columns={
        "type": "array",
        "items": _object(["name", "type"], name=_TEXT_SCHEMA, type=_TEXT_SCHEMA),
    },
    rows={"type": "array", "items": {"type": "array"}},
    truncated={"type": "boolean"},
    elapsed_s={"type": "number"},
)
_OR_NULL: Mapping[str, Any] = {"type": ["string", "null"]}
_QUERIES = _object(
    ["queries"],
    queries={
        "type": "array",
        "items": _object(
            ["name", "sql", "author", "saved_by", "saved_at", "mine"],
            name=_TEXT_SCHEMA, sql=_TEXT_SCHEMA, author=_OR_NULL, saved_by=_TEXT_SCHEMA, saved_at=_TEXT_SCHEMA, mine={"type": "boolean"},
        ),
    },
)  # fmt: skip
_WHOLE: Mapping[str, Any] = {"type": "integer", "minimum": 0}
_ANNOTATION = _object(
    ["text"],
    text=_TEXT_SCHEMA, at=_TEXT_SCHEMA, until=_TEXT_SCHEMA, node=_TEXT_SCHEMA, gpu=_WHOLE, job=_TEXT_SCHEMA,
    tags={"type": "array", "items": _TEXT_SCHEMA, "maxItems": 10},
) | {"additionalProperties": False}  # fmt: skip
_GPU_TEST = GpuTestResult.__slots__
_GPU_TESTS = _object(
    ["node", "run", "simulated", "results"],
    node=_TEXT_SCHEMA, run={"type": "string", "pattern": "^[0-9a-f]{12}$"}, simulated={"type": "boolean"},
    results={
        "type": "array", "minItems": 1, "maxItems": RESULTS_MAX,
        "items": _object(
            [*_GPU_TEST],
            **dict.fromkeys(_GPU_TEST, _TEXT_SCHEMA) | {
                "test": {"enum": [*TESTS]}, "status": {"enum": [OK, FAIL, SKIPPED]}, "gpu_uuid": _OR_NULL,
                "gpu": {"type": ["integer", "null"]}, "value": {"type": ["number", "null"]},
            },
        ) | {"additionalProperties": False},
    },
) | {"additionalProperties": False}  # fmt: skip
_TOKEN = _object(
    ["required"],
    required={"type": "boolean"}, id=_TEXT_SCHEMA, scope=_TEXT_SCHEMA, node=_OR_NULL, expires_at=_OR_NULL,
)  # fmt: skip
_RPC_ERROR = {
    "oneOf": [
        {"$ref": "#/components/schemas/Error"},
        _object(["jsonrpc", "error"], jsonrpc=_TEXT_SCHEMA, error={"type": "object"}),
    ]
}
_NAMED = {"name": {"type": "string", "minLength": 1, "maxLength": 80}}
_SILENCE = _object(
    [],
    matchers={"type": "array", "items": _TEXT_SCHEMA},
    fingerprint=_TEXT_SCHEMA,
    comment=_TEXT_SCHEMA,
    starts_at=_TEXT_SCHEMA,
    ends_at=_TEXT_SCHEMA,
    **{"for": _TEXT_SCHEMA},
) | {"description": "Matchers or fingerprint; `for` or `ends_at`.", "additionalProperties": False}


def _page(
    summary: str, *query: str | QueryParameter, errors: tuple[int, ...] = (400, 404, 503)
) -> Endpoint:
    return Endpoint(summary, (_HTML,), query=query, errors=errors)


def _data(summary: str, *query: str | QueryParameter) -> Endpoint:
    return Endpoint(summary, query=query, errors=(400, 404, 503))


_FORM = "application/x-www-form-urlencoded"
_PROMETHEUS_ERROR = {
    "oneOf": [
        {"$ref": "#/components/schemas/Error"},
        _object(
            ["status", "errorType", "error"],
            status={"type": "string", "enum": ["error"]}, errorType=_TEXT_SCHEMA, error=_TEXT_SCHEMA,
        ),
    ]
}  # fmt: skip
_PROMETHEUS_ANSWER = _object(["status", "data"], status={"type": "string", "enum": ["success"]})


def _prometheus(
    path: str, summary: str, *query: str | QueryParameter, has_form: bool = True
) -> Mapping[tuple[str, str], Endpoint]:
    """An endpoint of Prometheus' API, whose parameters may come in a form too."""
    found: dict[tuple[str, str], Endpoint] = {}
    for method in ("GET", "POST") if has_form else ("GET",):
        names = [name if isinstance(name, str) else name.name for name in query]
        form = {_FORM: _object([], **dict.fromkeys(names, _TEXT_SCHEMA))}
        found[method, f"/prometheus/api/v1/{path}"] = Endpoint(
            summary, query=query if method == "GET" else (), bodies=form if method == "POST" else None,
            errors=(400, 413, 422, 429, 503), answer=_PROMETHEUS_ANSWER, error=_PROMETHEUS_ERROR,
        )  # fmt: skip
    return found


_PROTOBUF = "application/x-protobuf"
_RECEIVED = _object(
    ["samples", "open_rows", "bytes_waiting", "skipped"],
    samples={"type": "object", "additionalProperties": {"type": "integer"}},
    open_rows={"type": "integer"},
    bytes_waiting={"type": "integer"},
    skipped={
        "type": "array",
        "items": _object(["reason", "name", "samples"], reason=_TEXT_SCHEMA, name=_TEXT_SCHEMA, samples={"type": "integer"}),
    },
)  # fmt: skip
_MATCH = _texts("match[]", 0, 20)
ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    ("POST", "/v1/ingest"): Endpoint(
        "Takes a batch from an agent (docs/wire.md).", (), 204,
        bodies={CONTENT_TYPE: {"type": "string", "format": "binary"}}, errors=(400, 409, 413, 415, 426, 429, 503),
    ),
    ("POST", "/prometheus/api/v1/write"): Endpoint(
        "Takes samples by Prometheus' remote write 1.0 or 2.0.", (), 204,
        bodies={_PROTOBUF: {"type": "string", "format": "binary"}}, errors=(400, 403, 413, 415, 429, 503),
    ),
    ("POST", "/otlp/v1/metrics"): Endpoint(
        "Takes metrics by OTLP over HTTP.", (_PROTOBUF, _JSON), 200,
        bodies={_PROTOBUF: {"type": "string", "format": "binary"}, _JSON: {"type": "object"}},
        errors=(400, 403, 413, 415, 429, 503),
    ),
    ("GET", "/v1/received"): Endpoint("Outcomes of received samples.", answer=_RECEIVED),
    ("POST", "/v1/sql"): Endpoint(
        "Runs one read-only query.", (_JSON, NDJSON_TYPE, "text/csv", ARROW_TYPE, PARQUET_TYPE),
        bodies={_JSON: _SQL, _TEXT: _TEXT_SCHEMA}, errors=(400, 413, 429, 503, 504), answer=_ROWS,
    ),
    **_prometheus("query", "PromQL at one instant.", "query", "time", "timeout", "limit", "lookback_delta"),
    **_prometheus(
        "query_range", "PromQL over a span.", "query", "start", "end", "step", "timeout", "limit", "lookback_delta",
        "nocache",
    ),
    **_prometheus("series", "Series that selectors match.", _MATCH, "start", "end", "limit"),
    **_prometheus("labels", "Names of labels.", _MATCH, "start", "end", "limit"),
    **_prometheus("query_exemplars", "Exemplars: there are none.", "query", "start", "end"),
    **_prometheus("label/{name}/values", "Values of a label.", _MATCH, "start", "end", "limit", has_form=False),
    **_prometheus("metadata", "Type and help of metrics.", "metric", "limit", has_form=False),
    **_prometheus(
        "rules", "Rules, as alerting rules of one group.", "type", "rule_name[]", "rule_group[]", "file[]",
        "exclude_alerts", has_form=False,
    ),
    ("GET", "/prometheus/federate"): Endpoint(
        "Newest values of the series that selectors match, in Prometheus' text format.", (_TEXT,),
        query=(_texts("match[]", 1, 20), "limit", "lookback_delta"), errors=(400, 422, 429, 503), error=_PROMETHEUS_ERROR,
    ),
    **_prometheus("alerts", "Alerts that are pending or firing.", has_form=False),
    **_prometheus("status/buildinfo", "The version of Prometheus that answers are compatible with.", has_form=False),
    ("POST", "/mcp"): Endpoint(
        "A message of the Model Context Protocol.", bodies={_JSON: _object(["jsonrpc"], jsonrpc=_TEXT_SCHEMA)},
        errors=(400, 405, 406, 413, 415, 501), error=_RPC_ERROR,
    ),
    ("GET", "/v1/queries"): Endpoint("Saved queries.", errors=(503,), answer=_QUERIES),
    ("POST", "/v1/queries"): Endpoint(
        "Saves a query.", status=201, errors=(400, 409, 413, 415, 503),
        bodies={_JSON: _object(["name", "sql"], sql=_TEXT_SCHEMA, **_NAMED)},
    ),
    ("DELETE", "/v1/queries/{name}"): Endpoint("Deletes a saved query.", (), 204, query=("saved_by",), errors=(404, 503)),
    ("POST", GPU_TESTS_PATH): Endpoint(
        "Stores the results of a run of gpuwarden agent test-gpus.", status=201, errors=(400, 403, 413, 415, 422, 429, 503),
        bodies={_JSON: _GPU_TESTS},
    ),
    ("GET", "/v1/annotations"): Endpoint(
        "Annotations of a time range.", errors=(400, 503),
        query=(_texts("node", 0, 256), QueryParameter("gpu", _WHOLE), _texts("job", 0, 20), "begin", "end"),
    ),
    ("POST", "/v1/annotations"): Endpoint(
        "Writes an annotation.", status=201, bodies={_JSON: _ANNOTATION}, errors=(400, 409, 413, 415, 503),
    ),
    ("DELETE", "/v1/annotations/{id}"): Endpoint("Deletes an annotation.", (), 204, errors=(404, 503)),
    ("POST", "/v1/enroll"): Endpoint(
        "Registers the token that a node has made.", status=201, errors=(400, 409, 413, 415, 503),
        bodies={_JSON: _object(["node", "id", "sha256"], node=_TEXT_SCHEMA, id=_TEXT_SCHEMA, sha256=_TEXT_SCHEMA)},
    ),
    ("GET", "/v1/token"): Endpoint("The caller's token.", answer=_TOKEN),
    ("GET", "/v1/ca"): Endpoint(
        "The certificate of the collector's authority.", ("application/x-pem-file",), errors=(404,)
    ),
    ("GET", PATH): Endpoint("This document."),
    ("GET", "/v1/judgement"): Endpoint("How far the rules have judged the fleet."),
    ("GET", "/v1/gpus/{gpu_uuid}/unable-rules"): Endpoint(
        "Rules that cannot judge a GPU.", errors=(404, 503)
    ),
    ("GET", "/v1/rules"): Endpoint("Rules with their state.", errors=(503,)),
    ("GET", "/v1/rules/{name}"): Endpoint("A rule with its text.", errors=(404, 503)),
    ("POST", "/v1/rules/reload"): Endpoint("Reads rules and routing again.", errors=(422, 503)),
    ("GET", "/v1/alerts/{fingerprint}/explanation"): Endpoint(
        "Why an alert fires.", query=(_EPISODE,), errors=(400, 404, 503)
    ),
    ("GET", "/v1/silences"): Endpoint("Silences and acknowledgements.", errors=(503,)),
    ("GET", "/v1/silences/preview"): Endpoint(
        "What a silence would cover.", query=(_texts("matcher", 1, 20),), errors=(400, 503)
    ),
    ("POST", "/v1/silences"): Endpoint(
        "Makes a silence.", status=201, bodies={_JSON: _SILENCE}, errors=(400, 404, 413, 415, 503)
    ),
    ("DELETE", "/v1/silences/{id}"): Endpoint("Ends a silence.", (), 204, errors=(404, 503)),
    ("GET", "/v1/policies"): Endpoint("Policies, and what they did.", errors=(404, 503)),
    ("GET", "/v1/policies/results"): Endpoint("What policies did and saved.", errors=(404, 503)),
    ("GET", "/v1/policies/{name}/dry-run"): Endpoint(
        "What a policy would have done.", query=(QueryParameter("backtest", _TEXT_SCHEMA, True),), errors=(404, 409, 503)
    ),
    ("POST", "/v1/policies/stop"): Endpoint("Stops all policies.", errors=(404, 503)),
    ("POST", "/v1/policies/start"): Endpoint("Ends the stop.", errors=(404, 503)),
    ("POST", "/v1/policies/{name}/seen"): Endpoint(
        "Notes that the dry run of a policy was read.", errors=(400, 404, 409, 413, 415, 503),
        bodies={_JSON: _object(["digest"], digest=_TEXT_SCHEMA)},
    ),
    ("POST", "/v1/nodes/{node}/resume"): Endpoint("Has the actor return a node to the queue.", status=202, errors=(404, 503)),
    ("GET", "/v1/acts"): Endpoint(
        "What the actor is to do.", query=(_texts("kind", 0, 20), _texts("node", 0, 20)), errors=(404, 503)
    ),
    ("POST", "/v1/acts/{id}"): Endpoint(
        "Takes the actor's report.", errors=(400, 404, 409, 413, 415, 503),
        bodies={_JSON: _object(["is_done"], is_done={"type": "boolean"}, note=_TEXT_SCHEMA)},
    ),
    ("GET", "/answer/{secret}"): Endpoint("Asks an owner whether a job is still needed.", ("text/html",), errors=(404, 410, 503)),
    ("POST", "/answer/{secret}"): Endpoint(
        "Takes the owner's answer.", ("text/html",), errors=(400, 403, 404, 410, 413, 503),
        bodies={"application/x-www-form-urlencoded": _object(
            ["answer"], answer={"type": "string", "enum": ["keep", "end"]}, hours=_TEXT_SCHEMA,
        )},
    ),
    ("POST", "/v1/backtests"): Endpoint(
        "Begins a backtest.", status=201, errors=(400, 404, 409, 413, 415, 503),
        bodies={
            _JSON: _object(["rule"], rule=_TEXT_SCHEMA, since=_TEXT_SCHEMA) | {"additionalProperties": False}
        },
    ),
    ("GET", "/v1/backtests"): Endpoint("The backtest that runs.", errors=(503,)),
    ("GET", "/v1/backtests/{id}"): Endpoint("A backtest.", errors=(404, 503)),
    ("DELETE", "/v1/backtests/{id}"): Endpoint("Cancels a backtest.", (), 204, errors=(404, 503)),
    ("DELETE", "/v1/nodes/{node}"): Endpoint(
        "Forgets a silent node: it has left.", (), 204, errors=(404, 409, 503)
    ),
    ("GET", "/v1/copies/{collector}"): Endpoint(
        "Which parts of a collector's segments are copied here.", errors=(409, 503)
    ),
    ("PUT", "/v1/copies/{collector}/{segment}"): Endpoint(
        "Appends to the copy of a segment.", (), 204,
        bodies={"application/octet-stream": {"type": "string", "format": "binary"}},
        query=(
            QueryParameter("offset", _COUNT_SCHEMA, True),
            QueryParameter("oldest", _COUNT_SCHEMA, True),
        ),
        errors=(400, 409, 413, 429, 503),
    ),
    ("GET", "/healthz"): Endpoint("Whether the process answers."),
    ("GET", "/readyz"): Endpoint(
        "Whether batches are stored, queries answered and rules evaluated.",
        query=(QueryParameter("part", {"type": "string", "enum": [*ReadyPart]}),),
        errors=(400, 503),
    ),
    ("GET", "/metrics"): Endpoint("The collector about itself, for Prometheus.", (_TEXT,)),
    ("GET", "/v1/schema"): _data("Tables and views with meanings."),
    ("GET", "/v1/map"): _data("Reading and state of every GPU.", _COLOUR),
    ("GET", "/v1/map/names"): _data("Which GPUs those are."),
    ("GET", "/v1/map/nodes"): _data("Power, CPU and memory of nodes.", _texts("node", 1, 100)),
    ("GET", "/v1/fleet"): _data("Totals, and the gravest incidents and alerts."),
    ("GET", "/v1/fleet/past"): _data(
        "The last hours of the fleet.", QueryParameter("by", {"type": "string", "maxLength": 100})
    ),
    ("GET", "/v1/fleet/week"): _data("What seven days of waste cost."),
    ("GET", "/v1/search"): _data("Nodes, GPUs, users and jobs by name.", "q"),
    ("GET", "/v1/series"): _data("Metrics over a span.", *_SPAN),
    ("GET", "/v1/live"): _data(
        "Rows of the last seconds.", "gpu_uuid", "node", "job", "metrics", _integer("seconds", 1, 330)
    ),
    ("GET", "/v1/series/model"): _data("How others of a GPU's model did over a span.", *_SPAN),
    ("GET", "/v1/usual"): _data("What is usual for a GPU at the hours of a span.", *_SPAN),
    ("GET", "/v1/timeline"): _data("What happened over a span.", *_SPAN),
    ("GET", "/v1/health"): _data("Errors and repairs over a span.", *_SPAN),
    ("GET", "/v1/coverage"): _data("What was read and missed over a span.", *_SPAN),
    ("GET", "/v1/topology"): _data(
        "How the GPUs of a node are connected.",
        QueryParameter("node", {"type": "string", "minLength": 1}, is_required=True), QueryParameter("end", _INSTANT),
    ),
    ("GET", "/"): _page("The fleet.", _COLOUR, "group", "filter"),
    ("GET", "/nodes/{node}"): _page("A node.", _integer("gpu", 0, 999_999), *_PLACE),
    ("GET", "/gpus/{gpu_uuid}"): _page("A GPU.", *_PLACE),
    ("GET", "/racks/{rack}"): _page("A rack: its trays, GPUs, NVLinks and incidents."),
    ("GET", "/compare"): _page("GPUs of any nodes beside each other.", _texts("of", 0, 8), errors=(400, 503)),
    ("GET", "/incidents"): _page(
        "Incidents.", _one_of("state", "open", "acknowledged", "silenced", "ended"), *_OF_ALERTS
    ),
    ("GET", "/incidents/{id}"): _page("An incident."),
    ("GET", "/alerts"): _page(
        "Alerts.", _one_of("state", "firing", "acknowledged", "silenced", "pending", "ended"), *_OF_ALERTS
    ),
    ("GET", "/alerts/{fingerprint}"): _page("An alert.", _EPISODE),
    ("GET", "/silences"): _page("Silences.", _texts("matcher", 0, 20)),
    ("GET", "/rules"): _page("Rules."),
    ("GET", "/rules/{name}"): _page("A rule.", "backtest"),
    ("GET", "/jobs/{name}"): _page("A job.", *_USAGE),
    ("GET", "/users/{name}"): _page("A user.", *_USAGE),
    ("GET", "/money"): _page("What GPUs cost and waste.", *_MONEY),
    ("GET", "/money/report"): _page("The same as a report to print.", *_MONEY),
    ("GET", "/v1/money.csv"): Endpoint("Its lines.", ("text/csv",), query=_MONEY, errors=(400, 503)),
    ("GET", "/collector"): _page(
        "The collector and its agents.",
        _one_of("state", "all", "silent", "behind", "gaps", "losses", "old"), "filter",
    ),
    ("GET", "/policies"): _page("Policies, and what they did."),
    ("GET", "/audit"): _page("Who did what.", "who", "action", _integer("days", 1, 3_650)),
    ("GET", "/sql"): _page("SQL.", "q"),
    ("GET", "/login"): _page("Asks for a token.", "next", "why"),
    ("POST", "/login"): Endpoint(
        "Takes a token.", (), 303, errors=(400, 403, 413, 415),
        bodies={"application/x-www-form-urlencoded": _object(["token"], token=_TEXT_SCHEMA, next=_TEXT_SCHEMA)},
    ),
    ("POST", "/logout"): Endpoint(
        "Ends the session, and takes the cookie out of the browser.", (), 303, query=(_one_of("everywhere", "1"),),
        errors=(403, 503),
    ),
    ("GET", "/login/sso"): Endpoint("Begins single sign-on.", (), 303, query=("next",), errors=(404,)),
    ("GET", "/login/callback"): Endpoint(
        "Ends single sign-on.", ("text/html",), query=("state", "code", "error"), errors=(303, 404),
    ),
    ("GET", "/assets/{version}/{name}"): Endpoint("Scripts and styles.", ("*/*",), errors=(404,)),
}  # fmt: skip


def document(served: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The document for these endpoints, by method and path."""
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
    hint={"type": "string", "description": "What was probably meant."},
    position=_object(
        ["line", "column", "offset"],
        **{name: {"type": "integer"} for name in ("line", "column", "offset")},
    ),
)


def _operation(method: str, path: str, endpoint: Endpoint) -> dict[str, Any]:
    need = need_of(method, path)
    done: dict[str, Any] = {"description": "Done."}
    if endpoint.answers:
        said = {} if endpoint.answer is None else {"schema": endpoint.answer}
        done["content"] = {kind: said if kind == _JSON else {} for kind in endpoint.answers}
    responses: dict[str, Any] = {str(endpoint.status): done}
    errors = {*endpoint.errors, 403, *(() if need is Anyone else (401,))}
    kinds = [_JSON] if _HTML not in endpoint.answers else [_JSON, _HTML, _TEXT]
    for status in sorted(errors):
        schema = endpoint.error or {"$ref": "#/components/schemas/Error"}
        responses[str(status)] = {
            "description": _ERRORS.get(status, "Refused."),
            "content": {kind: {"schema": schema} if kind == _JSON else {} for kind in kinds},
        }
    named = [
        _described(QueryParameter(name, _OF_PATHS.get(name, _TEXT_SCHEMA), True), "path")
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    query = (
        one if isinstance(one, QueryParameter) else QueryParameter(one, _TEXT_SCHEMA)
        for one in endpoint.query
    )
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": [*named, *(_described(one, "query") for one in query)],
        "responses": responses,
        "security": [] if need is Anyone else [{"token": []}],
        "x-scope": "any" if need in (Anyone, Holder) else str(need),
    }
    if endpoint.bodies is not None:
        content = {kind: {"schema": schema} for kind, schema in endpoint.bodies.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _described(one: QueryParameter, place: str) -> dict[str, Any]:
    return {"name": one.name, "in": place, "required": one.is_required, "schema": one.schema}


def openapi_routes(served: Iterable[tuple[str, str]]) -> Iterable[web.AbstractRouteDef]:
    """The route of the document. `served` is read at the first request, when all routes exist."""
    body: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        if not body:
            body.append(json.dumps(document(served)).encode())
        return web.Response(body=body[0], content_type="application/json")

    return [web.get(PATH, answer)]
