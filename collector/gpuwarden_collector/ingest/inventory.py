"""Merges the rows of nodes and GPUs that agents send with the stored rows; pure.

An absent value never erases a known one. If an agent sends its backlog after an outage, an older batch only fills in
values that are absent.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.models import find_model
from gpuwarden_collector.ingest.prices import PriceBook, energy_of, price_of

Row = dict[str, Any]
Place = tuple[str, str]
"""Node and PCI address."""


@dataclass(frozen=True, slots=True)
class BatchSource:
    """The origin of a row: authenticated sender, agent and sequence of the batch."""

    sender: str
    agent_id: str
    sequence: int
    is_import: bool = False
    """Whether the batch is imported history."""

    def is_before(self, other: "BatchSource | None") -> bool:
        """Whether the other row is a later one of the same agent and sender."""
        if other is None or (other.sender, other.agent_id) != (self.sender, self.agent_id):
            return False
        return self.sequence < other.sequence


@dataclass(frozen=True, slots=True)
class Item:
    """A stored row of `nodes` or `gpus` and the origin of its last change; None: before this start."""

    row: Row
    source: BatchSource | None = None


def merged(stored: Item | None, sent: Row, source: BatchSource, now: datetime) -> Item:
    """The item after an agent sent the row `sent`."""
    if stored is None:
        seen_at = None if source.is_import else now
        return Item({**sent, "first_seen_at": now, "last_seen_at": seen_at}, source)
    sent = {name: value for name, value in sent.items() if value is not None}
    last = stored.source
    if source.is_import and stored.row.get("last_seen_at") is not None:
        row = {**sent, **{name: value for name, value in stored.row.items() if value is not None}}
        return Item(stored.row if row == stored.row else row, last)
    if last is not None and source.is_before(last):
        sent = {name: value for name, value in sent.items() if stored.row.get(name) is None}
        source = last
    row = {**stored.row, **sent}
    # A row that has not changed is not written again: `last_seen_at` is written in bulk.
    seen_at = None if source.is_import else now
    return Item(stored.row if row == stored.row else {**row, "last_seen_at": seen_at}, source)


def place_of(row: Row) -> Place | None:
    """Node and PCI address of a board; None: unknown, or a MIG instance."""
    node, address = row.get("node"), row.get("pci_bus_id")
    is_part = row.get("mig_instance") is not None or row.get("parent_gpu_uuid") is not None
    return None if is_part or node is None or address is None else (node, address)


def replaces(item: Item, before: Item | None, holder: Item) -> bool:
    """Whether a board has replaced `holder`, the board that was last reported at its address.

    `before`: its stored item. A board that was at another address of the same node replaces nothing: when one board
    is lost, the others can get new addresses.
    """
    place = place_of(item.row)
    if place is None or place_of(holder.row) != place:
        return False
    return before is None or before.row["node"] != item.row["node"] or place_of(before.row) == place


_OF_PRICES = ("labels", "gpus", "instance_type", "spot")


def changes_prices(before: Row, row: Row) -> bool:
    """Whether prices of a node's GPUs may differ with its new row in `nodes`."""
    return any(before.get(column) != row.get(column) for column in _OF_PRICES)


def priced(row: Row, node: Row | None, book: PriceBook) -> Row:
    """A row of `gpus` with its model in the catalogue, its price, and the price of energy.

    `node`: the row of its node; None: unknown.
    """
    model = find_model(row.get("model") or "")
    price, energy = price_of(row, node, book), energy_of(node, book)
    return {
        **row,
        "catalogue_model": model.name if model else None,
        "usd_per_hour": price.usd_per_hour,
        "price_basis": price.basis,
        "usd_per_kwh": energy.usd,
        "co2_g_per_kwh": energy.co2_g,
        "billed_silent_s": book.billing.silent_s(is_simulated=row.get("simulated") is True),
    }
