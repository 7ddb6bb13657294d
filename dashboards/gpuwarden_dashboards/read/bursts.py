"""Reads the bursts of a GPU: what its mean of a second hides."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from gpuwarden.clock import to_ms
from gpuwarden.query import Querier

BURSTS_MAX = 10
POINTS_MAX = 300
"""Steps of a burst's chart; each has its greatest and least value."""
SINCE = timedelta(days=7)
_BURSTS = f"""
WITH newest AS (
    SELECT burst FROM burst_samples WHERE gpu_uuid = $gpu_uuid AND ts > $since::TIMESTAMP
    GROUP BY burst ORDER BY min(ts) DESC LIMIT {BURSTS_MAX}
),
samples AS (
    SELECT *, min(ts) OVER burst AS begin, max(ts) OVER burst AS end
    FROM burst_samples WHERE gpu_uuid = $gpu_uuid AND ts > $since::TIMESTAMP AND burst IN (FROM newest)
    WINDOW burst AS (PARTITION BY burst)
),
steps AS (
    SELECT burst, metric, source, begin, "end", value, date_trunc('second', ts) AS second,
        least({POINTS_MAX - 1}, floor(date_diff('millisecond', begin, ts) * {POINTS_MAX}
            / greatest(1, date_diff('millisecond', begin, "end"))))::INTEGER AS step
    FROM samples
),
seconds AS (
    SELECT burst, metric, source, min(mean) AS least_second, max(mean) AS greatest_second FROM (
        SELECT burst, metric, source, avg(value) AS mean FROM steps GROUP BY burst, metric, source, second
    ) GROUP BY ALL
),
summed AS (
    SELECT burst, metric, source, count(*) AS samples, min(value) AS least, avg(value) AS mean, max(value) AS greatest,
        quantile_cont(value, 0.95) AS p95
    FROM steps GROUP BY ALL
)
SELECT burst, metric, source, begin, "end", step, min(value) AS low, max(value) AS high, samples, summed.least, summed.mean,
    p95, summed.greatest, least_second, greatest_second
FROM steps JOIN summed USING (burst, metric, source) JOIN seconds USING (burst, metric, source)
GROUP BY ALL ORDER BY begin DESC, burst, metric, source, step
"""


@dataclass(frozen=True, slots=True)
class BurstLine:
    """One metric of a burst from one source."""

    metric: str
    source: str
    samples: int
    least: float
    mean: float
    p95: float
    greatest: float
    least_second: float
    greatest_second: float
    values: Sequence[float | None]
    """Of each step its least and greatest value, in turn; None: it has no sample."""


@dataclass(frozen=True, slots=True)
class StoredBurst:
    """A burst of a GPU."""

    burst: str
    begin_ms: int
    end_ms: int
    lines: Sequence[BurstLine]


async def read_bursts(querier: Querier, gpu_uuid: str, now: datetime) -> list[StoredBurst]:
    """The newest bursts of a GPU, of the last week. Raises QueryError."""
    params = {"gpu_uuid": gpu_uuid, "since": now - SINCE}
    result = await querier.query(_BURSTS, params, row_limit=BURSTS_MAX * 12 * POINTS_MAX)
    found = []
    for (burst, begin, end), of_burst in groupby(result.rows, lambda row: (row[0], row[3], row[4])):
        lines = []
        for (metric, source), of_line in groupby(of_burst, lambda row: (row[1], row[2])):
            rows = list(of_line)
            values: list[float | None] = [None] * (2 * POINTS_MAX)
            for row in rows:
                values[2 * row[5]], values[2 * row[5] + 1] = round(row[6], 2), round(row[7], 2)
            samples, least, mean, p95, greatest, least_second, greatest_second = rows[0][8:15]
            lines.append(
                BurstLine(
                    metric,
                    source,
                    samples,
                    least,
                    mean,
                    p95,
                    greatest,
                    least_second,
                    greatest_second,
                    _held(values),
                )
            )
        found.append(StoredBurst(burst, to_ms(begin), to_ms(end), lines))
    return found


def _held(values: Sequence[float | None]) -> list[float | None]:
    """Between two samples the older one holds."""
    last: float | None = None
    held = []
    for value in values:
        last = last if value is None else value
        held.append(last)
    return held
