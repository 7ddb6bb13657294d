"""Numbers and instants as people read them; None is an en dash."""

from datetime import datetime

from gpuwarden.durations import readable

ABSENT = "–"


def percent(value: float | None) -> str:
    """`37 %`."""
    return ABSENT if value is None else f"{value:.0f} %"


def usd(value: float | None) -> str:
    """`$2.95`, `$1,204`."""
    if value is None:
        return ABSENT
    return f"${value:,.2f}" if abs(value) < 1000 else f"${value:,.0f}"


def gigabytes(value: float | None) -> str:
    """`12.3 GiB` of bytes."""
    return ABSENT if value is None else f"{value / 1024**3:.1f} GiB"


def size(value: float | None) -> str:
    """`12.3 MiB`, `12.3 GiB` of bytes."""
    if value is None or value >= 1024**3:
        return gigabytes(value)
    return f"{value / 1024**2:.1f} MiB"


def power(value: float | None) -> str:
    """`412 W`, `3.1 kW` of watts."""
    if value is None:
        return ABSENT
    return f"{value:.0f} W" if value < 10_000 else f"{value / 1000:.1f} kW"


def celsius(value: float | None) -> str:
    """`61 °C`."""
    return ABSENT if value is None else f"{value:.0f} °C"


def ago(instant: datetime | None, now: datetime) -> str:
    """`3 s ago`; "never" for None."""
    return "never" if instant is None else f"{readable((now - instant).total_seconds())} ago"
