"""Defines people's own dashboards: the JSON document, its validation, and which versions the collector keeps.

A dashboard is `{"title": ..., "panels": [...]}`; docs/dashboards.md has the keys of a panel. Its name is the last part of
its address. Validation is pure and gives one line for each problem: where in the document, what is wrong, what to write.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

from gpuwarden.metrics import METRICS, Kind

KINDS = ("line", "bar", "number", "table", "map", "chart")
"""Kinds of panels. `chart` is one of the charts that pages of nodes, GPUs and jobs draw; the others show SQL."""
PANELS_MAX = 60
SQL_CHARACTERS_MAX = 20_000
TITLE_CHARACTERS_MAX = 80
UNIT_CHARACTERS_MAX = 30
GRID_COLUMNS = 12
HEIGHT_MAX = 12
WIDTH, HEIGHT = 6, 4
"""Size of a panel that gives none, in columns and rows of the grid."""
DOCUMENT_BYTES_MAX = 256 * 1024
METRICS_MAX = 40
GPUS_MAX = 256
PROBLEMS_MAX = 20
"""Most problems that are listed; the rest is counted."""

DASHBOARDS_MAX = 200
VERSIONS_MAX = 50
"""Versions kept of each dashboard."""
ALL_BYTES_MAX = 64 * 1024 * 1024
"""Room of all versions; more than the newest of each can need."""
DELETED_KEPT = timedelta(days=30)
"""How long a deleted dashboard can be restored."""

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
NAME_RULE = "1 to 64 lowercase letters, digits and -, beginning with a letter or digit"
THRESHOLDS = ("warning", "critical")
_PANEL_KEYS = ("title", "kind", "sql", "chart", "width", "height", "unit", "thresholds")
_CHART_KEYS = ("node", "gpu_uuid", "job", "metrics")
CHART_PREFIXES: Mapping[str, str] = {
    "gpu_samples": "", "gpu_detail_samples": "", "gpu_health_samples": "", "link_samples": "link.",
    "process_samples": "process.", "host_samples": "host.", "infiniband_samples": "infiniband.",
}  # fmt: skip
"""What names of metrics begin with in charts, by table."""
CHART_METRICS = frozenset(
    prefix + metric.name
    for table, prefix in CHART_PREFIXES.items()
    for metric in METRICS[table]
    if metric.kind is not Kind.FLAGS  # which strips show
)
"""Metrics that a chart can have."""
_NUMBER_MAX = 1e15


class DashboardError(ValueError):
    """A document is not a dashboard; `problems` has a line for each reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(problems[0])
        self.problems = problems


def dashboard_of(document: Any) -> dict[str, Any]:
    """The dashboard of a JSON document, with the defaults of its panels. Raises DashboardError."""
    if found := problems_of(document):
        raise DashboardError(found)
    panels = [
        {key: panel[key] for key in _PANEL_KEYS if key in panel}
        | {"width": panel.get("width", WIDTH), "height": panel.get("height", HEIGHT)}
        for panel in document["panels"]
    ]
    return {"title": document["title"].strip(), "panels": panels}


def problems_of(document: Any) -> list[str]:
    """What is wrong with a JSON document, a line each; empty: it is a dashboard."""
    found = list(_problems(document))
    if not found and len(text_of(document)) > DOCUMENT_BYTES_MAX:
        return [f"the dashboard has more than {DOCUMENT_BYTES_MAX} bytes: make two of it"]
    beyond = len(found) - PROBLEMS_MAX
    return [*found[:PROBLEMS_MAX], f"and {beyond} more"] if beyond > 0 else found


def _problems(document: Any) -> Iterator[str]:
    if not isinstance(document, dict):
        yield 'a dashboard is a JSON object: write {"title": "...", "panels": []}'
        return
    yield from _unknown(document, ("title", "panels"), "")
    yield from _text(document, "title", "title", TITLE_CHARACTERS_MAX)
    panels = document.get("panels")
    if not isinstance(panels, list):
        yield "panels: it must be a list of panels, [] for none"
        return
    if len(panels) > PANELS_MAX:
        yield f"panels: there are {len(panels)}, and {PANELS_MAX} is the limit: make two dashboards"
        return
    for number, panel in enumerate(panels):
        yield from _panel_problems(panel, f"panels[{number}]")


def _panel_problems(panel: Any, place: str) -> Iterator[str]:
    if not isinstance(panel, dict):
        yield f"{place}: a panel must be an object with title and kind"
        return
    yield from _unknown(panel, _PANEL_KEYS, f"{place}.")
    yield from _text(panel, "title", f"{place}.title", TITLE_CHARACTERS_MAX)
    kind = panel.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        yield f"{place}.kind: it must be one of {', '.join(KINDS)}"
    elif kind == "chart":
        yield from _chart_problems(panel, place)
    else:
        yield from _sql_problems(panel, place, kind)
    for key, most in (("width", GRID_COLUMNS), ("height", HEIGHT_MAX)):
        value = panel.get(key, 1)
        if type(value) is not int or not 1 <= value <= most:
            yield f"{place}.{key}: it must be a whole number from 1 to {most}"
    if "unit" in panel and not _is_text(panel["unit"], UNIT_CHARACTERS_MAX, least=0):
        yield f"{place}.unit: it must be a text of at most {UNIT_CHARACTERS_MAX} printable characters"
    if "thresholds" in panel:
        yield from _threshold_problems(panel["thresholds"], f"{place}.thresholds")


def _sql_problems(panel: Mapping[str, Any], place: str, kind: str) -> Iterator[str]:
    if "chart" in panel:
        yield f"{place}.chart: a panel of kind {kind} has sql instead; remove chart, or set kind to chart"
    sql = panel.get("sql")
    if (
        not isinstance(sql, str)
        or not sql.strip()
        or len(sql) > SQL_CHARACTERS_MAX
        or "\0" in sql
        or not _can_be_stored(sql)
    ):
        yield f"{place}.sql: it must be a SELECT of 1 to {SQL_CHARACTERS_MAX} characters, without NUL"


def _chart_problems(panel: Mapping[str, Any], place: str) -> Iterator[str]:
    if "sql" in panel:
        yield f"{place}.sql: a panel of kind chart has chart instead; remove sql, or set another kind"
    chart = panel.get("chart")
    example = "write node=n1&metrics=util_percent"
    if (
        not isinstance(chart, str)
        or not 0 < len(chart) <= SQL_CHARACTERS_MAX
        or not _can_be_stored(chart)
    ):
        yield f"{place}.chart: it must be the query of a chart: {example}"
        return
    try:
        pairs = parse_qsl(chart, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        yield f"{place}.chart: it cannot be read as a query: {example}"
        return
    given = dict(pairs)
    if len(given) < len(pairs) or not given.keys() <= set(_CHART_KEYS) or "" in given.values():
        yield f"{place}.chart: it may have {', '.join(_CHART_KEYS)}, each once and not empty"
    elif ("node" in given) == ("gpu_uuid" in given):
        yield f"{place}.chart: it must have either node or gpu_uuid: {example}"
    elif given.get("gpu_uuid", "").count(",") >= GPUS_MAX:
        yield f"{place}.chart: it has more than {GPUS_MAX} GPUs"
    else:
        metrics = given.get("metrics", "").split(",")
        unknown = [name for name in metrics if name not in CHART_METRICS]
        if len(metrics) > METRICS_MAX or "" in metrics:
            yield f"{place}.chart: metrics must be 1 to {METRICS_MAX} names of docs/metrics.md, separated by commas"
        elif unknown:
            shown = ascii(unknown[0][:40])[1:-1]
            yield f"{place}.chart: there is no metric {shown}: see docs/metrics.md; metrics of hosts begin with host."


def _threshold_problems(thresholds: Any, place: str) -> Iterator[str]:
    if not isinstance(thresholds, dict) or not thresholds:
        yield f'{place}: it must be an object with warning or critical: {{"critical": 90}}'
        return
    yield from _unknown(thresholds, THRESHOLDS, f"{place}.")
    for key in THRESHOLDS:
        value = thresholds.get(key, 0)
        if type(value) not in (int, float) or not -_NUMBER_MAX <= value <= _NUMBER_MAX:
            yield f"{place}.{key}: it must be a number"


def _unknown(given: Mapping[str, Any], known: Collection[str], place: str) -> Iterator[str]:
    for key in given:
        if key not in known:
            shown = ascii(key[:40])[1:-1]
            yield f"{place}{shown}: there is no such key; there are {', '.join(known)}"


def _text(given: Mapping[str, Any], key: str, place: str, most: int) -> Iterator[str]:
    if not _is_text(given.get(key), most):
        yield f"{place}: it must be a text of 1 to {most} printable characters"


def _is_text(value: Any, most: int, *, least: int = 1) -> bool:
    return (
        isinstance(value, str)
        and least <= len(value.strip())
        and len(value) <= most
        and value.isprintable()
    )


def _can_be_stored(text: str) -> bool:
    """Whether it has no half of a surrogate pair, which no file can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True, slots=True)
class DashboardVersion:
    """A version of a dashboard, without its document."""

    name: str
    version: int
    """Counts from 1, over deletions too."""
    title: str
    """That of the version before for a deletion."""
    panels: int
    author: str | None
    """The token's owner; None: no tokens are required."""
    saved_at: datetime
    is_deleted: bool
    """Whether this version deleted the dashboard."""
    size_bytes: int


def conflict_of(newest: DashboardVersion | None, changes: int, dashboards: int) -> str | None:
    """Why a save that changes version `changes` (0: a new dashboard) must not be made; None: it may.

    `newest`: the newest version of that name; `dashboards`: how many there are, without deleted ones.
    """
    exists = newest is not None and not newest.is_deleted
    if newest is None or not exists:
        if changes:
            return (
                "the dashboard does not exist or was deleted: save it with version=0, as a new one"
            )
        if dashboards >= DASHBOARDS_MAX:
            return f"there are {DASHBOARDS_MAX} dashboards, which is the limit: delete one first"
        return None
    if not changes:
        return f"there is a dashboard {newest.name} ({newest.title}): choose another name"
    if changes != newest.version:
        return (
            f"{newest.author or 'somebody'} has saved version {newest.version} meanwhile, and this changes "
            f"version {changes}: read it again, then save"
        )
    return None


def deletion_conflict_of(newest: DashboardVersion, deletes: int) -> str | None:
    """Why a deletion that names version `deletes` must not be made; None: it may."""
    if deletes == newest.version:
        return None
    return (
        f"the newest version of {newest.name} is {newest.version}, and this deletes version {deletes}: "
        "read it again, then delete"
    )


def deleted_long_ago(newest: Iterable[DashboardVersion], now: datetime) -> set[str]:
    """Names of dashboards of which nothing is kept: deleted before DELETED_KEPT, or beyond the last DASHBOARDS_MAX that
    were. `newest`: the newest version of each."""
    deleted = sorted((one for one in newest if one.is_deleted), key=lambda one: one.saved_at)
    over = {one.name for one in deleted[:-DASHBOARDS_MAX]}
    return over | {one.name for one in deleted if one.saved_at < now - DELETED_KEPT}


def forgotten(
    kept: Sequence[DashboardVersion], now: datetime, *, bytes_max: int = ALL_BYTES_MAX
) -> list[DashboardVersion]:
    """The versions to delete: of dashboards that were deleted long ago or are too many, beyond VERSIONS_MAX of one, and
    the oldest ones while all need more than `bytes_max`. The newest version stays while its dashboard is kept: without
    that of a deletion, the one before would be the newest."""
    by_name: dict[str, list[DashboardVersion]] = {}
    for one in sorted(kept, key=lambda one: -one.version):
        by_name.setdefault(one.name, []).append(one)
    over_names = deleted_long_ago((of[0] for of in by_name.values()), now)
    over = [one for name in sorted(over_names) for one in by_name.pop(name)]
    over += [one for of in by_name.values() for one in of[VERSIONS_MAX:]]
    left = [one for of in by_name.values() for one in of[:VERSIONS_MAX]]
    room = sum(one.size_bytes for one in left) - bytes_max
    for one in sorted(left, key=lambda one: (one.saved_at, one.name, one.version)):
        if room <= 0:
            break
        if one != by_name[one.name][0]:
            over.append(one)
            room -= one.size_bytes
    return over


def text_of(document: Any) -> bytes:
    """The document as it is stored and served."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
