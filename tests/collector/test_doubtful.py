"""Doubtful batches are noted, with the time that their rows span."""

from datetime import timedelta
from typing import Any

from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.deduplicate import DOUBTFUL_SCHEMA, doubtful_rows

AGAIN = BatchId("agent", "boot", 7, 0, is_sent_before=True)


def test_only_what_was_sent_before_is_doubtful(wire: Any) -> None:
    tables = {"gpu_samples": wire.table("gpu_samples", wire.gpu_rows(2, range(3)))}
    assert doubtful_rows([(BatchId("agent", "boot", 6), tables)]) is None
    assert doubtful_rows([]) is None
    rows = doubtful_rows([(BatchId("agent", "boot", 6), tables), (AGAIN, tables)])
    assert rows.schema == DOUBTFUL_SCHEMA
    assert rows["sequence"].to_pylist() == [7]


def test_the_span_is_that_of_all_tables_by_node(wire: Any) -> None:
    late = {**wire.gpu_row(0, 9), "node": "n2"}
    tables = {
        "gpu_samples": wire.table("gpu_samples", [*wire.gpu_rows(2, [1, 5]), late]),
        "host_samples": wire.table("host_samples", [
            {"ts": wire.now + timedelta(seconds=20), "node": "n1", "simulated": True}
        ]),
        "nodes": wire.table("nodes", []),
    }  # fmt: skip
    rows = sorted(doubtful_rows([(AGAIN, tables)]).to_pylist(), key=lambda row: row["node"])
    start = wire.now.replace(tzinfo=None)
    spans = [(r["node"], r["first_ts"] - start, r["last_ts"] - start) for r in rows]
    assert spans == [
        ("n1", timedelta(seconds=1), timedelta(seconds=20)),
        ("n2", timedelta(seconds=9), timedelta(seconds=9)),
    ]


def test_a_batch_without_rows_of_samples_leaves_nothing_to_doubt(wire: Any) -> None:
    assert doubtful_rows([(AGAIN, {"nodes": wire.table("nodes", [])})]) is None
    assert doubtful_rows([(AGAIN, {"events": wire.table("events", [])})]) is None
