"""Makes the lines of a GPU's page and of a node's: graphs, processes, alerts. Pure functions of an answer and a size."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpuwarden_cli.output import ABSENT, text_width
from gpuwarden_cli.top.columns import COLUMNS, as_age, as_gib, as_usd, as_watts, fitting
from gpuwarden_cli.top.panels import (
    TITLES,
    Panel,
    PanelGrid,
    gpu_panels,
    grid_of,
    lines_of,
    node_panels,
)
from gpuwarden_cli.top.request import GpuAnswer, NodeAnswer, Row, TopView
from gpuwarden_cli.top.text import Line, TextSpan, clean, fitted, folded

GRAPH_SHARE = 0.66
"""Share of the lines of a page for graphs, if they need not more."""
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class PageSize:
    """The size of the body of a page, and the span of its graphs."""

    width: int
    height: int
    span_s: int


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs of a page: where their first line is, and how they are placed."""

    groups: Sequence[Sequence[Panel]]
    grid: PanelGrid
    first: int


def graphs_of_node(answer: NodeAnswer, metric: str, size: PageSize) -> Graphs:
    """The graphs of a node's page."""
    return _placed(node_panels(answer, metric), size)


@lru_cache(2)  # a refresh draws an answer several times; answers are compared by identity
def node_lines(answer: NodeAnswer, metric: str, size: PageSize) -> list[Line]:
    """All lines of a node's page."""
    if not answer.gpus and not answer.processes and not any(answer.host.values()):
        return [(TextSpan("  this node is unknown", "bad"),)]
    graphs = graphs_of_node(answer, metric, size)
    lines: list[Line] = [_node_now(answer, metric, size)]
    lines += lines_of(graphs.groups, graphs.grid, size.span_s)
    return [*lines, (), *_process_lines(answer.processes, size.width)]


@lru_cache(2)
def gpu_lines(answer: GpuAnswer, size: PageSize) -> list[Line]:
    """All lines of a GPU's page."""
    if answer.row is None:
        return [(TextSpan("  this GPU is unknown", "bad"),)]
    graphs = _placed([gpu_panels(answer)], size)
    lines: list[Line] = [_gpu_now(answer.row)]
    lines += lines_of(graphs.groups, graphs.grid, size.span_s)
    lines += [(), *_process_lines(answer.processes, size.width, is_of_gpu=True), ()]
    return [*lines, *_alert_lines(answer, size.width)]


def span_text(seconds: int) -> str:
    """`5 min`, `1 h`."""
    return f"{seconds // 3600} h" if seconds >= 3600 else f"{seconds // 60} min"


def _placed(groups: Sequence[Sequence[Panel]], size: PageSize) -> Graphs:
    # A line of readings is above the graphs, and their time scale below.
    room = max(2, int(GRAPH_SHARE * size.height) - 2)
    return Graphs(groups, grid_of([len(group) for group in groups], size.width, room), 1)


def _node_now(answer: NodeAnswer, metric: str, size: PageSize) -> Line:
    gpus = answer.gpus
    models = sorted({str(gpu["model"]) for gpu in gpus if gpu.get("model")})
    said = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    model = f", {clean(models[0])}" if len(models) == 1 else ""
    users = sorted(
        {str(process["username"]) for process in answer.processes if process.get("username")}
    )
    of = f"  user{'' if len(users) == 1 else 's'} {clean(', '.join(users))}" if users else ""
    what = f"GPUs: {TITLES[metric]}, last {span_text(size.span_s)}"
    room = max(0, size.width - text_width(what) - 2)
    head = f"{said}{model}{of}"
    if room < 8:
        return (TextSpan(what, "dim"),)
    return (TextSpan(fitted(head, room), "bold"), TextSpan(f"  {what}", "dim"))


def _gpu_now(row: Row) -> Line:
    parts = [TextSpan(clean(str(row.get("state") or ABSENT)), "bold")]
    used, total = row.get("memory_used_bytes"), row.get("memory_total_bytes")
    if used is not None and total:
        parts.append(TextSpan(f"  {as_gib(used)} of {as_gib(total)} GiB"))
    if row.get("power_watts") is not None:
        parts.append(TextSpan(f"  {as_watts(row['power_watts'], ' ')}"))
    if row.get("temperature_celsius") is not None:
        parts.append(TextSpan(f"  {row['temperature_celsius']:.0f} °C"))
    for name, text in (("username", "user {}"), ("job", "job {}")):
        if row.get(name) is not None:
            parts.append(TextSpan("  " + clean(text.format(row[name]))))
    if row.get("usd_per_hour") is not None:
        parts.append(TextSpan(f"  ${as_usd(row['usd_per_hour'])}/h"))
    if row.get("usd_wasted"):
        parts.append(TextSpan(f", ${as_usd(row['usd_wasted'])} of it wasted", "warn"))
    return tuple(parts)


def _process_lines(processes: Sequence[Row], width: int, *, is_of_gpu: bool = False) -> list[Line]:
    """A table of processes with its titles; of one GPU, it does not name the GPU."""
    if not processes:
        return [(TextSpan("no process holds a GPU", "dim"),)]
    columns = [c for c in COLUMNS[TopView.PROCESSES] if not is_of_gpu or c.key != "place"]
    shown = fitting(columns, max(1, width - len(_INDENT)))
    titles = " ".join(fitted(c.title, w, is_right=c.is_right) for c, w in shown)
    lines: list[Line] = [(TextSpan(fitted(_INDENT + titles, width), "title"),)]
    for row in processes:
        cells = " ".join(fitted(c.text(row), w, is_right=c.is_right) for c, w in shown)
        lines.append((TextSpan(_INDENT + cells),))
    return lines


def _alert_lines(answer: GpuAnswer, width: int) -> list[Line]:
    lines: list[Line] = [(TextSpan("alerts", "bold"),)]
    if answer.totals.get("alerts") is None:
        lines.append((TextSpan("  alerts need a collector"),))
    elif not answer.alerts:
        lines.append((TextSpan(clean(f"  {answer.totals.get('unjudged') or 'none fires'}")),))
    for alert in answer.alerts:
        cost = "" if alert.get("usd") is None else f", ${as_usd(alert['usd'])} so far"
        age = "" if alert.get("age_s") is None else f" for {as_age(alert['age_s'])}"
        style = "bad" if alert.get("severity") == "critical" else "warn"
        said = f"{alert.get('rule')}{age}{cost}: {alert.get('summary') or ''}"
        first, *rest = folded(said, max(20, width - 12))
        lines.append(
            (TextSpan(f"  {clean(str(alert.get('severity'))):<9}", style), TextSpan(first))
        )
        lines += [(TextSpan(f"{'':<11}{more}"),) for more in rest]
    return lines
