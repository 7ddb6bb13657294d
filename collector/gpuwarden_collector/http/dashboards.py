"""Serves `/v1/dashboards`: people's own dashboards and their versions; docs/dashboards.md describes them.

Every save is a new version and names the one that it changes, so that nobody overwrites what another has saved
meanwhile. A deletion is a version too. The documents hold SQL, which only the reader's own request runs.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from gpuwarden.clock import Clock, iso_text
from gpuwarden.dashboard import (
    ALL_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    NAME,
    NAME_RULE,
    DashboardError,
    DashboardVersion,
    conflict_of,
    dashboard_of,
    deleted_long_ago,
    deletion_conflict_of,
    forgotten,
    text_of,
)
from gpuwarden.parameters import whole_number_of
from gpuwarden_collector.http.app import error_response
from gpuwarden_collector.http.json_bodies import (
    JsonBodyError,
    answering_errors,
    json_body,
    owner_of,
)
from gpuwarden_collector.storage.state import StateFile, Writing

_BODY_BYTES_MAX = 2 * DOCUMENT_BYTES_MAX
"""A body may be indented, or have escapes."""
_WRONG = 'the body must be JSON: {"title": "...", "panels": []}'
_VERSION_MAX = 999_999_999


class DashboardEndpoints:
    """The request handlers."""

    def __init__(self, state: StateFile, clock: Clock) -> None:
        self._state = state
        self._clock = clock

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes for the application."""
        return [
            web.get("/v1/dashboards", answering_errors(self._list)),
            web.get("/v1/dashboards/{name}", answering_errors(self._get)),
            web.get("/v1/dashboards/{name}/versions", answering_errors(self._versions)),
            web.put("/v1/dashboards/{name}", answering_errors(self._put)),
            web.delete("/v1/dashboards/{name}", answering_errors(self._delete)),
        ]

    async def _list(self, _request: web.Request) -> web.Response:
        newest = await asyncio.to_thread(self._state.newest_dashboards)
        document = {
            "dashboards": [_described(one) for one in newest if not one.is_deleted],
            "deleted": [_described(one) for one in newest if one.is_deleted],
        }
        return _json(document)

    async def _get(self, request: web.Request) -> web.Response:
        name = _name(request)
        kept = await asyncio.to_thread(self._state.dashboard_versions, name)
        wanted = _version(request)
        if not kept or (wanted is None and kept[-1].is_deleted):
            return error_response(404, f"there is no dashboard {name}")
        number = kept[-1].version if wanted is None else wanted
        found = next((one for one in kept if one.version == number and not one.is_deleted), None)
        text = await asyncio.to_thread(self._state.dashboard, name, number)
        if found is None or text is None:
            return error_response(404, f"version {number} of {name} is not kept")
        document = {
            **_described(found), "newest": kept[-1].version, "dashboard": json.loads(text),
        }  # fmt: skip
        return _json(document)

    async def _versions(self, request: web.Request) -> web.Response:
        name = _name(request)
        kept = await asyncio.to_thread(self._state.dashboard_versions, name)
        if not kept:
            return error_response(404, f"there is no dashboard {name}")
        return _json({"versions": [_described(one) for one in reversed(kept)]})

    async def _put(self, request: web.Request) -> web.Response:
        name, changes = _name(request, 400), _version(request)
        if changes is None:
            raise JsonBodyError(
                400, "say which version this changes: ?version=3, or version=0 for a new dashboard"
            )
        try:
            document = dashboard_of(await json_body(request, _BODY_BYTES_MAX, _WRONG))
        except DashboardError as error:
            answer = {"error": str(error), "status": 422, "problems": list(error.problems)}
            return web.json_response(answer, status=422)
        _, _, author = owner_of(request)
        return await asyncio.to_thread(self._save, name, changes, document, author)

    def _save(
        self, name: str, changes: int, document: dict[str, Any], author: str | None
    ) -> web.Response:
        text = text_of(document)
        with self._state.writing() as writing:
            newest = self._state.newest_dashboards()
            old = next((one for one in newest if one.name == name), None)
            existing = sum(not one.is_deleted for one in newest)
            if (reason := conflict_of(old, changes, existing)) is not None:
                return _conflict(reason, old)
            saved = DashboardVersion(
                name, (old.version if old else 0) + 1, document["title"], len(document["panels"]),
                author, self._clock.now(), False, len(text),
            )  # fmt: skip
            writing.save_dashboard(saved, text)
            self._forget(writing, saved)
        return _json(_described(saved))

    def _forget(self, writing: Writing, saved: DashboardVersion) -> None:
        """Delete versions that are not kept, after one was saved. Those of other dashboards are read only if some of them
        may have to go, because that is slow and all else waits."""
        now = saved.saved_at
        concerns_others = (
            self._state.dashboard_bytes() > ALL_BYTES_MAX
            or deleted_long_ago(self._state.newest_dashboards(), now)
        )  # fmt: skip
        kept = self._state.dashboard_versions(None if concerns_others else saved.name)
        writing.forget_dashboards(forgotten(kept, now))

    async def _delete(self, request: web.Request) -> web.Response:
        name, changes = _name(request), _version(request)
        _, _, author = owner_of(request)

        def deleted() -> web.Response:
            with self._state.writing() as writing:
                old = next(iter(self._state.dashboard_versions(name)[-1:]), None)
                if old is None or old.is_deleted:
                    return error_response(404, f"there is no dashboard {name}")
                if changes is not None and (reason := deletion_conflict_of(old, changes)):
                    return _conflict(reason, old)
                gone = DashboardVersion(
                    name, old.version + 1, old.title, old.panels, author, self._clock.now(), True, 0
                )
                writing.save_dashboard(gone, b"")
                self._forget(writing, gone)
            return web.Response(status=204)

        return await asyncio.to_thread(deleted)


def _described(one: DashboardVersion) -> dict[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "title": one.title,
        "panels": one.panels,
        "author": one.author,
        "saved_at": iso_text(one.saved_at),
        "deleted": one.is_deleted,
    }


def _conflict(reason: str, newest: DashboardVersion | None) -> web.Response:
    answer = {"error": reason, "status": 409, "newest": newest.version if newest else 0}
    return web.json_response(answer, status=409)


def _json(document: Any) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.json_response(document, headers=headers)


def _name(request: web.Request, status: int = 404) -> str:
    name = request.match_info["name"]
    if not NAME.fullmatch(name):
        raise JsonBodyError(status, f"the name of a dashboard has {NAME_RULE}")
    return name


def _version(request: web.Request) -> int | None:
    text = request.query.get("version")
    if text is None:
        return None
    try:
        return whole_number_of(text, 0, _VERSION_MAX)
    except ValueError as error:
        raise JsonBodyError(400, f"version {error}") from error
