"""Renders pages: pure from what was read to HTML. Every text from outside is escaped by the templates.

Scripts and styles are files of this server, and nothing in a page runs: the policy allows no inline code.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpuwarden import __version__
from gpuwarden.access import LOGIN_PATH, LOGOUT_PATH
from gpuwarden.clock import to_ms
from gpuwarden.schema import TABLES
from gpuwarden.waste import LABELS
from gpuwarden_dashboards import text
from gpuwarden_dashboards.assets import Assets
from gpuwarden_dashboards.fleet import Fleet, Record
from gpuwarden_dashboards.place import GROUPS, NODE_GROUPS, SILENT_AFTER, PlaceNow
from gpuwarden_dashboards.questions import QUESTIONS
from gpuwarden_dashboards.series import GPU_TABLES, HOST_TABLE, described
from gpuwarden_dashboards.usage import BY, ROWS_MAX, SINCE, GpuUsage, Subject, span_of_job

SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy: names of nodes and jobs come from outside; none of them may run."""

_NOT_TAKEN = {
    "malformed": "That is no token of gpuwarden: it begins with gw_read_ or gw_admin_.",
    "unknown": "This token is unknown here, or was revoked.",
    "expired": "This token has expired.",
    "scope": "This token may not read: log in with one of scope read or admin.",
}
MENU = (("Fleet", "/"), ("Usage", "/usage"), ("SQL", "/sql"))
SPANS = (
    ("10 min", 600), ("1 h", 3_600), ("6 h", 21_600), ("24 h", 86_400), ("7 d", 604_800),
    ("30 d", 2_592_000), ("1 y", 31_536_000),
)  # fmt: skip


class Pages:
    """Renders with one set of templates and assets."""

    def __init__(self, assets: Assets) -> None:
        self._templates = Environment(
            loader=PackageLoader("gpuwarden_dashboards"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(assets=assets, version=__version__, menu=MENU, at="")
        self._templates.filters.update(
            usd=text.usd,
            percent=text.percent,
            gigabytes=text.gigabytes,
            ago=text.ago,
            since=_since,
            node_path=_node_path,
            path=lambda name: quote(name, safe="/"),
        )

    def fleet(self, fleet: Fleet) -> str:
        """The page at `/`."""
        rows = [_row(node, fleet) for node in fleet.nodes]
        return self._render("fleet.html", fleet=fleet, totals=_totals(fleet), rows=rows, at="/")

    def place(self, place: PlaceNow) -> str:
        """The page of a node or a GPU."""
        is_gpu = place.gpu_uuid is not None
        groups = [{"title": t, "metrics": m} for t, m in (GROUPS if is_gpu else NODE_GROUPS)]
        tables = GPU_TABLES if is_gpu else (*GPU_TABLES, HOST_TABLE)
        return self._render(
            "place.html",
            place=place,
            tiles=[_tile(gpu) for gpu in place.gpus],
            groups=groups,
            metrics=list(described(tables)),
            spans=SPANS,
        )

    def sql(self) -> str:
        """The page that asks questions."""
        return self._render("sql.html", questions=QUESTIONS, tables=_tables(), at="/sql")

    def usage(self, usages: Sequence[GpuUsage], by: str, since: str) -> str:
        """The page of what GPUs were used for."""
        return self._render(
            "usage.html", usages=usages, by=by, since=since, groups=BY, sinces=SINCE,
            rows_max=ROWS_MAX, labels=tuple(LABELS), meanings=LABELS, at="/usage",
        )  # fmt: skip

    def subject(self, subject: Subject, since: str) -> str:
        """The page of a job or a user."""
        begin, end = span_of_job(subject)
        return self._render(
            "subject.html",
            subject=subject,
            since=since,
            sinces=SINCE,
            now=subject.end,
            begin_ms=to_ms(begin),
            end_ms=to_ms(end),
            labels=tuple(LABELS),
            meanings=LABELS,
            spans=SPANS,
            groups=[{"title": title, "metrics": metrics[:1]} for title, metrics in GROUPS],
            metrics=list(described(GPU_TABLES)),
        )

    def login(self, after: str, why: str, *, is_logged_in: bool) -> str:
        """The page that asks for a token. `why`: the last one was not taken; "": there was none."""
        return self._render(
            "login.html",
            path=LOGIN_PATH,
            out_path=LOGOUT_PATH,
            next=after,
            wrong=_NOT_TAKEN.get(why, "This token was not taken.") if why else "",
            is_logged_in=is_logged_in,
        )

    def _render(self, name: str, **values: Any) -> str:
        return self._templates.get_template(name).render(**values)


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


def _node_path(node: str, gpu: int | None = None) -> str:
    return f"/nodes/{quote(node, safe='')}" + ("" if gpu is None else f"?gpu={gpu}")


def _since(instant: datetime | None, now: datetime) -> str:
    return text.ABSENT if instant is None else text.ago(instant, now).removesuffix(" ago")


def _totals(fleet: Fleet) -> Sequence[tuple[str, str]]:
    totals = fleet.totals
    known = max(totals["gpus_known"], totals["gpus"])
    reporting = (
        (f"{totals['gpus']:,}", f"GPUs on {totals['nodes']:,} nodes")
        if known == totals["gpus"]
        else (f"{totals['gpus']:,} of {known:,}", f"GPUs report, {totals['nodes']:,} nodes")
    )
    cells = [reporting, (f"{totals['busy']:,}", "busy"), (f"{totals['idle']:,}", "idle now")]
    if totals["unknown"]:
        cells.append((f"{totals['unknown']:,}", "utilization unknown"))
    if totals["usd_per_hour"]:
        idle = text.usd(totals["usd_per_hour_idle"] or 0.0)
        cells.append((f"{idle}/h", f"on idle GPUs, of {text.usd(totals['usd_per_hour'])}/h"))
    cells.append((text.power(totals["power_watts"]), "drawn by GPUs"))
    return cells


def _row(node: Record, fleet: Fleet) -> Mapping[str, Any]:
    gpus = fleet.gpus.get(node["node"], [])
    watts = [gpu["power_watts"] for gpu in gpus if gpu["power_watts"] is not None]
    seen = node["last_seen_at"]
    models = {gpu["model"] or "" for gpu in gpus}
    return {
        "node": node["node"],
        "simulated": node["simulated"],
        "text": " ".join((node["node"], node["labels"] or "", *sorted(models))).lower(),
        "tiles": [_tile(gpu) for gpu in gpus],
        "cells": (
            text.power(sum(watts) if watts else None),
            text.percent(node["cpu_util_percent"]),
            text.percent(node["cpu_iowait_percent"]),
            text.gigabytes(node["memory_used_bytes"]),
        ),
        "silent": seen is None or fleet.now - seen > SILENT_AFTER,
        "seen": text.ago(seen, fleet.now),
    }


def _tile(gpu: Record) -> Mapping[str, Any]:
    util = gpu["util_percent"]
    rules = gpu["rules"] or []
    says = ", ".join(
        (
            f"GPU {gpu['gpu']} {gpu['model'] or ''}".strip(),
            *(["not reporting"] if gpu["silent"] else []),
            f"utilization {text.percent(util)}",
            f"memory {text.gigabytes(gpu['memory_used_bytes'])}",
            text.power(gpu["power_watts"]),
            text.celsius(gpu["temperature_celsius"]),
            *rules,
        )
    )
    return {
        "gpu": gpu["gpu"],
        "gpu_uuid": gpu["gpu_uuid"],
        "shade": "" if util is None else f" u{round(util / 10)}",
        "rules": rules,
        "silent": gpu["silent"],
        "title": says,
        "shown": text.ABSENT if util is None else f"{util:.0f}",
    }
