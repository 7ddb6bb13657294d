"""Draws values over time in braille cells: two values a cell, four levels a line. Pure.

A value that is 0 has a dot, so that it differs from a missing one, which has none.
"""

from collections.abc import Sequence
from itertools import pairwise

_FIRST = 0x2800
"""U+2800: the braille cell without dots."""
_LEFT = (0, 0x40, 0x44, 0x46, 0x47)
"""Dots of the left column by its height in dots."""
_RIGHT = (0, 0x80, 0xA0, 0xB0, 0xB8)
_LEVELS = 4
"""Dots of a cell, one above the other."""
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600)
"""Distances of the marks on a time scale."""
_CELLS = {
    (high, low): chr(_FIRST + left + right)
    for high, left in enumerate(_LEFT)
    for low, right in enumerate(_RIGHT)
}
"""The cell by the heights of its columns."""
_ASCII = " .:|#"
"""By height of the higher column."""

ASCII_CELLS = {
    _FIRST + left + right: _ASCII[max(high, low)]
    for high, left in enumerate(_LEFT)
    for low, right in enumerate(_RIGHT)
}
"""The ASCII character of each cell that is drawn."""


def resampled(values: Sequence[float | None], count: int) -> list[float | None]:
    """`count` values over the same time: means of neighbours, or each value several times."""
    have = len(values)
    if have == count or have == 0 or count == 0:
        return list(values) if have == count else [None] * count
    if have < count:
        return [values[at * have // count] for at in range(count)]
    bounds = [at * have // count for at in range(count + 1)]
    parts = [values[first:end] for first, end in pairwise(bounds)]
    if None not in values:
        return [sum(part) / len(part) for part in parts]  # type: ignore[arg-type]  # all are numbers
    found: list[float | None] = []
    for part in parts:
        known = [value for value in part if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def graph(
    values: Sequence[float | None], width: int, height: int, top: float | None = None
) -> list[str]:
    """`height` lines of `width` cells, filled from 0 up to each value; the newest value is at the right.

    `top` is the value of a full column; None: the largest value.
    """
    shown = resampled(values, 2 * max(0, width))
    high = top if top is not None else max((v for v in shown if v is not None), default=0.0)
    full = _LEVELS * height
    high = high or 1.0  # all are 0
    heights = [
        0 if value is None else min(full, round(full * value / high)) or 1  # 0 has a dot
        for value in shown
    ]
    lines = []
    for line in range(height):
        below = full - _LEVELS * (line + 1)
        dots = heights if height == 1 else [max(0, min(_LEVELS, one - below)) for one in heights]
        lines.append("".join(map(_CELLS.__getitem__, zip(dots[::2], dots[1::2], strict=True))))
    return lines


def time_scale(width: int, seconds: int) -> str:
    """A line below a graph: how long ago, at the place of each mark; `now` is at the right."""
    if width < 3:
        return " " * max(0, width)
    cells = [" "] * width
    cells[width - 3 :] = "now"
    # The marks have room for their text and a gap.
    step = next((s for s in _STEPS_S if s * width >= 9 * seconds), seconds)
    free = width - 4
    for ago in range(step, seconds + 1, step):
        text = f"-{ago // 60}m" if ago % 60 == 0 else f"-{ago}s"
        at = width - round(ago * width / seconds)
        if at + len(text) <= free:
            cells[at : at + len(text)] = text
            free = at - 1
    return "".join(cells)
