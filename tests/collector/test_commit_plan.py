"""A group's plan stores each batch once and changes nothing until it is applied."""

from datetime import timedelta
from typing import Any

import pytest

from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest import prices
from gpuwarden_collector.ingest.commit_plan import (
    LEDGER_KEPT_FOR,
    Batch,
    Known,
    Rejected,
    RetryLater,
    Stored,
    apply,
    expired,
    loaded,
    plan,
)
from gpuwarden_collector.ingest.decode import Decoded
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


def test_a_batch_of_an_earlier_group_is_not_written_again(wire: Any) -> None:
    known = Known()
    apply(known, plan(known, [batch(wire, 1)], PriceBook(), wire.now))
    planned = plan(known, [batch(wire, 1)], PriceBook(), wire.now)
    assert planned.outcomes == [Stored(is_duplicate=True)]
    assert not planned.changes.appended


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
    known = Known(
        ledger=BatchLedger({("", "a", "b"): LedgerEntry(StoredSequences(1, ranges), wire.now)})
    )
    far = 10 * RANGES_MAX
    refused, raised = (
        plan(known, [batch(wire, far, oldest)], PriceBook(), wire.now).outcomes[0]
        for oldest in (0, far)
    )
    assert isinstance(refused, Rejected)
    assert "Gpuwarden-Oldest-Sequence" in refused.reason
    assert raised == Stored()


def test_a_full_ledger_refuses_new_agents_for_now_and_keeps_known_ones(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden_collector.ingest.deduplicate.LEDGER_KEYS_MAX", 1)
    known = Known(
        ledger=BatchLedger({("", "other", "b"): LedgerEntry(StoredSequences(), wire.now)})
    )
    outcome = plan(known, [batch(wire, 1)], PriceBook(), wire.now).outcomes[0]
    assert isinstance(outcome, RetryLater)


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


def test_samples_show_which_nodes_and_gpus_were_seen(wire: Any) -> None:
    planned = plan(Known(), [batch(wire, 1)], PriceBook(), wire.now)
    assert planned.heard == {"nodes": {"n1"}, "gpus": {"GPU-0"}}
    assert planned.newest == wire.now + timedelta(seconds=1)


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


def test_agents_not_seen_for_long_expire(wire: Any) -> None:
    known = Known(ledger=BatchLedger({("", "a", "b"): LedgerEntry(StoredSequences(), wire.now)}))
    assert expired(known, wire.now + LEDGER_KEPT_FOR) == []
    assert expired(known, wire.now + LEDGER_KEPT_FOR + timedelta(seconds=1)) == [("", "a", "b")]


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
