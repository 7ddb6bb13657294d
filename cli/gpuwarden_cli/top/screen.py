"""Renders a state to the lines of the screen: pure. Colour is never the only sign."""

from collections.abc import Sequence

from gpuwarden_cli.output import ABSENT, text_width
from gpuwarden_cli.top.braille import graph
from gpuwarden_cli.top.columns import (
    COLUMNS,
    ShownColumn,
    as_age,
    as_usd,
    as_watts,
    columns_of,
    tabs_of,
)
from gpuwarden_cli.top.model import ROWS_LEFT, State
from gpuwarden_cli.top.request import Row
from gpuwarden_cli.top.text import Line, TextSpan, clean, fitted, folded

_MARK = "> "
"""Marks the selected row."""
assert len(_MARK) == ROWS_LEFT
LATE_S = 3.0
"""The screen reports a request that takes longer."""
KEYS = "enter open  esc back  g graphs  ←→ sort  r reverse  / search  t tree  w why  o page  ? help  q quit"
_KEYS_NARROW = "enter open  esc back  g graphs  ←→ sort  / search  w why  ? help  q quit"
_KEYS_GRAPHS = "enter GPUs  esc back  m metric  s span  w why  o page  p pause  ? help  q quit"
_KEYS_GPU = "esc back  g graphs of the node  s span  w why  o page  p pause  ? help  q quit"
_GAP = TextSpan(" ")
_BRANCH = ("", "  ", "    ")
_SIGN = {True: "▾ ", False: "▸ ", None: "  "}
"""Before rows of the tree that are open, closed, and with nothing below them."""


def screen(state: State, now_s: float) -> list[Line]:
    """The lines of the screen, cut to its size."""
    body = _overlay(state) if state.overlay is not None else _body(state)
    height = state.body_height
    lines = [*_head(state, now_s), *(body + [()] * height)[:height], _foot(state)]
    return [_cut(line, state.width) for line in lines[: state.height]]


def _cut(line: Line, width: int) -> Line:
    kept, room = [], width
    for span in line:
        wide = text_width(span.text)
        if wide <= room:
            kept.append(span)
            room -= wide
            continue
        if room > 0:
            kept.append(TextSpan(fitted(span.text, room), span.style))
        break
    return tuple(kept)


def _head(state: State, now_s: float) -> list[Line]:
    totals = state.totals or {}
    return [_title(state, now_s), _fleet(state, totals), _money(totals), _tabs(state), _columns(state)]  # fmt: skip


def _title(state: State, now_s: float) -> Line:
    if state.problem is not None:
        spent = as_age(now_s - state.problem.since_s)
        what = "refused" if state.problem.is_refusal else f"no answer for {spent}, trying again"
        return (TextSpan(f"{what}: {clean(state.problem.message)}", "bad"),)
    if state.is_paused:
        status = TextSpan("  paused", "warn")
    elif state.asked is not None and now_s - state.asked_at_s > LATE_S:
        status = TextSpan(f"  no answer for {as_age(now_s - state.asked_at_s)}", "warn")
    else:
        pace_s = max(state.every_s, state.pace_s)
        status = TextSpan(
            f"  every {pace_s:.2g} s" if pace_s < 10 else f"  every {pace_s:.0f} s", "dim"
        )
    at = (state.totals or {}).get("at")
    clock = TextSpan("" if at is None else f"  {at}")
    said = clean(f"gpuwarden top  {state.source}")
    room = state.width - text_width(clock.text) - text_width(status.text)
    return (TextSpan(fitted(said, min(room, text_width(said))), "bold"), clock, status)


def _said(value: object, text: str, unit: str = "") -> str:
    return f"{ABSENT if value is None else text}{unit}"


def _counted(number: object, noun: str) -> str:
    return f"{ABSENT if number is None else format(number, ',')} {noun}{'' if number == 1 else 's'}"


def _fleet(state: State, totals: Row) -> Line:
    if not totals:
        return (TextSpan("waiting for the first answer", "dim"),)
    gpus, reporting = totals.get("gpus"), totals.get("reporting")
    nodes = _counted(totals.get("nodes"), "node")
    parts = [TextSpan(f"{_counted(gpus, 'GPU')}, {nodes}: ")]
    if gpus is not None and reporting is not None and reporting < gpus:
        parts.append(TextSpan(f"{gpus - reporting:,} silent", "bad"))
        parts.append(TextSpan(", "))
    parts.append(TextSpan(f"{totals.get('busy') or 0:,} busy, "))
    idle = totals.get("idle") or 0
    parts.append(TextSpan(f"{idle:,} idle", "warn" if idle else ""))
    if throttled := totals.get("throttled"):
        parts += [TextSpan(", "), TextSpan(f"{throttled:,} throttled", "bad")]
    if unknown := totals.get("unknown"):
        parts.append(TextSpan(f", {unknown:,} unknown"))
    used = sum(text_width(span.text) for span in parts)
    readings = min(len(state.history), 2 * (state.width - used - 2)) // 2 * 2
    if readings >= 8:
        (line,) = graph(state.history[-readings:], readings // 2, 1, 100.0)
        parts.append(TextSpan(f"  {line}", "util_percent"))
    return tuple(parts)


def _money(totals: Row) -> Line:
    if not totals:
        return ()
    util, power = totals.get("util_percent"), totals.get("power_watts")
    parts = [
        TextSpan(f"util {_said(util, f'{util or 0:.0f}', ' %')}"),
        TextSpan(f"  {_said(power, as_watts(power or 0.0, ' '))}"),
    ]
    cost, wasted = totals.get("usd_per_hour"), totals.get("usd_wasted_per_hour")
    parts.append(TextSpan("  price unknown" if cost is None else f"  ${as_usd(cost)}/h"))
    if wasted is not None:
        parts.append(TextSpan(", "))
        parts.append(TextSpan(f"${as_usd(wasted)} wasted", "warn" if wasted > 0 else ""))
    if (alerts := totals.get("alerts")) is None:
        parts.append(TextSpan("  alerts need a collector", "dim"))
    else:
        critical = totals.get("critical") or 0
        grave = f" ({critical:,} critical)" if critical else ""
        style = "bad" if critical else "warn" if alerts else ""
        parts.append(TextSpan(f"  {_counted(alerts, 'alert')}{grave}", style))
        if totals.get("unjudged"):
            parts.append(TextSpan(", not judged", "warn"))
    if totals.get("simulated"):
        parts.append(TextSpan("  simulated", "dim"))
    return tuple(parts)


def _tabs(state: State) -> Line:
    page = state.page
    parts: list[TextSpan] = []
    for view, text in tabs_of(page.view):
        parts.append(TextSpan(text, "bold" if view is page.view else "dim"))
    where = page.node or (f"job {page.job}" if page.job else None)
    if page.has_rows and where:
        parts.append(TextSpan(f"  of {clean(where)}", "bold"))
    if page.text and state.typing is None:
        parts.append(TextSpan(f"  /{clean(page.text)}", "warn"))
    rows = state.rows
    if page.has_rows and rows is not None and rows.count > state.body_height:
        parts.append(_part_text(page.offset, rows.count, state.body_height, ""))
    if not page.has_rows and len(lines := state.page_lines or ()) > state.body_height:
        parts.append(_part_text(page.scrolled, len(lines), state.body_height, "lines "))
    return tuple(parts)


def _part_text(first: int, count: int, height: int, noun: str) -> TextSpan:
    """Which part of a list is shown."""
    return TextSpan(f"  {noun}{first + 1:,}-{min(first + height, count):,} of {count:,}", "dim")


def _columns(state: State) -> Line:
    if state.overlay is not None:
        return (TextSpan(clean(state.overlay.title), "title"),)
    if state.page.gpu is not None:
        row = state.gpu.row if state.gpu is not None else None
        return (TextSpan(_gpu_title(state.page.gpu, row), "title"),)
    if state.page.graphs is not None:
        return (TextSpan(clean(f"node {state.page.graphs}"), "title"),)
    shown = columns_of(state.page.view, state.width - ROWS_LEFT, is_tree=state.has_tree)
    line = " "
    for column, width in shown:
        arrow = "▼" if state.page.is_descending else "▲"
        line += arrow if column.key == state.page.sort else " "
        line += fitted(column.title, width, is_right=column.is_right)
    # Name a sort column that does not fit the screen.
    if state.page.sort and all(column.key != state.page.sort for column, _ in shown):
        title = next(c.title for c in COLUMNS[state.page.view] if c.key == state.page.sort)
        line = fitted(line, max(0, state.width - len(title) - 10)) + f" by {title}"
    return (TextSpan(fitted(line, state.width), "title"),)


def _gpu_title(gpu_uuid: str, row: Row | None) -> str:
    if row is None:
        return f"GPU {clean(gpu_uuid)}"
    model = f"  {clean(str(row['model']))}" if row.get("model") else ""
    return f"{clean(str(row.get('place')))}{model}  {clean(gpu_uuid)}"


def _body(state: State) -> list[Line]:
    if not state.page.has_rows:
        lines = state.page_lines
        return [(TextSpan("  …", "dim"),)] if lines is None else list(lines[state.page.scrolled :])
    rows = state.rows
    if rows is None:
        return [] if state.problem is not None else [(TextSpan("  …", "dim"),)]
    if rows.count == 0:
        return [(TextSpan(f"  {_nothing(state)}", "dim"),)]
    shown = columns_of(state.page.view, state.width - ROWS_LEFT, is_tree=state.has_tree)
    last = min(state.page.offset + state.body_height, rows.count)
    return [_row(state, place, shown) for place in range(state.page.offset, last)]


def _nothing(state: State) -> str:
    page = state.page
    what = f"no {page.view.value}"
    if page.view is page.view.ALERTS and not page.text:
        needs = (state.totals or {}).get("alerts") is None
        unjudged = (state.totals or {}).get("unjudged")
        return clean(
            "alerts need a collector" if needs else str(unjudged) if unjudged else "no alert fires"
        )
    of = f" of {page.node or page.job}" if page.node or page.job else ""
    return clean(f"{what}{of}{f' with {page.text!r} in a name' if page.text else ''}")


def _row(state: State, place: int, shown: Sequence[tuple[ShownColumn, int]]) -> Line:
    row = state.row_at(place)
    is_selected = place == state.page.at
    mark = _MARK if is_selected else " " * len(_MARK)
    if row is None:
        return (TextSpan(f"{mark}…", "dim"),)
    parts = [TextSpan(mark)]
    for column, width in shown:
        if len(parts) > 1:
            parts.append(_GAP)
        style = "" if column.level is None else column.level(row)
        said = column.text(row)
        if len(parts) == 1 and "depth" in row:
            said = _BRANCH[row["depth"]] + _SIGN[row["is_open"]] + said
        text = fitted(said, width, is_right=column.is_right)
        if row.get("depth") == 0 and not style:
            style = "bold"
        parts.append(TextSpan(text, style))
    if is_selected:
        text = "".join(span.text for span in parts)
        return (TextSpan(fitted(text, state.width), "selected"),)
    return tuple(parts)


def _overlay(state: State) -> list[Line]:
    overlay = state.overlay
    assert overlay is not None
    if overlay.lines is None:
        return [(TextSpan("  measuring the last two minutes …", "dim"),)]
    lines: list[Line] = []
    for text in overlay.lines:
        lines += [(TextSpan(f"  {line}"),) for line in folded(text, max(20, state.width - 4))]
    lines += [(), (TextSpan("  any key goes back", "dim"),)]
    most = max(0, len(lines) - state.body_height)
    return lines[min(overlay.scrolled, most) :]


def _foot(state: State) -> Line:
    if state.typing is not None:
        return (TextSpan(f"search: {clean(state.typing)}_", "bold"), TextSpan("  enter keeps, esc ends it", "dim"))  # fmt: skip
    if state.page.graphs is not None:
        return (TextSpan(_KEYS_GRAPHS, "dim"),)
    if state.page.gpu is not None:
        return (TextSpan(_KEYS_GPU, "dim"),)
    return (TextSpan(KEYS if state.width >= text_width(KEYS) else _KEYS_NARROW, "dim"),)
