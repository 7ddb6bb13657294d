"""Rows that come after their minute was closed are found, and no others."""

from datetime import datetime, timedelta
from typing import Any

from gpuwarden_collector.ingest.late_rows import late_windows


def minute(wire: Any, minutes: int) -> datetime:
    at: datetime = wire.now.replace(tzinfo=None) + timedelta(minutes=minutes)
    return at


def found(windows: Any) -> set[tuple[str, datetime]]:
    return {(row["node"], row["ts"]) for row in windows.to_pylist()}


def test_rows_before_the_limit_are_late(wire: Any) -> None:
    rows = wire.gpu_rows(2, [-61, -60, -1, 0, 1])
    rows += [wire.gpu_row(0, -3600, node="n2")]
    tables = {"gpu_samples": wire.table("gpu_samples", rows)}
    assert found(late_windows(tables, minute(wire, 0))) == {
        ("n1", minute(wire, -2)),
        ("n1", minute(wire, -1)),
        ("n2", minute(wire, -60)),
    }


def test_nothing_is_late_at_the_limit_or_before_the_first(wire: Any) -> None:
    tables = {"gpu_samples": wire.table("gpu_samples", wire.gpu_rows(1, [0, 1]))}
    assert late_windows(tables, minute(wire, 0)) is None
    assert late_windows(tables, None) is None
    assert late_windows({}, minute(wire, 0)) is None


def test_a_row_of_coverage_belongs_to_the_minute_that_it_ends(wire: Any) -> None:
    counts = dict.fromkeys(("expected", "taken", "missed", "skipped", "late", "failed"), 1)
    row = {"node": "n1", "simulated": True, "probe": "p", "table_name": "host_samples", **counts}
    tables = {"coverage": wire.table("coverage", [row | {"ts": wire.now}])}
    assert found(late_windows(tables, minute(wire, 0))) == {("n1", minute(wire, -1))}
    assert late_windows(tables, minute(wire, -1)) is None


def test_what_is_not_rolled_up_is_never_late(wire: Any) -> None:
    event = {"node": "n1", "simulated": True, "kind": "k", "severity": "info", "message": "m"}
    tables = {"events": wire.table("events", [event | {"ts": wire.now}])}
    assert late_windows(tables, minute(wire, 5)) is None
