"""Serves the page of a job: its life as phases, verdict, cost, GPUs, incidents, and other runs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aiohttp import web

from gpuwarden.clock import to_ms
from gpuwarden.job_phases import PHASES, JobPhase
from gpuwarden.progress import JobProgress, number, read_progress
from gpuwarden.query import both
from gpuwarden.right_size import RightSize, read_right_sizes
from gpuwarden.roofline import Roofline, read_rooflines
from gpuwarden.waste import CATEGORIES
from gpuwarden_dashboards.http import NotKnownError, html
from gpuwarden_dashboards.pages.money import RANGES
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.pages.usage import UsageRange, asked_range
from gpuwarden_dashboards.read.job import JobLife, read_job
from gpuwarden_dashboards.read.processes import PROCESS_STATES
from gpuwarden_dashboards.read.series import described
from gpuwarden_dashboards.read.subject import read_extent
from gpuwarden_dashboards.read.usage import SINCE

GROUPS: Sequence[tuple[str, Sequence[str]]] = (
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
TABLE_MAX = 200
"""Most phases in the table; the strip has all."""


class JobPages(Page):
    """GET /jobs/{name}. A job's name is Slurm's id, or namespace/pod."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/jobs/{name:.+}", self._job)]

    def render(
        self,
        life: JobLife,
        asked: UsageRange,
        cheaper: Sequence[RightSize] = (),
        rooflines: Sequence[Roofline] = (),
        progress: Sequence[JobProgress] = (),
    ) -> str:
        """Its HTML."""
        return self._templates.render(
            "job.html",
            life=life,
            cheaper=cheaper,
            rooflines=rooflines,
            progress=progress,
            number=number,
            subject=life.subject,
            asked=asked,
            sinces=SINCE,
            ranges=RANGES,
            now=self._clock.now(),
            begin_ms=to_ms(life.begin),
            end_ms=to_ms(life.end),
            strip=_strip(life.phases),
            meanings_of_phases=PHASES,
            table_max=TABLE_MAX,
            categories=tuple(CATEGORIES),
            meanings=CATEGORIES,
            process_states=PROCESS_STATES,
            groups=[{"title": title, "metrics": metrics} for title, metrics in GROUPS],
            metrics=list(described()),
            heats=HEATS,
        )

    async def _job(self, request: web.Request) -> web.Response:
        name, now = request.match_info["name"], self._clock.now()
        asked = asked_range(request, now)
        own = await read_extent(self._querier, name, now)
        if own is not None and not {"since", "begin", "end"} & set(request.query):
            asked = UsageRange(*own, sort=asked.sort, is_own=True)
        life = await read_job(self._querier, name, asked.begin, asked.end, own, now)
        if life is None:
            raise NotKnownError(f"there is no data of job {name} in that time: choose a longer one")
        if asked.is_own:  # charts and link have the time in which it held GPUs
            asked = replace(asked, begin=life.begin, end=life.end)
        subject = life.subject
        begin, end = max(life.begin, subject.held[0]), min(life.end, subject.held[1])
        uuids = [gpu["gpu_uuid"] for gpu in subject.gpus]
        cheaper, rooflines = await both(
            read_right_sizes(self._querier, life.begin, life.end, "job = $job", {"job": name}),
            read_rooflines(self._querier, name, uuids, subject.nodes, begin, end),
        )
        progress = await read_progress(
            self._querier, name, subject.users, uuids, life.begin, life.end
        )
        return html(self.render(life, asked, cheaper, rooflines, progress))


def _strip(phases: Sequence[JobPhase]) -> Sequence[dict[str, object]]:
    """Phases for the strip and the script: place and width in thousandths of the time, and what is known."""
    if not phases:
        return ()
    begin = phases[0].begin
    whole = (phases[-1].end - begin).total_seconds() or 1.0
    return [
        {
            "phase": str(one.phase),
            "x": round(1000 * (one.begin - begin).total_seconds() / whole, 2),
            "width": round(max(1000 * one.seconds / whole, 1.2), 2),
            "begin_ms": to_ms(one.begin),
            "end_ms": to_ms(one.end),
            "text": f"{one.phase}: {one.evidence}",
        }
        for one in phases
    ]
