"""The open batch."""

from typing import Any

from gpuwarden_agent.queue.batch import OpenBatch


def host(ts: int) -> dict[str, Any]:
    return {"ts": ts, "node": "n", "simulated": False}


def event(ts: int) -> dict[str, Any]:
    return {**host(ts), "kind": "k", "severity": "info", "message": "m"}


def test_rows_leave_by_table_in_the_order_they_came() -> None:
    batch = OpenBatch()
    assert batch.add("host_samples", host(1)) == batch.add("host_samples", host(2)) == 0
    batch.add("events", event(1))
    batch.last_ts_ms = 2
    taken = batch.take()
    assert [row["ts"] for row in taken.by_table["host_samples"]] == [1, 2]
    assert (taken.count, taken.last_ts_ms, batch.count) == (3, 2, 0)


def test_a_key_that_is_there_already_is_left_out_and_counted() -> None:
    batch = OpenBatch()
    batch.add("host_samples", host(1))
    assert batch.add("host_samples", host(1)) == 1
    assert batch.count == 1


def test_the_oldest_samples_go_first_and_events_last() -> None:
    batch = OpenBatch(rows_max=3)
    batch.add("events", event(0))
    lost = sum(batch.add("host_samples", host(ts)) for ts in range(1, 6))
    taken = batch.take().by_table
    assert lost == 3
    assert [row["ts"] for row in taken["host_samples"]] == [4, 5]
    assert len(taken["events"]) == 1


def test_rows_put_back_stand_before_newer_ones_and_the_bound_holds() -> None:
    batch = OpenBatch(rows_max=3)
    batch.add("host_samples", host(1))
    batch.add("host_samples", host(2))
    taken = batch.take()
    batch.add("host_samples", host(3))
    batch.add("host_samples", host(4))
    assert batch.put_back(taken) == 1
    assert [row["ts"] for row in batch.take().by_table["host_samples"]] == [2, 3, 4]


def test_newer_inventory_replaces_the_row_that_was_put_back() -> None:
    batch = OpenBatch()
    batch.replace("nodes", {"node": "n", "kernel": "old"})
    taken = batch.take()
    batch.replace("nodes", {"node": "n", "kernel": "new"})
    assert batch.put_back(taken) == 0
    assert batch.take().by_table["nodes"] == [{"node": "n", "kernel": "new"}]
