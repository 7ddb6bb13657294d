"""Puts panels, variables and links together to a dashboard, and renders it as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.grafana.panels import PROMETHEUS, SOURCE, GrafanaSource, Panel, SqlTarget
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLinkType,
    VariableHide,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from gpuwarden_dashboards.grafana.provisioning import PAGE_URL

TAG = "gpuwarden"
Variable = Builder[VariableModel]


@dataclass(frozen=True, slots=True)
class GrafanaDashboard:
    """A dashboard."""

    source: GrafanaSource
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
    events: str = ""
    """SQL of annotations: time, text, tags."""

    @property
    def path(self) -> str:
        """Its file in the folder of dashboards."""
        return f"{self.source.name}/{self.name}.json"

    def json(self) -> str:
        """The dashboard as Grafana imports and provisions it."""
        document = json.loads(json.dumps(self.build(), cls=JSONEncoder))
        for one in [*document["links"], *document["annotations"].get("list", [])]:
            del one["placement"]  # the SDK's default puts it into a menu
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    def build(self) -> models.Dashboard:
        """The dashboard in the SDK's model."""
        made = (
            dashboard.Dashboard(f"gpuwarden: {self.title} ({self.source.language})")
            .uid(self.source.uid(self.name)).description(self.about).tags([TAG, f"{TAG}-{self.source.name}"])
            .time(self.since, "now").refresh(self.refresh).timezone("browser").editable()
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .variables([data_source(self.source), *self.variables, page_address()])
            .links([self._others(), self._page()])
        )  # fmt: skip
        for title, panels in self.rows:
            made.with_row(dashboard.Row(title))
            for panel in panels:
                made.with_panel(panel)
        found = made.build()
        for number, one in enumerate(found.panels or [], 1):
            one.id_val = number
        if self.events:
            found.annotations = models.AnnotationContainer(list_val=[self._events()])
        return found

    def _others(self) -> dashboard.DashboardLink:
        tags = [f"{TAG}-{self.source.name}"]
        made = dashboard.DashboardLink("Dashboards").type(DashboardLinkType.DASHBOARDS).tags(tags)
        return made.as_dropdown(True).keep_time(True).include_vars(True)

    def _page(self) -> dashboard.DashboardLink:
        made = dashboard.DashboardLink("gpuwarden").type(DashboardLinkType.LINK)
        return made.url(f"${{page}}{self.page}").icon("external link").target_blank(True)

    def _events(self) -> AnnotationQuery:
        target = SqlTarget(self.events, "table").build()
        return AnnotationQuery(
            name="Events",
            datasource=self.source.ref,
            enable=True,
            icon_color="orange",
            target=target,
        )


def data_source(source: GrafanaSource) -> Variable:
    """The variable of the data source: at first the one that `gpuwarden grafana export` provisions."""
    name = f"gpuwarden ({source.language})"
    chosen = VariableOption(selected=True, text=name, value=f"gpuwarden-{source.name}")
    made = dashboard.DatasourceVariable(SOURCE).label("Data source")
    return made.type(source.plugin).current(chosen)


def page_address() -> Variable:
    """The constant with the address of the collector's page."""
    made = dashboard.ConstantVariable("page").label("Address of gpuwarden's page").value(PAGE_URL)
    built = made.build()
    built.hide = VariableHide.HIDE_VARIABLE
    built.current = VariableOption(selected=True, text=PAGE_URL, value=PAGE_URL)
    return made


def choice(
    source: GrafanaSource, name: str, label: str, asked: str, *, is_multi: bool = False, every: str = "",
) -> Variable:  # fmt: skip
    """A variable whose values the data source gives. `every`: text in queries that means all of them."""
    made = (
        dashboard.QueryVariable(name).label(label).datasource(source.ref).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC).multi(is_multi).definition(asked)
    )  # fmt: skip
    if source is PROMETHEUS:
        made.query({"query": asked, "refId": name, "qryType": 1})
    else:
        made.query(asked)
    if every:
        made.include_all(True).all_value(every)
        made.current(VariableOption(selected=True, text="All", value="$__all"))
    return made
