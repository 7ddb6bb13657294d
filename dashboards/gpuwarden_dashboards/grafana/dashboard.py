"""Puts panels, variables and links together to a dashboard of Grafana, as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden_dashboards.grafana.panels import PAGE, SOURCE, Panel

DATA_SOURCE = "gpuwarden"
"""Name and uid of the data source that `gpuwarden grafana export` provisions."""
COLUMNS = 24
_SCHEMA_VERSION = 42
_NATURAL_ASC, _ON_TIME_RANGE_CHANGED, _HIDE_VARIABLE, _CROSSHAIR = 7, 2, 2, 1
Variable = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GrafanaDashboard:
    """A dashboard."""

    name: str
    title: str
    about: str
    """Questions that it answers, for its description."""
    rows: Sequence[tuple[str, Sequence[Panel]]]
    """Titles, and panels from left to right; a row has 24 columns."""
    variables: Sequence[Variable] = ()
    since: str = "now-6h"
    refresh: str = "1m"
    page: str = "/"
    """Path of the collector's page about the same."""

    def json(self, collector_url: str) -> Any:
        """The dashboard as Grafana imports and provisions it."""
        return {
            "uid": uid(self.name),
            "title": f"gpuwarden: {self.title}",
            "description": self.about,
            "tags": ["gpuwarden"],
            "schemaVersion": _SCHEMA_VERSION,
            "editable": True,
            "time": {"from": self.since, "to": "now"},
            "timezone": "browser",
            "refresh": self.refresh,
            "graphTooltip": _CROSSHAIR,
            "links": [
                {
                    "type": "dashboards", "title": "Dashboards", "tags": ["gpuwarden"], "asDropdown": True,
                    "keepTime": True, "includeVars": True,
                },
                {
                    "type": "link", "title": "gpuwarden", "url": f"{PAGE}{self.page}", "tags": [],
                    "icon": "external link", "targetBlank": True,
                },
            ],
            "templating": {"list": [_data_source(), *self.variables, _page(collector_url)]},
            "panels": [panel | {"id": number} for number, panel in enumerate(self._placed(), 1)],
        }  # fmt: skip

    def _placed(self) -> Iterator[Panel]:
        top = 0
        for title, panels in self.rows:
            at = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
            yield {"type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}
            top += 1
            left = height = 0
            for panel in panels:
                size = panel["gridPos"]
                if left + size["w"] > COLUMNS:
                    top, left, height = top + height, 0, 0
                yield panel | {"gridPos": {"x": left, "y": top, **size}}
                left, height = left + size["w"], max(height, size["h"])
            top += height


def uid(name: str) -> str:
    """Identity of a dashboard in Grafana."""
    return f"gpuwarden-{name}"


def choice(name: str, label: str, query: str, *, is_multi: bool = False) -> Variable:
    """A variable whose values the data source gives; of one with several, all are chosen at first."""
    variable = {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name, "qryType": 1},
        "refresh": _ON_TIME_RANGE_CHANGED,
        "sort": _NATURAL_ASC,
        "multi": is_multi,
        "includeAll": is_multi,
    }
    if is_multi:
        variable |= {"allValue": ".*", "current": _option("All", "$__all")}
    return variable


def _data_source() -> Variable:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": _option(DATA_SOURCE, DATA_SOURCE),
    }


def _page(collector_url: str) -> Variable:
    return {
        "type": "constant",
        "name": "page",
        "label": "Address of gpuwarden's page",
        "query": collector_url,
        "current": _option(collector_url, collector_url),
        "hide": _HIDE_VARIABLE,
    }


def _option(text: str, value: str) -> Any:
    return {"selected": True, "text": text, "value": value}
