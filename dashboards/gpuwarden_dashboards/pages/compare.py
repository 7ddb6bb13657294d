"""Serves the page that compares GPUs of any nodes."""

from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web

from gpuwarden_dashboards.http import ParameterError, html
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.compare import COMPARED_MAX, Comparison, read_compared
from gpuwarden_dashboards.read.series import described
from gpuwarden_dashboards.templates import gigabytes, percent, power, size

GROUPS: Sequence[tuple[str, str]] = (
    ("Utilization", "util_percent"),
    ("SMs active", "sm_active_percent"),
    ("Memory used", "memory_used_bytes"),
    ("Power", "power_watts"),
    ("Temperature", "temperature_celsius"),
    ("SM clock", "sm_clock_mhz"),
    ("PCIe received", "pcie_rx_bytes_per_second"),
    ("NVLink received", "nvlink_rx_bytes_per_second"),
    ("CPU of its processes", "process.cpu_percent"),
)
"""Charts: title and metric. One metric each: a reader cannot distinguish more than eight lines."""


class ComparePage(Page):
    """GET /compare?of=node-a/0&of=node-b/3. UUIDs are names, too."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/compare", self._compare)]

    def render(self, found: Comparison) -> str:
        """Its HTML."""
        return self._templates.render(
            "compare.html",
            found=found,
            most=COMPARED_MAX,
            said=said,
            groups=[{"title": title, "metrics": [metric]} for title, metric in GROUPS],
            metrics=list(described()),
        )

    async def _compare(self, request: web.Request) -> web.Response:
        names = [name for name in map(str.strip, request.query.getall("of", [])) if name]
        if len(names) > COMPARED_MAX:
            raise ParameterError(
                f"of= names {len(names)} GPUs; at most {COMPARED_MAX} can be compared"
            )
        return html(self.render(await read_compared(self._querier, names)))


def said(column: str, value: Any) -> str:
    """A value of a column with its unit."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if column.endswith("bytes_per_second"):
        return f"{size(value)}/s"
    if column.endswith("bytes"):
        return gigabytes(value)
    if column.endswith("percent"):
        return percent(value)
    if column.endswith("watts"):
        return power(value)
    if column.endswith("celsius"):
        return f"{value:,.0f} °C"
    return f"{value:,.0f} MHz" if column.endswith("mhz") else str(value)
