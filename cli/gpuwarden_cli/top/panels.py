"""Places graphs beside and below each other: what a screen draws, and what a click on it means. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from gpuwarden_cli.output import ABSENT, text_width
from gpuwarden_cli.top.braille import graph, time_scale
from gpuwarden_cli.top.columns import as_bytes_per_s, as_watts
from gpuwarden_cli.top.request import GPU_METRICS, HOST_METRICS, GpuAnswer, NodeAnswer
from gpuwarden_cli.top.text import Line, TextSpan, clean, fitted

WIDTH_MIN = 24
"""Narrowest panel where a row has several."""
HEIGHT_MAX = 6
_GAP = 2
_TOPS = {"util_percent": 100.0, "memory_percent": 100.0, "temperature_celsius": 100.0, "cpu_percent": 100.0, "pressure_percent": 100.0}  # fmt: skip
"""The value of a full column; others are full at their largest value."""
TITLES = {
    "util_percent": "utilization", "memory_percent": "memory", "power_watts": "power",
    "temperature_celsius": "temperature", "sm_clock_mhz": "SM clock", "cpu_percent": "CPU",
    "disk_bytes_per_s": "disk", "network_bytes_per_s": "network", "pressure_percent": "pressure",
}  # fmt: skip
FRESH_S = 15
"""A reading up to this many seconds old is that of now: the collector has the newest ones late."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph with a title; `key`: the GPU that a click opens, None: none."""

    title: str
    metric: str
    values: Sequence[float | None]
    key: str | None = None
    note: str = ""
    """What is not normal, behind the title."""


@dataclass(frozen=True, slots=True)
class PanelGrid:
    """How panels are placed: `columns` beside each other, each `width` cells and `height` lines of graph."""

    columns: int
    width: int
    height: int

    @property
    def pitch(self) -> int:
        """Lines from one row of panels to the next."""
        return self.height + 1


def grid_of(groups: Sequence[int], width: int, room: int) -> PanelGrid:
    """The grid with the highest graphs for groups of these numbers of panels in `room` lines; then the widest.

    Each group begins at the left.
    """
    most = max(1, min(max(groups, default=1), (width + _GAP) // (WIDTH_MIN + _GAP)))
    best = (1, most)
    for columns in range(1, most + 1):
        rows = sum(-(-count // columns) for count in groups)
        height = min(HEIGHT_MAX, room // max(1, rows) - 1)
        if height > best[0] or (height == best[0] and columns < best[1]):
            best = (height, columns)
    height, columns = best
    return PanelGrid(columns, max(1, (width + _GAP) // columns - _GAP), height)


def rows_of(groups: Sequence[Sequence[Panel]], grid: PanelGrid) -> list[Sequence[Panel]]:
    """The panels of each row, from the first row to the last."""
    return [
        group[first : first + grid.columns]
        for group in groups
        for first in range(0, len(group), grid.columns)
    ]


def lines_of(groups: Sequence[Sequence[Panel]], grid: PanelGrid, span_s: int) -> list[Line]:
    """Lines of the panels, with a time scale below the last of each column."""
    lines: list[Line] = []
    rows = rows_of(groups, grid)
    for row in rows:
        drawn = [_drawn(panel, grid, span_s) for panel in row]
        for parts in zip(*drawn, strict=True):
            line: list[TextSpan] = []
            for part in parts:
                line += [TextSpan(" " * _GAP), *part] if line else part
            lines.append(tuple(line))
    beside = max((len(row) for row in rows), default=0)
    scale = (" " * _GAP).join([time_scale(grid.width, span_s)] * beside)
    return [*lines, (TextSpan(scale, "dim"),)] if rows else []


def panel_at(
    groups: Sequence[Sequence[Panel]], grid: PanelGrid, line: int, column: int
) -> Panel | None:
    """The panel at a line and cell of the grid; None: none."""
    rows = rows_of(groups, grid)
    if not 0 <= line < len(rows) * grid.pitch or column < 0:
        return None
    row, at = rows[line // grid.pitch], column // (grid.width + _GAP)
    return row[at] if at < len(row) else None


def gpu_panels(answer: GpuAnswer) -> list[Panel]:
    """The graphs of a GPU: its metrics that have a reading."""
    return _panels_of(GPU_METRICS, answer.series)


def node_panels(answer: NodeAnswer, metric: str) -> list[list[Panel]]:
    """The graphs of a node: the host's that have a reading, and one of each GPU."""
    found = []
    for row in answer.gpus:
        uuid = str(row.get("gpu_uuid"))
        name = uuid if row.get("gpu") is None else str(row["gpu"])
        state = str(row.get("state") or "")
        note = "" if state in ("", "busy") else state
        found.append(Panel(f"GPU {name}", metric, answer.series.get(uuid, ()), uuid, note))
    return [group for group in (_panels_of(HOST_METRICS, answer.host), found) if group]


def value_text(metric: str, value: float | None) -> str:
    """`87 %`, `412 W`, `1,980 MHz`, `1.2 GB/s`."""
    if value is None:
        return ABSENT
    if metric == "power_watts":
        return as_watts(value, " ")
    if metric.endswith("_bytes_per_s"):
        return as_bytes_per_s(value)
    unit = {"temperature_celsius": "°C", "sm_clock_mhz": "MHz"}.get(metric, "%")
    return f"{value:,.0f} {unit}"


def _panels_of(metrics: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> list[Panel]:
    return [
        Panel(TITLES[metric], metric, series[metric])
        for metric in metrics
        if any(value is not None for value in series.get(metric, ()))
    ]


def _ceiling(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, … that is not below, so that a constant value does not fill its graph."""
    step = 10 ** floor(log10(value)) if value > 0 else 1.0
    return next(step * factor for factor in (1, 2, 5, 10, 20) if step * factor >= value)


def _drawn(panel: Panel, grid: PanelGrid, span_s: int) -> list[list[TextSpan]]:
    """The title, then the lines of the graph."""
    fresh = 1 + FRESH_S * len(panel.values) // span_s
    newest = next((v for v in reversed(panel.values[-fresh:]) if v is not None), None)
    said = value_text(panel.metric, newest)
    top = _TOPS.get(panel.metric)
    if top is None:
        known = [value for value in panel.values if value is not None]
        top = _ceiling(max(known, default=0.0))
        full = f", max {value_text(panel.metric, max(known))}" if known else ""
        said = said + full if text_width(panel.title + said + full) < grid.width else said
    room = max(0, grid.width - text_width(said) - 1)
    title = clean(panel.title)
    head = [TextSpan(fitted(title, min(room, text_width(title))), "bold")]
    left = room - text_width(head[0].text)
    if panel.note and left > text_width(panel.note):
        style = "bad" if panel.note in ("throttled", "not reporting") else "warn"
        head.append(TextSpan(" " + clean(panel.note), style))
        left -= text_width(head[1].text)
    head.append(TextSpan(" " * left))
    head.append(TextSpan(fitted(f" {said}", grid.width - room)))
    drawn = graph(panel.values, grid.width, grid.height, top)
    return [head, *([TextSpan(line, panel.metric)] for line in drawn)]
