"""Offers Prometheus' HTTP API as a front of the collector."""

from collections.abc import Iterable

from aiohttp import web

from gpuwarden_collector.query.port import HttpFront, HttpFrontContext
from gpuwarden_prometheus.api import PrometheusApi


def _routes(context: HttpFrontContext) -> Iterable[web.AbstractRouteDef]:
    return PrometheusApi(context).routes()


PROMETHEUS = HttpFront("promql", "gpuwarden_prometheus.dialect:PromqlDialect", _routes)
