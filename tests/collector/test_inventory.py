"""Inventory is merged so that neither absence nor age erases what is known."""

from datetime import UTC, datetime, timedelta

from gpuwarden_collector.inventory import Item, Source, merged, priced, unmatched_prices

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def test_a_new_item_is_first_and_last_seen_now() -> None:
    item = merged(None, {"node": "n1", "kernel": None}, Source("a", 1), NOW)
    assert item.row == {"node": "n1", "kernel": None, "first_seen_at": NOW, "last_seen_at": NOW}


def test_an_absent_value_keeps_the_known_one_and_first_seen() -> None:
    known = merged(None, {"node": "n1", "kernel": "6.1", "os": None}, Source("a", 1), NOW)
    item = merged(known, {"node": "n1", "kernel": None, "os": "Debian"}, Source("a", 2), LATER)
    assert item.row["kernel"] == "6.1"
    assert item.row["os"] == "Debian"
    assert (item.row["first_seen_at"], item.row["last_seen_at"]) == (NOW, LATER)


def test_the_same_again_is_the_same_row_so_nothing_is_written() -> None:
    known = merged(None, {"node": "n1", "kernel": "6.1"}, Source("a", 1), NOW)
    assert merged(known, {"node": "n1", "kernel": "6.1"}, Source("a", 2), LATER).row is known.row


def test_an_older_batch_of_the_agent_only_fills_in_what_is_absent() -> None:
    known = merged(None, {"node": "n1", "kernel": "6.2", "os": None}, Source("a", 9), NOW)
    item = merged(known, {"node": "n1", "kernel": "6.1", "os": "Debian"}, Source("a", 3), LATER)
    assert (item.row["kernel"], item.row["os"]) == ("6.2", "Debian")
    assert item.source == Source("a", 9)


def test_another_agent_on_the_node_is_believed_whatever_its_sequence() -> None:
    known = Item({"node": "n1", "kernel": "6.1"}, Source("old", 500))
    assert merged(known, {"node": "n1", "kernel": "6.2"}, Source("new", 1), NOW).row["kernel"] == (
        "6.2"
    )


def test_prices_come_from_the_catalogue_unless_the_operator_says_otherwise() -> None:
    h100 = {"model": "NVIDIA H100 80GB HBM3"}
    assert priced(h100, {}) == {
        **h100,
        "catalogue_model": "H100-SXM-80GB",
        "usd_per_hour": 2.95,
    }

    def usd(prices: dict[str, float]) -> float | None:
        return priced(h100, prices)["usd_per_hour"]

    assert usd({"H100-SXM-80GB": 2.0}) == 2.0
    assert usd({"h100": 1.5}) == 1.5
    assert usd({"H100": 1.5, "H100-SXM": 1.75}) == 1.75
    assert usd({"NVIDIA H100 80GB HBM3": 0.0, "H100": 9}) == 0.0
    assert usd({"A100": 1.0, "": 7.0}) == 2.95


def test_an_unknown_model_has_no_price_unless_named() -> None:
    row = {"model": "NVIDIA Foo 1"}
    assert priced(row, {}) == {**row, "catalogue_model": None, "usd_per_hour": None}
    assert priced(row, {"NVIDIA Foo 1": 3.0})["usd_per_hour"] == 3.0
    assert priced({"model": None}, {"H100": 1.0})["usd_per_hour"] is None


def test_prices_that_match_no_model_are_named() -> None:
    assert unmatched_prices({"h100": 1, "NVIDIA Foo 1": 2}, ["H100-SXM-80GB"]) == ["NVIDIA Foo 1"]
