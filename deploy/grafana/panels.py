"""Builds panels with Grafana's Foundation SDK: one function for each kind of panel, the same for both data sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.runtime import UnknownDataquery
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    GraphDrawStyle,
    GraphGradientMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = "datasource"
"""Variable of the data source."""
PAGE = "${page}"
"""Variable of the address of the collector's page."""
RATIO, PERCENT, COUNT, DOLLARS = "percentunit", "percent", "short", "currencyUSD"
BYTES, BYTES_A_SECOND, WATTS, CELSIUS = "bytes", "Bps", "watt", "celsius"
HERTZ, MEGAHERTZ, SECONDS, HOURS, KWH = "hertz", "rotmhz", "s", "h", "kwatth"
TEXT, INSTANT = "string", "dateTimeAsIso"
Steps = Sequence[tuple[float | None, str]]
"""Least value and colour; None: from the lowest on."""
NO_STEPS: Steps = ((None, "text"),)
GOOD_AT_ZERO: Steps = ((None, "green"), (1, "red"))
HEAT: Steps = ((None, "green"), (80, "orange"), (88, "red"))
"""H100 slows its clocks at 87 °C or more, A100 at 89."""
FILLED: Steps = ((None, "green"), (0.9, "orange"), (0.97, "red"))
Panel = Builder[models.Panel]


@dataclass(frozen=True, slots=True)
class GrafanaSource:
    """A type of data source for which there is a set of dashboards."""

    name: str
    """Folder of its dashboards."""
    plugin: str
    language: str

    @property
    def ref(self) -> DataSourceRef:
        """The data source that the dashboard's variable names."""
        return DataSourceRef(type_val=self.plugin, uid=f"${{{SOURCE}}}")

    def uid(self, dashboard_name: str) -> str:
        """Identity of a dashboard."""
        return f"gpuwarden-{self.name}-{dashboard_name}"


PROMETHEUS = GrafanaSource("prometheus", "prometheus", "PromQL")
POSTGRESQL = GrafanaSource("postgresql", "grafana-postgresql-datasource", "SQL")


@dataclass(frozen=True, slots=True)
class PanelLink:
    """A link of a value: to another dashboard, or to the collector's page."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class TableField:
    """A column of a table. `of`: its name in the query's answer."""

    of: str
    title: str
    unit: str = TEXT
    steps: Steps = ()
    links: Sequence[PanelLink] = ()
    decimals: int | None = None


class SqlTarget(Builder[Dataquery]):
    """A query of the PostgreSQL data source, which the SDK has no model of."""

    def __init__(self, sql: str, form: Literal["time_series", "table"], ref: str = "A") -> None:
        self._sql, self._form, self._ref = _flat(sql), form, ref

    def build(self) -> Dataquery:
        """The query as Grafana stores it."""
        return UnknownDataquery(
            {
                "refId": self._ref,
                "datasource": POSTGRESQL.ref.to_json(),
                "format": self._form,
                "editorMode": "code",
                "rawQuery": True,
                "rawSql": self._sql,
            }
        )


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _promql(expr: str, ref: str, legend: str = "") -> prometheus.Dataquery:
    made = prometheus.Dataquery().datasource(PROMETHEUS.ref).ref_id(ref).expr(_flat(expr))
    return made.legend_format(legend or "__auto")


Asked = str | Mapping[str, str]
"""SQL as one text, or PromQL: expressions by legend."""


def _targets(asked: Asked, form: Literal["time_series", "table"]) -> list[Builder[Dataquery]]:
    if isinstance(asked, str):
        return [SqlTarget(asked, form)]
    made = [
        _promql(expr, ref, legend)
        for ref, (legend, expr) in zip(ascii_uppercase, asked.items(), strict=False)
    ]
    return [one.range() if form == "time_series" else one.instant() for one in made]


def _source(asked: Asked) -> DataSourceRef:
    return (POSTGRESQL if isinstance(asked, str) else PROMETHEUS).ref


def thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    """Colours from values on."""
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value=value, color=color) for value, color in steps])
    )


def _links(links: Sequence[PanelLink]) -> list[Builder[models.DashboardLink]]:
    return [
        dashboard.DashboardLink(link.title)
        .type(DashboardLinkType.LINK)
        .url(link.url)
        .target_blank(True)
        for link in links
    ]


def number(
    title: str, unit: str, asked: Asked, *, steps: Steps = NO_STEPS, about: str = "", width: int = 4,
    links: Sequence[PanelLink] = (), decimals: int | None = None,
) -> Panel:  # fmt: skip
    """A panel with one number: the newest."""
    made = (
        stat.Panel().title(title).unit(unit).datasource(_source(asked)).span(width).height(4)
        .thresholds(thresholds(steps)).graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
        .targets(_targets(asked, "table"))
    )  # fmt: skip
    if about:
        made.description(about)
    if decimals is not None:
        made.decimals(decimals)
    if links:
        made.data_links(_links(links))
    return made


def chart(
    title: str, unit: str, asked: Asked, *, about: str = "", width: int = 12, height: int = 8,
    most: float | None = None, is_stacked: bool = False, is_bars: bool = False, links: Sequence[PanelLink] = (),
    least_step: str | None = None, steps: Steps = (),
) -> Panel:  # fmt: skip
    """Lines over time, from 0 on. A gap in the data is a gap in the line."""
    made = (
        timeseries.Panel().title(title).unit(unit).datasource(_source(asked)).span(width).height(height)
        .min(0).line_width(1).show_points(VisibilityMode.AUTO).span_nulls(False)
        .fill_opacity(40 if is_stacked or is_bars else 5).gradient_mode(GraphGradientMode.NONE)
        .legend(
            common.VizLegendOptions().display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.RIGHT)
            .show_legend(True).calcs(["mean", "max", "lastNotNull"] if not is_bars else ["sum"]).sort_by("Name")
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .targets(_targets(asked, "time_series"))
    )  # fmt: skip
    if about:
        made.description(about)
    if most is not None:
        made.max(most)
    if is_stacked:
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if is_bars:
        made.draw_style(GraphDrawStyle.BARS)
    if least_step:
        made.interval(least_step)
    if links:
        made.data_links(_links(links))
    if steps:
        made.thresholds(thresholds(steps))
    return made


def bars(
    title: str, unit: str, asked: Asked, *, about: str = "", width: int = 12, height: int = 8
) -> Panel:
    """A bar for each row: a text, and a number."""
    made = (
        bargauge.Panel().title(title).unit(unit).datasource(_source(asked)).span(width).height(height).min(0)
        .orientation(VizOrientation.HORIZONTAL).thresholds(thresholds(((None, "blue"),)))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(isinstance(asked, str)))
        .targets(_targets(asked, "table"))
    )  # fmt: skip
    if about:
        made.description(about)
    return made


def _override(field: TableField) -> list[DynamicConfigValue]:
    found: list[tuple[str, Any]] = [("unit", field.unit)]
    if field.decimals is not None:
        found.append(("decimals", field.decimals))
    if field.steps:
        found.append(("thresholds", thresholds(field.steps).build()))
        found.append(("custom.cellOptions", {"type": "color-text"}))
    if field.links:
        found.append(
            (
                "links",
                [{"title": one.title, "url": one.url, "targetBlank": False} for one in field.links],
            )
        )
    return [DynamicConfigValue(id_val=name, value=value) for name, value in found]


def rows(
    title: str, fields: Sequence[TableField], asked: Asked, *, about: str = "", width: int = 24, height: int = 8,
    sort: tuple[str, bool] | None = None,
) -> Panel:  # fmt: skip
    """A table. PromQL: a query for each number, by the title of its column; rows are joined by their labels.

    `sort`: title of a column, and whether the largest is first.
    """
    made = (
        table.Panel().title(title).datasource(_source(asked)).span(width).height(height)
        .thresholds(thresholds(NO_STEPS))
    )  # fmt: skip
    if isinstance(asked, str):
        made.targets([SqlTarget(asked, "table")])
        titles = {field.of: field.title for field in fields if field.of != field.title}
    else:
        refs = dict(zip(asked, ascii_uppercase, strict=False))
        made.targets(
            [
                _promql(asked[name], ref).instant().format(PromQueryFormat.TABLE)
                for name, ref in refs.items()
            ]
        )
        value = {name: f"Value #{ref}" if len(refs) > 1 else "Value" for name, ref in refs.items()}
        titles = {value.get(field.of, field.of): field.title for field in fields}
    made.transformations(_transformations(titles, fields, is_sql=isinstance(asked, str)))
    for field in fields:
        made.override_by_name(field.title, _override(field))
    if about:
        made.description(about)
    if sort:
        made.sort_by([common.TableSortByFieldState().display_name(sort[0]).desc(sort[1])])
    return made


def _transformations(
    titles: Mapping[str, str], fields: Sequence[TableField], *, is_sql: bool
) -> list[DataTransformerConfig]:
    if is_sql:
        if not titles:
            return []
        return [DataTransformerConfig(id_val="organize", options={"renameByName": dict(titles)})]
    order = {of: place for place, of in enumerate(titles)}
    return [
        DataTransformerConfig(id_val="merge", options={}),
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": order,
                "renameByName": dict(titles),
            },
        ),
    ]
