"""What GPUs cost owned and rented, by hand."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.offers import GpuOffer
from gpuwarden.own import ModelUse, own_case, own_parts, own_usd_a_month, read_own, whole_gpus
from gpuwarden_collector.ingest.prices import PriceBook, offers_of

H100 = GpuOffer(
    "H100-SXM-80GB",
    700,
    32_500,
    "default",
    4,
    on_demand_usd_per_hour=2.95,
    on_demand_basis="nebius",
)
USE = ModelUse("H100-SXM-80GB", 24.0, 20.0, 30.0, 30 * 24 * 24.0, 30 * 412.0, 30 * 300.0, 0.0, None)


def test_the_cost_of_owning_one() -> None:
    # 32,500 / 48 months = 677.08; power and cooling are 30 % of all: 677.08 / 0.7.
    assert own_usd_a_month(H100) == pytest.approx(967.26, abs=0.01)
    # 0.7 kW * 730.5 h * 0.195 = 99.71.
    powered = replace(H100, usd_per_kwh=0.195)
    assert own_usd_a_month(powered) == pytest.approx(677.083 + 99.713, abs=0.01)
    hosted = replace(powered, hosting_percent=10)
    assert own_usd_a_month(hosted) == pytest.approx(677.083 * 1.1 + 99.713, abs=0.01)
    assert own_usd_a_month(replace(H100, purchase_usd=None)) is None
    assert own_parts(H100).endswith("30 % of all for power and cooling (no price of a kWh is set)")
    assert "10 % of that for room" in own_parts(hosted)
    assert "700 W all day at $0.195 a kWh with PUE" in own_parts(powered)


def test_owning_that_pays() -> None:
    case = own_case(USE, H100)
    # 412 * 30.4375 * 2.95 = 36,993.7; 20 * 967.26 = 19,345.2; 967.26 / 30.4375 / 2.95 = 10.77.
    assert case.own_usd_a_month == pytest.approx(19_345.24, abs=0.01)
    (rent,) = case.rents
    assert rent.usd_a_month == pytest.approx(36_993.7, abs=0.1)
    assert rent.pays_from == pytest.approx(10.77, abs=0.01)
    assert case.sentences == [
        "H100-SXM-80GB: 412 GPU hours a day at $2.95 on demand cost $36,994 a month; owning the 20 that were in use "
        + "at once at most costs $19,345. Owning pays from 10.8 hours of use a GPU and day; they had 20.6.",
    ]
    assert case.missing == [
        'The price reserved of H100-SXM-80GB is not known: set reserved_usd_per_hour in an [[offer]] with model = "H100-SXM-80GB" of the prices file.',
        'The price spot of H100-SXM-80GB is not known: set spot_usd_per_hour in an [[offer]] with model = "H100-SXM-80GB" of the prices file.',
    ]


def test_owning_that_does_not_pay() -> None:
    spot = replace(H100, spot_usd_per_hour=1.25, reserved_usd_per_hour=1.10)
    case = own_case(USE, spot)
    _, reserved, at_spot = case.rents
    # Reserved is paid for all hours: 20 * 24 * 30.4375 * 1.10 = 16,071.
    assert reserved.usd_a_month == pytest.approx(16_071)
    assert reserved.pays_from is None
    assert case.sentences[1].endswith("costs $19,345. Renting costs less.")
    # 967.26 / 30.4375 / 1.25 = 25.4 hours of a day that has 24.
    assert at_spot.pays_from == pytest.approx(25.42, abs=0.01)
    assert case.sentences[2].endswith("Owning never pays: one that is rented all day costs less.")


def test_what_is_not_known_is_said_and_not_invented() -> None:
    bare = own_case(USE, GpuOffer("H100-SXM-80GB", 700))
    assert (bare.own_usd_a_month, bare.rents, bare.sentences, bare.parts) == (None, [], [], "")
    assert len(bare.missing) == 4
    assert "set purchase_usd in an [[offer]]" in bare.missing[0]
    other = own_case(replace(USE, model="Foo"), None)
    assert other.missing == (
        "Foo is not in the catalogue of models, so that no [[offer]] can be set.",
    )
    unused = own_case(replace(USE, used_at_once=0.0, used_hours=0.0), H100)
    assert unused.sentences == (
        "H100-SXM-80GB: none was in use, so that renting none costs least.",
    )


@given(st.integers(0, 10_000), st.floats(0, 0.009))
def test_gpus_of_an_hour(count: int, little: float) -> None:
    assert whole_gpus(count + little) == count
    assert whole_gpus(count + 0.5) == count + 1


async def test_use_is_read_of_the_store(querier) -> None:
    hour = datetime(2026, 3, 1, tzinfo=UTC)
    begin = hour.replace(tzinfo=None)
    querier.db.execute(
        "INSERT INTO gpus BY NAME SELECT 'GPU-' || g AS gpu_uuid, 'n' AS node, g AS gpu, false AS simulated, "
        "'H100-SXM-80GB' AS catalogue_model, if(g = 0, 'p.toml:1: owned, 1 USD', 'x') AS price_basis, "
        "now()::TIMESTAMP AS first_seen_at, now()::TIMESTAMP AS last_seen_at FROM range(3) t(g)"
    )
    # Two days: GPU 0 and 1 are in use 12 hours a day, at the same time; GPU 2 is free.
    querier.db.execute(
        "INSERT INTO waste_1h BY NAME SELECT $begin + to_hours(h) AS ts, 'n' AS node, 'GPU-' || g AS gpu_uuid, "
        "g AS gpu, false AS simulated, CASE WHEN g = 2 OR h % 24 >= 12 THEN 'free' WHEN g = 1 THEN 'idle_held' "
        "ELSE 'busy' END AS category, 3600 AS seconds, 2.0 AS usd FROM range(48) s(h), range(3) t(g)",
        {"begin": begin},
    )
    for offer in (asdict(one) for one in offers_of(PriceBook())):
        querier.db.execute(
            f"INSERT INTO gpu_offers BY NAME SELECT {', '.join(f'${n} AS {n}' for n in offer)}",
            offer,
        )
    (case,) = await read_own(querier, hour - timedelta(days=28), hour + timedelta(days=2))
    use = case.use
    assert (use.model, use.gpus, use.needed, use.days) == ("H100-SXM-80GB", 3, 2, 2.0)
    assert (use.gpu_hours, use.used_hours, use.busy_hours) == (144, 48, 24)
    assert (use.owned_hours, use.usd) == (48, 288)
    assert use.usd_a_month == pytest.approx(144 * 30.4375)
    assert case.own_usd_a_month == pytest.approx(2 * 967.26, abs=0.02)
    # 24 GPU hours a day.
    assert {rent.kind: round(rent.usd_a_month) for rent in case.rents} == {
        "on_demand": round(24 * 30.4375 * 2.95), "spot": round(24 * 30.4375 * 1.25),
    }  # fmt: skip
