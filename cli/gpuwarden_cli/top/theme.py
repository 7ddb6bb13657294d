"""The colours of `top` by name: for the terminal's own colours, light backgrounds, colour-blind people, and none."""

from collections.abc import Mapping
from typing import NamedTuple


class Look(NamedTuple):
    """How text of a style looks; `color`: an ANSI name or #rrggbb, None: the terminal's own."""

    color: str | None = None
    is_bold: bool = False
    is_dim: bool = False
    is_underlined: bool = False
    is_reversed: bool = False


_SHAPES: Mapping[str, Look] = {
    "": Look(),
    "bold": Look(is_bold=True),
    "dim": Look(is_dim=True),
    "selected": Look(is_reversed=True),
    "title": Look(is_bold=True, is_underlined=True),
}
STYLES = (
    "good", "warn", "bad", "util_percent", "memory_percent", "power_watts", "temperature_celsius", "sm_clock_mhz",
    "cpu_percent", "disk_bytes_per_s", "network_bytes_per_s", "pressure_percent",
)  # fmt: skip
"""Styles with a colour, beside those that are shapes: states, and graphs by metric."""


def _theme(*colors: str) -> Mapping[str, Look]:
    """The looks of STYLES in their order; what is bad is bold too."""
    return {
        **_SHAPES,
        **{
            name: Look(color, is_bold=name == "bad")
            for name, color in zip(STYLES, colors, strict=True)
        },
    }


THEMES: Mapping[str, Mapping[str, Look]] = {
    "terminal": _theme(
        "green", "yellow", "red", "green", "cyan", "yellow", "red", "magenta", "green", "blue", "magenta", "yellow",
    ),
    "light": _theme(
        "#116329", "#7d4e00", "#a40e26", "#116329", "#0a5c7a", "#7d4e00", "#a40e26", "#6639ba",
        "#116329", "#0550ae", "#6639ba", "#7d4e00",
    ),
    # Okabe and Ito's colours, https://jfly.uni-koeln.de/color/: blue is good, vermilion is bad.
    "colour-blind": _theme(
        "#56b4e9", "#e69f00", "#d55e00", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7",
        "#56b4e9", "#0072b2", "#cc79a7", "#e69f00",
    ),
    "mono": {**_SHAPES, **dict.fromkeys(STYLES, Look()), "bad": Look(is_bold=True), "warn": Look(is_bold=True)},
}  # fmt: skip
"""`terminal` uses the terminal's own palette."""
