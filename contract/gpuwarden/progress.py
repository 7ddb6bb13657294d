"""Reads what a job reported of its progress: tokens and steps a second, and what one of them cost in dollars and joules.

A total counts from its first report in the time, so that rates are of the time between first and last report. Reports count
if their owner is a user of the job. The uids of a pod are its own, so that its
reports count without that check. Except for the SQL, all is pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.query import Querier, query_all
from gpuwarden.schema import PROGRESS_COUNTED

SAMPLES_UNDER = timedelta(minutes=15)
"""Power of a shorter time is read from samples: its minutes may not be there yet."""
MEASURED_MIN = 0.8
"""Share of the GPU minutes that must have a reading of power."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What was reported by one name."""

    name: str
    amount: float
    """Between the first and the last report, of all senders."""
    first_at: datetime
    last_at: datetime
    senders: int
    usd_per_hour: float | None = None
    """Of the job's GPUs; None: of one of them no price is known."""
    watts: float | None = None
    """Mean of the job's GPUs together; None: not read."""

    @property
    def one(self) -> str:
        """The name of one."""
        return self.name.removesuffix("s")

    @property
    def seconds(self) -> float:
        """From the first report to the last."""
        return (self.last_at - self.first_at).total_seconds()

    @property
    def per_second(self) -> float | None:
        """Rate; None: there is one report alone."""
        return self.amount / self.seconds if self.seconds > 0 else None

    @property
    def usd_each(self) -> float | None:
        """Dollars of one; None: no price, or nothing was done."""
        rate = self.per_second
        return self.usd_per_hour / 3600 / rate if rate and self.usd_per_hour is not None else None

    @property
    def usd_a_million(self) -> str | None:
        """Dollars of a million in words: cents, and three digits below a dime."""
        if self.usd_each is None:
            return None
        million = 1e6 * self.usd_each
        digits = 2 if million >= 0.1 or million <= 0 else 2 - math.floor(math.log10(million))
        return f"{million:,.{digits}f}"

    @property
    def joules_each(self) -> float | None:
        """Energy of the GPUs for one; None: power was not read, or nothing was done."""
        rate = self.per_second
        return self.watts / rate if rate and self.watts is not None else None

    def record(self) -> Mapping[str, Any]:
        """For JSON."""
        return {
            **asdict(self), "first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat(),
            "per_second": self.per_second, "usd_each": self.usd_each, "joules_each": self.joules_each,
        }  # fmt: skip


_REPORTED = """
SELECT name, sum(CASE WHEN before IS NULL THEN 0 WHEN value < before THEN value ELSE value - before END) AS amount,
    min(ts) AS first_at, max(ts) AS last_at, count(DISTINCT (node, source, sender)) AS senders
FROM (
    SELECT ts, node, source, sender, name, value, lag(value) OVER (PARTITION BY node, source, sender, name ORDER BY ts) AS before
    FROM progress_samples
    WHERE ts >= $begin::TIMESTAMP AND ts < $end::TIMESTAMP AND job = $job AND name IN ({names})
        AND (pod IS NOT NULL OR username IN (SELECT unnest($users)))
)
GROUP BY name ORDER BY name DESC
"""
_GPUS = """
SELECT gpu_uuid, usd_per_hour FROM gpus WHERE gpu_uuid IN (SELECT unnest($gpus))
"""
_POWER = """
SELECT avg({power}) * count(DISTINCT gpu_uuid) AS watts, count({power}) / count(*) AS measured
FROM {table} WHERE ts >= {first} AND ts <= $last::TIMESTAMP AND gpu_uuid IN (SELECT unnest($gpus))
HAVING count(*) > 0
"""
_OF_MINUTES = _POWER.format(
    power="power_watts_avg", table="gpu_1m", first="date_trunc('minute', $first::TIMESTAMP)"
)
_OF_SAMPLES = _POWER.format(power="power_watts", table="gpu_samples", first="$first::TIMESTAMP")


async def read_progress(
    querier: Querier,
    job: str,
    users: Sequence[str],
    gpus: Sequence[str],
    begin: datetime,
    end: datetime,
) -> Sequence[JobProgress]:
    """What a job on these GPUs reported, tokens first; none: it reported nothing. Raises QueryError."""
    names = ", ".join(f"'{name}'" for name in PROGRESS_COUNTED)
    sql = _REPORTED.format(names=names)
    asked = {"job": job, "users": list(users), "begin": begin, "end": end}
    found = (await querier.query(sql, asked)).records()
    reported = sorted(
        (JobProgress(**row) for row in found), key=lambda one: PROGRESS_COUNTED.index(one.name)
    )
    if not reported or not gpus:
        return reported
    first, last = min(one.first_at for one in reported), max(one.last_at for one in reported)
    uuids = list(gpus)
    power_sql = _OF_SAMPLES if last - first < SAMPLES_UNDER else _OF_MINUTES
    priced, powered = await query_all(
        querier,
        [(_GPUS, {"gpus": uuids}), (power_sql, {"gpus": uuids, "first": first, "last": last})],
    )
    prices = [row["usd_per_hour"] for row in priced.records()]
    is_priced = len(prices) == len(set(uuids)) and None not in prices
    power = powered.records()
    watts = power[0]["watts"] if power and power[0]["measured"] >= MEASURED_MIN else None
    return [
        JobProgress(
            one.name,
            one.amount,
            one.first_at,
            one.last_at,
            one.senders,
            sum(prices) if is_priced else None,
            watts,
        )
        for one in reported
    ]


def sentence(one: JobProgress) -> str:
    """Rate and costs in words; what is not known is left out."""
    said = f"{one.amount:,.0f} {one.name} reported"
    rate = one.per_second
    if not rate:
        return f"{said}: no rate, without two reports between which they grew."
    said += f", {number(rate)} a second"
    if one.usd_each is not None:
        said += (
            f"; ${one.usd_a_million} a million"
            if one.usd_each < 0.001
            else f"; ${one.usd_each:,.4f} a {one.one}"
        )
    else:
        said += "; no dollars: a GPU has no price"
    if one.joules_each is not None:
        return f"{said}; {number(one.joules_each)} J a {one.one}."
    return f"{said}; no joules: power was not read."


def number(value: float) -> str:
    """Three digits, more if it is large."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
