"""Makes the routes of all pages, their scripts, styles and data, which the collector serves."""

from collections.abc import Iterable, Sequence

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.query import Querier
from gpuwarden_dashboards.assets import PATH, load_assets
from gpuwarden_dashboards.grafana.links import checked_url
from gpuwarden_dashboards.http import answering
from gpuwarden_dashboards.pages.audit import AuditPage
from gpuwarden_dashboards.pages.collector import CollectorPage
from gpuwarden_dashboards.pages.compare import ComparePage
from gpuwarden_dashboards.pages.fleet import FleetPage
from gpuwarden_dashboards.pages.incidents import IncidentPages
from gpuwarden_dashboards.pages.job import JobPages
from gpuwarden_dashboards.pages.login import LoginPage
from gpuwarden_dashboards.pages.money import MoneyPage
from gpuwarden_dashboards.pages.page import JudgementOf, Page, judged
from gpuwarden_dashboards.pages.place import PlacePages
from gpuwarden_dashboards.pages.policies import PoliciesPage
from gpuwarden_dashboards.pages.rack import RackPage
from gpuwarden_dashboards.pages.rules import RulePages
from gpuwarden_dashboards.pages.sql import SqlPage
from gpuwarden_dashboards.pages.usage import UsagePages
from gpuwarden_dashboards.templates import Templates

_PAGES: Sequence[type[Page]] = (
    AuditPage, FleetPage, PlacePages, RackPage, ComparePage, MoneyPage, JobPages, UsagePages, CollectorPage, IncidentPages, PoliciesPage, RulePages, SqlPage,
)  # fmt: skip


def routes(
    querier: Querier,
    clock: Clock,
    judgement: JudgementOf = judged,
    grafana_url: str | None = None,
    query_timeout_s: float = 30.0,
    has_sign_in: bool = False,
) -> Iterable[web.AbstractRouteDef]:
    """Pages, assets and their data. `grafana_url`: where pages of nodes, GPUs and jobs link to. `query_timeout_s`: the
    collector's: scripts wait a little longer, so that its own words come first. `has_sign_in`: whether people
    can sign in without a token.

    Raises StartError if that is not an address.
    """
    assets = load_assets()
    templates = Templates(assets, checked_url(grafana_url), query_timeout_s)
    pages = [page(templates, querier, clock, judgement) for page in _PAGES]
    return [
        web.get(PATH, assets.serve),
        *LoginPage(templates, has_sign_in).routes(),
        *(
            web.route(route.method, route.path, answering(templates, route.handler))
            for page in pages
            for route in page.routes()
        ),
    ]
