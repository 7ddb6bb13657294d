"""Finds the price of a GPU hour with its source, and the price and emissions of energy, in a book of prices.

The order is: the first entry of the prices file that matches; the default of the model catalogue. docs/money.md describes the file, which has budgets, too. All but `load_book` is pure.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from json import loads
from pathlib import Path
from typing import Any

from gpuwarden.budgets import BUDGET_KINDS
from gpuwarden.durations import seconds_of
from gpuwarden.instances import find_instance
from gpuwarden.lifecycle import StartError
from gpuwarden.models import MODELS, Model, find_model
from gpuwarden.offers import LIFE_YEARS, OWNED_BASIS, POWER_PERCENT, PURCHASES, SPOT, GpuOffer
from gpuwarden.waste import CATEGORIES, FORGOTTEN_AFTER_DAYS

HOURS_A_YEAR = 8766.0
SIMULATED_SILENCE = timedelta(minutes=10)
Row = Mapping[str, Any]


class PricesError(StartError):
    """The prices file is wrong; the message says where, what, and what it must be."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Price and emissions of a kWh, and the data centre's power usage effectiveness."""

    usd_per_kwh: float | None = None
    pue: float = 1.0
    co2_g_per_kwh: float | None = None

    @property
    def usd(self) -> float | None:
        """Price of a kWh at the computer; None: unknown."""
        return None if self.usd_per_kwh is None else self.usd_per_kwh * self.pue

    @property
    def co2_g(self) -> float | None:
        """Grams of CO2 of a kWh at the computer; None: unknown."""
        return None if self.co2_g_per_kwh is None else self.co2_g_per_kwh * self.pue


@dataclass(frozen=True, slots=True)
class Site:
    """Energy of the nodes with these labels."""

    labels: Mapping[str, str]
    energy: Energy


@dataclass(frozen=True, slots=True)
class Billing:
    """How long GPUs of a node are billed that no longer sends."""

    after_stop: timedelta = timedelta(minutes=2)
    """After the agent stopped in order."""
    after_silence: timedelta = timedelta(days=FORGOTTEN_AFTER_DAYS)
    """After the node was last seen, if it did not leave in order."""

    def silent_s(self, *, is_simulated: bool) -> float:
        """`after_silence` in seconds; shorter for a simulation, which does not come back."""
        silence = min(self.after_silence, SIMULATED_SILENCE) if is_simulated else self.after_silence
        return silence.total_seconds()


@dataclass(frozen=True, slots=True)
class Owned:
    """Owned hardware: its price, divided by `gpus` and by its life."""

    cost_usd: float
    life_years: float
    gpus: int | None
    """None: as many as the node has."""
    watts: float | None
    """Power of a GPU with its share of the node; None: the power of the model."""


@dataclass(frozen=True, slots=True)
class PriceEntry:
    """A price and the GPUs that it applies to. Patterns are shell patterns; case is ignored."""

    where: str
    """File and line."""
    model: str | None = None
    node: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    usd_per_hour: float | None = None
    instance_usd_per_hour: float | None = None
    instance_gpus: int | None = None
    owned: Owned | None = None


@dataclass(frozen=True, slots=True)
class MonthlyBudget:
    """What a team, user, account, category of waste or the fleet may cost in a calendar month."""

    kind: str
    """One of `BUDGET_KINDS`."""
    name: str
    """Empty: the fleet's."""
    usd_per_month: float


@dataclass(frozen=True, slots=True)
class OfferEntry:
    """What models cost to buy and to rent. Absent values are the defaults."""

    where: str
    """File and line."""
    model: str
    """A start of the catalogue's name."""
    purchase_usd: float | None = None
    life_years: float | None = None
    watts: float | None = None
    power_percent: float | None = None
    hosting_percent: float | None = None
    on_demand_usd_per_hour: float | None = None
    reserved_usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All prices of a collector."""

    entries: tuple[PriceEntry, ...] = ()
    energy: Energy = Energy()
    sites: tuple[Site, ...] = ()
    """The first one that matches a node overrides `energy`."""
    billing: Billing = Billing()
    budgets: tuple[MonthlyBudget, ...] = ()
    offers: tuple[OfferEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Priced:
    """USD per hour (None: unknown) and its source, as text."""

    usd_per_hour: float | None
    basis: str | None


def price_of(gpu: Row, node: Row | None, book: PriceBook) -> Priced:
    """The price of a GPU. `gpu`, `node`: rows of those tables; None: the node is unknown.

    A MIG device has no price of its own: the whole GPU has.
    """
    model = find_model(gpu.get("model") or "")
    for entry in book.entries:
        if _fits(entry, gpu, model, node):
            return _priced(entry, model, node, energy_of(node, book))
    if model is None:
        return Priced(None, None)
    return _spot(model, node) or _of_instance(model, node) or _of_catalogue(model)


def _spot(model: Model, node: Row | None) -> Priced | None:
    """None: the node is not a spot instance, or no spot price of the model is known."""
    if (node or {}).get("spot") is not True or model.name not in SPOT:
        return None
    usd, provider = SPOT[model.name]
    return Priced(usd, f"default of mid-2026: {provider} spot, {model.name}")


def _of_instance(model: Model, node: Row | None) -> Priced | None:
    """None: the node's type of instance is not known, has no price, or has other GPUs."""
    instance = find_instance((node or {}).get("instance_type"))
    if instance is None or instance.model != model.name or instance.usd_per_gpu_hour is None:
        return None
    source = f"default of {instance.price_read_on}: {instance.cloud} on demand in {instance.price_region}"
    basis = f"{source}, {instance.name} with {instance.gpus} GPUs"
    return Priced(instance.usd_per_gpu_hour, basis)


def _of_catalogue(model: Model) -> Priced:
    if model.price is None:
        return Priced(None, None)
    price = model.price
    return Priced(
        price.usd_per_hour, f"default of {price.read_on}: {price.provider} on demand, {model.name}"
    )


def energy_of(node: Row | None, book: PriceBook) -> Energy:
    """Price and emissions of energy at a node."""
    labels = _labels(node)
    energies = (site.energy for site in book.sites if _has(labels, site.labels))
    return next(energies, book.energy)


def _has(labels: Mapping[str, str], patterns: Mapping[str, str]) -> bool:
    return all(
        name in labels and fnmatchcase(labels[name].lower(), pattern.lower())
        for name, pattern in patterns.items()
    )


def _fits(entry: PriceEntry, gpu: Row, model: Model | None, node: Row | None) -> bool:
    if gpu.get("mig_instance") is not None:
        return False
    names = (gpu.get("model") or "", model.name if model else "")
    if entry.model is not None and not any(
        fnmatchcase(name.lower(), f"{entry.model.lower()}*") for name in names
    ):
        return False
    if entry.node is not None and not fnmatchcase(
        (gpu.get("node") or "").lower(), entry.node.lower()
    ):
        return False
    return _has(_labels(node), entry.labels)


def _labels(node: Row | None) -> dict[str, str]:
    try:
        labels = loads((node or {}).get("labels") or "{}")
    except (ValueError, RecursionError):  # also for numbers and nesting that Python cannot parse
        return {}
    return {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}


def _priced(entry: PriceEntry, model: Model | None, node: Row | None, energy: Energy) -> Priced:
    of_node = (node or {}).get("gpus")
    if entry.usd_per_hour is not None:
        return Priced(entry.usd_per_hour, f"{entry.where}: {entry.usd_per_hour:g} USD/h")
    if entry.instance_usd_per_hour is not None:
        gpus = entry.instance_gpus or of_node
        basis = f"{entry.where}: instance of {entry.instance_usd_per_hour:g} USD/h"
        if gpus is None or gpus < 1:
            return Priced(None, f"{basis} with an unknown number of GPUs")
        return Priced(entry.instance_usd_per_hour / gpus, f"{basis} with {gpus} GPUs")
    assert entry.owned is not None
    return _owned(entry.where, entry.owned, model, of_node, energy)


def _owned(
    where: str, owned: Owned, model: Model | None, of_node: int | None, energy: Energy
) -> Priced:
    gpus = owned.gpus or of_node
    basis = f"{where}{OWNED_BASIS}{owned.cost_usd:g} USD over {owned.life_years:g} years"
    if gpus is None or gpus < 1:
        return Priced(None, f"{basis}, unknown number of GPUs")
    usd = owned.cost_usd / gpus / (owned.life_years * HOURS_A_YEAR)
    basis += f", {gpus} GPUs" if gpus > 1 else ""
    watts = owned.watts or (model.tdp_watts if model else None)
    if energy.usd is None:
        return Priced(usd, f"{basis}, without power")
    if watts is None:
        return Priced(None, f"{basis}, unknown power")
    usd += watts / 1000 * energy.usd
    kwh = f"{energy.usd_per_kwh:g} USD/kWh, PUE {energy.pue:g}"
    return Priced(usd, f"{basis}, {watts:g} W at {kwh}")


def offers_of(book: PriceBook) -> tuple[GpuOffer, ...]:
    """What each model of the catalogue costs to buy and to rent; of its entries the first one counts."""
    offers = (_offer_of(model, book) for model in MODELS)
    return tuple(offer for offer in offers if offer is not None)


def _offer_of(model: Model, book: PriceBook) -> GpuOffer | None:
    """None: nobody told its power, so that what it costs to own cannot be said."""
    starts = (one for one in book.offers if model.name.upper().startswith(one.model.upper()))
    entry = next(starts, OfferEntry("", model.name))
    purchase, purchase_basis = _offered(entry, entry.purchase_usd, *_default_purchase(model))
    on_demand, on_demand_basis = _offered(
        entry, entry.on_demand_usd_per_hour, *_default_on_demand(model)
    )
    spot = SPOT.get(model.name)
    spot_usd, spot_basis = _offered(
        entry,
        entry.spot_usd_per_hour,
        spot[0] if spot else None,
        f"default of mid-2026: {spot[1]} spot" if spot else None,
    )
    reserved = entry.reserved_usd_per_hour
    watts = model.tdp_watts if entry.watts is None else entry.watts
    if watts is None:
        return None
    return GpuOffer(
        catalogue_model=model.name,
        watts=float(watts),
        purchase_usd=purchase,
        purchase_basis=purchase_basis,
        life_years=LIFE_YEARS if entry.life_years is None else entry.life_years,
        usd_per_kwh=book.energy.usd,
        power_percent=POWER_PERCENT if entry.power_percent is None else entry.power_percent,
        hosting_percent=0.0 if entry.hosting_percent is None else entry.hosting_percent,
        on_demand_usd_per_hour=on_demand,
        on_demand_basis=on_demand_basis,
        reserved_usd_per_hour=reserved,
        reserved_basis=None if reserved is None else entry.where,
        spot_usd_per_hour=spot_usd,
        spot_basis=spot_basis,
    )


def _offered(
    entry: OfferEntry, usd: float | None, default: float | None, basis: str | None
) -> tuple[float | None, str | None]:
    return (default, basis) if usd is None else (usd, entry.where)


def _default_purchase(model: Model) -> tuple[float | None, str | None]:
    known = PURCHASES.get(model.name)
    if known is None:
        return None, None
    least, most = known
    return (least + most) / 2, f"default: the middle of {least:,.0f} to {most:,.0f} for a card"


def _default_on_demand(model: Model) -> tuple[float | None, str | None]:
    price = model.price
    if price is None:
        return None, None
    return price.usd_per_hour, f"default of {price.read_on}: {price.provider} on demand"


def load_book(path: Path | None) -> PriceBook:
    """Read a prices file; None: there is none. Raises PricesError."""
    if path is None:
        return PriceBook()
    try:
        text = path.read_text()
        document = tomllib.loads(text)
    except OSError as error:
        raise PricesError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PricesError(f"{path}: not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise PricesError(f"{path}: not valid TOML: {error}") from error
    top = _Table(path.name, str(path), 1, document)
    top.refuse_others("energy", "site", "billing", "price", "budget", "offer")
    energy = _energy(_Table(path.name, str(path), _line(text, "[energy]"), top.table("energy")))
    billing = _billing(_Table(path.name, str(path), _line(text, "[billing]"), top.table("billing")))
    sites = tuple(_site(table, energy) for table in _tables(top, "site", text))
    entries = tuple(_entry(table) for table in _tables(top, "price", text))
    budgets = _budgets(_tables(top, "budget", text))
    offers = tuple(_offer(table) for table in _tables(top, "offer", text))
    return PriceBook(entries, energy, sites, billing, budgets, offers)


def _tables(top: "_Table", name: str, text: str) -> list["_Table"]:
    listed = top.values.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise top.wrong(name, f"tables: write [[{name}]] before each")
    lines = _lines_of_entries(name, text)
    return [_Table(top.name, top.path, line, raw) for raw, line in zip(listed, lines, strict=False)]


def _lines_of_entries(name: str, text: str) -> Iterator[int]:
    """Line numbers of `[[name]]`, then 1 for entries in another syntax; tomllib has no line numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf"\s*\[\[\s*[\"']?{name}[\"']?\s*\]\]", line):
            yield number
    while True:
        yield 1


def _line(text: str, header: str) -> int:
    lines = [line.strip() for line in text.splitlines()]
    return next((n for n, line in enumerate(lines, 1) if line.startswith(header)), 1)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the file; reads and checks its values by name."""

    name: str
    path: str
    line: int
    values: Mapping[str, Any]

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def wrong(self, key: str, must: str) -> PricesError:
        return PricesError(f"{self.where}: {key} = {self.values.get(key)!r} must be {must}")

    def refuse_others(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                listed = ", ".join(known)
                raise PricesError(f"{self.where}: unknown key {key!r}; known: {listed}")

    def number(self, key: str, least: float = 0.0, *, above: bool = False) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self.wrong(key, "a number")
        if value < least or (above and value == least):
            raise self.wrong(key, f"{'above' if above else 'at least'} {least:g}")
        return float(value)

    def count(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise self.wrong(key, "a whole number of at least 1")
        return value

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.wrong(key, "a text")
        return value

    def table(self, key: str) -> dict[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return value

    def labels(self) -> dict[str, str]:
        labels = self.table("labels")
        if not all(isinstance(value, str) for value in labels.values()):
            raise self.wrong("labels", "a table of texts")
        return labels

    def duration(self, key: str) -> timedelta | None:
        value = self.values.get(key)
        if value is None:
            return None
        seconds = seconds_of(value) if isinstance(value, str) else None
        if seconds is None:
            raise self.wrong(key, "a duration: 5m, 12h, 3d")
        return timedelta(seconds=seconds)

    def needed(self, key: str, value: float | None) -> float:
        if value is None:
            raise PricesError(f"{self.where}: {key} is missing")
        return value


_ENERGY = ("usd_per_kwh", "pue", "co2_g_per_kwh")


def _energy(table: _Table) -> Energy:
    table.refuse_others(*_ENERGY)
    return _energy_or(table, Energy())


def _energy_or(table: _Table, otherwise: Energy) -> Energy:
    """Energy of a table; absent values are those of `otherwise`."""
    usd, pue, co2 = (table.number(n, 1.0 if n == "pue" else 0.0) for n in _ENERGY)
    return Energy(
        otherwise.usd_per_kwh if usd is None else usd,
        otherwise.pue if pue is None else pue,
        otherwise.co2_g_per_kwh if co2 is None else co2,
    )


def _site(table: _Table, energy: Energy) -> Site:
    table.refuse_others("labels", *_ENERGY)
    labels = table.labels()
    if not labels:
        raise PricesError(f'{table.where}: labels is missing: write labels = {{ site = "..." }}')
    return Site(labels, _energy_or(table, energy))


def _billing(table: _Table) -> Billing:
    table.refuse_others("after_stop", "after_silence")
    otherwise = Billing()
    stop, silence = table.duration("after_stop"), table.duration("after_silence")
    return Billing(
        otherwise.after_stop if stop is None else stop,
        otherwise.after_silence if silence is None else silence,
    )


def _budgets(tables: Iterable[_Table]) -> tuple[MonthlyBudget, ...]:
    budgets: dict[tuple[str, str], MonthlyBudget] = {}
    names = [kind for kind in BUDGET_KINDS if kind != "fleet"]
    for table in tables:
        table.refuse_others(*names, "usd_per_month")
        kinds = [kind for kind in names if kind in table.values]
        if len(kinds) > 1:
            raise PricesError(
                f"{table.where}: a budget has at most one of {', '.join(names)}; this has {len(kinds)}"
            )
        kind = kinds[0] if kinds else "fleet"
        name = table.text(kind) or ""
        if kind == "category" and name not in CATEGORIES:
            raise table.wrong(kind, f"one of {', '.join(CATEGORIES)}")
        if (kind, name) in budgets:
            whose = f"{kind} {name}".rstrip()
            raise PricesError(f"{table.where}: the budget of {whose} stands twice")
        amount = table.needed("usd_per_month", table.number("usd_per_month", above=True))
        budgets[kind, name] = MonthlyBudget(kind, name, amount)
    return tuple(budgets.values())


_OFFER = (
    *("purchase_usd", "life_years", "watts", "power_percent", "hosting_percent"),
    *("on_demand_usd_per_hour", "reserved_usd_per_hour", "spot_usd_per_hour"),
)
_ABOVE_ZERO = ("purchase_usd", "life_years")


def _offer(table: _Table) -> OfferEntry:
    table.refuse_others("model", *_OFFER)
    model = table.text("model")
    if model is None:
        raise PricesError(f'{table.where}: model is missing: write model = "H100-SXM-80GB"')
    if not any(one.name.upper().startswith(model.upper()) for one in MODELS):
        raise table.wrong("model", "a model of the catalogue, or the start of its name")
    values = {key: table.number(key, above=key in _ABOVE_ZERO) for key in _OFFER}
    if (values["power_percent"] or 0.0) >= 100:
        raise table.wrong("power_percent", "below 100")
    return OfferEntry(f"{table.name}:{table.line}", model, **values)


_WHAT = ("usd_per_hour", "instance_usd_per_hour", "owned_usd")


def _entry(table: _Table) -> PriceEntry:
    table.refuse_others("model", "node", "labels", *_WHAT, "gpus", "life_years", "watts")
    given = [key for key in _WHAT if key in table.values]
    if len(given) != 1:
        raise PricesError(
            f"{table.where}: a price has one of {', '.join(_WHAT)}; this has {len(given)}"
        )
    what = given[0]
    for key, only in (("gpus", _WHAT[1:]), ("life_years", _WHAT[2:]), ("watts", _WHAT[2:])):
        if key in table.values and what not in only:
            raise PricesError(
                f"{table.where}: {key} goes with {' or '.join(only)}, not with {what}"
            )
    labels = table.labels()
    owned = None
    if what == "owned_usd":
        owned = Owned(
            table.number(what) or 0.0,
            table.needed("life_years", table.number("life_years", above=True)),
            table.count("gpus"),
            table.number("watts"),
        )
    return PriceEntry(
        where=f"{table.name}:{table.line}",
        model=table.text("model"),
        node=table.text("node"),
        labels=labels,
        usd_per_hour=table.number("usd_per_hour"),
        instance_usd_per_hour=table.number("instance_usd_per_hour"),
        instance_gpus=table.count("gpus"),
        owned=owned,
    )
