"""Defines the scope that each endpoint requires: this table is the whole policy.

An endpoint that is not listed requires scope admin, and fails a test.
"""

from gpuwarden.access import (
    CA_PATH,
    ENROLL_PATH,
    LOGIN_PATH,
    LOGOUT_PATH,
    TOKEN_PATH,
    Scope,
)
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
    ("GET", "/sql"): Scope.READ,
    ("GET", "/incidents"): Scope.READ,
    ("GET", "/incidents/{id}"): Scope.READ,
    ("GET", "/alerts"): Scope.READ,
    ("GET", "/alerts/{fingerprint}"): Scope.READ,
    ("GET", "/silences"): Scope.READ,
    ("GET", "/rules"): Scope.READ,
    ("GET", "/rules/{name}"): Scope.READ,
    ("GET", LOGIN_PATH): Anyone,
    ("POST", LOGIN_PATH): Anyone,  # the token is in its body
    ("POST", LOGOUT_PATH): Anyone,
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
    ("GET", "/dashboards"): Scope.READ,
    ("GET", "/dashboards/{name}"): Scope.READ,
    ("GET", "/v1/dashboards"): Scope.READ,
    ("GET", "/v1/dashboards/{name}"): Scope.READ,
    ("GET", "/v1/dashboards/{name}/versions"): Scope.READ,
    ("PUT", "/v1/dashboards/{name}"): Scope.EDIT,
    ("DELETE", "/v1/dashboards/{name}"): Scope.EDIT,
    ("POST", "/v1/bursts"): Scope.EDIT,
    ("GET", "/v1/bursts/{id}"): Scope.READ,
    ("GET", "/v1/annotations"): Scope.READ,
    ("POST", "/v1/annotations"): Scope.EDIT,
    ("DELETE", "/v1/annotations/{id}"): Scope.EDIT,
    ("GET", "/v1/judgement"): Scope.READ,
    ("GET", "/v1/rules"): Scope.READ,
    ("GET", "/v1/gpus/{gpu_uuid}/bursts"): Scope.READ,
    ("GET", "/v1/gpus/{gpu_uuid}/unable-rules"): Scope.READ,
    ("GET", "/v1/rules/{name}"): Scope.READ,
    ("POST", "/v1/rules/reload"): Scope.ADMIN,
    ("GET", "/v1/alerts/{fingerprint}/explanation"): Scope.READ,
    ("GET", "/v1/silences"): Scope.READ,
    ("GET", "/v1/silences/preview"): Scope.READ,
    ("POST", "/v1/silences"): Scope.ADMIN,
    ("DELETE", "/v1/silences/{id}"): Scope.ADMIN,
    # A backtest only reads, as SQL does, and one runs at a time.
    ("GET", "/v1/backtests"): Scope.READ,
    ("POST", "/v1/backtests"): Scope.READ,
    ("GET", "/v1/backtests/{id}"): Scope.READ,
    ("DELETE", "/v1/backtests/{id}"): Scope.READ,
    ("DELETE", "/v1/nodes/{node}"): Scope.ADMIN,
    ("GET", "/v1/copies/{collector}"): Scope.COPY,
    ("PUT", "/v1/copies/{collector}/{segment}"): Scope.COPY,
}


def need_of(method: str, path: str) -> Need:
    """The scope that an endpoint requires; `path`: of its route, with {names}."""
    return NEEDS.get(("GET" if method == "HEAD" else method, path), Scope.ADMIN)
