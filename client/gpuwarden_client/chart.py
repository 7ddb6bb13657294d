"""Draws lines over time as SVG for notebooks, without a library or script; gaps stay gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import pairwise
from statistics import median
from typing import Any

from gpuwarden_client.http import CallError

WIDTH, HEIGHT = 720, 240
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 24, 12, 28
LINES_MAX = 8
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d1f", "#444444")
"""The palette of Okabe and Ito, which colour-blind people can distinguish, for a light background."""
GAP = 3.0
"""A line breaks at steps longer than this many usual ones."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Chart:
    """An SVG picture."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


def chart_of(
    rows: Sequence[Mapping[str, Any]], x: str = "ts", y: str | None = None, by: str | None = None
) -> Chart:
    """One line per value of `by`, at most LINES_MAX. Raises CallError if there is nothing to draw."""
    if not rows:
        raise CallError("there is nothing to draw: the query has no rows")
    y = y or _first(rows, x, (int, float), "a number")
    if by is None:
        by = next((n for n in rows[0] if n not in (x, y) and isinstance(rows[0][n], str)), None)
    for name in filter(None, (x, y, by)):
        if name not in rows[0]:
            raise CallError(f"there is no column {name}; there are {', '.join(rows[0])}")
    lines: dict[str, list[Point]] = {}
    for row in rows:
        if row[x] is not None and row[y] is not None:
            lines.setdefault("" if by is None else str(row[by]), []).append((_at(row[x]), row[y]))
    if not lines:
        raise CallError(f"there is nothing to draw: {y} is absent in all rows")
    drawn = {name: sorted(points) for name, points in list(lines.items())[:LINES_MAX]}
    is_time = isinstance(rows[0][x], datetime)
    left_out = len(lines) - len(drawn)
    title = y + (f" by {by}" if by else "") + (f", {left_out} more not drawn" if left_out else "")
    return Chart(_svg(title, drawn, is_time=is_time))


def _first(rows: Sequence[Mapping[str, Any]], x: str, kinds: tuple[type, ...], what: str) -> str:
    for name in rows[0]:
        if name != x and any(isinstance(row[name], kinds) for row in rows):
            return name
    raise CallError(f"there is nothing to draw: no column but {x} is {what}")


def _at(value: Any) -> float:
    return value.timestamp() if isinstance(value, datetime) else float(value)


def _svg(title: str, lines: Mapping[str, Sequence[Point]], *, is_time: bool) -> str:
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(0.0, *ys), max(*ys, 0.0)
    x1, y1 = (x1 if x1 > x0 else x0 + 1), (y1 if y1 > y0 else y0 + 1)

    def px(x: float) -> float:
        return _LEFT + (x - x0) / (x1 - x0) * (WIDTH - _LEFT - _RIGHT)

    def py(y: float) -> float:
        return HEIGHT - _BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - _TOP - _BOTTOM)

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" role="img" font-family="sans-serif" font-size="11">'
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="14" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = y0 + share * (y1 - y0)
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 4}" y="{py(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>'
        )
    for x, anchor in ((x0, "start"), (x1, "end")):
        parts.append(
            f'<text x="{px(x):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{_tick(x, is_time)}</text>'
        )
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        path = _path([(px(x), py(y)) for x, y in points], _breaks(points))
        parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"'
            f' stroke-linecap="round"><title>{escape(name or title)}</title></path>'
        )
    if set(lines) != {""}:
        shown = "  ".join(
            f'<tspan fill="{colour}">■ {escape(name[:24])}</tspan>'
            for colour, name in zip(COLOURS, lines, strict=False)
        )
        parts.append(
            f'<text x="{WIDTH - _RIGHT}" y="14" text-anchor="end" xml:space="preserve">{shown}</text>'
        )
    return "".join(parts) + "</svg>"


def _breaks(points: Sequence[Point]) -> set[int]:
    """Positions of points that begin a new line, after a gap."""
    steps = [b[0] - a[0] for a, b in pairwise(points)]
    usual = median(steps) if steps else 0.0
    return {at + 1 for at, step in enumerate(steps) if usual and step > GAP * usual}


def _path(points: Sequence[Point], breaks: set[int]) -> str:
    # A point between two gaps is a line of no length; its round ends make it visible.
    return "".join(
        f"{'M' if at == 0 or at in breaks else 'L'}{x:.1f} {y:.1f}"
        + (
            "h0"
            if (at == 0 or at in breaks) and (at + 1 in breaks or at + 1 == len(points))
            else ""
        )
        for at, (x, y) in enumerate(points)
    )


def _tick(x: float, is_time: bool) -> str:
    from datetime import UTC

    return f"{datetime.fromtimestamp(x, UTC):%Y-%m-%d %H:%M:%S}" if is_time else f"{x:.6g}"
