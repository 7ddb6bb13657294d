"""Lists the columns of each view: title, width, how a value is shown, and on how wide a screen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden_cli.output import ABSENT
from gpuwarden_cli.top.request import Row, TopView

Show = Callable[[Any], str]


def as_text(value: Any) -> str:
    """The value as text."""
    return str(value)


def as_whole(value: float) -> str:
    """`87`."""
    return f"{value:.0f}"


def as_watts(value: float, gap: str = "") -> str:
    """`412W`, `10.4kW`, `5.12MW`; `gap` is before the unit."""
    if abs(value) < 9_999.5:
        return f"{value:.0f}{gap}W"
    if abs(value) < 999_950:
        return f"{value / 1e3:.1f}{gap}kW"
    return f"{value / 1e6:.2f}{gap}MW"


def as_gib(value: float) -> str:
    """`79.1`, of bytes."""
    return f"{value / 2**30:.1f}"


def as_bytes_per_s(value: float) -> str:
    """`812 B/s`, `3.4 MB/s`, `1.2 GB/s`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return (
                f"{value:.0f} {unit}/s" if value >= 9.95 or unit == "B" else f"{value:.1f} {unit}/s"
            )
        value /= 1000
    return f"{value:.1f} TB/s"


def as_usd(value: float) -> str:
    """`2.95`, `29,500`."""
    return f"{value:,.2f}" if abs(value) < 1_000 else f"{value:,.0f}"


def as_age(seconds: float) -> str:
    """`42s`, `7m`, `2h05`, `3d4h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column of a view."""

    key: str
    title: str
    width: int
    """In cells. Spare width goes to columns with `most`, then to the one that `grows`."""
    show: Show = as_text
    is_right: bool = False
    from_width: int = 0
    """Narrower screens do not show it."""
    grows: bool = False
    most: int = 0
    """Largest width on a wide screen."""
    first: int = 0
    """Of the column that grows: the width that it gets before others get more."""
    level: Callable[[Row], str] | None = None
    """Style of its cells; None: none."""

    def text(self, row: Row) -> str:
        """What is shown of a row."""
        value = row.get(self.key)
        return ABSENT if value is None else self.show(value)


def _of_state(row: Row) -> str:
    return {
        "silent": "bad",
        "not reporting": "bad",
        "throttled": "bad",
        "idle": "warn",
        "unknown": "warn",
        "busy": "good",
    }.get(str(row.get("state")), "")


def _of_severity(row: Row) -> str:
    return {"critical": "bad", "warning": "warn"}.get(str(row.get("severity")), "")


def _of_heat(row: Row) -> str:
    value = row.get("temperature_celsius")
    return "" if value is None or value < 80 else "warn" if value < 90 else "bad"


def _of_alerts(row: Row) -> str:
    return {3: "bad", 2: "warn"}.get(row.get("level") or 0, "")


def _right(key: str, title: str, width: int, show: Show = as_whole, **more: Any) -> ShownColumn:
    return ShownColumn(key, title, width, show, is_right=True, **more)


_USD = _right("usd_per_hour", "$/h", 7, as_usd)
_WASTED = _right("usd_wasted", "wasted", 7, as_usd)

COLUMNS: Mapping[TopView, Sequence[ShownColumn]] = {
    TopView.NODES: (
        ShownColumn("node", "node", 14, most=36, grows=True),
        ShownColumn("state", "state", 8, level=_of_state),
        _right("gpus", "GPUs", 4),
        _right("idle", "idle", 4),
        _right("util_percent", "util%", 5),
        _right("memory_percent", "mem%", 4),
        _right("power_watts", "power", 6, as_watts),
        _right("temperature_celsius", "°C", 3, level=_of_heat),
        _right("alerts", "alerts", 6, level=_of_alerts),
        _USD,
        _WASTED,
        _right("cpu_percent", "CPU%", 4, from_width=96),
        _right("host_memory_percent", "RAM%", 4, from_width=96),
        ShownColumn("model", "model", 22, from_width=130),
        ShownColumn("labels", "labels", 30, from_width=160, most=60),
    ),
    TopView.GPUS: (
        ShownColumn("place", "node/GPU", 14, grows=True),
        ShownColumn("state", "state", 9, level=_of_state),
        _right("util_percent", "util%", 5),
        _right("memory_percent", "mem%", 4),
        _right("power_watts", "power", 6, as_watts),
        _right("temperature_celsius", "°C", 3, level=_of_heat),
        ShownColumn("username", "user", 9, most=16),
        ShownColumn("job", "job", 9, most=24),
        _right("usd_wasted", "wasted", 6, as_usd),
        _right("usd_per_hour", "$/h", 6, as_usd, from_width=96),
        _right("sm_clock_mhz", "MHz", 5, from_width=110),
        ShownColumn("alert", "alert", 18, from_width=120, most=30, level=_of_alerts),
        ShownColumn("model", "model", 24, from_width=140),
        ShownColumn("process", "process", 16, from_width=160, most=40),
    ),
    TopView.PROCESSES: (
        ShownColumn("place", "node/GPU", 14, most=24),
        _right("pid", "pid", 8),
        ShownColumn("username", "user", 10, most=16),
        ShownColumn("job", "job", 10, most=24),
        _right("memory_bytes", "GiB", 6, as_gib),
        _right("sm_percent", "SM%", 4),
        _right("cpu_percent", "CPU%", 5),
        _right("rss_bytes", "RAM", 6, as_gib, from_width=104),
        ShownColumn("state", "st", 2, from_width=96),
        _right("age_s", "age", 6, as_age),
        ShownColumn("command", "command", 10, grows=True, first=24),
    ),
    TopView.JOBS: (
        ShownColumn("job", "job", 16, most=36, grows=True),
        ShownColumn("username", "user", 10, most=16),
        _right("gpus", "GPUs", 5),
        _right("nodes", "nodes", 5),
        _right("util_percent", "util%", 5),
        _right("memory_percent", "mem%", 4),
        _right("power_watts", "power", 7, as_watts),
        _USD,
        _WASTED,
        ShownColumn("finding", "held up by", 18, from_width=100),
        ShownColumn("where", "where", 30, from_width=140, most=80),
    ),
    TopView.ALERTS: (
        ShownColumn("severity", "severity", 8, level=_of_severity),
        ShownColumn("rule", "rule", 16, most=26),
        ShownColumn("place", "place", 16, most=24),
        _right("age_s", "age", 5, as_age),
        _right("usd", "cost $", 7, as_usd),
        ShownColumn("owner", "owner", 10, from_width=100),
        ShownColumn("summary", "summary", 20, grows=True),
    ),
}
TREE_COLUMNS = (
    ShownColumn("place", "job, process", 24, most=32),
    *(column for column in COLUMNS[TopView.PROCESSES] if column.key not in ("place", "job")),
)
"""The columns of the tree of processes."""


def columns_of(
    view: TopView, width: int, *, is_tree: bool = False
) -> list[tuple[ShownColumn, int]]:
    """The columns that fit a screen, with their widths; one cell separates them."""
    return fitting(TREE_COLUMNS if is_tree else COLUMNS[view], width)


def fitting(columns: Sequence[ShownColumn], width: int) -> list[tuple[ShownColumn, int]]:
    """Those of the columns that fit a width, with their widths."""
    width = max(1, width)
    shown = [column for column in columns if width >= column.from_width]
    while len(shown) > 1 and sum(c.width + 1 for c in shown) > width + 1:
        # The first column identifies the row, and the growing one describes it: both stay.
        less = [c for c in shown[1:] if not c.grows] or shown[1:]
        shown.remove(less[-1])
    room = max(0, width + 1 - sum(c.width + 1 for c in shown))
    grows = next((c for c in shown if c.grows), shown[0])
    widths = []
    before = min(room, max(0, grows.first - grows.width))
    room -= before
    for column in shown:
        more = min(room, max(0, column.most - column.width))
        widths.append(column.width + more)
        room -= more
    widths[shown.index(grows)] += room + before
    return list(zip(shown, widths, strict=True))


def column_at(view: TopView, width: int, cell: int, *, is_tree: bool = False) -> str | None:
    """Key of the column whose title is at a cell; None: between columns, or behind the last."""
    for column, wide in columns_of(view, width, is_tree=is_tree):
        if cell < wide:
            return column.key if cell >= 0 else None
        cell -= wide + 1
    return None


def tabs_of(view: TopView) -> list[tuple[TopView, str]]:
    """The text of each view's tab; that of `view` is in brackets."""
    return [
        (one, f"[{number} {one.value}]" if one is view else f" {number} {one.value} ")
        for number, one in enumerate(TopView, 1)
    ]


def tab_at(view: TopView, cell: int) -> TopView | None:
    """The view whose tab is at a cell."""
    for one, text in tabs_of(view):
        if 0 <= cell < len(text):
            return one
        cell -= len(text)
    return None
