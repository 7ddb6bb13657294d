"""Every second of a GPU has exactly one category: what decides it, and that the sum is the time."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.waste import (
    CATEGORIES,
    CAUSES,
    COUNTED_MINUTES,
    FIRST_MINUTES,
    MPS_SERVER,
    WASTE_1H,
    WasteScope,
    bounds_sql,
    run_begin_sql,
    spent_hours_sql,
    spent_sql,
    waste_sql,
)
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.testing.database import MemoryDatabase

HOUR = datetime(2026, 3, 1, 10, tzinfo=UTC)
END = HOUR + timedelta(hours=1)
MINUTE = timedelta(minutes=1)
Row = dict[str, Any]

GPU: Row = {
    "node": "n1",
    "gpu": 0,
    "gpu_uuid": "GPU-a",
    "model": "NVIDIA H100",
    "simulated": False,
    "usd_per_hour": 3.6,
    "usd_per_kwh": 0.2,
    "sm_clock_max_mhz": 2000,
    "first_seen_at": HOUR - timedelta(days=9),
    "last_seen_at": END,
}


USED = (
    *("gpus", "nodes", "gpu_1m", "host_1m", "process_1m", "allocation_samples", "alerts"),
    *("diagnoses", "waste_1h"),
)


@pytest.fixture(scope="module")
def empty() -> Iterator[MemoryDatabase]:
    made = MemoryDatabase()
    yield made
    made.close()


@pytest.fixture
def database(empty: MemoryDatabase) -> MemoryDatabase:
    for name in USED:
        empty.execute(f"DELETE FROM {name}")
    return empty


def each_minute(span: range, **row: Any) -> list[Row]:
    fixed = {"node": "n1", "gpu_uuid": "GPU-a", "simulated": False}
    return [{"ts": HOUR + m * MINUTE, **fixed, **row} for m in span]


def minutes(idle: float = 0, busy: float = 60, unknown: float = 0, span: range = range(60), **more: Any) -> list[Row]:  # fmt: skip
    seconds = {"idle_seconds": idle, "busy_seconds": busy, "unknown_seconds": unknown}
    counts = {"samples": 60, "detail_samples": 0, "health_samples": 0}
    return each_minute(span, **{"gpu": 0, **counts, **seconds, **more})


def processes(span: range = range(60), **more: Any) -> list[Row]:
    return each_minute(span, **{"pid": 7, "samples": 6, "username": "ada", "job": "55", **more})


def allocations(span: range = range(60), **more: Any) -> list[Row]:
    return each_minute(span, **{"scheduler": "slurm", "username": "bob", "job": "77", **more})


def lasting(begin_m: float, end_m: float | None, end: str, **row: Any) -> Row:
    """A row of something that begins and may end at these minutes."""
    ended_at = None if end_m is None else HOUR + end_m * MINUTE
    times = {"began_at": HOUR + begin_m * MINUTE, "seen_at": END, end: ended_at}
    return {"summary": "", "simulated": False, **times, **row}


def alert(rule: str, begin_m: float = 0, end_m: float | None = None, **more: Any) -> Row:
    words = {"severity": "warning", "consequence": "waste", "state": "firing", "remedy": ""}
    place = {"node": "n1", "gpu_uuid": "GPU-a", "labels": "{}", "active_at": HOUR, "fired_at": END}
    known = {"fingerprint": rule, "rule": rule, **words, **place, **more}
    return lasting(begin_m, end_m, "resolved_at", **known)


def diagnosis(bottleneck: str, begin_m: float = 0, end_m: float | None = None, **more: Any) -> Row:
    found = {"kind": "gpu", "bottleneck": bottleneck, "confidence": 1.0, "gpus": 1}
    known = {"subject": "GPU-a", **found, "evidence": "[]", "misses": "[]", **more}
    return lasting(begin_m, end_m, "ended_at", **known)


TEAM_NODE: Row = {
    "node": "n1",
    "agent_id": "a",
    "boot_id": "b",
    "labels": '{"team": "vision"}',
    "simulated": False,
}


def put(database: MemoryDatabase, **tables: list[Row]) -> None:
    for name, rows in {"gpus": [GPU], **tables}.items():
        database.insert(name, rows)


def rows(database: MemoryDatabase, begin: datetime = HOUR, end: datetime = END) -> list[Row]:
    sql = waste_sql(WasteScope(begin.replace(tzinfo=None), end.replace(tzinfo=None)))
    return database.run(sql).records()


def seconds_by(found: list[Row], *names: str) -> dict[Any, float]:
    """The sum of their seconds by these columns, or by the only one."""
    sums: dict[Any, float] = {}
    for row in found:
        key = tuple(row[name] for name in names) if len(names) > 1 else row[names[0]]
        sums[key] = sums.get(key, 0) + row["seconds"]
    return sums


def labelled(database: MemoryDatabase) -> dict[str, float]:
    return seconds_by(rows(database), "category")


def of_each(database: MemoryDatabase, cases: Sequence[dict[str, list[Row]]]) -> list[list[Row]]:
    """Waste of each case, all in one database: each has a node with a GPU of its own."""
    named = ("node", "gpu_uuid", "parent_gpu_uuid", "subject", "fingerprint")
    for number, tables in enumerate(cases):
        renamed = {
            table: [{k: f"{v}/{number}" if k in named and v else v for k, v in row.items()} for row in of_table]
            for table, of_table in {"gpus": [GPU], **tables}.items()
        }  # fmt: skip
        put(database, **renamed)
    found: list[list[Row]] = [[] for _ in cases]
    for row in rows(database):
        found[int(row["node"].partition("/")[2])].append(row)
    return found


def test_rules_that_decide_a_label_have_the_labels_that_it_is_joined_by() -> None:
    for rule in builtin_rules():
        if rule.name in CAUSES:
            assert "node" in rule.labels or "gpu_uuid" in rule.labels


def test_each_second_of_an_hour_gets_the_label_that_its_rows_support(
    database: MemoryDatabase,
) -> None:
    cases: list[tuple[dict[str, list[Row]], dict[str, float]]] = [
        ({"gpu_1m": minutes(0, 60)}, {"busy": 3600}),
        ({"gpu_1m": minutes(60, 0)}, {"free": 3600}),
        ({"gpu_1m": minutes(60, 0), "process_1m": processes()}, {"idle_held": 3600}),
        ({"gpu_1m": minutes(60, 0), "process_1m": processes(process_type="graphics")}, {"free": 3600}),
        ({"gpu_1m": minutes(60, 0, memory_used_bytes_max=9 * 10**9)}, {"idle_held": 3600}),
        ({"gpu_1m": minutes(60, 0), "allocation_samples": allocations()}, {"allocated_idle": 3600}),
        ({"gpu_1m": minutes(60, 0), "allocation_samples": allocations(processes=2)}, {"idle_held": 3600}),
        # A process that nobody has a right to see is not the driver's own utilization after its start.
        ({"gpu_1m": minutes(0, 60, memory_used_bytes_max=10**6)}, {"free": 3600}),
        # The time that was seen counts for a minute of which a quarter at most is missing.
        ({"gpu_1m": minutes(9, 36)}, {"gaps": 720, "busy": 2880}),
        ({"gpu_1m": minutes(0, 40)}, {"busy": 2400, "unknown": 1200}),
        ({"gpu_1m": minutes(40, 40)}, {"gaps": 1800, "busy": 1800}),
        # A server that answers a request each minute is in use; it idles in minutes in which nothing runs.
        ({"gpu_1m": minutes(57, 3), "process_1m": processes()}, {"busy": 180, "gaps": 3420}),
        ({"gpu_1m": [*minutes(57, 3, span=range(30)), *minutes(60, 0, span=range(30, 60))], "process_1m": processes()},
         {"busy": 90, "gaps": 1710, "idle_held": 1800}),
        # MIG: no utilization. GPM says whether it worked, or nobody knows.
        ({"gpu_1m": minutes(0, 0, 60)}, {"unknown": 3600}),
        ({"gpu_1m": minutes(0, 0, 60, graphics_active_percent_avg=40)}, {"busy": 1620, "gaps": 1980}),
        ({"gpu_1m": minutes(0, 0, 60, graphics_active_percent_avg=0)}, {"free": 3600}),
        # No samples: lost where the node was there, else nobody knows.
        ({}, {"unknown": 3600}),
        ({"gpu_1m": minutes(0, 60, span=range(30)), "host_1m": [{"ts": HOUR + m * MINUTE, "node": "n1", "simulated": False, "samples": 60} for m in range(45)]},
         {"busy": 1800, "lost": 900, "unknown": 900}),
        ({"alerts": [alert("node_down", 10, 25, gpu_uuid=None)]}, {"lost": 900, "unknown": 2700}),
        ({"alerts": [alert("gpu_lost", -500)]}, {"lost": 3600}),
        # What was seen was not lost, whatever an alert says.
        ({"gpu_1m": minutes(0, 60), "alerts": [alert("gpu_lost")]}, {"busy": 3600}),
        ({"gpu_1m": minutes(0, 60), "alerts": [alert("gpu_hung", 30)]}, {"busy": 1800, "hung": 1800}),
        ({"gpu_1m": minutes(0, 60), "alerts": [alert("gpu_hung", 30, 45.5), alert("gpu_hung", 40, 45, fingerprint="2")]}, {"busy": 2670, "hung": 930}),
        ({"gpu_1m": minutes(0, 60), "alerts": [alert("gpu_hung", fired_at=None)]}, {"busy": 3600}),
        ({"gpu_1m": minutes(0, 60), "alerts": [alert("gpu_hung", gpu_uuid="GPU-b")]}, {"busy": 3600}),
        # What the diagnosis judged is productive, from the window on that it measured.
        ({"gpu_1m": minutes(0, 60), "diagnoses": [diagnosis("compute_bound", 2)]}, {"productive": 3600}),
        ({"gpu_1m": minutes(0, 60), "diagnoses": [diagnosis("compute_bound", 22, 52)]}, {"productive": 1920, "busy": 1680}),
        ({"gpu_1m": minutes(0, 60), "diagnoses": [diagnosis("compute_bound", 2, None, seen_at=HOUR + 20 * MINUTE)]},
         {"productive": 1800, "busy": 1800}),
        ({"gpu_1m": minutes(0, 60), "diagnoses": [diagnosis("unknown"), diagnosis("not_working", subject="GPU-b")]}, {"busy": 3600}),
        # The measured share of each second counts, whether anybody judged it or not.
        ({"gpu_1m": minutes(0, 60, util_percent_avg=30), "process_1m": processes()}, {"busy": 1260, "gaps": 2340}),
        ({"gpu_1m": minutes(0, 60, util_percent_avg=96)}, {"busy": 3600}),
        # A starved GPU lost what it was not busy, except what every loop loses.
        ({"gpu_1m": minutes(30, 30, util_percent_avg=35), "process_1m": processes(), "diagnoses": [diagnosis("loader_workers", 2)]},
         {"productive": 1440, "starved": 2160}),
        ({"gpu_1m": minutes(0, 60, util_percent_avg=30), "process_1m": processes(), "diagnoses": [diagnosis("storage_disk", 2, 32), diagnosis("busy", 32)]},
         {"productive": 1260, "starved": 1248, "gaps": 1092}),
        # A job that has ended starves no more, though its diagnosis lingers.
        ({"gpu_1m": minutes(60, 0, util_percent_avg=0), "diagnoses": [diagnosis("loader_workers")]}, {"free": 3600}),
        # Half the clock for half the minute is a quarter of it.
        ({"gpu_1m": minutes(0, 60, sm_clock_mhz_avg=1500, hw_thermal_seconds_delta=30)}, {"throttled": 900, "busy": 2700}),
        ({"gpu_1m": minutes(0, 60, sm_clock_mhz_avg=1000, reason_hardware_power_brake_seconds=15)}, {"throttled": 900, "busy": 2700}),
        # The driver's counters are believed before its bits; a power cap is not throttling.
        ({"gpu_1m": minutes(0, 60, sm_clock_mhz_avg=1000, hw_thermal_seconds_delta=0, reason_hardware_thermal_slowdown_seconds=60)}, {"busy": 3600}),
        ({"gpu_1m": minutes(0, 60, sm_clock_mhz_avg=1000, reason_software_power_cap_seconds=60)}, {"busy": 3600}),
        ({"gpu_1m": minutes(0, 60, hw_thermal_seconds_delta=60)}, {"busy": 3600}),
        # Hung comes before idle, throttled and starved.
        ({"gpu_1m": minutes(20, 40, sm_clock_mhz_avg=500, hw_thermal_seconds_delta=60, util_percent_avg=10), "process_1m": processes(),
          "alerts": [alert("gpu_hung")], "diagnoses": [diagnosis("pin_copy")]}, {"hung": 3600}),
    ]  # fmt: skip
    found = of_each(database, [tables for tables, _ in cases])
    for number, (_, expected) in enumerate(cases):
        assert seconds_by(found[number], "category") == pytest.approx(expected), number


def test_time_belongs_to_whose_process_holds_the_gpu_else_to_the_job(
    database: MemoryDatabase,
) -> None:
    put(
        database,
        # In one minute of two a kernel ran for all of it.
        gpu_1m=[*minutes(60, 0, span=range(0, 60, 2)), *minutes(span=range(1, 60, 2))],
        process_1m=[
            *processes(range(30), username="eve", job=None),
            *processes(range(30, 40)),
            # All processes of one owner are one holder.
            *processes(range(30, 40), pid=8),
        ],
        allocation_samples=allocations(),
        nodes=[TEAM_NODE],
    )
    found = {(r["username"], r["job"], r["category"]): r for r in rows(database)}
    assert {key: row["seconds"] for key, row in found.items()} == {
        ("eve", "77", "idle_held"): 900,
        ("eve", "77", "busy"): 900,
        ("ada", "55", "idle_held"): 300,
        ("ada", "55", "busy"): 300,
        ("bob", "77", "allocated_idle"): 600,
        ("bob", "77", "busy"): 600,
    }
    assert {row["team"] for row in found.values()} == {"vision"}
    assert {row["split_by"] for row in found.values()} == {None}


def shared(**others: Row) -> list[Row]:
    """Processes of several users on one GPU; a user's name is its job's, too."""
    return [
        row
        for pid, (name, more) in enumerate(others.items())
        for row in processes(pid=pid, username=name, job=name, **more)
    ]


def test_a_shared_gpu_is_split_by_sm_share_else_by_memory_and_says_which(
    database: MemoryDatabase,
) -> None:
    cases: list[tuple[list[Row], dict[str, float], str | None]] = [
        (
            shared(
                ada={"sm_util_percent_avg": 60.0, "gpu_memory_bytes_avg": 1e9},
                bob={"sm_util_percent_avg": 20.0, "gpu_memory_bytes_avg": 9e9},
            ),
            {"ada": 2700, "bob": 900},
            "sm",
        ),
        # Who ran nothing pays nothing where another ran; so does who came in the last ten seconds, nearly.
        (
            shared(
                ada={"sm_util_percent_avg": 0.0},
                bob={"sm_util_percent_avg": None},
                eve={"sm_util_percent_avg": 50.0},
                joe={"sm_util_percent_avg": 50.0, "samples": 1},
            ),
            {"eve": 3600 * 6 / 7, "joe": 3600 / 7},
            "sm",
        ),
        (
            shared(
                ada={"sm_util_percent_avg": 0.0, "gpu_memory_bytes_avg": 30e9},
                bob={"gpu_memory_bytes_avg": 10e9},
            ),
            {"ada": 2700, "bob": 900},
            "memory",
        ),
        # A node may send anything: no number fails the others' waste.
        (
            shared(ada={"sm_util_percent_avg": 3.4e38}, bob={"sm_util_percent_avg": -3.4e38}),
            {"ada": 3600},
            "sm",
        ),
        (
            shared(ada={"gpu_memory_bytes_avg": 9.2e18}, bob={"gpu_memory_bytes_avg": 9.2e18}),
            {"ada": 1800, "bob": 1800},
            "memory",
        ),
        (shared(ada={}, bob={}, eve={}), {"ada": 1200, "bob": 1200, "eve": 1200}, "even"),
        (
            shared(
                ada={"gpu_memory_bytes_avg": 10e9},
                root={"process_name": MPS_SERVER, "gpu_memory_bytes_avg": 30e6},
            ),
            {"ada": 3600},
            "memory",
        ),
        (shared(ada={}, root={"process_name": MPS_SERVER}), {"ada": 3600}, "even"),
        (
            shared(root={"process_name": MPS_SERVER, "gpu_memory_bytes_avg": 30e6}),
            {"root": 3600},
            None,
        ),
        (
            shared(ada={}, bob={"process_type": "graphics", "gpu_memory_bytes_avg": 1e9}),
            {"ada": 3600},
            None,
        ),
    ]
    # Each category is split alike: in a third of the time no kernel runs.
    gpu = minutes(20, 40, energy_joules_delta=36_000)
    found = of_each(database, [{"gpu_1m": gpu, "process_1m": holders} for holders, *_ in cases])
    for of_case, (_, expected, split_by) in zip(found, cases, strict=True):
        assert seconds_by(of_case, "username") == pytest.approx(expected, abs=0.1)
        assert {row["split_by"] for row in of_case} == {split_by}
        assert sum(round(1000 * row["seconds"]) for row in of_case) == 3_600_000
        assert sum(row["energy_kwh"] for row in of_case) == pytest.approx(0.6)
        assert seconds_by(of_case, "category")["gaps"] == pytest.approx(1200, abs=0.1)


def test_a_gpu_given_to_several_jobs_that_nobody_uses_is_split_evenly(
    database: MemoryDatabase,
) -> None:
    pods = [
        allocations(scheduler="kubernetes", job=f"ml/{name}",
                    pod=f"ml/{name}", username=name, team=f"team-{name}")
        for name in ("a", "b")
    ]  # fmt: skip
    held = processes(range(30), job="ml/a", pod="ml/a", username="a")
    put(
        database,
        gpu_1m=minutes(60, 0),
        allocation_samples=pods[0] + pods[1],
        process_1m=held,
        nodes=[TEAM_NODE],
    )
    assert seconds_by(rows(database), "category", "pod", "team", "split_by") == {
        # The team of each pod, whichever is the newer.
        ("idle_held", "ml/a", "team-a", None): 1800,
        ("allocated_idle", "ml/a", "team-a", "even"): 900,
        ("allocated_idle", "ml/b", "team-b", "even"): 900,
    }


def test_dollars_energy_and_carbon_follow_the_time_and_are_absent_where_nobody_knows_them(
    database: MemoryDatabase,
) -> None:
    watts = {"energy_joules_delta": 36_000}
    # The first half hour is free and has no power reading; the second works for three quarters of it.
    half = [*minutes(60, 0, span=range(30)), *minutes(15, 45, span=range(30, 60), **watts)]
    cases = [
        {"gpus": [{**GPU, "co2_g_per_kwh": 400.0}], "gpu_1m": half},
        {"gpus": [{**GPU, "usd_per_hour": None, "usd_per_kwh": None}], "gpu_1m": minutes()},
    ]
    names = ("usd", "energy_kwh", "energy_usd", "co2_kg")
    known, unknown = (
        {row["category"]: tuple(row[name] for name in names) for row in of_case}
        for of_case in of_each(database, cases)
    )
    assert known["free"] == (pytest.approx(1.8), None, None, None)
    assert known["gaps"] == pytest.approx((0.45, 0.075, 0.015, 0.03))
    assert known["busy"] == pytest.approx((1.35, 0.225, 0.045, 0.09))
    assert unknown == {"busy": (None,) * 4}


def test_a_minute_in_which_its_gpu_was_lost_keeps_what_was_seen_of_it_and_all_energy(
    database: MemoryDatabase,
) -> None:
    seen = minutes(0, 30, span=range(30), energy_joules_delta=36_000)
    put(database, gpu_1m=seen, alerts=[alert("gpu_lost", 0, 30)])
    found = {r["category"]: (r["seconds"], r["energy_kwh"]) for r in rows(database)}
    assert found["lost"] == (900, None)
    assert found["busy"] == (900, pytest.approx(0.3))


@pytest.mark.parametrize("begin_m", [7, 11])
def test_a_log_with_a_reading_every_five_minutes_counts_all_of_its_time(
    database: MemoryDatabase, begin_m: int
) -> None:
    span = range(0, 60, 5)
    gpus = [{**GPU, "first_seen_at": END, "last_seen_at": None}]
    sparse = [row for m in span for row in minutes(1, 0, span=range(m, m + 1), samples=1, power_watts_avg=100.0)]  # fmt: skip
    put(database, gpus=gpus, gpu_1m=sparse)
    # Also where what is asked about begins between two readings.
    found = rows(database, HOUR + begin_m * MINUTE, END + 15 * MINUTE)
    assert sum(row["seconds"] for row in found) == 3600 - 60 * begin_m
    assert {row["category"] for row in found} == {"free"}
    assert sum(row["energy_kwh"] for row in found) == pytest.approx((60 - begin_m) / 600)


def test_an_agent_that_misses_minutes_is_not_taken_for_a_sparse_log(
    database: MemoryDatabase,
) -> None:
    gaps = [row for m in range(0, 60, 5) for row in minutes(span=range(m, m + 1))]
    put(database, gpu_1m=gaps)
    assert labelled(database) == {"busy": 720, "unknown": 2880}


def test_a_node_that_has_left_costs_nothing_until_it_is_back(database: MemoryDatabase) -> None:
    node = {"node": "n1", "agent_id": "a", "boot_id": "b", "simulated": False}
    left = {**node, "unbilled_from": HOUR + 25 * MINUTE}
    back = {**left, "unbilled_until": HOUR + 50 * MINUTE}
    # One that was not said to have left is billed for as long as the prices file says.
    silent = {**GPU, "last_seen_at": HOUR + 20 * MINUTE, "billed_silent_s": 600.0}
    worked = {"gpu_1m": minutes(span=range(20))}
    cases = [worked | {"nodes": [left]}, worked | {"nodes": [back]}, worked | {"gpus": [silent]}]
    unknown = [seconds_by(one, "category")["unknown"] for one in of_each(database, cases)]
    assert unknown == [300, 900, 600]


def test_a_gpu_is_counted_from_its_first_minute_until_it_is_forgotten(
    database: MemoryDatabase,
) -> None:
    early = {"first_seen_at": HOUR + timedelta(minutes=20, seconds=5)}
    put(database, gpus=[{**GPU, **early}], gpu_1m=minutes(span=range(20, 60)))
    assert labelled(database) == {"busy": 2400}
    for days, seconds in ((2, 3600), (3, 0)):
        begin = HOUR + timedelta(days=days, hours=1)
        found = rows(database, begin, begin + timedelta(hours=1))
        assert sum(row["seconds"] for row in found) == seconds


def test_a_board_that_was_replaced_is_counted_until_it_was_last_heard_of(
    database: MemoryDatabase,
) -> None:
    gone = {"replaced_by": "GPU-b", "last_seen_at": HOUR + timedelta(minutes=30)}
    put(database, gpus=[{**GPU, **gone}], gpu_1m=minutes(span=range(30)))
    assert labelled(database) == {"busy": 1800}


def test_a_gpu_that_moved_to_another_node_is_counted_once(database: MemoryDatabase) -> None:
    moved = [{**row, "node": "n2"} for row in minutes(60, 0, span=range(29, 50))]
    put(database, gpus=[{**GPU, "node": "n2"}], gpu_1m=[*minutes(span=range(30)), *moved])
    found = rows(database)
    assert sum(row["seconds"] for row in found) == 3600
    parts = []
    for node in ("n1", "n2"):
        condition = f"node IN ('{node}')"
        sql = waste_sql(WasteScope(HOUR.replace(tzinfo=None), END.replace(tzinfo=None), condition))
        parts += database.run(sql).records()
    key = WASTE_1H.table.key
    assert sorted(parts, key=lambda r: str([r[n] for n in key])) == sorted(
        found, key=lambda r: str([r[n] for n in key])
    )


def test_mig_devices_are_parts_of_their_gpu(database: MemoryDatabase) -> None:
    part = {**GPU, "gpu_uuid": "MIG-1", "mig_instance": "1/0", "parent_gpu_uuid": "GPU-a"}
    put(
        database,
        gpus=[GPU, part],
        gpu_1m=[
            *minutes(0, 0, 60, graphics_active_percent_avg=1),
            *minutes(60, 0, gpu_uuid="MIG-1", mig_instance="1/0"),
        ],
        process_1m=processes(gpu_uuid="MIG-1"),
    )
    assert labelled(database) == {"idle_held": 3600}


def mig(number: int, profile: str) -> Row:
    """The inventory's row of a MIG device of GPU-a."""
    return {
        **GPU, "gpu_uuid": f"MIG-{number}", "mig_instance": f"{number}/0", "parent_gpu_uuid": "GPU-a",
        "model": f"NVIDIA H100 MIG {profile}", "usd_per_hour": None,
    }  # fmt: skip


def mig_minutes(number: int, span: range = range(60), **more: Any) -> list[Row]:
    device = {"gpu_uuid": f"MIG-{number}", "mig_instance": f"{number}/0"}
    return minutes(0, 0, 60, span, **device, **more)


SEVENTH = 3600 / 7


def test_each_mig_device_has_its_slices_of_the_board_and_labels_of_its_own(
    database: MemoryDatabase,
) -> None:
    cases: list[tuple[dict[str, list[Row]], dict[tuple[str | None, str], float]]] = [
        # Two sevenths have no MIG device, and nobody has MIG-2.
        ({}, {("ada", "busy"): 3 * 0.85, ("ada", "gaps"): 3 * 0.15, (None, "free"): 4}),
        # Who was given the board has what nobody uses of it.
        (
            {"allocation_samples": allocations()},
            {("ada", "busy"): 3 * 0.85, ("ada", "gaps"): 3 * 0.15, ("bob", "allocated_idle"): 4},
        ),
        (
            {"allocation_samples": allocations(gpu_uuid="MIG-2")},
            {("ada", "busy"): 3 * 0.85, ("ada", "gaps"): 3 * 0.15, ("bob", "allocated_idle"): 2, (None, "free"): 2},
        ),
        # A process of a device without samples: it holds what no counted device has.
        (
            {"gpus": [GPU, mig(1, "3g.40gb"), mig(2, "2g.20gb"), mig(3, "1g.10gb")],
             "process_1m": processes(gpu_uuid="MIG-1") + processes(gpu_uuid="MIG-3", username="eve")},
            {("ada", "busy"): 3 * 0.85, ("ada", "gaps"): 3 * 0.15, (None, "free"): 2, ("eve", "unknown"): 2},
        ),
        # A device without samples is unknown, not free.
        (
            {"gpus": [GPU, mig(1, "3g.40gb"), mig(2, "2g.20gb"), mig(3, "1g.10gb")]},
            {("ada", "busy"): 3 * 0.85, ("ada", "gaps"): 3 * 0.15, (None, "free"): 2, (None, "unknown"): 2},
        ),
    ]  # fmt: skip
    board = {
        "gpus": [GPU, mig(1, "3g.40gb"), mig(2, "2g.20gb")],
        "gpu_1m": [
            *minutes(0, 0, 60, energy_joules_delta=36_000),
            *mig_minutes(1, graphics_active_percent_avg=80.0, memory_used_bytes_max=10**10),
            *mig_minutes(2, memory_used_bytes_max=12_000_000),
        ],
        "process_1m": processes(gpu_uuid="MIG-1"),
    }
    found = of_each(database, [board | more for more, _ in cases])
    for of_case, (_, expected) in zip(found, cases, strict=True):
        assert seconds_by(of_case, "username", "category") == {
            key: pytest.approx(n * SEVENTH, abs=0.2) for key, n in expected.items()
        }
        assert {row["gpu_uuid"].partition("/")[0] for row in of_case} == {"GPU-a"}
        assert {row["split_by"] for row in of_case} == {"mig"}
        assert sum(round(1000 * row["seconds"]) for row in of_case) == 3_600_000
        assert sum(row["usd"] for row in of_case) == pytest.approx(3.6)
        assert sum(row["energy_kwh"] for row in of_case) == pytest.approx(0.6)


def test_partitions_of_an_amd_gpu_have_equal_shares_of_it(database: MemoryDatabase) -> None:
    parts = [
        {**mig(n, "x"), "model": "AMD Instinct MI300X OAM QPX", "vendor": "amd"} for n in range(4)
    ]
    put(
        database,
        gpus=[{**GPU, "vendor": "amd"}, *parts],
        gpu_1m=[
            *minutes(0, 60, 0),
            *minutes(0, 60, 0, gpu_uuid="MIG-0", mig_instance="0/0"),
            *(row for n in (1, 2, 3) for row in minutes(60, 0, 0, gpu_uuid=f"MIG-{n}", mig_instance=f"{n}/0")),
        ],
        process_1m=processes(gpu_uuid="MIG-0"),
    )  # fmt: skip
    assert seconds_by(rows(database), "username", "category") == {
        ("ada", "busy"): pytest.approx(900),
        (None, "free"): pytest.approx(2700),
    }


def test_a_board_of_which_a_device_is_not_in_the_inventory_yet_is_counted_whole(
    database: MemoryDatabase,
) -> None:
    put(
        database,
        gpus=[GPU, mig(1, "3g.40gb")],
        gpu_1m=[*minutes(0, 0, 60), *mig_minutes(1, graphics_active_percent_avg=80.0), *mig_minutes(2)],
        process_1m=processes(gpu_uuid="MIG-1"),
    )  # fmt: skip
    (row,) = rows(database)
    assert (row["category"], row["username"], row["seconds"]) == ("unknown", "ada", 3600)


def test_a_sparse_log_of_mig_devices_counts_its_time_once(database: MemoryDatabase) -> None:
    log = [
        row
        for m in range(0, 60, 5)
        for row in (
            *minutes(0, 0, 1, range(m, m + 1), samples=1),
            *mig_minutes(1, range(m, m + 1), samples=1, graphics_active_percent_avg=100.0),
            *mig_minutes(2, range(m, m + 1), samples=1, graphics_active_percent_avg=0.0),
        )
    ]
    board = {
        "gpus": [GPU, mig(1, "3g.40gb"), mig(2, "2g.20gb")],
        "gpu_1m": [{**row, "unknown_seconds": 1.0} for row in log],
    }
    cases = [board | {"allocation_samples": allocations(gpu_uuid=to)} for to in ("GPU-a", "MIG-2")]
    whole, part = (seconds_by(one, "category") for one in of_each(database, cases))
    busy, half = pytest.approx(3 * SEVENTH, abs=0.1), pytest.approx(2 * SEVENTH, abs=0.1)
    assert whole == {"busy": busy, "allocated_idle": pytest.approx(4 * SEVENTH, abs=0.1)}
    assert part == {"busy": busy, "allocated_idle": half, "free": half}


def test_whoever_holds_a_gpu_has_the_user_of_its_own_job_alone(database: MemoryDatabase) -> None:
    jobs = [*allocations(), *allocations(job="55", username="ada")]
    held = [{"process_1m": processes(username=None, job=job)} for job in ("55", "56")]
    cases = [{"gpu_1m": minutes(), "allocation_samples": jobs, **one} for one in held]
    owners = [{(row["username"], row["job"]) for row in one} for one in of_each(database, cases)]
    assert owners == [{("ada", "55")}, {(None, "56")}]


def test_a_compute_instance_has_its_own_slices_and_a_shared_one_is_split_too(
    database: MemoryDatabase,
) -> None:
    put(
        database,
        gpus=[GPU, mig(1, "1c.2g.20gb"), mig(2, "1c.2g.20gb"), mig(3, "4g.40gb")],
        gpu_1m=[row for number in (1, 2, 3) for row in mig_minutes(number, span=range(30), graphics_active_percent_avg=100.0)],
        process_1m=[
            *processes(range(30), gpu_uuid="MIG-1"),
            *processes(range(30), gpu_uuid="MIG-2", username="bob", gpu_memory_bytes_avg=1e9),
            *processes(range(30), gpu_uuid="MIG-2", pid=8, username="eve", gpu_memory_bytes_avg=3e9),
        ],
    )  # fmt: skip
    eighth = SEVENTH / 8
    # The board itself had no samples. MIG-3 works, though no process is seen; one slice has no device.
    assert seconds_by(rows(database), "username", "category", "split_by") == {
        key: pytest.approx(value, abs=0.1)
        for key, value in {
            ("ada", "busy", "mig"): 4 * eighth,
            ("bob", "busy", "memory"): eighth,
            ("eve", "busy", "memory"): 3 * eighth,
            (None, "busy", "mig"): 16 * eighth,
            (None, "free", "mig"): 4 * eighth,
            (None, "unknown", None): 1800,
        }.items()
    }


_SECONDS = st.sampled_from([0.0, 0.3, 7.77, 15.0, 33.333, 59.9, 60.0, 75.0])
_MAYBE = st.one_of(st.none(), st.floats(0, 120, width=32))


@st.composite
def an_hour(draw: st.DrawFn) -> dict[str, list[Row]]:
    """Minutes of two GPUs with all that may be wrong with them."""
    gpus = draw(st.lists(st.sampled_from(["GPU-a", "GPU-b"]), min_size=1, unique=True))
    seen = []
    for uuid in ("GPU-a", "GPU-b"):
        for m in draw(st.lists(st.integers(0, 59), max_size=12)):
            node = draw(st.sampled_from(["n1", "n1", "n2"]))
            (row,) = minutes(draw(_SECONDS), draw(_SECONDS), draw(_SECONDS), range(m, m + 1))
            seen.append({
                **row, "gpu_uuid": uuid, "node": node, "samples": draw(st.sampled_from([0, 2, 60])),
                "util_percent_avg": draw(_MAYBE), "graphics_active_percent_avg": draw(_MAYBE),
                "sm_clock_mhz_avg": draw(st.sampled_from([None, 0, 900, 2500])),
                "hw_thermal_seconds_delta": draw(_MAYBE), "energy_joules_delta": draw(_MAYBE),
                "memory_used_bytes_max": draw(st.sampled_from([None, 0, 10**10])),
                "reason_hardware_slowdown_seconds": draw(_MAYBE),
            })  # fmt: skip
    profiles = st.lists(st.sampled_from(["1g.10gb", "3g.40gb", "1c.2g.20gb", "odd"]), max_size=3)
    parts = draw(profiles) if "GPU-a" in gpus else []
    for number, _ in enumerate(parts):
        span = range(draw(st.integers(0, 60)), draw(st.integers(0, 60)))
        seen += mig_minutes(number, span=span, graphics_active_percent_avg=draw(_MAYBE))
    span = st.integers(-90, 90)
    alerts = [
        alert(draw(st.sampled_from(sorted(CAUSES))), begin, draw(st.sampled_from([None, begin + 13.37])),
              fingerprint=str(number), gpu_uuid=draw(st.sampled_from([None, *gpus])))
        for number, begin in enumerate(draw(st.lists(span, max_size=4)))
    ]  # fmt: skip
    return {
        "gpus": [
            *({**GPU, "gpu_uuid": uuid} for uuid in gpus),
            *(mig(number, profile) for number, profile in enumerate(parts)),
        ],
        "gpu_1m": seen,
        "process_1m": [
            row
            for pid in range(draw(st.integers(0, 4)))
            for row in processes(
                range(draw(st.integers(0, 60))),
                pid=pid,
                gpu_uuid=draw(st.sampled_from(["GPU-a", "MIG-0", "MIG-1"])),
                username=draw(st.sampled_from("ab")),
                job=draw(st.sampled_from(["1", None])),
                samples=draw(st.sampled_from([2, 6])),
                sm_util_percent_avg=draw(_MAYBE),
                gpu_memory_bytes_avg=draw(_MAYBE),
            )
        ],
        "allocation_samples": [
            *allocations() * draw(st.integers(0, 1)),
            *allocations(job="78", gpu_uuid=draw(st.sampled_from(["GPU-a", "MIG-1"])))
            * draw(st.integers(0, 1)),
        ],
        "alerts": alerts,
    }


@settings(
    max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(tables=an_hour())
def test_labels_add_up_to_the_hour(database: MemoryDatabase, tables: dict[str, list[Row]]) -> None:
    for name in tables:
        database.execute(f"DELETE FROM {name}")
    put(database, **tables)
    found = rows(database)
    assert all(row["category"] in CATEGORIES and row["seconds"] > 0 for row in found)
    known = {row["gpu_uuid"] for row in tables["gpus"] if "parent_gpu_uuid" not in row}
    for uuid in known:
        mine = [row for row in found if row["gpu_uuid"] == uuid]
        assert sum(round(row["seconds"] * 1000) for row in mine) == 3_600_000
        assert sum(row["usd"] for row in mine) == pytest.approx(3.6)
    # A GPU that is not in the inventory is counted where it was seen.
    for uuid in {row["gpu_uuid"] for row in found} - known:
        seen = {r["ts"] for r in tables["gpu_1m"] if r["gpu_uuid"] == uuid and r["samples"]}
        assert sum(r["seconds"] for r in found if r["gpu_uuid"] == uuid) == pytest.approx(
            60 * len(seen)
        )
    keys = [tuple(row[name] for name in WASTE_1H.table.key) for row in found]
    assert len(set(keys)) == len(keys)


def test_the_bill_of_a_day_of_shared_gpus_adds_up_to_the_cent(database: MemoryDatabase) -> None:
    day = range(24 * 60)
    end = HOUR + timedelta(days=1)
    boards = [{**GPU, "gpu_uuid": uuid, "usd_per_hour": usd, "last_seen_at": end}
              for uuid, usd in (("GPU-a", 3.61), ("GPU-b", 2.99), ("GPU-c", 1.33))]  # fmt: skip
    three, two = ({**row, "last_seen_at": end} for row in (mig(1, "3g.40gb"), mig(2, "2g.20gb")))
    # GPU-a is MIG, of which ada has three sevenths and bob two; on GPU-b, kim runs in even minutes
    # and lee in odd ones beside eve and joe; nobody has GPU-c.
    sharers = [
        ("eve", day, 35.0),
        ("joe", day, 15.0),
        ("kim", day[::2], 30.0),
        ("lee", day[1::2], 20.0),
    ]
    put(
        database,
        gpus=[*boards, three, two],
        gpu_1m=[
            *minutes(0, 0, 60, day),
            *mig_minutes(1, day, graphics_active_percent_avg=80.0),
            *mig_minutes(2, day, graphics_active_percent_avg=0.0),
            *minutes(17, 43, span=day, gpu_uuid="GPU-b", gpu=1),
            *minutes(60, 0, span=day, gpu_uuid="GPU-c", gpu=2),
        ],
        process_1m=[
            *processes(day, gpu_uuid="MIG-1", username="ada", job="1"),
            *processes(day, gpu_uuid="MIG-2", username="bob", job="2"),
            *(row for pid, (user, there, share) in enumerate(sharers)
              for row in processes(there, gpu_uuid="GPU-b", pid=100 + pid, username=user,
                                   job=user, sm_util_percent_avg=share)),
        ],
    )  # fmt: skip
    bill: dict[str | None, float] = {}
    for row in rows(database, HOUR, end):
        bill[row["username"]] = bill.get(row["username"], 0) + row["usd"]
    hours = 24
    assert {user: round(usd, 2) for user, usd in bill.items()} == {
        "ada": round(hours * 3.61 * 3 / 7, 2),
        "bob": round(hours * 3.61 * 2 / 7, 2),
        "eve": round(hours * 2.99 * (35 / 80 + 35 / 70) / 2, 2),
        "joe": round(hours * 2.99 * (15 / 80 + 15 / 70) / 2, 2),
        "kim": round(hours * 2.99 * 30 / 80 / 2, 2),
        "lee": round(hours * 2.99 * 20 / 70 / 2, 2),
        None: round(hours * (1.33 + 3.61 * 2 / 7), 2),
    }
    assert round(sum(bill.values()), 2) == round(hours * (3.61 + 2.99 + 1.33), 2)


def test_the_view_has_the_hours_that_are_rolled_up_and_the_one_that_runs(
    database: MemoryDatabase,
) -> None:
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    begin = this_hour - timedelta(hours=1)
    shift = begin - HOUR
    put(
        database,
        gpus=[{**GPU, "first_seen_at": begin, "last_seen_at": this_hour}],
        gpu_1m=[{**row, "ts": row["ts"] + shift} for row in minutes(60, 0, span=range(65))],
        process_1m=[{**row, "ts": row["ts"] + shift} for row in processes(range(65))],
    )
    asked = (
        "SELECT ts, is_waste, username, job, category, sum(gpu_hours) AS gpu_hours, sum(usd) AS usd "
        "FROM waste WHERE category = 'idle_held' GROUP BY ALL ORDER BY ts"
    )
    labelled_now = database.run(asked).rows
    sql = waste_sql(WasteScope(begin.replace(tzinfo=None), this_hour.replace(tzinfo=None)))
    database.execute(f"INSERT INTO waste_1h BY NAME {sql}")
    # What was labelled at once and what was rolled up are the same, and each hour is there once.
    assert database.run(asked).rows == labelled_now
    assert labelled_now == [
        (begin, True, "ada", "55", "idle_held", 1, pytest.approx(3.6)),
        (this_hour, True, "ada", "55", "idle_held", pytest.approx(1 / 12), pytest.approx(0.3)),
    ]


def test_a_span_costs_what_the_time_of_its_labels_costs_since_it_began(
    database: MemoryDatabase,
) -> None:
    put(database, gpu_1m=minutes(60, 0))  # free, a cent for ten seconds
    since = HOUR + timedelta(minutes=20)
    gpu = {"key": "gpu", "gpu_uuid": "GPU-a", "node": "n1", "categories": ["free"]}
    spans = [
        gpu,
        gpu | {"key": "node", "gpu_uuid": None},
        gpu | {"key": "busy", "categories": ["busy"]},
        gpu | {"key": "elsewhere", "gpu_uuid": None, "node": "n2"},
    ]
    params = {
        "spans": json.dumps([s | {"since": since.replace(tzinfo=None).isoformat()} for s in spans])
    }

    def spent(sql: str) -> dict[str, float]:
        return dict(database.run(sql, params).rows)

    begin, end = HOUR.replace(tzinfo=None), END.replace(tzinfo=None)
    half = begin + timedelta(minutes=30)
    by_minute = {"gpu": pytest.approx(0.6), "node": pytest.approx(0.6), "busy": 0}
    assert spent(spent_sql(begin, half)) == by_minute
    # Of hours that are rolled up, that of its begin does not count.
    hour = {key: GPU[key] for key in ("node", "gpu_uuid", "gpu", "simulated")}
    free = hour | {"category": "free", "seconds": 3600.0, "usd": 3.6}
    put(database, gpus=[], waste_1h=[free | {"ts": HOUR}, free | {"ts": END}])
    by_hour = {"gpu": 3.6, "node": 3.6, "busy": 0}
    assert spent(spent_hours_sql(begin, end + timedelta(hours=1))) == by_hour
    assert spent(spent_hours_sql(begin, end)) == {}


def test_a_run_begins_no_earlier_than_its_gpu_came(database: MemoryDatabase) -> None:
    """The first hour of a GPU is known in part alone; the run counts at its end."""
    came_after_s = {"GPU-a": 0, "GPU-b": 2_788}
    spans, expected = [], {}
    for uuid, after_s in came_after_s.items():
        hour = {"node": "n1", "gpu_uuid": uuid, "gpu": 0, "simulated": False, "category": "free"}
        first = {**hour, "ts": HOUR, "seconds": 3_600 - after_s}
        put(database, gpus=[], waste_1h=[first, {**hour, "ts": END, "seconds": 3_600}])
        for since in (HOUR + timedelta(minutes=50), END + timedelta(minutes=30)):
            at = since.replace(tzinfo=None).isoformat()
            span = {"key": f"{uuid} {at}", "since": at, "node": "n1", "categories": ["free"]}
            spans.append({**span, "gpu_uuid": uuid})
            expected[spans[-1]["key"]] = HOUR + timedelta(minutes=after_s // 60)
    found = database.run(run_begin_sql(), {"spans": json.dumps(spans)}).rows
    assert {key: begin.replace(tzinfo=UTC) for key, begin in found} == expected


def test_the_first_minutes_of_a_store_count_one_by_one_and_later_ones_in_steps() -> None:
    """`bounds_sql`'s end when a store has so many minutes, 70 s after the last of them."""
    ends, first = [], HOUR.replace(tzinfo=None) + 3 * MINUTE
    with duckdb.connect() as connection:
        for table in ("gpu_1m", "host_1m", "waste_1h"):
            connection.execute(f"CREATE TABLE {table} (ts TIMESTAMP)")
        for number in range(1, 3 * FIRST_MINUTES):
            newest = first + number * MINUTE
            connection.execute("INSERT INTO gpu_1m VALUES (?)", [newest - MINUTE])
            sql = bounds_sql().replace("now()", f"TIMESTAMP '{newest + timedelta(seconds=70)}'")
            ((_, end, _),) = connection.execute(sql).fetchall()
            if number <= FIRST_MINUTES:
                assert end == newest
            else:
                step = newest - newest.minute % COUNTED_MINUTES * MINUTE
                assert end == max(step, first + FIRST_MINUTES * MINUTE)
            ends.append(end)
    assert ends == sorted(ends)
