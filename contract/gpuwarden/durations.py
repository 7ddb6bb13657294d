"""Durations as people write and read them: `90s`, `10m`, `2h`, `1d`; and back as `2 h 05 min`."""

import re

_PATTERN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float | None:
    """Seconds that a duration such as `10m` means; None where the text is not a duration."""
    match = _PATTERN.match(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def readable(seconds: float) -> str:
    """`42 s`, `7 min`, `2 h 05 min`, `3 d 4 h`; rounded down, never below 0."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
