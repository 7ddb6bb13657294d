"""Serves the pages of a job and of a user."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from aiohttp import web

from gpuwarden.clock import to_ms
from gpuwarden.waste import LABELS
from gpuwarden_dashboards.http import NotKnownError, choice, fixed_range, given_range, html
from gpuwarden_dashboards.pages.money import RANGES
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.series import described
from gpuwarden_dashboards.read.subject import Subject, read_extent, read_subject
from gpuwarden_dashboards.read.usage import SINCE, SORTS

JOB_GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    ("Utilization", ("util_percent",)),
    ("SMs active", ("sm_active_percent",)),
    ("Memory used", ("memory_used_bytes",)),
    ("Power", ("power_watts",)),
    ("SM clock", ("sm_clock_mhz",)),
    ("NVLink received", ("nvlink_rx_bytes_per_second",)),
    ("CPU of its processes", ("process.cpu_percent",)),
    ("Host memory of its processes", ("process.rss_bytes",)),
    ("Data-loader workers", ("process.loader_workers",)),
    ("CPU of a data-loader worker", ("process.loader_cpu_percent",)),
    ("Data-loader workers blocked on storage", ("process.loader_blocked_percent",)),
    ("Read by its processes, page cache included", ("process.read_chars_total",)),
    ("CPU of its nodes", ("host.cpu_util_percent",)),
    ("Network of its nodes, received", ("host.network_rx_bytes_total",)),
    ("InfiniBand and RoCE of its nodes, received", ("infiniband.rx_bytes_total",)),
)
"""Charts of a job: a line for each GPU, process, node or port."""
HEATS = (
    "util_percent", "sm_active_percent", "tensor_active_percent", "memory_used_bytes", "power_watts",
    "temperature_celsius", "sm_clock_mhz", "nvlink_rx_bytes_per_second", "pcie_rx_bytes_per_second",
)  # fmt: skip
"""Metrics that can colour the GPUs of a job."""


@dataclass(frozen=True, slots=True)
class UsageRange:
    """Time range and order of a page; `given` keeps them in links."""

    begin: datetime
    end: datetime
    since: str = ""
    """One of `SINCE`; empty: begin and end are given, or follow from the job."""
    sort: str = "usd"
    is_own: bool = False
    """Whether it is the time of the job itself."""

    @property
    def given(self) -> Mapping[str, str]:
        """Query parameters of the address."""
        time = {"since": self.since} if self.since else {} if self.is_own else self.fixed
        return {**time, **({} if self.sort == "usd" else {"sort": self.sort})}

    @property
    def fixed(self) -> Mapping[str, str]:
        """The range as fixed times."""
        return fixed_range(self.begin, self.end)


class UsagePages(Page):
    """GET /jobs/{name} and /users/{name}. A job's name is Slurm's id, or namespace/pod."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The pages."""
        return [
            web.get("/jobs/{name:.+}", self._job),
            web.get("/users/{name:.+}", self._user),
        ]

    def render_subject(self, subject: Subject, asked: UsageRange) -> str:
        """The HTML of one job or user."""
        begin, end = subject.held
        return self._templates.render(
            "subject.html",
            subject=subject,
            asked=asked,
            sinces=SINCE,
            ranges=RANGES,
            now=self._clock.now(),
            begin_ms=to_ms(begin),
            end_ms=to_ms(end),
            labels=tuple(LABELS),
            meanings=LABELS,
            groups=[{"title": title, "metrics": metrics} for title, metrics in JOB_GROUPS],
            metrics=list(described()),
            heats=HEATS,
        )

    async def _job(self, request: web.Request) -> web.Response:
        name, asked = request.match_info["name"], self._range(request)
        if not {"since", "begin", "end"} & set(request.query):
            extent = await read_extent(self._querier, name, self._clock.now())
            if extent is not None:
                asked = UsageRange(*extent, sort=asked.sort, is_own=True)
        return await self._subject("job", name, asked)

    async def _user(self, request: web.Request) -> web.Response:
        return await self._subject("user", request.match_info["name"], self._range(request))

    async def _subject(self, kind: str, name: str, asked: UsageRange) -> web.Response:
        subject = await read_subject(self._querier, kind, name, asked.begin, asked.end, asked.sort)
        if subject is None:
            raise NotKnownError(
                f"there is no data of {kind} {name} in that time: choose a longer one"
            )
        return html(self.render_subject(subject, asked))

    def _range(self, request: web.Request) -> UsageRange:
        now = self._clock.now()
        sort = choice(request, "sort", "usd", ("name", *SORTS))
        if given := given_range(request, now):
            return UsageRange(*given, "", sort)
        since = choice(request, "since", "7d", SINCE)
        return UsageRange(now - SINCE[since], now, since, sort)
