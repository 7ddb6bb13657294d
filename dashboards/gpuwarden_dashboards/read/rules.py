"""Reads the alerts of rules in the last 30 days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.alert import PLACE_SQL, USD_SO_FAR_SQL, WORST_FIRST
from gpuwarden.query import Querier, Record, query_all
from gpuwarden_dashboards.read.usage import known_sum

SPAN = timedelta(days=30)
EPISODES_MAX = 1_000
FIRING_MAX = 100

_FIRED = (
    "SELECT rule, count(*) AS fired FROM alerts WHERE fired_at >= $since::TIMESTAMP GROUP BY rule"
)
_FIRING = f"""
SELECT *, {USD_SO_FAR_SQL} AS usd_so_far, count(*) OVER () AS total FROM alerts
WHERE rule = $rule AND state = 'firing' ORDER BY {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at
LIMIT {FIRING_MAX}
"""
_EPISODES = f"""
SELECT {PLACE_SQL} AS place, fired_at, resolved_at, summary, severity, {USD_SO_FAR_SQL} AS usd_so_far,
    count(*) OVER () AS total
FROM alerts WHERE rule = $rule AND fired_at IS NOT NULL AND coalesce(resolved_at, $now::TIMESTAMP) >= $since::TIMESTAMP
ORDER BY fired_at DESC LIMIT {EPISODES_MAX}
"""


@dataclass(frozen=True, slots=True)
class RuleHistory:
    """Firing alerts and past episodes of a rule."""

    name: str
    now: datetime
    firing: Sequence[Record]
    episodes: Sequence[Record]
    """Newest first."""

    @property
    def usd(self) -> float | None:
        """Cost of the listed episodes; None: unknown."""
        return known_sum(one["usd_so_far"] for one in self.episodes)


async def read_fired(querier: Querier, now: datetime) -> Mapping[str, int]:
    """How many times each rule fired, by name. Raises QueryError."""
    found = await querier.query(_FIRED, {"since": now - SPAN})
    return dict(found.rows)


async def read_rule_history(querier: Querier, name: str, now: datetime) -> RuleHistory:
    """The history of a rule, which may be deleted; empty for an unknown name. Raises QueryError."""
    asked: list[tuple[str, dict[str, object]]] = [
        (_FIRING, {"rule": name}),
        (_EPISODES, {"rule": name, "now": now, "since": now - SPAN}),
    ]
    firing, episodes = (result.records() for result in await query_all(querier, asked))
    return RuleHistory(name, now, firing, episodes)
