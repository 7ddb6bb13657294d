"""Finds gaps of stored history, so that a replay reports them instead of "0 times".

A rule cannot judge a span in which a column that it requires has no value, or whose rollups are not
computed yet, as in the minutes after an import.
"""

from datetime import datetime, timedelta

from gpuwarden.idleness import IDLE_1M
from gpuwarden.query import Querier
from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import TABLES
from gpuwarden_rules.definition.language import Rule

Column = tuple[str, str]

SEEN: Column = ("host_1m", "samples")
"""Shows in which minutes of the past a node sent data."""
ROLLUPS_LATE = timedelta(minutes=5)
"""Younger minutes may not be rolled up yet, which is no gap."""
NODES_MAX = 100_000
_UNREADY = """
WITH samples AS (
  SELECT node, date_trunc('minute', min(ts)) AS first_at, date_trunc('minute', max(ts)) AS last_at
  FROM gpu_samples WHERE ts > $since AND ts < date_trunc('minute', $until::TIMESTAMP) GROUP BY node
),
minutes AS (
  SELECT node, min(ts) AS first_at, max(ts) AS last_at
  FROM gpu_1m WHERE ts > $since::TIMESTAMP - INTERVAL 1 MINUTE AND ts <= $until GROUP BY node
)
SELECT s.node
FROM samples s LEFT JOIN minutes m USING (node)
WHERE m.node IS NULL OR m.first_at > s.first_at OR m.last_at < s.last_at
ORDER BY s.node
"""


class KnownData:
    """Which columns have values between two instants; each column is queried once."""

    def __init__(self, querier: Querier, since: datetime, until: datetime) -> None:
        self._querier = querier
        self._since = since
        self._until = until
        self._has: dict[Column, bool] = {}

    async def lacking(self, rule: Rule) -> str | None:
        """Why the rule cannot judge the span; None where it can. Raises QueryError."""
        required = [*rule.requires]
        if ("nodes", "last_seen_at") in required:
            required.append(SEEN)
        missing = [column for column in required if not await self._is_known(column)]
        if not missing:
            return None
        tables = {table for table, _ in missing if not await self._is_known((table, ""))}
        named = [table for table in dict.fromkeys(t for t, _ in missing) if table in tables]
        named += [f"{table}.{column}" for table, column in missing if table not in tables]
        return f"no {', no '.join(named)} between {_text(self._since)} and {_text(self._until)}"

    async def unready_nodes(self, now: datetime) -> list[str]:
        """Nodes whose samples of the span are not all rolled up. Raises QueryError."""
        bound = {"since": self._since, "until": min(now - ROLLUPS_LATE, self._until)}
        result = await self._querier.query(_UNREADY, bound, row_limit=NODES_MAX)
        return [str(node) for (node,) in result.rows]

    async def _is_known(self, column: Column) -> bool:
        """Whether the column has a value; "" is any row of the table."""
        if column not in self._has:
            table, name = column
            # Events are rare: an earlier one shows that agents record them.
            since = "" if table == "events" else "AND ts > $since"
            when = f"ts <= $until {since}" if "ts" in TABLES[table].names else "true"
            known = f'AND "{name}" IS NOT NULL' if name and table != "events" else ""
            bound = {"since": self._since, "until": self._until}
            result = await self._querier.query(
                f"SELECT 1 FROM {table} WHERE {when} {known} LIMIT 1",
                {key: value for key, value in bound.items() if f"${key}" in when},
            )
            self._has[column] = bool(result.rows)
        return self._has[column]


def reads_rollups(rule: Rule) -> bool:
    """Whether the rule requires anything that is rolled up from samples."""
    return any(table in ROLLUPS or table == IDLE_1M.name for table, _ in rule.requires)


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"
