"""Decides until when the GPUs of a node are billed; pure.

A node has left when its agent stopped in order or when an operator forgets the node, and is back when it sends again.
After a crash its GPUs are billed for as long as the price book says.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from gpuwarden_collector.ingest.inventory import Item, Row
from gpuwarden_collector.ingest.late_rows import LATE_SCHEMA
from gpuwarden_collector.ingest.prices import Billing

_HOUR = timedelta(hours=1)
HOURS_BACK_MAX = 72
"""Forgetting a node takes back the cost of at most these hours."""


def has_left(row: Row) -> bool:
    """Whether the GPUs of the node are no longer billed."""
    return row.get("unbilled_from") is not None and row.get("unbilled_until") is None


def moved(
    nodes: Mapping[str, Item],
    events: Any | None,
    heard: Iterable[str],
    left: set[str],
    billing: Billing,
    now: datetime,
) -> dict[str, Item]:
    """Nodes that have left or are back. `events`: Arrow table of the agents' events, in order; `heard`: nodes with
    rows of any table; `left`: nodes that had left before."""
    changed: dict[str, Item] = {}
    stopped = _stopped(events)
    for node in stopped & nodes.keys():
        gone = {"unbilled_from": now + billing.after_stop, "unbilled_until": None}
        changed[node] = Item({**nodes[node].row, **gone}, nodes[node].source)
    for node in (left & set(heard)) - stopped:
        back = {"unbilled_until": now, "forgotten_at": None}
        changed[node] = Item({**nodes[node].row, **back}, nodes[node].source)
    return changed


def _stopped(events: Any | None) -> set[str]:
    """Nodes whose last start or stop event is a stop."""
    if events is None:
        return set()
    kinds = zip(events["node"].to_pylist(), events["kind"].to_pylist(), strict=True)
    last = {node: kind for node, kind in kinds if kind in ("agent_started", "agent_stopped")}
    return {node for node, kind in last.items() if kind == "agent_stopped"}


def forgotten(item: Item, last_seen_at: datetime | None, billing: Billing, now: datetime) -> Item:
    """The row of a node that an operator forgets: it left when it was last seen."""
    row = {**item.row, "forgotten_at": now}
    if not has_left(item.row):
        since = min(last_seen_at.replace(tzinfo=UTC) if last_seen_at else now, now)
        row |= {"unbilled_from": min(since + billing.after_stop, now), "unbilled_until": None}
    return Item(row, item.source)


def unbilled_windows(node: str, since: datetime, now: datetime) -> Any | None:
    """Hours that were rolled up as billed and must be rolled up again, for `Changes.late`."""
    end = now.replace(minute=0, second=0, microsecond=0, tzinfo=None)
    begin = max(since.replace(tzinfo=None), end - HOURS_BACK_MAX * _HOUR)
    hour = begin.replace(minute=0, second=0, microsecond=0)
    hours = [hour + n * _HOUR for n in range(int((end - hour) / _HOUR))]
    return pa.table([[node] * len(hours), hours], schema=LATE_SCHEMA) if hours else None
