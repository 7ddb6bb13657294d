"""Parses durations such as `90s`, `10m`, `2h`, `1d`, and formats them as `2 h 05 min`."""

import re
from datetime import datetime, timedelta

_PATTERN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float | None:
    """Seconds of a duration such as `10m`; None: the text is not a duration."""
    match = _PATTERN.match(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def span_of(text: str, name: str) -> timedelta:
    """A duration above 0; `name` is the parameter in the error. Raises ValueError."""
    seconds = seconds_of(text)
    if not seconds:
        raise ValueError(f"{name} {text} is not a duration; write 6h or 7d")
    return timedelta(seconds=seconds)


def instant_before(now: datetime, text: str, name: str) -> datetime:
    """The instant that long before now; `name` is the parameter in the error. Raises ValueError."""
    try:
        return now - span_of(text, name)
    except OverflowError:
        raise ValueError(f"{name} {text} is longer ago than there are years") from None


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


def exact(seconds: float) -> str:
    """`0:25:00`, `26:03:04.5`: hours, minutes and seconds, exact to the millisecond."""
    ms = round(abs(seconds) * 1000)
    whole, rest = divmod(ms, 1000)
    sign = "-" if seconds < 0 and ms else ""
    fraction = f".{rest:03d}".rstrip("0") if rest else ""
    return f"{sign}{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}{fraction}"
