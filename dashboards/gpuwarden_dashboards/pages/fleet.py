"""The page of the whole fleet, and the map on it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.query import Querier
from gpuwarden_dashboards import text
from gpuwarden_dashboards.answers import answering, data, html
from gpuwarden_dashboards.read.fleet import COLOURS, Fleet, Record, read_fleet, read_map
from gpuwarden_dashboards.read.place import SILENT_AFTER
from gpuwarden_dashboards.request import choice
from gpuwarden_dashboards.templates import Templates
from gpuwarden_dashboards.tiles import tile


class FleetPage:
    """GET / and GET /v1/map."""

    def __init__(self, templates: Templates, querier: Querier, clock: Clock) -> None:
        self._templates = templates
        self._querier = querier
        self._clock = clock

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The page and its data."""
        return [web.get("/", answering(self._show)), web.get("/v1/map", answering(self._map))]

    def render(self, fleet: Fleet) -> str:
        """Its HTML."""
        rows = [_row(node, fleet) for node in fleet.nodes]
        return self._templates.render(
            "fleet.html", fleet=fleet, totals=_totals(fleet), rows=rows, at="/"
        )

    async def _show(self, _request: web.Request) -> web.Response:
        return html(self.render(await read_fleet(self._querier, self._clock.now())))

    async def _map(self, request: web.Request) -> web.Response:
        colour = choice(request, "colour", "util_percent", COLOURS)
        return data({"colour": colour, "nodes": await read_map(self._querier, colour)})


def _totals(fleet: Fleet) -> Sequence[tuple[str, str]]:
    totals = fleet.totals
    known = max(totals["gpus_known"], totals["gpus"])
    reporting = (
        (f"{totals['gpus']:,}", f"GPUs on {totals['nodes']:,} nodes")
        if known == totals["gpus"]
        else (f"{totals['gpus']:,} of {known:,}", f"GPUs report, {totals['nodes']:,} nodes")
    )
    cells = [reporting, (f"{totals['busy']:,}", "busy"), (f"{totals['idle']:,}", "idle now")]
    if totals["unknown"]:
        cells.append((f"{totals['unknown']:,}", "utilization unknown"))
    if totals["usd_per_hour"]:
        idle = text.usd(totals["usd_per_hour_idle"] or 0.0)
        cells.append((f"{idle}/h", f"on idle GPUs, of {text.usd(totals['usd_per_hour'])}/h"))
    cells.append((text.power(totals["power_watts"]), "drawn by GPUs"))
    return cells


def _row(node: Record, fleet: Fleet) -> Mapping[str, Any]:
    gpus = fleet.gpus.get(node["node"], [])
    watts = [gpu["power_watts"] for gpu in gpus if gpu["power_watts"] is not None]
    seen = node["last_seen_at"]
    models = {gpu["model"] or "" for gpu in gpus}
    return {
        "node": node["node"],
        "simulated": node["simulated"],
        "text": " ".join((node["node"], node["labels"] or "", *sorted(models))).lower(),
        "tiles": [tile(gpu) for gpu in gpus],
        "cells": (
            text.power(sum(watts) if watts else None),
            text.percent(node["cpu_util_percent"]),
            text.percent(node["cpu_iowait_percent"]),
            text.gigabytes(node["memory_used_bytes"]),
        ),
        "silent": seen is None or fleet.now - seen > SILENT_AFTER,
        "seen": text.ago(seen, fleet.now),
    }
