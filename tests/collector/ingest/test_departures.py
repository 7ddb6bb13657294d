"""A node that has left costs nothing from then on: said by its agent or an operator, until it is back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.collector.made_up_store import asked, put

from gpuwarden.clock import ManualClock
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch, Known, apply, loaded, plan
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.departures import HOURS_BACK_MAX, unbilled_windows
from gpuwarden_collector.ingest.inventory import Row, priced
from gpuwarden_collector.ingest.prices import Billing, PriceBook
from gpuwarden_collector.ingest.writer import NodeForgotten, Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database

NODE = {"node": "n1", "agent_id": "a", "boot_id": "b", "simulated": True}
BOOK = PriceBook(billing=Billing(after_stop=timedelta(minutes=5)))


def test_a_node_leaves_with_its_agent_and_is_back_with_its_rows(wire: Any) -> None:
    known = Known()
    sequence = 0

    def said(*kinds: str, minute: int, **tables: list[Row]) -> Row:
        nonlocal sequence
        sequence += 1
        if kinds:
            rows = [wire.gpu_row(second=n) for n in range(len(kinds))]
            tables["events"] = [
                {"ts": row["ts"], "node": "n1", "simulated": True, "kind": kind, "severity": "info", "message": ""}
                for row, kind in zip(rows, kinds, strict=True)
            ]  # fmt: skip
        decoded = Decoded.of({name: wire.table(name, rows) for name, rows in tables.items()}, 9)
        batch = Batch(BatchId("a", "b", sequence, 0), decoded)
        apply(known, plan(known, [batch], BOOK, wire.now + timedelta(minutes=minute)))
        row = known.items["nodes"]["n1"].row
        return {name: row.get(name) for name in ("unbilled_from", "unbilled_until")}

    def at(minute: int) -> Any:
        return wire.now + timedelta(minutes=minute)

    samples = {"gpu_samples": [{**wire.gpu_row(second=1), "node": "n1"}]}
    never = {"unbilled_from": None, "unbilled_until": None}
    assert said(nodes=[NODE], minute=0) == never
    assert said("agent_started", minute=1) == never
    left = {"unbilled_from": at(15), "unbilled_until": None}
    assert said("agent_stopped", minute=10, **samples) == left
    # What is known after a restart of the collector is the same.
    again = loaded([], {"nodes": [known.items["nodes"]["n1"].row]}, [], wire.now)
    assert again.left == known.left == {"n1"}
    assert said(minute=30, **samples) == {**left, "unbilled_until": at(30)}
    assert said(minute=31, **samples) == {**left, "unbilled_until": at(30)}
    # A spool that is sent late has both words; the last counts.
    assert said("agent_stopped", "agent_started", minute=40)["unbilled_until"] == at(30)
    assert said("agent_started", "agent_stopped", minute=50) == {
        "unbilled_from": at(55),
        "unbilled_until": None,
    }


async def test_a_node_is_forgotten_when_it_is_silent(
    database: Database, clock: ManualClock
) -> None:
    at = clock.now().replace(tzinfo=None)
    for node, hours in (("gone", 5), ("here", 0)):
        select = (
            f"SELECT '{node}' AS node, 'a' AS agent_id, 'b' AS boot_id, false AS simulated, "
            f"$1::TIMESTAMP AS first_seen_at, $1::TIMESTAMP - INTERVAL {hours} HOUR AS last_seen_at"
        )
        put(database, "nodes", select, [at])
    writer = Writer(
        database, load_known(database, clock.now()), Stats(), clock, commit_interval_s=0.01
    )
    writer.start()
    assert await writer.forget_node("gone") is NodeForgotten.DONE
    assert await writer.forget_node("gone") is NodeForgotten.DONE
    assert await writer.forget_node("here") is NodeForgotten.SENDS
    assert await writer.forget_node("who") is NodeForgotten.UNKNOWN
    await writer.stop()
    sql = "SELECT unbilled_from, forgotten_at IS NOT NULL FROM nodes ORDER BY node"
    until = at - timedelta(hours=5) + Billing().after_stop
    assert asked(database, sql) == [(until, True), (None, False)]
    # The hours that it was counted in since are labelled again.
    assert database.state.late_numbers() == (5, 1)


def test_hours_of_long_ago_keep_what_they_cost() -> None:
    now = datetime(2026, 3, 9, 12, 30, tzinfo=UTC)
    windows = unbilled_windows("n", now - timedelta(days=30), now)
    assert windows is not None
    assert windows.num_rows == HOURS_BACK_MAX
    assert unbilled_windows("n", now, now) is None


@pytest.mark.parametrize(("simulated", "seconds"), [(True, 600.0), (False, 43_200.0)])
def test_a_crash_is_billed_for_as_long_as_the_price_book_says(
    simulated: bool, seconds: float
) -> None:
    """A simulation that was killed does not come back."""
    book = PriceBook(billing=Billing(after_silence=timedelta(hours=12)))
    row = priced({"model": "x", "simulated": simulated}, None, book)
    assert row["billed_silent_s"] == seconds
