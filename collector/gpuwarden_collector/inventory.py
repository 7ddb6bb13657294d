"""What is known of nodes and GPUs: pure merging of what agents say with what is stored.

An absent value never erases a known one. A batch that is older than the one that last spoke of an
item (the agent catches up after an outage) only fills in what is absent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.models import find_model

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Who spoke: the agent, and the sequence of its batch."""

    agent_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Item:
    """A stored row of `nodes` or `gpus` and who last spoke of it; None: before this start."""

    row: Row
    source: Source | None = None


def merged(known: Item | None, said: Row, source: Source, now: datetime) -> Item:
    """The item after an agent has said `said` about it."""
    if known is None:
        return Item({**said, "first_seen_at": now, "last_seen_at": now}, source)
    said = {name: value for name, value in said.items() if value is not None}
    last = known.source
    if last and last.agent_id == source.agent_id and source.sequence < last.sequence:
        said = {name: value for name, value in said.items() if known.row.get(name) is None}
        source = last
    row = {**known.row, **said}
    # `last_seen_at` alone is written in bulk; a row that has not changed is not written again.
    return Item(known.row if row == known.row else {**row, "last_seen_at": now}, source)


def priced(row: Row, prices: Mapping[str, float]) -> Row:
    """A row of `gpus` with its model in the catalogue and its price.

    `prices` replaces the catalogue's, by the driver's name, the catalogue's name, or the longest
    start of the catalogue's name.
    """
    model = find_model(row.get("model") or "")
    name = model.name if model else None
    usd = model.price.usd_per_hour if model and model.price else None
    override = _override(row.get("model"), name, prices)
    return {**row, "catalogue_model": name, "usd_per_hour": usd if override is None else override}


def _override(
    driver_name: str | None, model_name: str | None, prices: Mapping[str, float]
) -> float | None:
    if driver_name is not None and driver_name in prices:
        return prices[driver_name]
    if model_name is None:
        return None
    starts = [p for p in prices if p and model_name.upper().startswith(p.upper())]
    return prices[max(starts, key=len)] if starts else None


def unmatched_prices(prices: Mapping[str, float], model_names: Iterable[str]) -> list[str]:
    """Keys of `prices` that no model of the catalogue starts with; they may be driver names."""
    names = [name.upper() for name in model_names]
    return sorted(p for p in prices if not any(name.startswith(p.upper()) for name in names))
