"""Offers remote write and OTLP as protocols of samples to the collector."""

from collections.abc import Iterable

from aiohttp import web

from gpuwarden_collector.ingest.port import SampleContext, SampleFront
from gpuwarden_prometheus.received.endpoints import ReceiveEndpoints
from gpuwarden_prometheus.received.making import SeriesRowMaker


def _routes(context: SampleContext) -> Iterable[web.AbstractRouteDef]:
    return ReceiveEndpoints(context).routes()


RECEIVED = SampleFront(SeriesRowMaker(), _routes)
