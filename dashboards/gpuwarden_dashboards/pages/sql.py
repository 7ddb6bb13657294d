"""Serves the SQL page, and the tables and columns that its editor completes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

from aiohttp import web

from gpuwarden.comments import column_comments, table_comments
from gpuwarden.cookbook import questions
from gpuwarden_dashboards.http import html
from gpuwarden_dashboards.pages.page import Page


class SqlPage(Page):
    """GET /sql and GET /v1/schema."""

    _schema: bytes | None = None

    def routes(self) -> Iterable[web.RouteDef]:
        """The page and its data."""
        return [
            web.get("/sql", self._show),
            web.get("/v1/schema", self._show_schema),
        ]

    async def _show(self, _request: web.Request) -> web.Response:
        version = sha256(await self._described()).hexdigest()[:16]
        topics = [(topic, list(of)) for topic, of in groupby(questions(), lambda one: one.topic)]
        return html(self._templates.render("sql.html", topics=topics, schema=version, at="/sql"))

    async def _show_schema(self, _request: web.Request) -> web.Response:
        headers = {
            # Its address has its hash, as `?v=`.
            "Cache-Control": "private, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
        }
        body = await self._described()
        answer = web.Response(body=body, content_type="application/json", headers=headers)
        answer.enable_compression()
        return answer

    async def _described(self) -> bytes:
        if self._schema is None:
            found = await self._querier.query(
                "SELECT table_name, column_name, data_type FROM information_schema.columns "
                "ORDER BY table_name, ordinal_position"
            )
            document = {"tables": described(found.rows)}
            self._schema = json.dumps(document, separators=(",", ":")).encode()
        return self._schema


def described(columns: Sequence[tuple[Any, ...]]) -> Sequence[Mapping[str, Any]]:
    """Views and tables with their columns and meanings. `columns`: table, name and type of each column."""
    by_table: dict[str, list[tuple[str, str]]] = {}
    for table, name, kind in columns:
        by_table.setdefault(table, []).append((name, kind))
    comments = column_comments()
    return [
        {
            "name": name,
            "meaning": meaning,
            "columns": [
                {"name": column, "type": kind, "meaning": comments[name].get(column, "")}
                for column, kind in by_table.get(name, ())
            ],
        }
        for name, meaning in table_comments().items()
    ]
