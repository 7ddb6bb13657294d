"""Defines the scope that each endpoint requires: this table is the whole policy.

An endpoint that is not listed requires scope admin, and fails a test.
"""

from gpuwarden.access import (
    CA_PATH,
    CALLBACK_PATH,
    ENROLL_PATH,
    LOGIN_PATH,
    LOGOUT_PATH,
    SIGN_IN_PATH,
    TOKEN_PATH,
    Scope,
)
from gpuwarden.gpu_test import GPU_TESTS_PATH
from gpuwarden.wire import INGEST_PATH


class Anyone:
    """No token at all."""


class Holder:
    """Any valid token."""


Need = Scope | type[Anyone] | type[Holder]

NEEDS: dict[tuple[str, str], Need] = {
    ("POST", INGEST_PATH): Scope.INGEST,
    ("POST", "/prometheus/api/v1/write"): Scope.INGEST,
    ("POST", "/otlp/v1/metrics"): Scope.INGEST,
    ("POST", GPU_TESTS_PATH): Scope.INGEST,
    ("GET", "/v1/received"): Scope.READ,
    ("POST", ENROLL_PATH): Scope.ENROLL,
    ("GET", CA_PATH): Anyone,  # public; its reader compares the fingerprint
    ("GET", TOKEN_PATH): Holder,
    ("GET", "/healthz"): Anyone,
    ("GET", "/readyz"): Anyone,
    ("GET", "/metrics"): Scope.READ,
    ("GET", "/"): Scope.READ,
    ("GET", "/nodes/{node}"): Scope.READ,
    ("GET", "/gpus/{gpu_uuid}"): Scope.READ,
    ("GET", "/racks/{rack}"): Scope.READ,
    ("GET", "/compare"): Scope.READ,
    ("GET", "/jobs/{name}"): Scope.READ,
    ("GET", "/users/{name}"): Scope.READ,
    ("GET", "/money"): Scope.READ,
    ("GET", "/money/report"): Scope.READ,
    ("GET", "/v1/money.csv"): Scope.READ,
    ("GET", "/collector"): Scope.READ,
    ("GET", "/audit"): Scope.ADMIN,
    ("GET", "/sql"): Scope.READ,
    ("GET", "/incidents"): Scope.READ,
    ("GET", "/incidents/{id}"): Scope.READ,
    ("GET", "/alerts"): Scope.READ,
    ("GET", "/alerts/{fingerprint}"): Scope.READ,
    ("GET", "/silences"): Scope.READ,
    ("GET", "/rules"): Scope.READ,
    ("GET", "/policies"): Scope.READ,
    ("GET", "/rules/{name}"): Scope.READ,
    ("GET", LOGIN_PATH): Anyone,
    ("POST", LOGIN_PATH): Anyone,  # the token is in its body
    ("POST", LOGOUT_PATH): Anyone,
    ("GET", SIGN_IN_PATH): Anyone,
    ("GET", CALLBACK_PATH): Anyone,  # a code of the provider is in its query
    ("GET", "/assets/{version}/{name}"): Anyone,  # they have no data
    ("GET", "/v1/schema"): Scope.READ,
    ("GET", "/v1/fleet"): Scope.READ,
    ("GET", "/v1/fleet/past"): Scope.READ,
    ("GET", "/v1/fleet/week"): Scope.READ,
    ("GET", "/v1/map"): Scope.READ,
    ("GET", "/v1/map/names"): Scope.READ,
    ("GET", "/v1/map/nodes"): Scope.READ,
    ("GET", "/v1/search"): Scope.READ,
    ("GET", "/v1/series"): Scope.READ,
    ("GET", "/v1/live"): Scope.READ,
    ("GET", "/v1/timeline"): Scope.READ,
    ("GET", "/v1/health"): Scope.READ,
    ("GET", "/v1/coverage"): Scope.READ,
    ("GET", "/v1/series/model"): Scope.READ,
    ("GET", "/v1/usual"): Scope.READ,
    ("GET", "/v1/topology"): Scope.READ,
    ("POST", "/v1/sql"): Scope.READ,
    **{
        (method, f"/prometheus/api/v1/{path}"): Scope.READ  # as SQL; a POST has a form in its body
        for path in ("query", "query_range", "series", "labels", "query_exemplars")
        for method in ("GET", "POST")
    },
    ("GET", "/prometheus/api/v1/label/{name}/values"): Scope.READ,
    ("GET", "/prometheus/api/v1/metadata"): Scope.READ,
    ("GET", "/prometheus/federate"): Scope.READ,
    ("GET", "/prometheus/api/v1/rules"): Scope.READ,
    ("GET", "/prometheus/api/v1/alerts"): Scope.READ,
    ("GET", "/prometheus/api/v1/status/buildinfo"): Scope.READ,
    ("GET", "/v1/openapi.json"): Scope.READ,
    ("POST", "/mcp"): Scope.READ,  # its tools only read, as SQL does
    ("GET", "/v1/queries"): Scope.READ,
    ("POST", "/v1/queries"): Scope.READ,  # their number and size are bounded
    ("DELETE", "/v1/queries/{name}"): Scope.READ,  # their own queries; an admin all
    ("GET", "/v1/annotations"): Scope.READ,
    ("POST", "/v1/annotations"): Scope.EDIT,
    ("DELETE", "/v1/annotations/{id}"): Scope.EDIT,
    ("GET", "/v1/judgement"): Scope.READ,
    ("GET", "/v1/rules"): Scope.READ,
    ("GET", "/v1/gpus/{gpu_uuid}/unable-rules"): Scope.READ,
    ("GET", "/v1/rules/{name}"): Scope.READ,
    ("POST", "/v1/rules/reload"): Scope.ADMIN,
    ("GET", "/v1/alerts/{fingerprint}/explanation"): Scope.READ,
    ("GET", "/v1/silences"): Scope.READ,
    ("GET", "/v1/silences/preview"): Scope.READ,
    ("POST", "/v1/silences"): Scope.OPERATE,
    ("DELETE", "/v1/silences/{id}"): Scope.OPERATE,
    # A backtest only reads, as SQL does, and one runs at a time.
    ("GET", "/v1/backtests"): Scope.READ,
    ("POST", "/v1/backtests"): Scope.READ,
    ("GET", "/v1/backtests/{id}"): Scope.READ,
    ("DELETE", "/v1/backtests/{id}"): Scope.READ,
    ("GET", "/v1/policies"): Scope.READ,
    ("GET", "/v1/policies/results"): Scope.READ,
    ("GET", "/v1/policies/{name}/dry-run"): Scope.READ,
    ("POST", "/v1/policies/stop"): Scope.OPERATE,
    ("POST", "/v1/policies/start"): Scope.OPERATE,
    ("POST", "/v1/policies/{name}/seen"): Scope.OPERATE,
    ("POST", "/v1/nodes/{node}/resume"): Scope.OPERATE,
    ("GET", "/v1/acts"): Scope.ACT,
    ("POST", "/v1/acts/{id}"): Scope.ACT,
    ("GET", "/answer/{secret}"): Anyone,  # the secret of its link is the right to answer
    ("POST", "/answer/{secret}"): Anyone,
    ("DELETE", "/v1/nodes/{node}"): Scope.ADMIN,
    ("GET", "/v1/copies/{collector}"): Scope.COPY,
    ("PUT", "/v1/copies/{collector}/{segment}"): Scope.COPY,
}


FOR_TEAMS = frozenset(
    {
        # All that they show comes from SQL, which runs with no more rows than the caller may see.
        *(
            ("GET", path)
            for path in (
                "/", "/nodes/{node}", "/gpus/{gpu_uuid}", "/racks/{rack}", "/compare", "/jobs/{name}", "/users/{name}",
                "/money", "/money/report", "/v1/money.csv", "/sql", "/incidents", "/incidents/{id}", "/alerts",
                "/alerts/{fingerprint}", "/v1/fleet", "/v1/fleet/past",
                "/v1/fleet/week", "/v1/map", "/v1/map/names", "/v1/map/nodes", "/v1/search", "/v1/series", "/v1/live",
                "/v1/timeline", "/v1/health", "/v1/coverage", "/v1/series/model", "/v1/usual", "/v1/topology",
                "/v1/alerts/{fingerprint}/explanation", "/v1/gpus/{gpu_uuid}/unable-rules",
                "/prometheus/api/v1/label/{name}/values", "/prometheus/federate",
            )
        ),
        *(key for key in NEEDS if key[1].startswith("/prometheus/api/v1/query")),
        *(key for key in NEEDS if key[1] in ("/prometheus/api/v1/series", "/prometheus/api/v1/labels")),
        ("POST", "/v1/sql"),
        ("POST", "/mcp"),
        # Of saved queries their own.
        ("GET", "/v1/queries"),
        ("POST", "/v1/queries"),
        ("DELETE", "/v1/queries/{name}"),
        # Of their own nodes and alerts.
        ("GET", "/v1/silences"),
        ("GET", "/v1/silences/preview"),
        ("POST", "/v1/silences"),
        ("DELETE", "/v1/silences/{id}"),
        # Those of the fleet and of the team's nodes.
        ("GET", "/v1/annotations"),
        # They say nothing of the fleet.
        ("GET", TOKEN_PATH),
        ("GET", "/v1/schema"),
        ("GET", "/v1/openapi.json"),
        ("GET", "/v1/judgement"),
        ("GET", "/prometheus/api/v1/metadata"),
        ("GET", "/prometheus/api/v1/status/buildinfo"),
    }
)  # fmt: skip
"""Endpoints that readers of one team may use; the others answer 403."""


def is_for_teams(method: str, path: str) -> bool:
    """Whether readers of one team may use an endpoint; `path`: of its route, with {names}."""
    method = "GET" if method == "HEAD" else method
    return (method, path) in FOR_TEAMS or NEEDS.get((method, path)) is Anyone


def need_of(method: str, path: str) -> Need:
    """The scope that an endpoint requires; `path`: of its route, with {names}."""
    return NEEDS.get(("GET" if method == "HEAD" else method, path), Scope.ADMIN)
