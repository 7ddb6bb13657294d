"""Defines what GPU models cost to buy and to rent, for reports that compare: the table `gpu_offers`, and its defaults.

The prices file overrides each value (docs/money.md). A price that nobody set and no source gives is NULL.
Sources of the defaults: spot prices from the SkyPilot catalogue and gpuhunt, mid-2026; purchase prices are the middle of
what buyers report.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwarden.metrics import Type
from gpuwarden.table import Column, Table

OWNED_BASIS = ": owned, "
"""Part of `gpus.price_basis` of a GPU that is owned, after file and line."""
LIFE_YEARS = 4.0
"""Years of write-off that are assumed where the prices file says nothing."""
POWER_PERCENT = 30.0
"""Share of power and cooling of the cost of owning that is assumed where no price of a kWh is known."""
_FLOAT, _TEXT = Type.FLOAT64, Type.STRING

GPU_OFFERS = Table("gpu_offers", "GPU model of the catalogue", ("catalogue_model",), (
    Column("catalogue_model", _TEXT, "Name in the catalogue, as in `gpus`.", required=True),
    Column("purchase_usd", _FLOAT, "What one costs to buy, with its share of node and network if the prices file has it; NULL: unknown."),
    Column("purchase_basis", _TEXT, "Where that price is from."),
    Column("life_years", _FLOAT, "Years of write-off.", required=True),
    Column("watts", _FLOAT, "Power of one with its share of the node; else the model's TDP.", required=True),
    Column("usd_per_kwh", _FLOAT, "Price of a kWh with PUE; NULL: unknown, and then power_percent counts."),
    Column("power_percent", _FLOAT, "Power and cooling of the cost of owning, where no price of a kWh is known.", required=True),
    Column("hosting_percent", _FLOAT, "Room, network and people, in percent of the write-off.", required=True),
    Column("on_demand_usd_per_hour", _FLOAT, "Rented by the hour."),
    Column("on_demand_basis", _TEXT, "Where that price is from."),
    Column("reserved_usd_per_hour", _FLOAT, "Rented for months or years, used or not."),
    Column("reserved_basis", _TEXT, "Where that price is from."),
    Column("spot_usd_per_hour", _FLOAT, "Rented by the hour, and taken away when another pays more."),
    Column("spot_basis", _TEXT, "Where that price is from."),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """A row of `gpu_offers`."""

    catalogue_model: str
    watts: float
    purchase_usd: float | None = None
    purchase_basis: str | None = None
    life_years: float = LIFE_YEARS
    usd_per_kwh: float | None = None
    power_percent: float = POWER_PERCENT
    hosting_percent: float = 0.0
    on_demand_usd_per_hour: float | None = None
    on_demand_basis: str | None = None
    reserved_usd_per_hour: float | None = None
    reserved_basis: str | None = None
    spot_usd_per_hour: float | None = None
    spot_basis: str | None = None


_H100 = (25_000.0, 40_000.0)
PURCHASES: Mapping[str, tuple[float, float]] = {
    "H100-SXM-80GB": _H100,
    "H100-PCIe-80GB": _H100,
    "H100-NVL": _H100,
    "RTX-4090": (1_600.0, 2_000.0),
}
"""Prices of a card that buyers report, least and most."""
SPOT: Mapping[str, tuple[float, str]] = {
    "H200-SXM-141GB": (1.45, "nebius"),
    "H100-SXM-80GB": (1.25, "nebius"),
    "A100-PCIe-40GB": (1.00, "crusoe"),
    "A100-PCIe-80GB": (1.20, "crusoe"),
    "A100-SXM-80GB": (1.30, "crusoe"),
    "A40-48GB": (0.40, "crusoe"),
    "L40S-48GB": (0.50, "crusoe"),
    "MI300X-192GB": (0.95, "crusoe"),
}
"""Spot prices of one GPU an hour, and their provider, of mid-2026."""
