"""Finds what is usual for a GPU at an hour of the week, from the hourly means of its own last weeks.

The band of an hour is the median of the same hour of the week and the hours beside it, plus and minus `WIDTH`
times the median absolute deviation (as a standard deviation), at least `FLOOR_SHARE` of the median. A band is for
people to look at: no rule reads it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from gpuwarden.clock import from_ms, to_ms
from gpuwarden.query import Querier, Result
from gpuwarden.rollups import ROLLUPS
from gpuwarden_dashboards.http import ParameterError
from gpuwarden_dashboards.read.series import METRICS_MAX, rounded

WEEKS = 6
WEEKS_MIN = 2
"""With fewer weeks nothing is usual."""
WIDTH = 4.0
FLOOR_SHARE = 0.05
SPAN_MAX = timedelta(days=31)
HOUR_MS = 3_600_000
_WEEK_MS = 168 * HOUR_MS
_NORMAL = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""
_MEANS: Mapping[str, str] = {
    summary.source: summary.column.name
    for part in ROLLUPS["gpu_1h"].parts
    for summary in part.summaries
    if summary.how == "avg"
}
"""The column of the hourly mean, by metric."""


@dataclass(frozen=True, slots=True)
class UsualBand:
    """A metric's band by hour; None: not known."""

    metric: str
    least: Sequence[float | None]
    mean: Sequence[float | None]
    """The median."""
    greatest: Sequence[float | None]
    judged: int
    """Hours with a band and a mean."""
    outside: int


def usual(means: Mapping[int, float], hour_ms: int) -> tuple[float, float, float] | None:
    """Least, median and greatest of the band of an hour; `means`: by the begin of the hour. None: too few weeks."""
    weeks = 0
    values: list[float] = []
    for week in range(1, WEEKS + 1):
        same_ms = hour_ms - week * _WEEK_MS
        found = [means[ms] for ms in (same_ms - HOUR_MS, same_ms, same_ms + HOUR_MS) if ms in means]
        weeks += bool(found)
        values += found
    if weeks < WEEKS_MIN:
        return None
    middle = median(values)
    deviation = _NORMAL * median(abs(value - middle) for value in values)
    half = max(WIDTH * deviation, FLOOR_SHARE * abs(middle))
    return middle - half, middle, middle + half


def band_of(metric: str, means: Mapping[int, float], hours: Sequence[int]) -> UsualBand:
    """The band of these hours, and how many of their means are outside of it. The first and the last hour are beside
    the span: they have a band, and are not judged."""
    least: list[float | None] = []
    middle: list[float | None] = []
    greatest: list[float | None] = []
    judged = outside = 0
    for hour_ms in hours:
        found = usual(means, hour_ms)
        for into, value in zip((least, middle, greatest), found or (None,) * 3, strict=True):
            into.append(None if value is None else rounded(value))
        mean = means.get(hour_ms)
        is_beside = hour_ms in (hours[0], hours[-1])
        if found is not None and mean is not None and not is_beside:
            judged += 1
            outside += not found[0] <= mean <= found[2]
    return UsualBand(metric, least, middle, greatest, judged, outside)


async def read_usual(
    querier: Querier, gpu_uuid: str, metrics: Sequence[str], begin: datetime, end: datetime
) -> tuple[int, list[UsualBand]]:
    """The begin of the first hour (the one before the span), and a band for each metric of which hourly means are kept.

    Raises QueryError, ParameterError.
    """
    if begin >= end or end - begin > SPAN_MAX:
        raise ParameterError(f"the span must be at most {SPAN_MAX.days} days")
    if not 1 <= len(metrics) <= METRICS_MAX:
        raise ParameterError(f"ask for 1 to {METRICS_MAX} metrics")
    known = [name for name in dict.fromkeys(metrics) if name in _MEANS]
    first_ms = to_ms(begin) // HOUR_MS * HOUR_MS - HOUR_MS
    hours = range(first_ms, to_ms(end) + HOUR_MS, HOUR_MS)
    if not known:
        return first_ms, []
    columns = ", ".join(_MEANS[name] for name in known)
    since = from_ms(first_ms - WEEKS * _WEEK_MS - HOUR_MS)
    found = await querier.query(
        f"SELECT epoch_ms(ts), {columns} FROM gpu_1h WHERE gpu_uuid = $gpu_uuid AND ts >= $since AND ts <= $end",
        {"gpu_uuid": gpu_uuid, "since": since, "end": end},
    )
    return first_ms, await asyncio.to_thread(_bands, found, known, hours)


def _bands(found: Result, metrics: Sequence[str], hours: Sequence[int]) -> list[UsualBand]:
    """Bands from rows of an hour and its means, in the order of the metrics."""
    bands = []
    for at, name in enumerate(metrics, start=1):
        means = {row[0]: row[at] for row in found.rows if row[at] is not None}
        bands.append(band_of(name, means, hours))
    return bands
