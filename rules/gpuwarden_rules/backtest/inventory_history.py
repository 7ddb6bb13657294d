"""Reconstructs `nodes` and `gpus` as they were at an instant of the past, for replays.

The tables hold when each node and GPU was last seen as of now. In a replay a node was seen at all times
except while `host_1m` has no minutes of it, a GPU at all times, and neither before it was first seen. Late
batches fill minutes: such a node counts as seen, although it was silent then.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from gpuwarden.query import Querier
from gpuwarden_rules.definition import sql_text
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.evaluation.state import RowsError

OUTAGES_MAX = 50_000
LOOKED_BACK = timedelta(days=8)
"""How far back outages are read: a node that was silent for longer was taken away."""

_COLUMN = "last_seen_at"
_SPANS = """
WITH hours AS (
  SELECT node, date_trunc('hour', ts) AS hour, bit_or(1::BIGINT << minute(ts)) AS heard
  FROM host_1m WHERE ts > $since AND ts <= $until AND samples > 0
  GROUP BY node, date_trunc('hour', ts)
),
-- Whole hours stay whole: a fleet has too many minutes in weeks to sort them.
spans AS (
  SELECT node, hour AS from_at, hour + INTERVAL 1 HOUR AS until_at FROM hours WHERE heard = (1::BIGINT << 60) - 1
  UNION ALL
  SELECT node, hour + to_minutes(m), hour + to_minutes(m + 1)
  FROM hours, range(60) minutes(m)
  WHERE heard <> (1::BIGINT << 60) - 1 AND heard & (1::BIGINT << m) <> 0
)
"""
_SILENCES = f"""{_SPANS}
SELECT node, silent_from AS from_at, from_at AS until_at
FROM (SELECT node, from_at, lag(until_at) OVER (PARTITION BY node ORDER BY from_at) AS silent_from FROM spans)
WHERE silent_from < from_at
ORDER BY node, until_at
"""
_LAST_HEARD = f"""{_SPANS}
SELECT s.node, greatest(max(s.until_at), any_value(n.last_seen_at)) AS from_at
FROM spans s JOIN nodes n ON n.node = s.node
GROUP BY s.node
HAVING from_at < $until
"""
_NODES = """(
  SELECT
    n.* REPLACE (
      CASE WHEN n.first_seen_at > $now::TIMESTAMP THEN NULL
           ELSE least(n.last_seen_at, coalesce(s.from_at, $now::TIMESTAMP))
      END AS last_seen_at
    )
  FROM main.nodes n LEFT JOIN (
    SELECT silence.node, silence.from_at
    FROM (SELECT unnest(from_json($silences,
      '[{"node": "VARCHAR", "from_at": "TIMESTAMP", "until_at": "TIMESTAMP"}]')) AS silence)
    WHERE silence.from_at <= $now::TIMESTAMP AND silence.until_at > $now::TIMESTAMP
  ) s ON s.node = n.node
)"""
_GPUS = """(
  SELECT
    g.* REPLACE (
      CASE WHEN g.first_seen_at > $now::TIMESTAMP THEN NULL
           ELSE least(g.last_seen_at, $now::TIMESTAMP)
      END AS last_seen_at,
      CASE WHEN r.first_seen_at > $now::TIMESTAMP THEN NULL ELSE g.replaced_by END AS replaced_by
    )
  FROM main.gpus g LEFT JOIN main.gpus r ON r.gpu_uuid = g.replaced_by
)"""
_INVENTORY = {"nodes": _NODES, "gpus": _GPUS}


class NodeOutage(NamedTuple):
    """A node sent nothing between two instants."""

    node: str
    from_at: datetime
    until_at: datetime


@dataclass(frozen=True, slots=True)
class InventoryHistory:
    """Makes the SQL of a rule read the inventory as it was."""

    silences: Sequence[NodeOutage] = ()

    def as_of(self, rule: Rule, instants: Sequence[datetime]) -> Rule:
        """The rule for these instants, with `nodes` and `gpus` as they were at `$now`."""
        plain = sql_text.without_texts(rule.sql)
        own = sql_text.with_names(plain)
        found = [
            read
            for read in sql_text.table_reads(plain)
            if read.name in _INVENTORY and read.name not in own
        ]
        sql = sql_text.with_tables_from(rule.sql, found, lambda name: _INVENTORY[name.lower()])
        first, last = min(instants), max(instants)
        outages = [
            {
                "node": s.node,
                "from_at": sql_text.timestamp_text(s.from_at),
                "until_at": sql_text.timestamp_text(s.until_at),
            }
            for s in self.silences
            if s.from_at <= last and s.until_at > first
        ]
        params = {**rule.params, "silences": json.dumps(outages)}
        names = frozenset(parameter.name for parameter in sql_text.parameters(sql))
        return replace(rule, sql=sql, params=params, parameters=names)


async def inventory_history_of(
    rule: Rule, querier: Querier, since: datetime, until: datetime
) -> InventoryHistory | None:
    """The history that a replay of the rule needs; None: the rule does not read when something was last seen.

    Raises QueryError, and RowsError when there were too many silences.
    """
    plain = sql_text.without_texts(rule.sql).lower()
    if _COLUMN not in plain:
        return None
    if not any(read.name == "nodes" for read in sql_text.table_reads(plain)):
        return InventoryHistory()
    return InventoryHistory(await _silences(querier, since, until))


async def outages_between(
    querier: Querier, since: datetime, until: datetime
) -> Sequence[NodeOutage]:
    """Outages of nodes, also of those that never came back; for all rules of a replay.

    Raises QueryError, and RowsError when there were too many.
    """
    bound = {"since": since - LOOKED_BACK, "until": until}
    gone = await querier.query(_LAST_HEARD, bound, row_limit=OUTAGES_MAX)
    ended = await _silences(querier, since, until)
    after = until + timedelta(seconds=1)
    return [*ended, *(NodeOutage(node, from_at, after) for node, from_at in gone.rows)]


async def _silences(querier: Querier, since: datetime, until: datetime) -> list[NodeOutage]:
    bound = {"since": since - LOOKED_BACK, "until": until}
    result = await querier.query(_SILENCES, bound, row_limit=OUTAGES_MAX)
    if result.truncated:
        raise RowsError(f"nodes fell silent more than {OUTAGES_MAX:,} times; shorten --since")
    return [NodeOutage(*row) for row in result.rows]
