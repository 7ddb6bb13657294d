"""Explains why an alert fires: the row of the rule, its thresholds, and a timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.alert import fingerprint
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.definition.charts import RuleChart, charts_of
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.evaluation.state import RowsError, labels_of

EPISODES_MAX = 20

_EPISODES_SQL = f"""
SELECT rule, state, severity, labels, summary, remedy, value, usd_per_hour, owner, muted,
       began_at, active_at, fired_at, unknown_since, resolved_at, seen_at,
       stale_since, resolved_reason
FROM alerts WHERE fingerprint = $fingerprint ORDER BY active_at DESC LIMIT {EPISODES_MAX}
"""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The episodes of an alert, its rule and the rows behind it."""

    episodes: list[dict[str, Any]]
    """Rows of `alerts`, the newest first."""
    sql: str | None
    """The rule's SQL; None: the rule was deleted, or has none."""
    params: Mapping[str, Any]
    """Parameters of the SQL, with overrides applied."""
    rows: list[tuple[str, datetime, Mapping[str, Any] | str | None]]
    """Label ("when it fired", "now"), instant, and row; a text where the query failed, None where no row was returned."""
    charts: Sequence[RuleChart] = ()
    """Metrics to draw, with the thresholds of this alert."""

    def timeline(self) -> list[tuple[datetime, str]]:
        """The changes of state, oldest first."""
        happened = []
        for episode in self.episodes:
            names = {
                "began_at": "began, as the samples say",
                "active_at": "found: pending",
                "fired_at": "fired",
                "unknown_since": "unknown: the samples do not say whether it still holds",
                "stale_since": "stale: the node sends nothing",
                "resolved_at": "resolved"
                + (f": {reason}" if (reason := episode["resolved_reason"]) else ""),
            }
            if episode["fired_at"] == episode["active_at"]:
                del names["active_at"]
            happened += [(at, what) for name, what in names.items() if (at := episode[name])]
        # The sort is stable: equal instants keep the order of the life cycle.
        return sorted(happened, key=lambda entry: entry[0])


async def explanation(
    engine: RuleEngine,
    querier: Querier,
    wanted: str,
    now: datetime,
    active_at: datetime | None = None,
) -> Explanation | None:
    """The explanation of the alert with this fingerprint; None: there is none. Raises QueryError.

    `active_at`: the episode that is explained first; None: the newest.
    """
    found = (await querier.query(_EPISODES_SQL, {"fingerprint": wanted})).records()
    if not found:
        return None
    found.sort(key=lambda episode: episode["active_at"] != active_at)
    rule = next((rule for rule in engine.rules if rule.name == found[0]["rule"]), None)
    if rule is None:
        return Explanation(found, None, {}, [])
    rows: list[tuple[str, datetime, Mapping[str, Any] | str | None]] = []
    params: dict[str, Any] = dict(rule.params)
    judged: dict[str, Any] = {}
    for when, at in (("when it fired", found[0]["fired_at"]), ("now", now)):
        if at is None:
            continue
        try:
            row = next(
                (
                    row
                    for row in await engine.rows_at(rule.name, at)
                    if fingerprint(rule.name, labels_of(row, rule)) == wanted
                ),
                None,
            )
        except (QueryError, RowsError) as error:
            rows.append((when, at, str(error)))
            continue
        if row is not None:
            params = {name: row.get(name, value) for name, value in params.items()}
            judged = judged or dict(row)
        shown = {k: v for k, v in row.items() if k not in rule.params} if row is not None else None
        rows.append((when, at, shown))
    return Explanation(found, rule.sql, params, rows, charts_of(rule, {**params, **judged}))
