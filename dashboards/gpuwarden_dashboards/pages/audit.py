"""Serves the page of the audit: who did what, the newest first."""

from collections.abc import Iterable
from datetime import timedelta
from urllib.parse import urlencode

from aiohttp import web

from gpuwarden.query import text_sql
from gpuwarden_dashboards.http import html, whole
from gpuwarden_dashboards.pages.page import Page

ROWS_MAX = 500
DAYS_MAX = 3_650
_SQL = f"""
SELECT ts, username, address, action, target, outcome, details, count(*) OVER () AS total FROM audit
WHERE ts >= $since::TIMESTAMP AND (username = $who OR $who = '') AND (action = $action OR $action = '')
ORDER BY ts DESC, number DESC LIMIT {ROWS_MAX}
"""


class AuditPage(Page):
    """GET /audit."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/audit", self._show)]

    async def _show(self, request: web.Request) -> web.Response:
        days = min(max(whole(request, "days", 7), 1), DAYS_MAX)
        who, action = (request.query.get(name, "").strip()[:200] for name in ("who", "action"))
        params = {"since": self._clock.now() - timedelta(days=days), "who": who, "action": action}
        rows = (await self._querier.query(_SQL, params)).records()
        conditions = [f"ts > now()::TIMESTAMP - INTERVAL {days} DAY"]
        conditions += [f"username = {text_sql(who)}"] if who else []
        conditions += [f"action = {text_sql(action)}"] if action else []
        sql = f"SELECT * FROM audit WHERE {' AND '.join(conditions)} ORDER BY ts DESC"
        found = self._templates.render(
            "audit.html",
            rows=rows,
            total=rows[0]["total"] if rows else 0,
            days=days,
            who=who,
            action=action,
            sql_path=f"/sql?{urlencode({'q': sql})}",
            at="/collector",
        )
        return html(found)
