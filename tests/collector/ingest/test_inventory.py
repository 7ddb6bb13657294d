"""Inventory is merged so that neither absence nor age erases what is known."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_collector.ingest.inventory import BatchSource, Item, merged, priced
from gpuwarden_collector.ingest.prices import Energy, PriceBook, PriceEntry

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def test_an_absent_value_keeps_the_known_one_and_first_seen() -> None:
    known = merged(None, {"node": "n1", "kernel": "6.1", "os": None}, BatchSource("s", "a", 1), NOW)
    item = merged(
        known, {"node": "n1", "kernel": None, "os": "Debian"}, BatchSource("s", "a", 2), LATER
    )
    assert item.row["kernel"] == "6.1"
    assert item.row["os"] == "Debian"
    assert (item.row["first_seen_at"], item.row["last_seen_at"]) == (NOW, LATER)


def test_the_same_again_is_the_same_row_so_nothing_is_written() -> None:
    known = merged(None, {"node": "n1", "kernel": "6.1"}, BatchSource("s", "a", 1), NOW)
    assert (
        merged(known, {"node": "n1", "kernel": "6.1"}, BatchSource("s", "a", 2), LATER).row
        is known.row
    )


def test_an_older_batch_of_the_agent_only_fills_in_what_is_absent() -> None:
    known = merged(None, {"node": "n1", "kernel": "6.2", "os": None}, BatchSource("s", "a", 9), NOW)
    item = merged(
        known, {"node": "n1", "kernel": "6.1", "os": "Debian"}, BatchSource("s", "a", 3), LATER
    )
    assert (item.row["kernel"], item.row["os"]) == ("6.2", "Debian")
    assert item.source == BatchSource("s", "a", 9)


def test_another_agent_on_the_node_replaces_values_with_any_sequence() -> None:
    known = Item({"node": "n1", "kernel": "6.1"}, BatchSource("s", "old", 500))
    assert merged(known, {"node": "n1", "kernel": "6.2"}, BatchSource("s", "new", 1), NOW).row[
        "kernel"
    ] == ("6.2")


def test_a_gpu_has_its_model_its_price_and_that_of_its_energy() -> None:
    h100 = {"model": "NVIDIA H100 80GB HBM3"}
    assert priced(h100, None, PriceBook()) == {
        **h100,
        "catalogue_model": "H100-SXM-80GB",
        "usd_per_hour": 2.95,
        "price_basis": "default of 2026-06: nebius on demand, H100-SXM-80GB",
        "usd_per_kwh": None,
        "co2_g_per_kwh": None,
        "billed_silent_s": 259_200.0,
    }
    book = PriceBook((PriceEntry("p.toml:1", model="H100", usd_per_hour=2.0),), Energy(0.1, 1.5))
    row = priced(h100, {"gpus": 8}, book)
    assert (row["usd_per_hour"], row["price_basis"]) == (2.0, "p.toml:1: 2 USD/h")
    assert row["usd_per_kwh"] == pytest.approx(0.15)


def test_an_unknown_model_has_no_price() -> None:
    row = priced({"model": "NVIDIA Foo 1"}, None, PriceBook())
    assert [row[name] for name in ("catalogue_model", "usd_per_hour", "price_basis")] == [None] * 3


def test_the_same_agent_id_of_another_sender_is_another_agent() -> None:
    """Or one could send a future time once, and the agent itself would only fill in from then on."""
    known = Item({"node": "n1", "kernel": "6.1"}, BatchSource("token:t1", "a", 10**17))
    said = merged(known, {"node": "n1", "kernel": "6.2"}, BatchSource("node:n1", "a", 5), NOW)
    assert said.row["kernel"] == "6.2"
