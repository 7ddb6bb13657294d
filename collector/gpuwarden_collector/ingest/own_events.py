"""Builds the events that the collector itself adds to a commit: warnings about nodes and GPUs."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from gpuwarden.schema import EVENTS
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS

REPEAT_AFTER = timedelta(minutes=10)
"""An event about the same node or GPU is stored at most once in this time."""


def warning(
    kind: str,
    node: str,
    message: str,
    details: Mapping[str, Any],
    *,
    now: datetime,
    simulated: bool,
    gpu_uuid: str | None = None,
) -> dict[str, Any]:
    """A row of `events` with severity warning."""
    return {
        "ts": now.replace(tzinfo=None),
        "node": node,
        "gpu_uuid": gpu_uuid,
        "simulated": simulated,
        "kind": kind,
        "severity": "warning",
        "message": message,
        "details": json.dumps(details, sort_keys=True),
    }


def event_table(rows: Sequence[Mapping[str, Any]]) -> Any | None:
    """The rows as an Arrow table; None: there are no rows."""
    return pa.Table.from_pylist(rows, schema=STORED_SCHEMAS[EVENTS.name]) if rows else None
