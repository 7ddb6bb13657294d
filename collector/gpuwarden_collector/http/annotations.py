"""Serves `/v1/annotations`: texts on the time axis of charts; docs/annotations.md describes them.

They are rows of table `annotations`, so that SQL sees them as soon as the answer is sent.
"""

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from uuid import uuid4

import pyarrow as pa
from aiohttp import web

from gpuwarden.access import CALLER
from gpuwarden.annotation import ANNOTATIONS_MAX, Annotation, AnnotationError, annotation_of
from gpuwarden.clock import Clock, instant_of, naive_utc, to_ms
from gpuwarden.schema import ANNOTATIONS
from gpuwarden.teams import Team
from gpuwarden_collector.http.app import error_response
from gpuwarden_collector.http.json_bodies import (
    JsonBodyError,
    answering_errors,
    json_body,
    owner_of,
)
from gpuwarden_collector.storage.schemas import arrow_schema
from gpuwarden_collector.storage.state import StateFile

LISTED_MAX = 500
_SCHEMA = arrow_schema(ANNOTATIONS.columns)
_BODY_BYTES_MAX = 64 * 1024
_USUAL = timedelta(days=7)
_WRONG = 'the body must be JSON: {"text": "deployed 2.3"}'


def annotation_routes(state: StateFile, clock: Clock) -> Iterable[web.AbstractRouteDef]:
    """The routes for the application."""

    async def listed(request: web.Request) -> web.Response:
        end = _instant(request, "end", clock.now())
        begin = _instant(request, "begin", end - _USUAL)
        rows = await asyncio.to_thread(state.annotations, begin, end, ANNOTATIONS_MAX)
        team = CALLER.get().team
        found = [row for row in rows if _concerns(row, request) and _is_for(team, row)]
        return web.json_response(
            {
                "annotations": [_described(row) for row in found[-LISTED_MAX:]],
                "truncated": len(found) > LISTED_MAX,
            },
            headers={"Cache-Control": "no-store"},
        )

    async def add(request: web.Request) -> web.Response:
        document = await json_body(request, _BODY_BYTES_MAX, _WRONG)
        now = clock.now()
        try:
            made = annotation_of(
                document, name=uuid4().hex[:12], author=owner_of(request).name, now=now
            )
        except AnnotationError as error:
            raise JsonBodyError(400, str(error)) from error
        await asyncio.to_thread(_save, state, made)
        return web.json_response(_described(made.row), status=201)

    async def delete(request: web.Request) -> web.Response:
        name = request.match_info["id"]

        def deleted() -> bool:
            with state.writing() as writing:
                return writing.delete_annotation(name)

        if not await asyncio.to_thread(deleted):
            return error_response(404, "there is no such annotation")
        return web.Response(status=204)

    return [
        web.get("/v1/annotations", answering_errors(listed)),
        web.post("/v1/annotations", answering_errors(add)),
        web.delete("/v1/annotations/{id}", answering_errors(delete)),
    ]


def _save(state: StateFile, made: Annotation) -> None:
    row = {
        name: naive_utc(value) if isinstance(value, datetime) else value
        for name, value in made.row.items()
    }
    with state.writing() as writing:
        if state.annotation_count() >= ANNOTATIONS_MAX:
            raise JsonBodyError(
                409, f"there are {ANNOTATIONS_MAX} annotations, which is the limit: delete some"
            )
        rows = pa.Table.from_pylist([row], schema=_SCHEMA)
        writing.upsert(ANNOTATIONS.name, rows)


def _is_for(team: Team | None, row: dict[str, Any]) -> bool:
    """Whether readers of a team may see an annotation: of the whole fleet, or of a node that is the team's by name."""
    if team is None or (row["node"] is None and row["job"] is None):
        return True
    return row["node"] is not None and any(fnmatchcase(row["node"], one) for one in team.nodes)


def _concerns(row: dict[str, Any], request: web.Request) -> bool:
    """Whether an annotation is about what a request names: its nodes, GPU and job; without these all are."""
    nodes, jobs = request.query.getall("node", []), request.query.getall("job", [])
    gpu = request.query.get("gpu")
    if not nodes and not jobs:
        return True
    is_of_job = row["job"] is not None and row["job"] in jobs
    if row["node"] is None:
        if row["job"] is not None and not is_of_job:
            return False
    elif row["node"] not in nodes and (nodes or not is_of_job):
        # The page of a node shows its jobs' annotations, if they name the node; that of a job those of all its nodes.
        return False
    return row["gpu"] is None or gpu is None or str(row["gpu"]) == gpu


def _described(row: Any) -> dict[str, Any]:
    def ms(instant: datetime | None) -> int | None:
        if instant is None:
            return None
        return to_ms(instant if instant.tzinfo else instant.replace(tzinfo=UTC))

    return {
        "id": row["id"],
        "text": row["text"],
        "begin_ms": ms(row["began_at"]),
        "end_ms": ms(row["ended_at"]),
        "node": row["node"],
        "gpu": row["gpu"],
        "job": row["job"],
        "tags": json.loads(row["tags"]),
        "author": row["author"],
    }


def _instant(request: web.Request, name: str, usual: datetime) -> datetime:
    """A time of the address: milliseconds since 1970, or ISO 8601. Raises JsonBodyError."""
    text = request.query.get(name)
    if text is None:
        return usual
    try:
        return instant_of(text)
    except ValueError as error:
        raise JsonBodyError(400, f"{name} {error}") from None
