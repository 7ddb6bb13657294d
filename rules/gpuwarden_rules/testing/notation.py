"""promtool's expanding notation for a column of values.

    7            7                      7x3          7 7 7 7 (the value, then three more)
    0+60x3       0 60 120 180           100-10x2     100 90 80
    _            no value (NULL)        _x3          three without a value
    91 92 _ 95   several, in order

As in promtool `ax3` is four values and `_x3` is three. Numbers may have a fraction and an exponent.
"""

import re

VALUES_MAX = 1_000_000
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PART = re.compile(
    rf"(?:(?P<gap>_)|(?P<start>{_NUMBER})(?P<step>[-+](?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)?)(?:x(?P<times>\d{{1,7}}))?\Z"
)


def expand(text: str) -> list[float | None]:
    """The values that the notation stands for. Raises ValueError naming the part that is wrong."""
    values: list[float | None] = []
    for part in text.split():
        match = _PART.match(part)
        if match is None:
            raise ValueError(f"{part!r} is not notation: write 5, 5x10, 0+60x10, _ or _x10")
        times = match["times"]
        if match["step"] and times is None:
            raise ValueError(f"{part!r} has a step but no xN")
        if len(values) + int(times or 1) > VALUES_MAX:
            raise ValueError(f"{part!r} makes more than {VALUES_MAX} values")
        if match["gap"]:
            values += [None] * int(times or 1)
        else:
            start, step = float(match["start"]), float(match["step"] or 0)
            values += [start + step * i for i in range(int(times or 0) + 1)]
    return values
