"""The pages of what GPUs were used for: by user, team, job, node or model, and of one job or user."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from aiohttp import web

from gpuwarden.clock import Clock, to_ms
from gpuwarden.query import Querier
from gpuwarden.waste import LABELS
from gpuwarden_dashboards.answers import answering, html
from gpuwarden_dashboards.read.place import GROUPS
from gpuwarden_dashboards.read.series import described
from gpuwarden_dashboards.read.usage import (
    BY,
    ROWS_MAX,
    SINCE,
    GpuUsage,
    Subject,
    read_subject,
    read_usage,
    span_of_job,
)
from gpuwarden_dashboards.request import choice
from gpuwarden_dashboards.templates import Templates


class UsagePages:
    """GET /usage, /jobs/{name} and /users/{name}. A job's name is Slurm's id, or namespace/pod."""

    def __init__(self, templates: Templates, querier: Querier, clock: Clock) -> None:
        self._templates = templates
        self._querier = querier
        self._clock = clock

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The pages."""
        return [
            web.get("/usage", answering(self._usage)),
            web.get("/jobs/{name:.+}", answering(self._job)),
            web.get("/users/{name}", answering(self._user)),
        ]

    def render(self, usages: Sequence[GpuUsage], by: str, since: str) -> str:
        """The HTML of many."""
        return self._templates.render(
            "usage.html", usages=usages, by=by, since=since, groups=BY, sinces=SINCE,
            rows_max=ROWS_MAX, labels=tuple(LABELS), meanings=LABELS, at="/usage",
        )  # fmt: skip

    def render_subject(self, subject: Subject, since: str) -> str:
        """The HTML of one job or user."""
        begin, end = span_of_job(subject)
        return self._templates.render(
            "subject.html",
            subject=subject,
            since=since,
            sinces=SINCE,
            now=subject.end,
            begin_ms=to_ms(begin),
            end_ms=to_ms(end),
            labels=tuple(LABELS),
            meanings=LABELS,
            groups=[{"title": title, "metrics": metrics[:1]} for title, metrics in GROUPS],
            metrics=list(described()),
        )

    async def _usage(self, request: web.Request) -> web.Response:
        by = choice(request, "by", "user", BY)
        since, begin, end = self._since(request)
        return html(self.render(await read_usage(self._querier, by, begin, end), by, since))

    async def _job(self, request: web.Request) -> web.Response:
        return await self._subject("job", request)

    async def _user(self, request: web.Request) -> web.Response:
        return await self._subject("user", request)

    async def _subject(self, kind: str, request: web.Request) -> web.Response:
        since, begin, end = self._since(request)
        subject = await read_subject(self._querier, kind, request.match_info["name"], begin, end)
        if subject is None:
            raise web.HTTPNotFound
        return html(self.render_subject(subject, since))

    def _since(self, request: web.Request) -> tuple[str, datetime, datetime]:
        since, now = choice(request, "since", "7d", SINCE), self._clock.now()
        return since, now - SINCE[since], now
