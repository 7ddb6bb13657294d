"""Values that cannot be true refuse the batch, with table, column, count and an example."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuwarden_collector.ingest import admit, gpu_owners, node_owners
from gpuwarden_collector.ingest import clock_check as agent_clocks
from gpuwarden_collector.ingest.admit import (
    NAME_BYTES_MAX,
    TEXT_BYTES_MAX,
    Window,
    checked,
    window,
)
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS, RefusedBody

HOUR = 3600


def refusal(tables: dict[str, Any], admitted: Window) -> RefusedBody | None:
    result = checked(tables, admitted)
    return result if isinstance(result, RefusedBody) else None


def judged(wire: Any, rows: list[dict[str, Any]], table: str = "gpu_samples") -> RefusedBody | None:
    admitted = window(wire.now, 14 * 24 * HOUR, 300)
    return refusal({table: wire.table(table, rows)}, admitted)


def reason_for(wire: Any, rows: list[dict[str, Any]], table: str = "gpu_samples") -> str:
    refused = judged(wire, rows, table)
    assert refused is not None
    assert refused.status == 422
    return refused.reason


def test_true_values_are_admitted(wire: Any) -> None:
    assert judged(wire, wire.gpu_rows(8, range(-5, 0))) is None
    assert judged(wire, []) is None


@pytest.mark.parametrize("seconds", [2, 251])
def test_the_ends_of_limits_are_admitted_also_where_columns_are_checked_one_by_one(
    wire: Any, seconds: int
) -> None:
    rows = wire.gpu_rows(8, range(-seconds, 0))
    ends = (
        {"util_percent": 0.0, "node": "n"},
        {"util_percent": 100.0, "memory_used_bytes": 0},
        {"gpu_uuid": "x" * NAME_BYTES_MAX, "mig_instance": "x" * TEXT_BYTES_MAX},
        {"ts": wire.now - timedelta(days=14)},
        {"ts": wire.now + timedelta(minutes=5)},
    )
    for place, values in enumerate(ends):
        rows[place] |= values
    assert judged(wire, rows) is None


def test_rows_outside_the_window_are_refused_with_count_and_example(wire: Any) -> None:
    late = [wire.gpu_row(second=s) for s in (0, 301, 999)]
    assert reason_for(wire, late) == (
        "gpu_samples.ts: 2 rows are in the future, such as 2026-03-01T12:16:39.000Z; "
        "admitted is 2026-02-15T12:00:00.000Z to 2026-03-01T12:05:00.000Z"
    )
    old = [wire.gpu_row(second=-20 * 24 * HOUR)]
    assert "1 rows are too old, such as 2026-02-09T12:00:00.000Z" in reason_for(wire, old)
    old.append(wire.gpu_row())
    assert "1 rows are too old, such as 2026-02-09T12:00:00.000Z" in reason_for(wire, old)
    assert "3 rows are too old and too far ahead, such as 2026-02" in reason_for(
        wire, old + late[1:]
    )


SECONDS = st.integers(-20 * 24 * HOUR, 20 * 24 * HOUR)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SECONDS, min_size=1, max_size=5), SECONDS)
@example([-20 * 24 * HOUR, -6 * 24 * HOUR + 300], 0)  # a single clock admits both
def test_a_refusal_names_the_clocks_that_would_admit_the_rows(
    wire: Any, seconds: list[int], ahead_s: int
) -> None:
    rows = [wire.gpu_row(second=second) for second in set(seconds)]
    refused = judged(wire, rows)
    if refused is None:
        return
    table = {"gpu_samples": wire.table("gpu_samples", rows)}
    least_s, most_s = refused.admitting_ahead_s or (math.inf, -math.inf)
    edges = [least_s - 1, least_s, most_s, most_s + 1] if refused.admitting_ahead_s else []
    for clock_s in (ahead_s, *edges):
        by_that_clock = window(wire.now + timedelta(seconds=clock_s), 14 * 24 * HOUR, 300)
        assert (refusal(table, by_that_clock) is None) == (least_s <= clock_s <= most_s)


def test_no_clock_admits_what_is_wrong_by_any(wire: Any) -> None:
    too_wide = [wire.gpu_row(second=-20 * 24 * HOUR), wire.gpu_row(second=HOUR)]
    for rows in ([wire.gpu_row(ts=None)], [wire.gpu_row(power_watts=math.nan)], too_wide):
        refused = judged(wire, rows)
        assert refused is not None and refused.admitting_ahead_s is None
    started = datetime(1969, 1, 1, tzinfo=UTC)
    refused = judged(wire, [{**wire.gpu_row(), "pid": 1, "started_at": started}], "process_samples")
    assert refused is not None and refused.admitting_ahead_s is None


@pytest.mark.parametrize("ts_ms", [-(2**63), 2**63 - 1, 0, -1])
def test_absurd_timestamps_are_refused_not_overflowed(wire: Any, ts_ms: int) -> None:
    table = wire.table("gpu_samples", [wire.gpu_row()])
    table = table.set_column(0, "ts", pa.array([ts_ms], pa.timestamp("ms")))
    refused = refusal({"gpu_samples": table}, window(wire.now, 60, 60))
    assert refused is not None
    assert "gpu_samples.ts: 1 rows are" in refused.reason


def test_a_process_may_have_started_long_ago_but_not_in_the_future(wire: Any) -> None:
    def process(started_at: Any) -> list[dict[str, Any]]:
        return [{**wire.gpu_row(), "pid": 1, "started_at": started_at}]

    assert judged(wire, process(wire.now - timedelta(days=900)), "process_samples") is None
    late = process(wire.now + timedelta(days=1))
    assert "process_samples.started_at: 1 rows are in the fut" in reason_for(
        wire, late, "process_samples"
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"util_percent": 101.0}, "util_percent: 1 rows are outside 0 to 100, such as 101"),
        ({"util_percent": -1.0}, "util_percent: 1 rows are outside 0 to 100, such as -1"),
        ({"memory_used_bytes": -1}, "memory_used_bytes: 1 rows are outside 0 to inf, such as -1"),
        ({"temperature_celsius": 250.0}, "temperature_celsius: 1 rows are outside -60 to 200"),
        ({"power_watts": float("nan")}, "power_watts: 1 rows are NaN or infinite"),
        ({"util_percent": float("nan")}, "util_percent: 1 rows are NaN or infinite"),
        ({"power_watts": float("inf")}, "power_watts: 1 rows are NaN or infinite"),
        ({"node": None}, "node is required, and 1 rows have no value"),
        ({"node": ""}, "node: the text is empty"),
        ({"gpu_uuid": "x" * (NAME_BYTES_MAX + 1)}, "gpu_uuid: a text of 257 bytes; most is 256"),
        ({"mig_instance": "x" * (TEXT_BYTES_MAX + 1)}, "mig_instance: a text of 65537 bytes"),
    ],
)
def test_values_that_cannot_be_true_are_refused(
    wire: Any, values: Mapping[str, Any], reason: str
) -> None:
    rows = [wire.gpu_row(0), {**wire.gpu_row(1), **values}]
    assert reason_for(wire, rows).startswith(f"gpu_samples.{reason}")


NUMBERS: dict[str, tuple[Any, list[float]]] = {
    "temperature_celsius": (np.float32, [-60.0, 200.0, 200.1, -np.inf, np.nan, 3e38]),
    "energy_joules_total": (np.float64, [0.0, -1e-9, 1.7e308, np.inf, np.nan]),
    "memory_used_bytes": (np.int64, [0, -1, 2**63 - 1, -(2**63)]),
    "sm_clock_mhz": (np.int32, [0, -1, 2**31 - 1]),
}
TEXTS = {"node": ["n", "", "x" * NAME_BYTES_MAX, "é" * 129, None], "mig_instance": ["", "1g", None]}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_columns_checked_together_get_the_result_of_single_checks(wire: Any, data: Any) -> None:
    """Also with anything under a NULL, where a sender need not write zero."""
    rows = data.draw(st.integers(1, 4))
    table = wire.table("gpu_samples", wire.gpu_rows(1, range(rows)))

    def put(name: str, values: Any) -> None:
        nonlocal table
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, values)

    for name, (dtype, edges) in NUMBERS.items():
        values = data.draw(st.lists(st.sampled_from(edges), min_size=rows, max_size=rows))
        absent = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        kind = table.schema.field(name).type
        valid = pa.array([not a for a in absent]).buffers()[1]
        under = pa.py_buffer(np.array(values, dtype))
        put(name, pa.Array.from_buffers(kind, rows, [valid, under]))
    for name, texts in TEXTS.items():
        put(
            name,
            pa.array(
                data.draw(st.lists(st.sampled_from(texts), min_size=rows, max_size=rows)),
                pa.string(),
            ),
        )
    ts = st.sampled_from([0, 1, 14 * 24 * HOUR, 14 * 24 * HOUR + 1, -301])
    seconds = data.draw(st.lists(ts, min_size=rows, max_size=rows, unique=True))
    stamps = [wire.now - timedelta(seconds=second) for second in seconds]
    put("ts", pa.array(stamps, table.schema.field("ts").type))
    admitted = window(wire.now, 14 * 24 * HOUR, 300)
    together = refusal({"gpu_samples": table}, admitted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admit, "_TOGETHER_ROWS_MAX", 0)
        patch.setattr(admit, "_SETS_ROWS_MAX", 0)
        assert together == refusal({"gpu_samples": table}, admitted)


WRONG = [{"util_percent": 101.0}, {"node": ""}, {"mig_instance": "1g\x1b[2J"}, {"ts": datetime(1999, 1, 1, tzinfo=UTC)}]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([{}, *WRONG]), min_size=2, max_size=6), st.data())
def test_rows_of_a_larger_table_are_judged_as_if_they_were_alone(
    wire: Any, values: list[dict[str, Any]], data: Any
) -> None:
    rows = [wire.gpu_row(second=n, **{"mig_instance": "1g"} | v) for n, v in enumerate(values)]
    start = data.draw(st.integers(0, len(rows) - 1))
    length = data.draw(st.integers(1, len(rows) - start))
    admitted = window(wire.now, 14 * 24 * HOUR, 300)
    part = checked({"gpu_samples": wire.table("gpu_samples", rows).slice(start, length)}, admitted)
    alone = {"gpu_samples": wire.table("gpu_samples", rows[start : start + length])}
    assert part == checked(alone, admitted)


def test_finite_values_whose_sum_overflows_are_admitted(wire: Any) -> None:
    rows = [wire.gpu_row(g, energy_joules_total=1.7e308) for g in range(2)]
    assert judged(wire, rows) is None


def test_damaged_text_is_refused(wire: Any) -> None:
    table = wire.table("gpu_samples", [wire.gpu_row()])
    broken = pa.array([b"\xff\xfe"]).cast(pa.string(), safe=False)
    table = table.set_column(table.schema.get_field_index("node"), "node", broken)
    refused = refusal({"gpu_samples": table}, window(wire.now, 60, 60))
    assert refused is not None
    assert refused.status == 400
    assert refused.reason.startswith("gpu_samples.node is not valid Arrow")


def test_a_key_that_occurs_twice_is_refused_by_name(wire: Any) -> None:
    rows = [*wire.gpu_rows(2, [0, 1]), wire.gpu_row(1, 1)]
    assert reason_for(wire, rows) == (
        "gpu_samples: 1 keys occur more than once, such as "
        "gpu_uuid GPU-1, ts 2026-03-01T12:00:01 2 times"
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), max_size=12))
def test_process_keys_are_compared_as_a_set_would(
    keys: list[tuple[int, int, int]],
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        {
            "ts": now + timedelta(seconds=second),
            "node": "n1",
            "gpu_uuid": f"GPU-{gpu}",
            "pid": pid,
            "simulated": True,
        }
        for gpu, pid, second in keys
    ]
    table = pa.Table.from_pylist(rows, schema=WIRE_SCHEMAS["process_samples"])
    refused = refusal({"process_samples": table}, window(now, 60, 60))
    assert (refused is None) == (len(set(keys)) == len(keys))


def test_events_and_inventory_may_repeat_their_keys(wire: Any) -> None:
    event = {
        "ts": wire.now,
        "node": "n1",
        "simulated": True,
        "kind": "xid",
        "severity": "warning",
        "message": "two GPUs at once",
    }
    assert judged(wire, [event, event], "events") is None
    gpu = {"gpu_uuid": "GPU-0", "node": "n1", "simulated": True}
    assert judged(wire, [gpu, gpu], "gpus") is None


@pytest.mark.parametrize("rows", [3, 2_500])
def test_control_characters_of_texts_are_replaced_where_they_are_admitted(
    wire: Any, rows: int
) -> None:
    table = wire.table("gpu_samples", wire.gpu_rows(1, range(rows)))
    names = ["1g\x1b[2J", None, "é\u202e\U000e0041"] + ["plain\t\n"] * (rows - 3)
    at = table.schema.get_field_index("mig_instance")
    table = table.set_column(at, table.schema.field(at), pa.array(names, pa.string()))
    found = admit.checked({"gpu_samples": table}, window(wire.now, HOUR, HOUR))
    assert not isinstance(found, RefusedBody)
    told = found["gpu_samples"]["mig_instance"].to_pylist()
    assert told[:3] == ["1g\ufffd[2J", None, "é\ufffd\ufffd"]
    assert set(told[3:]) <= {"plain\t\n"}
    assert found["gpu_samples"].schema.equals(table.schema)


TAKEN_APART = """
SELECT from_json($1, '"MAP(VARCHAR, VARCHAR)"'), $1 ->> 'rack', count(*) FROM json_each($1)
"""
"""As views do."""


@pytest.mark.parametrize(
    "kind",
    [
        gpu_owners.CLAIMED_TWICE,
        gpu_owners.TOO_MANY,
        node_owners.CLAIMED_TWICE,
        agent_clocks.CLOCK_APART,
    ],
)
def test_agents_cannot_send_the_collectors_own_events(wire: Any, kind: str) -> None:
    event = {"ts": wire.now, "node": "n1", "severity": "warning", "message": "m", "simulated": True}
    assert judged(wire, [{**event, "kind": "xid"}], "events") is None
    refused = judged(wire, [{**event, "kind": "xid"}, {**event, "kind": kind}], "events")
    assert refused is not None
    assert (refused.status, refused.reason) == (
        422,
        f"events.kind: only the collector itself writes {kind}",
    )


def node_row(labels: str | None) -> dict[str, Any]:
    agent = {"agent_id": "a", "boot_id": "b", "agent_version": "1", "backend": "x"}
    return {"node": "n1", "simulated": True, **agent, "labels": labels}


@pytest.mark.parametrize(
    "labels",
    [
        "not JSON", "", "[1]", '"x"', "1", "null", '{"a": 1}', '{"a": null}', '{"a": {"b": "c"}}', '{"a": ["b"]}',
        '{"a": "1", "a": "2"}', '{"a": "\\ud800"}', '{"a": "\\u001b[31m"}', '{"\\u202ea": "b"}', '{"a": "\\u0000"}',
        '{"a": NaN}', '{"a": "b"} x', "[" * 5_000, '{"a":' * 5_000, '{"a": "b"',
    ],
)  # fmt: skip
def test_labels_that_would_fail_every_query_of_all_nodes_are_refused(
    wire: Any, labels: str
) -> None:
    refused = judged(wire, [node_row(labels)], "nodes")
    assert refused is not None and refused.status == 422
    assert refused.reason.startswith("nodes.labels: must be a JSON object of printable texts, not")
    assert refused.reason.isprintable() and len(refused.reason) < 300
    event = {
        "ts": wire.now,
        "node": "n1",
        "gpu_uuid": "GPU-1",
        "simulated": True,
        "scheduler": "slurm",
        "job": "1",
    }
    assert judged(wire, [{**event, "pod_labels": labels}], "allocation_samples") is not None


@pytest.mark.parametrize(
    "labels", [None, "{}", ' {"a": "b", "": "", "team": "vision \u00e9"}', '{"a": "\\u00e9"}']
)
def test_labels_are_admitted_and_read_by_every_view(wire: Any, labels: str | None) -> None:
    assert judged(wire, [node_row(labels)], "nodes") is None
    if labels is not None:
        assert duckdb.connect().execute(TAKEN_APART, [labels]).fetchall()


@given(st.text(max_size=40) | st.dictionaries(st.text(), st.text(), max_size=4).map(json.dumps))
def test_labels_that_are_admitted_never_fail_in_sql(text: str) -> None:
    if admit._are_labels(text):
        assert duckdb.connect().execute(TAKEN_APART, [text]).fetchall()


@pytest.mark.parametrize("table", ["nodes", "gpus"])
def test_a_batch_has_a_bounded_number_of_rows_that_are_merged_one_by_one(
    wire: Any, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(admit, "INVENTORY_ROWS_MAX", 3)
    row = {"node": "n1", "gpu_uuid": "GPU-1", "simulated": True, "agent_id": "a", "boot_id": "b"}
    rows = [{k: v for k, v in row.items() if k in WIRE_SCHEMAS[table].names}] * 4
    assert judged(wire, rows[:3], table) is None
    assert reason_for(wire, rows, table) == f"{table} has 4 rows; most is 3: send smaller batches"


@pytest.mark.parametrize("node", ["../../x", "n1 ", "vx;rm"])
def test_rows_of_a_node_that_no_host_is_called_refuse_the_batch(wire: Any, node: str) -> None:
    rows = [wire.gpu_row(), wire.gpu_row(1, node=node)]
    assert f"gpu_samples.node: {node!r} cannot be the name of a node" in reason_for(wire, rows)
