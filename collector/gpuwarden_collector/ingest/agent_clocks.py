"""Tells of nodes whose clocks are apart from the collector's: pure, from stored batches to rows of `events`.

Rows of such a node are stored, with times that are as wrong as its clock, while they are within what is admitted.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from gpuwarden.schema import EVENTS
from gpuwarden_collector.ingest.decode import STORED_SCHEMAS
from gpuwarden_collector.ops.clock_check import apart_text

APART_S = 60.0
"""Rows are in the wrong minute. A sender reads its clock before the request, which may take ten seconds."""
TOLD_EVERY = timedelta(minutes=10)
CLOCK_APART = "node_clock_apart"


def is_apart(ahead_s: float) -> bool:
    """Whether a clock that is so far ahead of the collector's gives rows wrong times."""
    return abs(ahead_s) >= APART_S


@dataclass(slots=True)
class ClockGaps:
    """What a group of batches says of nodes' clocks; `told` itself stays as it is."""

    told: Mapping[str, datetime]
    """When an event last told of a node."""
    now: datetime
    changed: dict[str, datetime] = field(default_factory=dict)
    batches: int = 0
    """Batches of senders whose clocks are apart."""
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def note(self, nodes: Iterable[str], ahead_s: float, *, simulated: bool) -> None:
        """Take that a batch with rows of these nodes came from a clock that is apart."""
        self.batches += 1
        for node in sorted(nodes):
            told_at = self.changed.get(node) or self.told.get(node)
            if told_at is not None and self.now - told_at < TOLD_EVERY:
                continue
            self.changed[node] = self.now
            message = (
                f"the clock of {node} is {apart_text(ahead_s)} the collector's, which was confirmed: its rows have wrong"
                " times"
            )
            self._rows.append(
                {
                    "ts": self.now.replace(tzinfo=None),
                    "node": node,
                    "simulated": simulated,
                    "kind": CLOCK_APART,
                    "severity": "warning",
                    "message": message,
                    "details": json.dumps({"ahead_s": round(ahead_s, 1)}),
                }
            )

    def events(self) -> Any | None:
        """Rows of `events`; None: there is nothing to tell."""
        if not self._rows:
            return None
        return pa.Table.from_pylist(self._rows, schema=STORED_SCHEMAS[EVENTS.name])


def forgotten(told: Mapping[str, datetime], now: datetime) -> list[str]:
    """Nodes that would be told of again."""
    return [node for node, at in told.items() if now - at >= TOLD_EVERY]
