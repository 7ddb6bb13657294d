"""A group's plan stores each batch once and changes nothing until it is applied."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest import prices
from gpuwarden_collector.ingest.clock_check import APART_S
from gpuwarden_collector.ingest.commit_plan import (
    Batch,
    Known,
    Rejected,
    Stored,
    apply,
    forget_items,
    loaded,
    plan,
)
from gpuwarden_collector.ingest.decode import BatchRows, Decoded
from gpuwarden_collector.ingest.deduplicate import (
    RANGES_MAX,
    BatchLedger,
    LedgerEntry,
    StoredSequences,
)
from gpuwarden_collector.ingest.prices import PriceBook
from gpuwarden_collector.storage.segment import BatchKey


def batch(wire: Any, sequence: int, oldest: int = 0, **tables: list[dict[str, Any]]) -> Batch:
    made = {name: wire.table(name, rows) for name, rows in tables.items()}
    made = made or {"gpu_samples": wire.table("gpu_samples", [wire.gpu_row(second=sequence)])}
    return Batch(BatchId("a", "b", sequence, oldest), Decoded.of(made, 100))


def test_a_batch_twice_in_a_group_is_written_once(wire: Any) -> None:
    planned = plan(Known(), [batch(wire, 1), batch(wire, 2), batch(wire, 1)], PriceBook(), wire.now)
    assert planned.outcomes == [Stored(), Stored(), Stored(is_duplicate=True)]
    assert planned.changes.appended["gpu_samples"].num_rows == 2
    assert planned.rows == {"gpu_samples": 2}


def test_planning_changes_nothing_until_applied(wire: Any) -> None:
    known = Known()
    gpu = {"gpu_uuid": "GPU-0", "node": "n1", "simulated": True}
    for _ in range(2):
        planned = plan(known, [batch(wire, 1, gpus=[gpu])], PriceBook(), wire.now)
        assert planned.outcomes == [Stored()]
        assert planned.changes.upserted["gpus"].num_rows == 1
    assert known == Known()


def test_the_oldest_sequence_raises_the_floor(wire: Any) -> None:
    planned = plan(Known(), [batch(wire, 9, oldest=7)], PriceBook(), wire.now)
    assert planned.ledger["", "a", "b"].stored == StoredSequences(7, ((9, 9),))


def test_an_agent_that_never_closes_its_gaps_is_rejected(wire: Any) -> None:
    ranges = tuple((n, n) for n in range(3, 3 + 2 * RANGES_MAX, 2))
    far = 10 * RANGES_MAX
    last, refused, raised = (
        plan(
            Known(
                ledger=BatchLedger(
                    {("", "a", "b"): LedgerEntry(StoredSequences(1, gaps), wire.now)}
                )
            ),
            [batch(wire, far, oldest)],
            PriceBook(),
            wire.now,
        ).outcomes[0]
        for oldest, gaps in ((0, ranges[1:]), (0, ranges), (far, ranges))
    )
    assert last == Stored()
    assert isinstance(refused, Rejected)
    assert "Gpuwarden-Oldest-Sequence" in refused.reason
    assert raised == Stored()


def test_inventory_is_written_only_when_it_has_changed(wire: Any) -> None:
    known = Known()
    gpu = {"gpu_uuid": "GPU-0", "node": "n1", "simulated": True, "model": "NVIDIA H100 80GB HBM3"}
    first = plan(known, [batch(wire, 1, gpus=[gpu])], PriceBook(), wire.now)
    row = first.changes.upserted["gpus"].to_pylist()[0]
    assert (row["catalogue_model"], row["usd_per_hour"]) == ("H100-SXM-80GB", 2.95)
    apply(known, first)
    later = wire.now + timedelta(minutes=1)
    assert not plan(known, [batch(wire, 2, gpus=[gpu])], PriceBook(), later).changes.upserted
    changed = plan(known, [batch(wire, 3, gpus=[{**gpu, "node": "n2"}])], PriceBook(), later)
    assert changed.changes.upserted["gpus"]["node"].to_pylist() == ["n2"]


def test_two_rows_of_one_gpu_in_a_group_become_one(wire: Any) -> None:
    gpu = {"gpu_uuid": "GPU-0", "node": "n1", "simulated": True}
    batches = [
        batch(wire, 1, gpus=[{**gpu, "serial": "s1"}]),
        batch(wire, 2, gpus=[{**gpu, "model": "NVIDIA A100-SXM4-80GB"}]),
    ]
    rows = plan(Known(), batches, PriceBook(), wire.now).changes.upserted["gpus"].to_pylist()
    assert [(r["serial"], r["catalogue_model"]) for r in rows] == [("s1", "A100-SXM-80GB")]


def test_loading_restores_the_writers_state(wire: Any) -> None:
    naive = wire.now.replace(tzinfo=None)
    ledger_row = {
        "sender": "",
        "agent_id": "a",
        "boot_id": "b",
        "floor": 3,
        "ranges": "5-6",
        "heard_at": naive,
    }
    # Of segments that the state file does not know yet.
    tail = [BatchKey("", "a", "b", 7, 5), BatchKey("s", "a", "b", 1, 0)]
    inventory = {"nodes": [{"node": "n1"}], "gpus": [{"gpu_uuid": "GPU-0", "node": "n1"}]}
    later = wire.now + timedelta(hours=1)
    known = loaded([ledger_row], inventory, tail, later)
    assert known.ledger == BatchLedger(
        {
            ("", "a", "b"): LedgerEntry(StoredSequences(8), later),
            ("s", "a", "b"): LedgerEntry(StoredSequences(2), later),
        }
    )
    assert known.unsaved == {("", "a", "b"), ("s", "a", "b")}
    assert known.items["nodes"]["n1"].row == {"node": "n1"}
    without = loaded([ledger_row], inventory, [], later)
    assert without.ledger == BatchLedger(
        {("", "a", "b"): LedgerEntry(StoredSequences(3, ((5, 6),)), wire.now)}
    )
    assert without.unsaved == set()


def test_the_agent_that_was_silent_for_longest_is_the_first_after_a_start(wire: Any) -> None:
    naive = wire.now.replace(tzinfo=None)
    rows = [
        {"sender": "", "agent_id": f"a{age}", "boot_id": "b", "floor": 1, "ranges": "",
         "heard_at": naive - timedelta(hours=age)}
        for age in (2, 3, 1)
    ]  # fmt: skip
    known = loaded(rows, {}, [], wire.now)
    assert [key[1] for key, _ in known.ledger.of("")] == ["a3", "a2", "a1"]


@pytest.mark.parametrize(
    "removed",
    [{}, {"gpus": {"GPU-1"}}, {"nodes": {"n1"}}, {"gpus": {"GPU-1"}, "nodes": {"n1", "n2"}}],
)
def test_what_was_removed_is_forgotten_with_all_that_is_known_of_it_and_nothing_else(
    wire: Any, removed: dict[str, set[str]]
) -> None:
    known = Known()
    for number in (1, 2):
        told = {"node": f"n{number}", "simulated": True}
        tables = {
            "nodes": [{**told, "agent_id": f"a{number}", "boot_id": "b"}],
            "gpus": [{**told, "gpu_uuid": f"GPU-{number}", "pci_bus_id": "0000:0a:00.0"}],
            "gpu_samples": [wire.gpu_row(gpu=number, node=f"n{number}")],
        }
        decoded = Decoded.of({name: wire.table(name, rows) for name, rows in tables.items()}, 9)
        one = Batch(BatchId(f"a{number}", "b", 1), decoded)
        apply(known, plan(known, [one], PriceBook(), wire.now))
    known.left = {"n1", "n2"}
    forget_items(known, removed)
    gpus = {"GPU-1", "GPU-2"} - removed.get("gpus", set())
    assert known.items["gpus"].keys() == known.owners.keys() == set(known.places.values()) == gpus
    nodes = {"n1", "n2"} - removed.get("nodes", set())
    assert known.items["nodes"].keys() == known.node_owners.keys() == known.left == nodes


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=8))
def test_of_batches_that_were_decoded_together_the_new_ones_are_stored_in_few_pieces(
    wire_maker: Any, parts: list[tuple[int, bool]]
) -> None:
    wire, known, fresh, pieces = wire_maker(), Known(), [], 0
    seconds = range(sum(rows for rows, _ in parts))
    whole = wire.table("gpu_samples", [wire.gpu_row(second=n) for n in seconds])
    batches, start, was_fresh = [], 0, False
    for sequence, (rows, is_fresh) in enumerate(parts, 1):
        decoded = Decoded({"gpu_samples": BatchRows(whole, start, rows)}, 9)
        batches.append(Batch(BatchId("a", "b", sequence), decoded))
        if is_fresh:
            fresh += seconds[start : start + rows]
        else:
            apply(known, plan(known, batches[-1:], PriceBook(), wire.now))
        pieces += is_fresh and not was_fresh
        start, was_fresh = start + rows, is_fresh
    appended = plan(known, batches, PriceBook(), wire.now).changes.appended
    stored = appended["gpu_samples"]["ts"] if fresh else None
    times = whole["ts"].to_pylist()
    assert (stored.to_pylist() if stored else []) == [times[n] for n in fresh]
    assert (stored.num_chunks if stored else 0) == pieces


def test_late_rows_and_those_that_a_peer_may_have_are_noted(wire: Any) -> None:
    sent_again = Batch(BatchId("a", "b", 1, is_sent_before=True), batch(wire, 1).decoded)
    minute = wire.now.replace(tzinfo=None)
    known = Known(closed_until=minute + timedelta(minutes=1), has_peers=True)
    noted = plan(known, [sent_again], PriceBook(), wire.now).changes
    assert noted.late.to_pylist() == [{"node": "n1", "ts": minute}]
    assert noted.doubtful["sequence"].to_pylist() == [1]
    alone = plan(Known(), [sent_again], PriceBook(), wire.now).changes
    assert (alone.late, alone.doubtful) == (None, None)


@pytest.mark.parametrize("simulated", [True, False])
def test_a_clock_that_is_wrong_is_an_event_of_its_nodes(wire: Any, simulated: bool) -> None:
    rows = wire.table("gpu_samples", [wire.gpu_row(simulated=simulated)])
    ahead = Batch(BatchId("a", "b", 1), Decoded.of({"gpu_samples": rows}, 9), ahead_s=APART_S)
    known = Known()
    planned = plan(known, [ahead], PriceBook(), wire.now)
    (event,) = planned.changes.appended["events"].to_pylist()
    assert (event["node"], event["simulated"]) == ("n1", simulated)
    assert event["ts"].replace(tzinfo=None) == wire.now.replace(tzinfo=None)
    apply(known, planned)
    soon = replace(ahead, id=BatchId("a", "b", 2))
    assert "events" not in plan(known, [soon], PriceBook(), wire.now).changes.appended


def test_imported_history_is_stored_and_changes_no_current_state(wire: Any) -> None:
    live = batch(wire, 1)
    past = wire.table("gpu_samples", [wire.gpu_row(gpu=7, second=99)])
    told = Batch(BatchId("import", "0f", 1, is_import=True), Decoded.of({"gpu_samples": past}, 100))
    planned = plan(Known(), [live, told], PriceBook(), wire.now)
    assert planned.changes.appended["gpu_samples"].num_rows == 2
    assert planned.heard["gpus"] == {"GPU-0"}
    assert planned.newest == wire.now + timedelta(seconds=1)
    assert planned.imported_rows == 1
    assert plan(Known(), [told], PriceBook(), wire.now).newest is None


def test_the_price_of_a_gpu_may_follow_from_the_labels_of_its_node(wire: Any) -> None:
    entry = prices.PriceEntry("prices.toml:1", labels={"rack": "r*"}, usd_per_hour=1.5)
    gpu = {"gpu_uuid": "GPU-9", "node": "n9", "simulated": True, "model": "NVIDIA H100"}
    node = {
        "node": "n9",
        "agent_id": "a",
        "boot_id": "b",
        "simulated": True,
        "labels": '{"rack": "r7"}',
    }
    book = PriceBook((entry,))
    both = plan(Known(), [batch(wire, 1, gpus=[gpu], nodes=[node])], book, wire.now)
    assert both.items["gpus"]["GPU-9"].row["price_basis"] == "prices.toml:1: 1.5 USD/h"
    known = Known()
    apply(known, plan(known, [batch(wire, 1, nodes=[node])], book, wire.now))
    apply(known, plan(known, [batch(wire, 2, gpus=[gpu])], book, wire.now))
    assert known.items["gpus"]["GPU-9"].row["usd_per_hour"] == 1.5
    # What the node's row tells later counts at once, and not for GPUs of others.
    other = {**gpu, "gpu_uuid": "GPU-8", "node": "n8"}
    moved = {**node, "labels": "{}", "instance_type": "p5.48xlarge"}
    apply(known, plan(known, [batch(wire, 3, gpus=[other])], book, wire.now))
    apply(known, plan(known, [batch(wire, 4, nodes=[moved])], book, wire.now))
    assert known.items["gpus"]["GPU-9"].row["usd_per_hour"] == 6.88
    assert known.items["gpus"]["GPU-8"].row["usd_per_hour"] == 2.95
    again = plan(known, [batch(wire, 5, nodes=[{**moved, "kernel": "6.9"}])], book, wire.now)
    assert "GPU-9" not in again.items["gpus"]
