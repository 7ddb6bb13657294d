"""Reads the waste report: the lines of `gpuwarden report waste` and `report energy`, and advice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwarden.query import Querier, Record, query_all
from gpuwarden.waste import LABELS, NO_WASTE
from gpuwarden.waste_report import full_report_sql
from gpuwarden_dashboards.read.usage import known_sum

LINES_MAX = 50
VERDICTS_MAX = 10
_ENERGY = ("energy_kwh", "wasted_kwh", "energy_usd", "co2_kg")
_SUMS = (*LABELS, "gpu_hours", "usd", "wasted_usd", *_ENERGY)
_VERDICTS = f"""
SELECT coalesce(job, node || coalesce(' GPU ' || gpu, '')) AS subject, owner, any_value(advice) AS advice,
    arg_max(summary, seen_at) AS summary, max(ended_at IS NULL) AS is_open,
    sum(usd_per_hour * date_diff('millisecond', greatest(began_at, $since::TIMESTAMP),
        coalesce(ended_at, seen_at)) / 3.6e6) AS usd
FROM diagnoses
WHERE kind = 'gpu' AND advice IS NOT NULL AND usd_per_hour > 0
    AND coalesce(ended_at, seen_at) > $since::TIMESTAMP
GROUP BY ALL HAVING usd > 0 ORDER BY usd DESC LIMIT {VERDICTS_MAX}
"""


@dataclass(frozen=True, slots=True)
class WasteReport:
    """One line per name, most waste first."""

    lines: Sequence[Record]
    total: Record | None
    """None: no GPU reported."""
    verdicts: Sequence[Record]
    """Findings and advice of the diagnosis, most expensive first."""

    @property
    def labels(self) -> Sequence[str]:
        """Labels with any hours."""
        return [label for label in LABELS if self.total and self.total[label]]

    @property
    def wasted(self) -> Sequence[tuple[str, float]]:
        """Labels of waste with their GPU hours, most first."""
        found = [(label, self.total[label]) for label in self.labels if self.total]
        return sorted((one for one in found if one[0] not in NO_WASTE), key=lambda one: -one[1])


async def read_waste(querier: Querier, by: str, since: datetime) -> WasteReport:
    """The report by one of `waste_report.BY`, from the start of an hour until now. Raises QueryError."""
    asked = [(sql, {"since": since}) for sql in (full_report_sql(by), _VERDICTS)]
    lines, verdicts = (result.records() for result in await query_all(querier, asked))
    names = [line for line in lines if not line["is_total"]]
    total = next((line for line in lines if line["is_total"]), None) if names else None
    return WasteReport(_cut(names), total, verdicts)


def _cut(lines: Sequence[Record]) -> Sequence[Record]:
    """At most LINES_MAX lines, and one with the sums of the others."""
    rest = lines[LINES_MAX:]
    if not rest:
        return lines
    sums = {name: known_sum(line[name] for line in rest) for name in _SUMS}
    return [*lines[:LINES_MAX], {"name": None, "others": len(rest), **sums}]
