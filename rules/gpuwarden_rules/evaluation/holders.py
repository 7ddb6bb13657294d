"""Finds who suffers: the user and the job on the GPU of a new alert, where the rule's rows do not say it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.alert import Alert
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.evaluation.state import found_rows, instant_of

log = logging.getLogger(__name__)

SEEN_WITHIN = timedelta(minutes=2)
BEGAN_WITHIN = timedelta(minutes=10)
"""Of an alert that began so recently the holder counts that was there then: a GPU that is lost has no processes."""
ROWS_MAX = 100_000
COLUMNS = ("owner", "job")

Rows = Sequence[Mapping[str, Any]]

HOLDERS_SQL = """
SELECT gpu_uuid, username, job, max(ts) AS seen_at, coalesce(max(gpu_memory_bytes), 0) AS bytes, true AS is_process
FROM process_samples
WHERE ts > $since::TIMESTAMP AND ts <= $now::TIMESTAMP AND gpu_uuid IN (SELECT unnest($gpus::VARCHAR[]))
GROUP BY gpu_uuid, username, job
UNION ALL
SELECT gpu_uuid, username, job, max(ts) AS seen_at, 0 AS bytes, false AS is_process
FROM allocation_samples
WHERE ts > $since::TIMESTAMP AND ts <= $now::TIMESTAMP AND gpu_uuid IN (SELECT unnest($gpus::VARCHAR[]))
GROUP BY gpu_uuid, username, job
"""
"""Users and jobs of some GPUs, by process and by allocation."""


@dataclass(frozen=True, slots=True)
class Sought:
    """GPUs whose holder is sought, each with the instant from which on it counts."""

    since: Mapping[str, datetime]
    now: datetime

    @property
    def bindings(self) -> dict[str, Any]:
        """The parameters of HOLDERS_SQL."""
        return {"since": min(self.since.values()), "now": self.now, "gpus": [*self.since]}


def sought_by(rule: Rule, rows: Rows, state: Mapping[str, Alert], now: datetime) -> Sought | None:
    """The GPUs of new alerts whose rows do not have the columns; None: there are none. Raises RowsError."""
    if "gpu_uuid" not in rule.labels or not rows or all(name in rows[0] for name in COLUMNS):
        return None
    since = {}
    for key, (labels, row) in found_rows(rows, rule, now).items():
        if key not in state and "gpu_uuid" in labels:
            began_at = min(instant_of(row, "began_at") or now, now)
            at = began_at if now - began_at < BEGAN_WITHIN else now
            since[labels["gpu_uuid"]] = at - SEEN_WITHIN
    return Sought(since, now) if since else None


def with_holders(rows: Rows, sought: Sought, holders: Rows) -> Rows:
    """The rows with the user and the job of their GPU: those of its largest process, else of its allocation."""
    best: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for holder in holders:
        uuid = holder["gpu_uuid"]
        rank = (holder["is_process"], holder["bytes"], holder["seen_at"])
        if holder["seen_at"] > sought.since[uuid] and (uuid not in best or rank > best[uuid][0]):
            best[uuid] = rank, holder
    named = {uuid: {"owner": one["username"], "job": one["job"]} for uuid, (_, one) in best.items()}
    return [{**named.get(str(row.get("gpu_uuid")), {}), **row} for row in rows]


async def rows_with_holders(
    rule: Rule, rows: Rows, state: Mapping[str, Alert], querier: Querier, now: datetime
) -> Rows:
    """The rows of an evaluation with who suffers. Raises RowsError as `step` does."""
    sought = sought_by(rule, rows, state, now)
    if sought is None:
        return rows
    try:
        answer = await querier.query(HOLDERS_SQL, sought.bindings, row_limit=ROWS_MAX)
    except QueryError as error:
        # An alert does not wait for the name of a person.
        log.warning("holders of GPUs are not read", extra={"rule": rule.name, "reason": str(error)})
        return rows
    return with_holders(rows, sought, answer.records())
