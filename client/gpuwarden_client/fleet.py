"""Gives Python the fleet: SQL, and the most frequent questions as methods."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.clock import SystemClock
from gpuwarden.cookbook import question_named
from gpuwarden.durations import instant_before
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden.waste_report import BY, report_sql
from gpuwarden_client.http import CallError, CollectorEndpoint, RefusedError
from gpuwarden_client.query import FleetQuery, Progress

LATE_S = 10.0
"""How far back each query of a live stream reads: batches arrive seconds after the time of their rows."""
LIVE_ROWS_MAX = 50_000
"""Most rows of one query of a live stream."""

_GPUS = "SELECT * FROM gpus_now WHERE $node IS NULL OR node = $node ORDER BY node, gpu"
_NODES = """
SELECT n.*, s.* EXCLUDE (node, ts, simulated), s.ts AS sampled_at
FROM nodes n LEFT JOIN nodes_now s USING (node)
WHERE n.forgotten_at IS NULL ORDER BY n.node
"""
_ALERTS = """
SELECT * FROM alerts WHERE $state IS NULL OR state = $state
ORDER BY fired_at DESC NULLS LAST, rule, fingerprint
"""
_INCIDENTS = """
SELECT i.*, c.usd_so_far FROM incidents i LEFT JOIN incident_costs c ON c.incident = i.id
WHERE $state IS NULL OR i.state = $state ORDER BY i.began_at DESC, i.id
"""
_CHANGED = """
SELECT * FROM alerts
WHERE state = 'firing' OR (state = 'resolved' AND resolved_at > $since::TIMESTAMP - INTERVAL 1 DAY)
ORDER BY fired_at
"""
_WHY = """
WITH asked AS (
    SELECT DISTINCT gpu_uuid, node FROM gpus
    WHERE node = $name OR format('{}/{}', node, gpu) = $name
        OR (length($name) >= 4 AND starts_with(lower(gpu_uuid), lower($name)))
)
SELECT 'diagnosis' AS kind, subject AS what, bottleneck AS finding, confidence, summary, advice,
    usd_per_hour, node, gpu, job, username AS owner, began_at AS since
FROM diagnoses
WHERE ended_at IS NULL
    AND (subject IN (SELECT gpu_uuid FROM asked) OR $name IN (job, subject))
UNION ALL
SELECT 'alert', rule, severity, NULL, summary, remedy, usd_per_hour, node, gpu, NULL, owner, began_at
FROM alerts_now
WHERE state = 'firing' AND (gpu_uuid IN (SELECT gpu_uuid FROM asked)
    OR (gpu_uuid IS NULL AND node IN (SELECT node FROM asked)) OR node = $name)
ORDER BY kind DESC, since
"""


def connect(url: str | None = None, token: str | None = None, *, ca: str | None = None) -> "Fleet":
    """A collector to query. Nothing is sent before the first query.

    `ca`: file of the authority that signed its certificate. Defaults come from the environment:
    GPUWARDEN_URL (else this machine), GPUWARDEN_TOKEN or GPUWARDEN_TOKEN_FILE, GPUWARDEN_CA.
    """
    return Fleet(CollectorEndpoint.of(url, token, ca))


class Fleet:
    """The data of a collector. Every query raises CallError when it fails."""

    def __init__(self, collector: CollectorEndpoint) -> None:
        self.collector = collector

    def sql(
        self,
        sql: str,
        /,
        *,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        progress: Progress | None = None,
        row_limit: int | None = None,
        **more: Any,
    ) -> FleetQuery:
        """One SELECT; `$name` in it takes `name=…`, or `params["name"]`. Times must be aware.

        `row_limit`: most rows; None: the collector's limit, 100,000. For many rows use `batches`, which holds
        none of them.
        """
        bound = {**(params or {}), **more}
        return FleetQuery(
            self.collector,
            sql,
            bound,
            timeout_s=timeout_s,
            progress=progress,
            row_limit=row_limit,
        )

    def ask(self, question: str, /, **params: Any) -> FleetQuery:
        """A question of the cookbook: `ask("idle-holders", since="1d")`; `gpuwarden ask` lists them."""
        try:
            found = question_named(question)
            values = found.values({name: str(value) for name, value in params.items()}, _now())
        except ValueError as error:
            raise CallError(str(error)) from error
        return self.sql(found.sql, params=values)

    def gpus(self, node: str | None = None) -> FleetQuery:
        """The newest sample of each GPU that reported in the last minute, with its inventory."""
        return self.sql(_GPUS, node=node)

    def nodes(self) -> FleetQuery:
        """Every node, with its newest host sample."""
        return self.sql(_NODES)

    def alerts(self, state: str | None = "firing") -> FleetQuery:
        """Alerts, newest first; `state`: firing, pending, resolved; None: all that are kept."""
        return self.sql(_ALERTS, state=state)

    def incidents(self, state: str | None = "open") -> FleetQuery:
        """Incidents with what they cost, newest first; `state`: open, resolved; None: all."""
        return self.sql(_INCIDENTS, state=state)

    def waste(self, by: str = "username", since: str = "7d") -> FleetQuery:
        """GPU hours by category, dollars and energy, total and wasted, by user, team, job, node, model or GPU."""
        if by not in BY:
            raise CallError(f"by = {by} is unknown; it must be one of {', '.join(BY)}")
        begin = _hour_before(_now(), since)
        sql = f"SELECT * EXCLUDE (is_total) FROM ({report_sql(by)}) WHERE NOT is_total"
        return self.sql(sql, since=begin, timeout_s=120)

    def why(self, name: str) -> FleetQuery:
        """Why a GPU (UUID or `node/index`), a node or a job is slow: verdicts, then alerts."""
        return self.sql(_WHY, name=name)

    def live(
        self,
        /,
        table: str = "gpu_samples",
        *,
        every_s: float = 1.0,
        timeout_s: float = 60.0,
        **where: Any,
    ) -> Iterator[dict[str, Any]]:
        """New rows of a table of samples or events as they arrive, without end.

        `where`: columns that must be equal, as `node="n1"`. Waits up to `timeout_s` for a collector that is
        away. Skips rows that arrive more than LATE_S after their time.
        """
        known = TABLES.get(table)
        if known is None or "ts" not in known.key:
            names = ", ".join(sorted(name for name, t in TABLES.items() if "ts" in t.key))
            raise CallError(f"table = {table} cannot be streamed; tables that can: {names}")
        columns = {column.name for column in stored_columns(known)}
        for name in where:
            if name not in columns:
                raise CallError(f"{table} has no column {name}")
        asked = "".join(f' AND "{name}" = ${name}' for name in where)
        sql = f"SELECT * FROM {table} WHERE ts > $since::TIMESTAMP{asked} ORDER BY ts LIMIT {LIVE_ROWS_MAX}"
        return self._live(sql, known.key, every_s, timeout_s, where)

    def _live(
        self,
        sql: str,
        key: Sequence[str],
        every_s: float,
        timeout_s: float,
        where: Mapping[str, Any],
    ) -> Iterator[dict[str, Any]]:
        begin = _now()
        seen: dict[tuple[Any, ...], datetime] = {}
        answered_s = time.monotonic()
        while True:
            # Batches of nodes arrive in any order: keys of the last LATE_S are remembered.
            since = max(begin, max(seen.values(), default=begin) - timedelta(seconds=LATE_S))
            try:
                rows = self.sql(sql, params={**where, "since": since}).rows()
            except RefusedError:
                raise
            except CallError:
                if time.monotonic() - answered_s > timeout_s:
                    raise
                rows = []
            else:
                answered_s = time.monotonic()
            seen = {row_key: ts for row_key, ts in seen.items() if ts > since}
            for row in rows:
                row_key = tuple(row[name] for name in key)
                if row_key not in seen:
                    seen[row_key] = row["ts"]
                    yield row
            time.sleep(every_s)

    def live_alerts(self, *, every_s: float = 5.0) -> Iterator[dict[str, Any]]:
        """Alerts when they start to fire and when they resolve, without end; firing ones come first."""
        states: dict[tuple[str, datetime], str] = {}
        since = _now()
        while True:
            for row in self.sql(_CHANGED, since=since).rows():
                row_key, state = (row["fingerprint"], row["active_at"]), row["state"]
                if states.get(row_key) != state and (state == "firing" or row_key in states):
                    yield row
                states[row_key] = state
            states = {row_key: state for row_key, state in states.items() if state != "resolved"}
            time.sleep(every_s)


def _hour_before(now: datetime, since: str) -> datetime:
    """Start of the hour that far in the past. Raises CallError."""
    try:
        begin = instant_before(now, since, "since =")
    except ValueError as error:
        raise CallError(str(error)) from error
    return begin.replace(minute=0, second=0, microsecond=0)


def _now() -> datetime:
    return SystemClock().now()
