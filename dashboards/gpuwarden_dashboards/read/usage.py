"""Sums GPU hours, dollars and energy by name and category."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from gpuwarden.query import Record

SINCE = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30), "365d": timedelta(days=365)}  # fmt: skip
ROWS_MAX = 200
USED = ("productive", "busy")
"""Categories of time in which a kernel ran at full clocks."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """GPU hours and dollars of one user, job, team, node or model; `categories` splits both."""

    name: str | None
    gpu_hours: float
    usd: float | None
    wasted_hours: float
    wasted_usd: float | None
    energy_kwh: float | None
    co2_kg: float | None
    categories: Mapping[str, tuple[float, float | None]]
    """Hours and dollars by category."""
    is_running: bool | None = None
    """Whether a job has processes on GPUs now; None: not a job."""

    @property
    def used_share(self) -> float:
        """Share of the hours in which the GPU was used."""
        used = sum(self.categories[category][0] for category in USED if category in self.categories)
        return used / self.gpu_hours if self.gpu_hours else 0.0

    @property
    def wasted_share(self) -> float | None:
        """Share of the dollars that were wasted; None: no known price."""
        return (self.wasted_usd or 0.0) / self.usd if self.usd else None


SORTS: Mapping[str, Callable[[GpuUsage], float | None]] = {
    "usd": lambda one: one.usd,
    "gpu_hours": lambda one: one.gpu_hours,
    "used": lambda one: one.used_share,
    "wasted_hours": lambda one: one.wasted_hours,
    "wasted_usd": lambda one: one.wasted_usd,
    "wasted_share": lambda one: one.wasted_share,
    "energy_kwh": lambda one: one.energy_kwh,
}
"""Sort orders, largest first; `name` is ascending."""


RUNNING = "SELECT DISTINCT job FROM process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE"
"""Jobs that have processes on GPUs now."""


def usage_sql(column: str, where: str = "true") -> str:
    """SELECT of hours, dollars and energy by a column of `waste` and by category."""
    return f"""
        SELECT {column} AS name, category, is_waste, sum(gpu_hours) AS gpu_hours, sum(usd) AS usd,
            sum(energy_kwh) AS energy_kwh, sum(co2_kg) AS co2_kg
        FROM waste WHERE ts >= $begin AND ts < $end AND {where} GROUP BY ALL
    """


def usages_of(
    records: Sequence[Record], running: Sequence[Record] | None, sort: str
) -> Sequence[GpuUsage]:
    """Usage from rows of `usage_sql`; `running`: rows of `RUNNING`, for jobs."""
    jobs = None if running is None else {record["job"] for record in running}
    usages = [
        summed(name, of_it, None if jobs is None else name in jobs)
        for name, of_it in by_name(records).items()
    ]
    return sorted_usage(usages, sort)[:ROWS_MAX]


def by_name(records: Iterable[Record]) -> Mapping[str | None, list[Record]]:
    """Rows by their `name`."""
    found: dict[str | None, list[Record]] = {}
    for record in records:
        found.setdefault(record["name"], []).append(record)
    return found


def sorted_usage(usages: Sequence[GpuUsage], sort: str) -> Sequence[GpuUsage]:
    """Sorted by one of `SORTS` or by name; unknown values come last."""
    if sort == "name":
        return sorted(usages, key=lambda one: (one.name is None, one.name or ""))
    key = SORTS[sort]
    return sorted(usages, key=lambda one: (-(key(one) or 0.0), -one.gpu_hours, one.name or ""))


def summed(name: str | None, records: Sequence[Record], is_running: bool | None = None) -> GpuUsage:
    """The sum of rows of `usage_sql`."""
    categories: dict[str, tuple[float, float | None]] = {}
    for record in records:
        hours, usd = categories.get(record["category"], (0.0, None))
        categories[record["category"]] = (
            hours + record["gpu_hours"],
            known_sum((usd, record["usd"])),
        )
    wasted = [record for record in records if record["is_waste"]]
    return GpuUsage(
        name,
        sum(record["gpu_hours"] for record in records),
        _known(records, "usd"),
        sum(record["gpu_hours"] for record in wasted),
        _known(wasted, "usd"),
        _known(records, "energy_kwh"),
        _known(records, "co2_kg"),
        categories,
        is_running,
    )


def _known(records: Sequence[Record], column: str) -> float | None:
    """The sum of a column: 0 without records, None where no record has a value."""
    return known_sum(record[column] for record in records) if records else 0.0


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of the values that are known; None: none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
