"""Serves the list of the rules, and the page of one with its alerts; the script fetches the rules themselves."""

from collections.abc import Iterable
from datetime import timedelta

from aiohttp import web

from gpuwarden.clock import to_ms
from gpuwarden_dashboards.http import html
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.rules import SPAN, RuleHistory, read_fired, read_rule_history


class RulePages(Page):
    """GET /rules and /rules/{name}."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The pages."""
        return [
            web.get("/rules", self._list),
            web.get("/rules/{name}", self._show),
        ]

    def render(self, history: RuleHistory) -> str:
        """The HTML of one."""
        episodes = [
            {
                "labels": {"place": record["place"] or "fleet"},
                "fired_at": to_ms(record["fired_at"]),
                "resolved_at": to_ms(record["resolved_at"]) if record["resolved_at"] else None,
                "summary": record["summary"],
                "severity": record["severity"],
            }
            for record in history.episodes
        ]
        return self._templates.render(
            "rule.html",
            history=history,
            episodes=episodes,
            days=SPAN // timedelta(days=1),
            begin_ms=to_ms(history.now - SPAN),
            end_ms=to_ms(history.now),
            at="/rules",
        )

    async def _list(self, _request: web.Request) -> web.Response:
        fired = await read_fired(self._querier, self._clock.now())
        return html(
            self._templates.render(
                "rules.html", fired=fired, days=SPAN // timedelta(days=1), at="/rules"
            )
        )

    async def _show(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return html(self.render(await read_rule_history(self._querier, name, self._clock.now())))
