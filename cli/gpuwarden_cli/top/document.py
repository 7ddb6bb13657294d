"""Makes the JSON document of `gpuwarden top --once --json`: all rows of all views, for programs."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden.untrusted_text import escaped_json
from gpuwarden_cli.top.request import (
    Row,
    RowsAnswer,
    RowSource,
    RowsRequest,
    SourceError,
    TopView,
)

VERSION = 1
CHUNK = 2_000
"""Rows of a request."""
TOTALS = (
    "gpus", "reporting", "busy", "idle", "throttled", "unknown", "nodes", "util_percent", "power_watts", "usd_per_hour",
    "usd_wasted_per_hour", "alerts", "critical", "unjudged", "simulated",
)  # fmt: skip
_READ = ("util_percent", "memory_percent", "power_watts", "temperature_celsius", "usd_per_hour", "usd_wasted")  # fmt: skip
KEYS: Mapping[TopView, Sequence[str]] = {
    TopView.NODES: ("node", "state", "gpus", "idle", *_READ, "alerts", "cpu_percent", "host_memory_percent", "model"),
    TopView.GPUS: (
        "node", "gpu", "gpu_uuid", "model", "state", *_READ, "memory_used_bytes", "memory_total_bytes", "sm_clock_mhz",
        "username", "job", "process", "alert",
    ),
    TopView.PROCESSES: (
        "node", "gpu", "gpu_uuid", "pid", "username", "job", "memory_bytes", "sm_percent", "cpu_percent", "rss_bytes",
        "age_s", "command", "state", "started_by",
    ),
    TopView.JOBS: (
        "job", "username", "gpus", "nodes", "util_percent", "memory_percent", "power_watts", "usd_per_hour", "usd_wasted",
        "finding", "where",
    ),
    TopView.ALERTS: ("severity", "rule", "place", "node", "gpu_uuid", "age_s", "usd", "owner", "summary"),
}  # fmt: skip
"""Keys of a row of each list; a key whose value a source does not know is null."""


async def document_of(source: RowSource, node: str | None, clock: Clock) -> dict[str, Any]:
    """The document, of all nodes or of one. Raises SourceError."""
    totals: Row = {}
    lists: dict[str, list[dict[str, Any]]] = {}
    problem: SourceError | None = None
    async with asyncio.TaskGroup() as group:
        running = group.create_task(source.run(), name="source")
        try:
            for view, keys in KEYS.items():
                totals, rows = await _all_rows(source, view, node)
                lists[view.value] = [{key: row.get(key) for key in keys} for row in rows]
        except SourceError as error:
            problem = error  # raised here, it would be inside a group
        running.cancel()
    if problem is not None:
        raise problem
    for job in lists["jobs"]:
        job["where"] = str(job["where"] or "").split()
    return {
        "version": VERSION,
        "at": clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "source": source.name,
        "node": node,
        "totals": {key: totals.get(key) for key in TOTALS},
        **lists,
    }


def document_text(document: Mapping[str, Any]) -> str:
    """The document as text; control characters of names are escaped."""
    return escaped_json(json.dumps(document, ensure_ascii=False, indent=2, default=str)) + "\n"


async def _all_rows(source: RowSource, view: TopView, node: str | None) -> tuple[Row, list[Row]]:
    """The totals, and all rows of a view."""
    of = None if view is TopView.JOBS else node  # a job is on several nodes
    found: list[Row] = []
    while True:
        answer = await source.ask(RowsRequest(view, of, offset=len(found), limit=CHUNK))
        assert isinstance(answer, RowsAnswer)
        found += answer.rows
        if len(found) >= answer.count or not answer.rows:
            break
    if view is TopView.JOBS and node is not None:
        found = [row for row in found if node in str(row.get("where") or "").split()]
    return answer.totals, found
