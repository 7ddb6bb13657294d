"""Builds panels of Grafana as JSON: one function for each kind of panel.

What is left out has Grafana's default. A panel has a width and height; `dashboard.py` gives it its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

PAGE = "${page}"
"""Variable of the address of the collector's page."""
SOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}
"""The data source that the dashboard's variable names."""
RATIO, COUNT, DOLLARS = "percentunit", "short", "currencyUSD"
BYTES, BYTES_A_SECOND, WATTS, CELSIUS = "bytes", "Bps", "watt", "celsius"
HERTZ, SECONDS, HOURS, TEXT = "hertz", "s", "h", "string"
Steps = Sequence[tuple[float | None, str]]
"""Least value and colour; None: from the lowest on."""
NO_STEPS: Steps = ((None, "text"),)
GOOD_AT_ZERO: Steps = ((None, "green"), (1, "red"))
HEAT: Steps = ((None, "green"), (80, "orange"), (88, "red"))
"""H100 slows its clocks at 87 °C or more, A100 at 89."""
FILLED: Steps = ((None, "green"), (0.9, "orange"), (0.97, "red"))
Panel = dict[str, Any]
Queries = Mapping[str, str]
"""PromQL by legend, in a table by the title of the number's column."""


@dataclass(frozen=True, slots=True)
class PanelLink:
    """A link of a value: to another dashboard, or to the collector's page."""

    title: str
    url: str

    def json(self, *, in_new_tab: bool) -> Any:
        """The link as Grafana stores it."""
        return {"title": self.title, "url": self.url, "targetBlank": in_new_tab}


@dataclass(frozen=True, slots=True)
class TableField:
    """A column of a table. `of`: a label, or the name of a query."""

    of: str
    title: str
    unit: str = TEXT
    steps: Steps = ()
    links: Sequence[PanelLink] = ()
    decimals: int | None = None


def number(
    title: str, unit: str, queries: Queries, *, steps: Steps = NO_STEPS, about: str = "", width: int = 4,
    links: Sequence[PanelLink] = (), decimals: int | None = None,
) -> Panel:  # fmt: skip
    """A panel with one number: the newest."""
    defaults = _defaults(unit, links) | {"thresholds": _thresholds(steps)}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {"colorMode": "value", "graphMode": "none", "reduceOptions": _NEWEST}
    return _panel("stat", title, about, width, 4, defaults, options, _targets(queries))


def chart(
    title: str, unit: str, queries: Queries, *, about: str = "", width: int = 12, height: int = 8,
    most: float | None = None, is_stacked: bool = False, links: Sequence[PanelLink] = (), least_step: str | None = None,
) -> Panel:  # fmt: skip
    """Lines over time, from 0 on. A gap in the data is a gap in the line."""
    custom: dict[str, Any] = {
        "lineWidth": 1,
        "fillOpacity": 40 if is_stacked else 5,
        "gradientMode": "none",
        "showPoints": "auto",
        "spanNulls": False,
    }
    if is_stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults = _defaults(unit, links) | {"min": 0, "custom": custom}
    if most is not None:
        defaults["max"] = most
    legend = {
        "displayMode": "table",
        "placement": "right",
        "showLegend": True,
        "calcs": ["mean", "max", "lastNotNull"],
        "sortBy": "Name",
    }
    options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    panel = _panel(
        "timeseries",
        title,
        about,
        width,
        height,
        defaults,
        options,
        _targets(queries, instant=False),
    )
    return panel if least_step is None else panel | {"interval": least_step}


def bars(title: str, unit: str, queries: Queries, *, width: int = 12, height: int = 8) -> Panel:
    """A bar for each series."""
    defaults = _defaults(unit) | {"min": 0, "thresholds": _thresholds(((None, "blue"),))}
    options = {"orientation": "horizontal", "reduceOptions": _NEWEST}
    return _panel("bargauge", title, "", width, height, defaults, options, _targets(queries))


def rows(
    title: str, fields: Sequence[TableField], queries: Queries, *, about: str = "", width: int = 24, height: int = 8,
    sort: tuple[str, bool] | None = None,
) -> Panel:  # fmt: skip
    """A table, whose rows are joined by their labels.

    `sort`: title of a column, and whether the largest is first.
    """
    refs = dict(zip(queries, ascii_uppercase, strict=False))
    values = {name: f"Value #{ref}" if len(refs) > 1 else "Value" for name, ref in refs.items()}
    titles = {values.get(field.of, field.of): field.title for field in fields}
    organized = {
        "excludeByName": {"Time": True},
        "indexByName": {name: place for place, name in enumerate(titles)},
        "renameByName": titles,
    }
    defaults = {"thresholds": _thresholds(NO_STEPS)}
    options = {} if sort is None else {"sortBy": [{"displayName": sort[0], "desc": sort[1]}]}
    targets = [
        target | {"format": "table", "legendFormat": "__auto"} for target in _targets(queries)
    ]
    panel = _panel("table", title, about, width, height, defaults, options, targets)
    panel["fieldConfig"]["overrides"] = [_override(field) for field in fields]
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": organized},
    ]
    return panel


_NEWEST = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def _panel(
    kind: str, title: str, about: str, width: int, height: int, defaults: Any, options: Any, targets: Any,
) -> Panel:  # fmt: skip
    panel = {
        "type": kind,
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }
    return panel | {"description": about} if about else panel


def _targets(queries: Queries, *, instant: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "refId": ref,
            "datasource": SOURCE,
            "expr": expr,
            "legendFormat": legend or "__auto",
            "instant": instant,
            "range": not instant,
        }
        for ref, (legend, expr) in zip(ascii_uppercase, queries.items(), strict=False)
    ]


def _defaults(unit: str, links: Sequence[PanelLink] = ()) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": unit}
    return defaults | {"links": [one.json(in_new_tab=True) for one in links]} if links else defaults


def _thresholds(steps: Steps) -> Any:
    """Colours from values on."""
    return {
        "mode": "absolute",
        "steps": [{"value": value, "color": color} for value, color in steps],
    }


def _override(field: TableField) -> Any:
    properties: list[dict[str, Any]] = [{"id": "unit", "value": field.unit}]
    if field.decimals is not None:
        properties.append({"id": "decimals", "value": field.decimals})
    if field.steps:
        properties.append({"id": "thresholds", "value": _thresholds(field.steps)})
        properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    if field.links:
        links = [one.json(in_new_tab=False) for one in field.links]
        properties.append({"id": "links", "value": links})
    return {"matcher": {"id": "byName", "options": field.title}, "properties": properties}
