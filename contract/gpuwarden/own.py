"""Compares what GPUs of each model cost if they are owned, with what they cost if they are rented.

The demand is the time in which GPUs were held or given out (`in use`), by the view `waste`. Owned are as many as were in
use at once at most. On demand and spot are paid for hours in use, reserved GPUs for all hours. Except for the SQL, all is
pure; docs/money.md explains the numbers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwarden.offers import OWNED_BASIS, GpuOffer
from gpuwarden.query import Querier, query_all

DAYS_A_MONTH = 30.4375
HOURS_A_DAY = 24.0
MONTHS_A_YEAR = 12.0
DAYS = 30
"""The window of the report."""
NOT_IN_USE = ("free", "lost", "unknown")
"""Labels of time in which nobody is known to have had the GPU."""
BUSY = ("productive", "busy")
_ALMOST = 0.02
"""A GPU that had less than this of an hour does not count as one more in use at once."""

OFFERS_SQL = "SELECT * FROM gpu_offers"


def _listed(categories: Sequence[str]) -> str:
    return ", ".join(f"'{category}'" for category in categories)


USE_SQL = f"""
WITH asked AS (
    SELECT w.ts, coalesce(g.catalogue_model, g.model, w.model, 'unknown model') AS model, w.category, w.gpu_hours, w.usd,
        w.simulated, coalesce(contains(g.price_basis, '{OWNED_BASIS}'), false) AS is_owned
    FROM waste w LEFT JOIN gpus g USING (gpu_uuid)
    WHERE w.ts >= $since::TIMESTAMP
    QUALIFY w.simulated = bool_and(w.simulated) OVER ()
),
hours AS (
    SELECT model, ts, bool_or(simulated) AS simulated, sum(gpu_hours) AS gpu_hours,
        coalesce(sum(gpu_hours) FILTER (category NOT IN ({_listed(NOT_IN_USE)})), 0) AS used_hours,
        coalesce(sum(gpu_hours) FILTER (category IN ({_listed(BUSY)})), 0) AS busy_hours,
        coalesce(sum(gpu_hours) FILTER (is_owned), 0) AS owned_hours, sum(usd) AS usd
    FROM asked GROUP BY model, ts
)
SELECT model, bool_or(simulated) AS simulated, max(gpu_hours) AS gpus_at_once, max(used_hours) AS used_at_once,
    date_diff('millisecond', min(ts), $until::TIMESTAMP) / 86.4e6 AS days, sum(gpu_hours) AS gpu_hours,
    sum(used_hours) AS used_hours, sum(busy_hours) AS busy_hours, sum(owned_hours) AS owned_hours, sum(usd) AS usd
FROM hours GROUP BY model ORDER BY usd DESC NULLS LAST, gpu_hours DESC, model
"""
"""SELECT of a row for each model, with the fields of `ModelUse`; from `$since` to `$until`."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """GPUs of one model over the window."""

    model: str
    gpus_at_once: float
    """GPU hours of the hour that had most."""
    used_at_once: float
    """The same of hours in use."""
    days: float
    """From its first hour to the end of the window."""
    gpu_hours: float
    used_hours: float
    """Held by a process or given out by a scheduler."""
    busy_hours: float
    """A kernel ran."""
    owned_hours: float
    """Of GPUs whose price is that of owned hardware; the rest are rented."""
    usd: float | None
    """At the prices that were set; None: unknown."""
    simulated: bool = False

    @property
    def used_hours_a_day(self) -> float:
        """Demand."""
        return self.used_hours / self.days

    @property
    def gpus(self) -> int:
        """How many there were."""
        return whole_gpus(self.gpus_at_once)

    @property
    def needed(self) -> int:
        """How many were in use at once at most."""
        return whole_gpus(self.used_at_once)

    @property
    def usd_a_month(self) -> float | None:
        """What they cost now, by the prices that are set."""
        return None if self.usd is None else self.usd / self.days * DAYS_A_MONTH


@dataclass(frozen=True, slots=True)
class RentCase:
    """One way to rent the same time."""

    kind: str
    """on_demand, reserved or spot."""
    usd_per_hour: float
    basis: str | None
    usd_a_month: float
    pays_from: float | None
    """Hours of use a day of each GPU from which owning costs less; more than 24: never. None: it is paid for all
    hours, or the cost of owning is unknown."""


@dataclass(frozen=True, slots=True)
class OwnCase:
    """What GPUs of one model cost by the month, owned and rented."""

    use: ModelUse
    own_usd_a_month: float | None
    """None: the purchase price is unknown."""
    parts: str
    """The cost of owning in words."""
    rents: Sequence[RentCase]
    sentences: Sequence[str]
    missing: Sequence[str]
    """What is not known, with the line of the prices file that sets it."""


RENT_KINDS: Mapping[str, str] = {"on_demand": "on demand", "reserved": "reserved", "spot": "spot"}
"""Words of each."""


def whole_gpus(hours: float) -> int:
    """GPUs that an hour with so many GPU hours needs."""
    return math.ceil(hours - _ALMOST) if hours > _ALMOST else 0


def own_usd_a_month(offer: GpuOffer) -> float | None:
    """What one GPU costs a month if it is owned; None: its purchase price is unknown."""
    if offer.purchase_usd is None:
        return None
    write_off = offer.purchase_usd / offer.life_years / MONTHS_A_YEAR
    hosting = write_off * offer.hosting_percent / 100
    if offer.usd_per_kwh is None:
        return (write_off + hosting) / (1 - offer.power_percent / 100)
    return write_off + hosting + _power_usd_a_month(offer, offer.usd_per_kwh)


def _power_usd_a_month(offer: GpuOffer, usd_per_kwh: float) -> float:
    return offer.watts / 1000 * HOURS_A_DAY * DAYS_A_MONTH * usd_per_kwh


def own_parts(offer: GpuOffer) -> str:
    """The cost of owning one GPU in words; empty: unknown."""
    if offer.purchase_usd is None:
        return ""
    said = f"${offer.purchase_usd:,.0f} to buy ({offer.purchase_basis}) over {offer.life_years:g} years"
    if offer.hosting_percent:
        said += f", {offer.hosting_percent:g} % of that for room, network and people"
    if offer.usd_per_kwh is None:
        return f"{said}, {offer.power_percent:g} % of all for power and cooling (no price of a kWh is set)"
    return f"{said}, {offer.watts:g} W all day at ${offer.usd_per_kwh:g} a kWh with PUE"


async def read_own(querier: Querier, since: datetime, until: datetime) -> Sequence[OwnCase]:
    """A case for each model that was seen in that time. Raises QueryError."""
    used, offered = await query_all(
        querier, [(USE_SQL, {"since": since, "until": until}), (OFFERS_SQL, {})]
    )
    offers = {row["catalogue_model"]: GpuOffer(**row) for row in offered.records()}
    return own_cases((ModelUse(**row) for row in used.records()), offers)


def own_cases(uses: Iterable[ModelUse], offers: Mapping[str, GpuOffer]) -> Sequence[OwnCase]:
    """A case for each model. `offers`: by the catalogue's name."""
    return [own_case(use, offers.get(use.model)) for use in uses]


def own_case(use: ModelUse, offer: GpuOffer | None) -> OwnCase:
    """What GPUs of one model cost, owned and rented. None: the model is not in the catalogue."""
    if offer is None:
        unknown = f"{use.model} is not in the catalogue of models, so that no [[offer]] can be set."
        return OwnCase(use, None, "", (), (), (unknown,))
    one = own_usd_a_month(offer)
    rents = [
        RentCase(kind, usd, basis, _rent_usd_a_month(use, kind, usd), _pays_from(kind, one, usd))
        for kind, usd, basis in _rates(offer)
        if usd is not None
    ]
    missing = [_set(use.model, "purchase_usd")] if one is None else []
    missing += [
        _set(use.model, f"{kind}_usd_per_hour") for kind, usd, _ in _rates(offer) if usd is None
    ]
    whole = None if one is None else one * use.needed
    return OwnCase(use, whole, own_parts(offer), rents, _sentences(use, whole, rents), missing)


def _rates(offer: GpuOffer) -> Sequence[tuple[str, float | None, str | None]]:
    return (
        ("on_demand", offer.on_demand_usd_per_hour, offer.on_demand_basis),
        ("reserved", offer.reserved_usd_per_hour, offer.reserved_basis),
        ("spot", offer.spot_usd_per_hour, offer.spot_basis),
    )


def _rent_usd_a_month(use: ModelUse, kind: str, usd: float) -> float:
    hours_a_day = use.needed * HOURS_A_DAY if kind == "reserved" else use.used_hours_a_day
    return hours_a_day * DAYS_A_MONTH * usd


def _pays_from(kind: str, own: float | None, usd: float) -> float | None:
    if kind == "reserved" or own is None or usd <= 0:
        return None
    return own / DAYS_A_MONTH / usd


def _set(model: str, key: str) -> str:
    what = {"purchase_usd": "The purchase price"}.get(
        key,
        f"The price {RENT_KINDS[key.removesuffix('_usd_per_hour')]}"
        if key.endswith("_hour")
        else key,
    )
    return f'{what} of {model} is not known: set {key} in an [[offer]] with model = "{model}" of the prices file.'


def _sentences(use: ModelUse, own: float | None, rents: Sequence[RentCase]) -> Sequence[str]:
    if not use.needed:
        return (f"{use.model}: none was in use, so that renting none costs least.",)
    return [_sentence(use, own, rent) for rent in rents]


def _sentence(use: ModelUse, own: float | None, rent: RentCase) -> str:
    count = use.needed
    if rent.kind == "reserved":
        said = f"{use.model}: {count:,} reserved at ${rent.usd_per_hour:,.2f} an hour cost ${rent.usd_a_month:,.0f} a month, used or not"
    else:
        said = (
            f"{use.model}: {use.used_hours_a_day:,.0f} GPU hours a day at ${rent.usd_per_hour:,.2f} {RENT_KINDS[rent.kind]} "
            f"cost ${rent.usd_a_month:,.0f} a month"
        )
    if own is None:
        return f"{said}."
    said += f"; owning the {count:,} that were in use at once at most costs ${own:,.0f}."
    if rent.pays_from is None:
        return f"{said} {'Owning' if own < rent.usd_a_month else 'Renting'} costs less."
    if rent.pays_from > HOURS_A_DAY:
        return f"{said} Owning never pays: one that is rented all day costs less."
    used = use.used_hours_a_day / count
    return f"{said} Owning pays from {rent.pays_from:.1f} hours of use a GPU and day; they had {used:.1f}."
