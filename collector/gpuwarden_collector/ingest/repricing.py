"""Prices the GPUs that are known by a book of prices, at the start and when its file is read anew."""

import logging

from gpuwarden.models import MODELS
from gpuwarden_collector.ingest import inventory
from gpuwarden_collector.ingest.commit_plan import Known, inventory_table
from gpuwarden_collector.ingest.inventory import Item
from gpuwarden_collector.ingest.prices import PriceBook, unmatched_prices
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.segment_log import FrameLog

log = logging.getLogger(__name__)


def reprice(frames: FrameLog, known: Known, prices: PriceBook) -> int:
    """Give every GPU the price that the book has for it; how many have another one now.

    By the writer, or before it starts. Raises StoreUnavailableError and RowsRefusedError, and nothing
    has changed.
    """
    if unknown := unmatched_prices(prices.by_model, [model.name for model in MODELS]):
        log.info(
            "prices not in the catalogue; taken as the driver's names", extra={"names": unknown}
        )
    changed = {}
    for key, item in known.items["gpus"].items():
        node = known.items["nodes"].get(item.row["node"])
        row = inventory.priced(item.row, node.row if node else None, prices)
        if row != item.row:
            changed[key] = Item(row, item.source)
    if changed:
        commit(frames, Changes(upserted={"gpus": inventory_table("gpus", changed)}))
        known.items["gpus"].update(changed)
    return len(changed)
