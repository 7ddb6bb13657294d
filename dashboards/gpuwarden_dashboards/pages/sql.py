"""The page that asks questions in SQL."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from gpuwarden.schema import TABLES
from gpuwarden_dashboards.answers import html
from gpuwarden_dashboards.questions import QUESTIONS
from gpuwarden_dashboards.templates import Templates


class SqlPage:
    """GET /sql."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The page."""
        return [web.get("/sql", self._show)]

    async def _show(self, _request: web.Request) -> web.Response:
        return html(
            self._templates.render("sql.html", questions=QUESTIONS, tables=_tables(), at="/sql")
        )


def _tables() -> Sequence[Mapping[str, Any]]:
    return [
        {
            "name": table.name,
            "meaning": f"one row per {table.row}",
            "columns": [
                {"name": c.name, "type": c.type.value, "meaning": c.meaning} for c in table.columns
            ],
        }
        for table in TABLES.values()
    ]
