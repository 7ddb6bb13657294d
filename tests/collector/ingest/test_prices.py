"""A GPU's price: which entry counts, what it comes to, and the message about a wrong file."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.ingest.prices import (
    Billing,
    Energy,
    PriceBook,
    Priced,
    PriceEntry,
    PricesError,
    energy_of,
    load_book,
    offers_of,
    price_of,
)

H100 = {"model": "NVIDIA H100 80GB HBM3", "node": "dgx-7"}
NODE = {"node": "dgx-7", "gpus": 8, "labels": '{"provider": "Lambda", "team": "vision"}'}

BOOK = """
[energy]
usd_per_kwh = 0.20
pue = 1.5

[[price]]
node = "DGX-1*"
instance_usd_per_hour = 98.32
gpus = 8

[[price]]
model = "H100"
labels = { provider = "lambda" }
usd_per_hour = 2.29

[[price]]
model = "NVIDIA Foo"
owned_usd = 87660
life_years = 5
watts = 500
"""


def entry_of(usd: float, model: str = "H100") -> PriceEntry:
    return PriceEntry("prices.toml:1", model=model, usd_per_hour=usd)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "prices.toml"
        path.write_text(text)
        return path

    return write


def test_the_instance_of_the_node_prices_its_gpus() -> None:
    node = {**NODE, "instance_type": "P5.48xlarge"}
    assert price_of(H100, node, PriceBook()) == Priced(
        6.88, "default of 2025-12: aws on demand in us-east-1, p5.48xlarge with 8 GPUs"
    )
    # What the operator says comes first; another GPU has the price of its model.
    assert price_of(H100, node, PriceBook((entry_of(1.0),))).usd_per_hour == 1.0
    a100 = {"model": "NVIDIA A100-SXM4-80GB"}
    assert price_of(a100, node, PriceBook()).usd_per_hour == 1.95
    for unknown in ("a3-highgpu-8g", "x9.large", None):
        of_model = price_of(H100, {**NODE, "instance_type": unknown}, PriceBook())
        assert of_model == price_of(H100, NODE, PriceBook())


def test_a_spot_instance_has_the_spot_price_of_its_model_if_one_is_known() -> None:
    node = {**NODE, "instance_type": "p5.48xlarge", "spot": True}
    assert price_of(H100, node, PriceBook()) == Priced(
        1.25, "default of mid-2026: nebius spot, H100-SXM-80GB"
    )
    l4 = price_of({"model": "NVIDIA L4"}, {"spot": True, "instance_type": "g6.xlarge"}, PriceBook())
    assert l4.usd_per_hour == 0.8048
    assert l4.basis
    assert "on demand" in l4.basis
    assert price_of(H100, {**node, "spot": False}, PriceBook()).usd_per_hour == 6.88


def test_the_first_entry_that_matches_counts(file: Any) -> None:
    book = load_book(file(BOOK))
    assert price_of(H100, NODE, book) == Priced(2.29, "prices.toml:11: 2.29 USD/h")
    at_13 = {**H100, "node": "dgx-13"}
    assert price_of(at_13, NODE, book) == Priced(
        12.29, "prices.toml:6: instance of 98.32 USD/h with 8 GPUs"
    )
    # What does not fit is left to the catalogue.
    assert price_of(H100, None, book).usd_per_hour == 2.95
    for odd in (
        "{broken",
        "[" * 65_536,
        '{"a":' * 10_000,
        '{"a": ' + "9" * 5_000 + "}",
        "[1]",
        "\0",
    ):
        assert price_of(H100, {**NODE, "labels": odd}, book).usd_per_hour == 2.95
    assert price_of({"model": "NVIDIA A100-SXM4-80GB"}, NODE, book).usd_per_hour == 1.95


def test_owned_hardware_costs_its_life_and_its_power(file: Any) -> None:
    book = load_book(file(BOOK))
    price = price_of({"model": "NVIDIA Foo 1", "node": "n"}, {"gpus": 2}, book)
    assert price.usd_per_hour == pytest.approx(1.0 + 0.5 * 0.2 * 1.5)
    assert price.basis == (
        "prices.toml:16: owned, 87660 USD over 5 years, 2 GPUs, 500 W at 0.2 USD/kWh, PUE 1.5"
    )
    without = PriceBook(book.entries)
    price = price_of({"model": "NVIDIA Foo 1", "node": "n"}, {"gpus": 1}, without)
    assert price == Priced(2.0, "prices.toml:16: owned, 87660 USD over 5 years, without power")


def test_power_costs_and_emits_what_it_does_at_the_site(file: Any) -> None:
    book = load_book(
        file(
            BOOK.replace("pue = 1.5", "pue = 1.5\nco2_g_per_kwh = 400")
            + '[[site]]\nlabels = {site = "ice*"}\nusd_per_kwh = 0.05\nco2_g_per_kwh = 20\n'
            + '[[site]]\nlabels = {site = "*"}\npue = 1\n[billing]\nafter_silence = "12h"\n'
        )
    )
    at = {site: energy_of({"labels": f'{{"site": "{site}"}}'}, book) for site in ("Iceland", "b")}
    # What a site does not say is as for all.
    assert (at["Iceland"].usd, at["Iceland"].co2_g) == pytest.approx((0.075, 30))
    assert (at["b"].usd, at["b"].co2_g) == (0.2, 400)
    assert energy_of(NODE, book) == book.energy
    assert price_of(
        {"model": "NVIDIA Foo"}, {"gpus": 1, "labels": '{"site": "b"}'}, book
    ) == Priced(
        pytest.approx(2 + 0.5 * 0.2),
        "prices.toml:17: owned, 87660 USD over 5 years, 500 W at 0.2 USD/kWh, PUE 1",
    )
    assert book.billing == Billing(timedelta(minutes=2), timedelta(hours=12))


def test_an_instance_without_a_number_of_gpus_has_no_price(file: Any) -> None:
    text = '[[price]]\nnode = "n*"\ninstance_usd_per_hour = 10\n'
    for node in (None, {"gpus": None}, {"gpus": 0}, {"gpus": -(2**31)}):
        price = price_of({"model": "NVIDIA H100", "node": "n1"}, node, load_book(file(text)))
        assert price.usd_per_hour is None
        assert price.basis is not None and price.basis.endswith("unknown number of GPUs")


def test_owned_hardware_of_an_unknown_model_needs_its_watts(file: Any) -> None:
    text = "[energy]\nusd_per_kwh = 0.1\n[[price]]\nowned_usd = 1000\nlife_years = 3\ngpus = 1\n"
    book = load_book(file(text))
    assert price_of({"model": "Mystery"}, None, book).usd_per_hour is None
    assert price_of(H100, None, book).usd_per_hour == pytest.approx(1000 / 3 / 8766 + 0.07)


def test_a_mig_device_has_no_price() -> None:
    mig = {"model": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "mig_instance": "1/0"}
    assert price_of(mig, NODE, PriceBook((entry_of(2.0),))) == Priced(None, None)


@pytest.mark.parametrize(
    ("model", "usd"),
    [
        ("H100-SXM-80GB", 1.0),
        ("h100", 1.0),
        ("NVIDIA H100 80GB HBM3", 1.0),
        ("A100", 2.95),
        ("", 1.0),
    ],
)
def test_a_model_is_a_start_of_the_catalogues_or_the_drivers_name(model: str, usd: float) -> None:
    assert price_of(H100, None, PriceBook((entry_of(1.0, model),))).usd_per_hour == usd


def test_offers_are_those_of_the_file_then_the_defaults(file: Any) -> None:
    text = (
        BOOK + "[[offer]]\nmodel = 'H100-SXM'\npurchase_usd = 30000\nreserved_usd_per_hour = 2.1\n"
    )
    text += "[[offer]]\nmodel = 'H100'\npurchase_usd = 1\nwatts = 500\n"
    offers = {one.catalogue_model: one for one in offers_of(load_book(file(text)))}
    sxm, nvl, h200 = (offers[name] for name in ("H100-SXM-80GB", "H100-NVL", "H200-SXM-141GB"))
    where = f"prices.toml:{text[: text.index('[[offer]]')].count(chr(10)) + 1}"
    assert (sxm.purchase_usd, sxm.purchase_basis, sxm.watts) == (30_000, where, 700)
    assert (sxm.reserved_usd_per_hour, sxm.reserved_basis) == (2.1, where)
    assert (sxm.on_demand_usd_per_hour, sxm.spot_usd_per_hour) == (2.95, 1.25)
    assert sxm.usd_per_kwh == pytest.approx(0.3)
    assert (nvl.purchase_usd, nvl.watts, nvl.on_demand_usd_per_hour) == (1, 500, None)
    assert (h200.purchase_usd, h200.purchase_basis, h200.reserved_basis) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[energy]\nusd_per_kwh = -1\n", ":1: usd_per_kwh = -1 must be at least 0"),
        ("[energy]\npue = 0.9\n", ":1: pue = 0.9 must be at least 1"),
        ("\n[[price]]\nusd = 1\n", ":2: unknown key 'usd'; known: model, node, labels, usd_per_hour"),
        ("[[price]]\nmodel = 'H100'\n", ":1: a price has one of usd_per_hour, "),
        ("[[price]]\nusd_per_hour = 1\n[[price]]\nusd_per_hour = 'x'\n", ":3: usd_per_hour = 'x' must be a number"),
        ("[[price]]\nusd_per_hour = 1\nlife_years = 3\n", ":1: life_years goes with owned_usd, not with usd_per_hour"),
        ("[[price]]\nowned_usd = 1\n", ":1: life_years is missing"),
        ("[[price]]\nowned_usd = 1\nlife_years = 0\n", ":1: life_years = 0 must be above 0"),
        ("[[price]]\ninstance_usd_per_hour = 1\ngpus = 0\n", ":1: gpus = 0 must be a whole number"),
        ("[[price]]\nusd_per_hour = nan\n", ":1: usd_per_hour = nan must be a number"),
        ("[[price]]\nusd_per_hour = 1\nlabels = {team = 3}\n", ":1: labels = {'team': 3} must be a table of texts"),
        ("price = 3\n", ":1: price = 3 must be tables: write [[price]] before each"),
        ("prices = 3\n", ":1: unknown key 'prices'; known: energy, site, billing, price, budget"),
        ("[[price]]\nusd_per_hour = 1\n[[site]]\npue = 1.1\n", ":3: labels is missing: write labels = "),
        ("[[budget]]\nteam = 'a'\nusername = 'b'\nusd_per_month = 1\n", ":1: a budget has at most one of team, username, account, category; this has 2"),
        ("[[budget]]\ncategory = 'lazy'\nusd_per_month = 1\n", ":1: category = 'lazy' must be one of productive,"),
        ("[[budget]]\nusd_per_month = 1\n[[budget]]\nusd_per_month = 2\n", ":3: the budget of fleet stands twice"),
        ("[[offer]]\npurchase_usd = 1\n", ":1: model is missing: write model = "),
        ("[[offer]]\nmodel = 'Foo'\n", ":1: model = 'Foo' must be a model of the catalogue, or the start"),
        ("[[offer]]\nmodel = 'H100'\npower_percent = 100\n", ":1: power_percent = 100 must be below 100"),
        ("\n[billing]\nafter_silence = 3\n", ":2: after_silence = 3 must be a duration: 5m, 12h, 3d"),
        ("[[price]\n", "prices.toml: not valid TOML"),
    ],
)  # fmt: skip
def test_the_error_for_an_invalid_file_names_line_and_key(file: Any, text: str, said: str) -> None:
    with pytest.raises(PricesError) as caught:
        load_book(file(text))
    assert said in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PricesError, match="cannot be read: No such file"):
        load_book(tmp_path / "none.toml")


_VALUES = st.one_of(
    st.integers(-3, 3),
    st.text(st.characters(codec="utf-8"), max_size=3),
    st.booleans(),
    st.floats(),
)
_KEYS = st.sampled_from(
    [
        "model",
        "node",
        "usd_per_hour",
        "instance_usd_per_hour",
        "owned_usd",
        "gpus",
        "life_years",
        "watts",
        "x",
    ]
)


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_no_file_gives_a_price_below_zero_or_another_error(
    tmp_path_factory: Any, entry: dict[str, Any]
) -> None:
    def toml(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float):
            return repr(value)
        return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'

    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text("[[price]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in entry.items()))
    try:
        book = load_book(path)
    except PricesError as error:
        assert "any.toml" in str(error)
        return
    usd = price_of(H100, NODE, book).usd_per_hour
    assert usd is None or usd >= 0
    assert book.energy == Energy()
