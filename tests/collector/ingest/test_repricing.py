"""Another book of prices counts for the GPUs that are known, and for those that come."""

from dataclasses import replace
from typing import Any

from tests.collector.made_up_store import asked, put

from gpuwarden.clock import ManualClock
from gpuwarden_collector.ingest.prices import MonthlyBudget, OfferEntry, PriceBook, PriceEntry
from gpuwarden_collector.ingest.writer import Writer, load_known, reprice
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database

GPUS = """
SELECT 'GPU-' || g AS gpu_uuid, 'n' || g AS node, g AS gpu, false AS simulated, now()::TIMESTAMP AS first_seen_at,
    now()::TIMESTAMP AS last_seen_at, 1.0 AS usd_per_hour, 'before' AS price_basis
FROM range(3) t(g)
"""
BOOK = PriceBook((PriceEntry("p.toml:1", node="n[01]", usd_per_hour=2.5),))


def costs(database: Database) -> list[tuple[Any, ...]]:
    return asked(database, "SELECT usd_per_hour, price_basis FROM gpus ORDER BY node")


def test_gpus_have_the_price_of_the_book_or_none(database: Database, clock: ManualClock) -> None:
    put(database, "gpus", GPUS)
    known = load_known(database, clock.now())
    assert reprice(database, known, BOOK) == 3
    assert [cost for cost, _ in costs(database)] == [2.5, 2.5, None]
    assert {basis for _, basis in costs(database)[:2]} == {"p.toml:1: 2.5 USD/h"}
    # What is remembered is what is stored.
    assert (
        reprice(database, known, BOOK)
        == reprice(database, load_known(database, clock.now()), BOOK)
        == 0
    )


async def test_a_running_writer_takes_changed_prices(
    database: Database, clock: ManualClock
) -> None:
    put(database, "gpus", GPUS)
    writer = Writer(
        database, load_known(database, clock.now()), Stats(), clock, commit_interval_s=0.01
    )
    writer.start()
    assert await writer.take_prices(BOOK) == 3
    assert await writer.take_prices(BOOK) == 0
    await writer.stop()
    assert [cost for cost, _ in costs(database)] == [2.5, 2.5, None]


def test_offers_are_those_of_the_file_now(database: Database, clock: ManualClock) -> None:
    known = load_known(database, clock.now())
    sql = (
        "SELECT purchase_usd, spot_usd_per_hour, spot_basis FROM gpu_offers "
        "WHERE catalogue_model = 'H100-SXM-80GB'"
    )
    reprice(database, known, PriceBook())
    assert asked(database, sql) == [(32_500.0, 1.25, "default of mid-2026: nebius spot")]
    revision = database.state.changes("gpu_offers", -1, 0).revision  # type: ignore[union-attr]
    reprice(database, known, PriceBook())
    assert database.state.changes("gpu_offers", -1, 0).revision == revision  # type: ignore[union-attr]
    entry = OfferEntry("p.toml:3", "H100", purchase_usd=3e4, spot_usd_per_hour=1.0)
    reprice(database, known, PriceBook(offers=(entry,)))
    assert asked(database, sql) == [(30_000.0, 1.0, "p.toml:3")]


def test_budgets_are_those_of_the_file_now(database: Database, clock: ManualClock) -> None:
    known = load_known(database, clock.now())
    sql = "SELECT kind, name, usd_per_month FROM budgets ORDER BY ALL"
    first = MonthlyBudget("team", "vision", 100.0)
    for budgets in (
        (first, MonthlyBudget("fleet", "", 5e4)),
        (replace(first, usd_per_month=7.0),),
        (),
    ):
        reprice(database, known, PriceBook(budgets=budgets))
        shown = [(one.kind, one.name, one.usd_per_month) for one in budgets]
        assert asked(database, sql) == sorted(shown)
    revision = database.state.changes("budgets", -1, 0).revision  # type: ignore[union-attr]
    reprice(database, known, PriceBook())
    assert database.state.changes("budgets", -1, 0).revision == revision  # type: ignore[union-attr]
