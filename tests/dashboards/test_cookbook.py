"""Each question of the cookbook has the right answer on a small fleet in which all of it happened."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from docs.generate_tables import FIRST

from gpuwarden.cookbook import Question, QuestionParameter, question_named, questions
from gpuwarden.schema import TABLES, public_views

NOW = datetime.now(UTC).replace(tzinfo=None)
pytestmark = pytest.mark.usefixtures("fresh_now")
MINUTE = timedelta(minutes=1)
GIB = 2**30


def put(db: Any, table: str, *rows: dict[str, Any]) -> None:
    """Insert rows; what is required and not given is 0, false or empty."""
    columns = db.execute(f"DESCRIBE {table}").fetchall()
    needed = {name: _NOTHING.get(kind, 0) for name, kind, null, *_ in columns if null == "NO"}
    for row in rows:
        full = {**needed, **row}
        names, places = ", ".join(f'"{name}"' for name in full), ", ".join("?" * len(full))
        db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(full.values()))


LABELS = {"n1": "{rack=r1, size=8}", "n2": "{rack=r2}"}
_NOTHING = {"VARCHAR": "", "BOOLEAN": False, "TIMESTAMP": NOW}


@pytest.fixture
def fleet(querier):
    """n1 works and n2 is idle; n3 is silent. ada's job 7 trains on both GPUs of n1, bob's 8 holds one of n2."""
    db, seen = querier.db, NOW - timedelta(seconds=2)
    hour = (NOW - timedelta(minutes=5)).replace(minute=0, second=0, microsecond=0)
    hour -= timedelta(hours=2)
    agent = {"agent_id": "a", "boot_id": "b", "agent_version": "1.0", "driver_version": "570"}
    for node, last_seen_at in (("n1", seen), ("n2", seen), ("n3", NOW - timedelta(hours=2))):
        put(
            db,
            "nodes",
            {**agent, "node": node, "last_seen_at": last_seen_at, "labels": LABELS.get(node)},
        )
    for node, gpu, util, clock, watts in (
        ("n1", 0, 98, 1900, 600), ("n1", 1, 96, 1500, 400), ("n1", 2, 97, 1900, 610), ("n2", 0, 0, 300, 90),
    ):  # fmt: skip
        uuid = f"{node}-{gpu}"
        of = {"node": node, "gpu": gpu, "gpu_uuid": uuid}
        put(db, "gpus", {**of, "model": "H100", "serial": f"s{uuid}", "usd_per_hour": 3.0, "memory_total_bytes": 80 * GIB})  # fmt: skip
        put(db, "gpu_samples", {**of, "ts": seen, "util_percent": util, "sm_clock_mhz": clock, "power_watts": watts, "temperature_celsius": 60, "memory_used_bytes": 8 * GIB})  # fmt: skip
        hot = 60 if clock == 1500 else 0
        put(db, "gpu_1m", {**of, "ts": NOW - 3 * MINUTE, "util_percent_avg": util, "temperature_celsius_max": watts // 10 + hot,
            "reason_software_thermal_slowdown_seconds": hot, "reason_hardware_thermal_slowdown_seconds": 0,
            "reason_software_power_cap_seconds": 0, "reason_hardware_power_brake_seconds": 0})  # fmt: skip
        put(db, "gpu_1h", {**of, "ts": hour, "util_percent_avg": util})
        put(db, "idle_1m", {**of, "ts": NOW - 3 * MINUTE, "known_until": NOW - 2 * MINUTE, "quiet_since": hour, "idle_since": None if util else hour,
            "gap_seconds": 0, "work_seconds": 1800 if util else 0, "work_minutes": 30 if util else 0, "recent_work": 30 * ("y" if util else "0")})  # fmt: skip
        bad = uuid == "n1-1"
        put(db, "gpu_health_samples", {**of, "ts": seen, "ecc_uncorrected_aggregate_total": int(bad), "remapped_rows_uncorrected_total": 0, "remap_pending": bad, "remap_failed": False})  # fmt: skip
        link = {**of, "link_type": "nvlink", "link": 4, "remote_type": "gpu", "active": not bad}
        # 3 and 2 more, after a reset; another counter is read only sometimes.
        for n, replays in enumerate((5, 8, 2) if bad else (7, 7, 7)):
            put(db, "link_samples", {**link, "ts": seen - (2 - n) * MINUTE, "replay_errors_total": replays, "recovery_errors_total": n if n == 1 else None})  # fmt: skip
    for user, job, node, gpu, gib in (("ada", "7", "n1", 0, 60), ("ada", "7", "n1", 1, 60), ("bob", "8", "n2", 0, 8)):  # fmt: skip
        of = {"node": node, "gpu": gpu, "gpu_uuid": f"{node}-{gpu}", "pid": gpu + 10, "username": user, "job": job, "process_name": "python"}  # fmt: skip
        started = hour - timedelta(hours=gpu)
        put(db, "process_samples", {**of, "ts": seen, "gpu_memory_bytes": gib * GIB, "started_at": started})  # fmt: skip
        put(db, "allocation_samples", {key: of[key] for key in ("node", "gpu", "gpu_uuid", "username", "job")} | {"ts": seen, "scheduler": "slurm", "processes": 1})  # fmt: skip
        put(db, "process_1m", {**of, "ts": NOW - 3 * MINUTE, "gpu_memory_bytes_max": gib * GIB, "started_at": started})  # fmt: skip
    put(db, "allocation_samples", {"ts": seen, "node": "n1", "gpu": 2, "gpu_uuid": "n1-2", "scheduler": "kubernetes", "job": "ml/web", "pod": "ml/web", "processes": 0})  # fmt: skip
    for category, user, job, team, node, hours, usd, kwh in (
        ("productive", "ada", "7", "ml", "n1", 4, 12.0, 2.4),
        ("throttled", "ada", "7", "ml", "n1", 1, 3.0, 0.5),
        ("idle_held", "bob", "8", "bio", "n2", 2, 6.0, 0.2),
    ):
        put(db, "waste_1h", {"ts": hour, "category": category, "node": node, "gpu": 0, "gpu_uuid": f"{node}-0", "model": "H100", "username": user, "job": job, "team": team, "seconds": 3600 * hours, "usd": usd, "energy_kwh": kwh, "co2_kg": kwh * 0.4})  # fmt: skip
    put(db, "host_samples", {"ts": seen, "node": "n1", "cpu_iowait_percent": 40.0, "psi_io_some_percent": 5.0, "tasks_blocked": 3}, {"ts": seen, "node": "n2", "cpu_iowait_percent": 0.5, "psi_io_some_percent": 0.0})  # fmt: skip
    put(db, "coverage", {"ts": NOW - 5 * MINUTE, "node": "n2", "probe": "host", "table_name": "host_samples", "expected": 60, "taken": 55, "missed": 5, "skipped": 0, "late": 0, "failed": 0})  # fmt: skip
    put(db, "events", {"ts": NOW - 9 * MINUTE, "node": "n1", "gpu": 1, "gpu_uuid": "n1-1", "kind": "xid", "severity": "critical", "message": "Xid 63"}, {"ts": NOW, "node": "n1", "kind": "agent_started", "severity": "info", "message": "began"})  # fmt: skip
    alert = {"fingerprint": "f", "rule": "gpu_hot", "severity": "warning", "consequence": "slow_work", "state": "firing", "node": "n1", "gpu": 1, "gpu_uuid": "n1-1", "labels": "{}", "summary": "GPU 1 is hot", "remedy": "Cool it.", "accounted_usd": 1.25}  # fmt: skip
    at = {"began_at": NOW - 9 * MINUTE, "active_at": NOW - 9 * MINUTE, "fired_at": NOW - 8 * MINUTE, "seen_at": NOW}  # fmt: skip
    put(db, "alerts", {**alert, **at})
    put(db, "incidents", {"id": "i", "state": "open", "root": "f", "rule": "gpu_hot", "severity": "warning", "consequence": "slow_work", "summary": "GPU 1 is hot", "remedy": "Cool it.", "place": "n1", "labels": "{}", "nodes": 1, "roots": 1, "alerts": 1, "firing": 1, "usd_per_hour": 1.0, "began_at": at["began_at"], "opened_at": NOW})  # fmt: skip
    put(db, "incident_alerts", {"incident": "i", "fingerprint": "f", "rule": "gpu_hot", "active_at": at["active_at"], "labels": "{}", "joined_at": NOW})  # fmt: skip
    put(db, "diagnoses", {"subject": "n1-0", "kind": "gpu", "bottleneck": "loader_workers", "confidence": 1.0, "summary": "Too few workers.", "advice": "Use 12.", "evidence": "[]", "misses": "[]", "node": "n1", "gpu": 0, "job": "7", "username": "ada", "gpus": 1, "began_at": hour, "seen_at": NOW})  # fmt: skip
    db.execute("UPDATE gpu_1m SET energy_joules_delta = 3.6e6 WHERE node = 'n1'")
    return querier


OPENED = {
    "ts",
    "day",
    "began_at",
    "started_at",
    "last_at",
    "last_seen_at",
    "first_hour",
    "last_hour",
    "idle_since",
}
"""Columns of instants, of which the answers below say nothing."""
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "gpus-now": [
        ("n1", 0, "H100", "ada", "7", 98, 600, 60, 8), ("n1", 1, "H100", "ada", "7", 96, 400, 60, 8),
        ("n1", 2, "H100", None, "ml/web", 97, 610, 60, 8), ("n2", 0, "H100", "bob", "8", 0, 90, 60, 8),
    ],
    "idle-now": [("n2", 0, "H100", "bob", "8", 3.0, 8)],
    "holders-now": [
        ("n1", 0, "H100", "ada", "7", "slurm", 1, 60), ("n1", 1, "H100", "ada", "7", "slurm", 1, 60),
        ("n1", 2, "H100", None, "ml/web", "kubernetes", 0, None), ("n2", 0, "H100", "bob", "8", "slurm", 1, 8),
    ],
    "memory-by-user": [("ada", 2, 120), ("bob", 1, 8), (None, 1, None)],
    "gpus-by-user": [("ada", 2, ["n1"]), ("bob", 1, ["n2"]), (None, 1, ["n1"])],
    "oldest-processes": [
        ("ada", "n1", 1, 11, "python"), ("ada", "n1", 0, 10, "python"), ("bob", "n2", 0, 10, "python"),
    ],
    "slow-clocks": [("n1", 1, "H100", 1500, 1900)],
    "busy-hosts": [("n1", 40.0, 5.0, 3)],
    "usage-by-user": [("ada", 5.0, 80.0, 15.0, 2.9), ("bob", 2.0, 0.0, 6.0, 0.2)],
    "usage-by-team": [("ml", 5.0, 80.0, 15.0, 2.9), ("bio", 2.0, 0.0, 6.0, 0.2)],
    "usage-by-job": [("7", "ada", 1, 5.0, 80.0, 15.0), ("8", "bob", 1, 2.0, 0.0, 6.0)],
    "usage-by-label": [("r1", 1, 5.0, 80.0, 15.0), ("r2", 1, 2.0, 0.0, 6.0)],
    "utilization": [((98 + 96 + 97) / 4,)],
    "utilization-by-node": [("n1", 97), ("n2", 0)],
    "small-jobs": [("8", "bob", 10)],
    "waste-by-user": [("bob", 6.0, 2.0), ("ada", 3.0, 1.0)],
    "waste-by-reason": [("idle_held", 6.0, 2.0), ("throttled", 3.0, 1.0)],
    "waste-by-team": [("bio", "idle_held", 6.0), ("ml", "throttled", 3.0)],
    "idle-holders": [("bob", "8", 2.0, 6.0)],
    "productive-share": [(57.1,)],
    "productive-cost": [("H100", 5.25)],
    "input-bound": [("n1", 0, "7", "ada", "Too few workers.", "Use 12.")],
    "energy-by-node": [("n1", 3.0), ("n2", None)],
    "energy-by-job": [("7", "ada", 2.9, 1.2), ("8", "bob", 0.2, 0.1)],
    "hottest": [("n1", 1, 100, 60), ("n1", 2, 61, 0), ("n1", 0, 60, 0), ("n2", 0, 9, 0)],
    "slowdowns": [("H100", 0.0, 0.02, 0.0)],
    "hardware-events": [("n1", 1, "xid", "critical", "Xid 63")],
    "memory-errors": [("n1", 1, "sn1-1", 1, 0, True, False)],
    "links-down": [("n1", 1, "nvlink", 4, "gpu", None)],
    "link-errors": [("n1", 1, "nvlink", 4, "replay_errors", 5)],
    "alerts-now": [("warning", "gpu_hot", "n1", 1, "GPU 1 is hot", 1.25)],
    "incidents-now": [("warning", "GPU 1 is hot", "n1", 1, None)],
    "rules-fired": [("gpu_hot", 1, 1)],
    "silent-nodes": [("n3", "1.0")],
    "versions": [("H100", "570", "1.0", 4, 2)],
    "gpus-by-label": [("r1", 1, 3, 9.0), ("r2", 1, 1, 3.0)],
    "unread-seconds": [("n2", 60, 5)],
    "nodes": [
        ("n1", "reports", 3, 9.0, None, "1.0", "570", {"rack": "r1", "size": "8"}),
        ("n2", "reports", 1, 3.0, None, "1.0", "570", {"rack": "r2"}),
        ("n3", "silent", None, None, None, "1.0", "570", None),
    ],
    "prices": [("H100", 3.0, None, 4)],
    "gpus-without-price": [],
    "silences": [],
    "hours-by-user": [
        ("bob", "idle_held", 2.0, 6.0, 6.0), ("ada", "throttled", 1.0, 3.0, 3.0), ("ada", "productive", 4.0, 12.0, 0.0),
    ],
    "energy-of-hosts": [],
}  # fmt: skip


async def answered(fleet: Any, sql: str, params: dict[str, Any] | None = None) -> list[Any]:
    """Rows without instants."""
    found = await fleet.query(sql, params)
    places = [n for n, name in enumerate(found.columns) if name not in OPENED]
    return [tuple(row[n] for n in places) for row in found.rows]


async def test_every_question_is_answered_right_with_its_defaults(fleet: Any) -> None:
    assert len(questions()) >= 30
    now = NOW.replace(tzinfo=UTC)
    wrong = {}
    for question in questions():
        if question.topic == "tables":
            continue  # the database of this test has no comments
        as_it_stands = await answered(fleet, question.plain_sql)
        bound = await answered(fleet, question.sql, question.values({}, now))
        if not as_it_stands == bound == ANSWERS[question.name]:
            wrong[question.name] = as_it_stands, bound
    assert wrong == {}


async def test_each_example_of_the_page_of_tables_gives_rows(fleet: Any) -> None:
    for name, (_, sql) in FIRST.items():
        assert name in {*TABLES, *(view.name for view in public_views())}
        assert re.search(rf"FROM {name}\b", sql)
        assert (await fleet.query(sql)).rows, name


async def test_a_display_server_holds_no_gpu_and_an_allocation_alone_does(fleet: Any) -> None:
    fleet.db.execute("UPDATE process_samples SET process_type = 'graphics' WHERE username = 'ada'")
    found = await fleet.query(
        "SELECT gpu, username, processes FROM gpu_holders_now WHERE node = 'n1' ORDER BY gpu"
    )
    assert found.rows == [(0, "ada", 0), (1, "ada", 0), (2, None, 0)]
    found = await fleet.query(
        "SELECT gpu, username, job, process_name FROM gpus_now WHERE node = 'n1' ORDER BY gpu"
    )
    assert found.rows == [(0, "ada", "7", None), (1, "ada", "7", None), (2, None, "ml/web", None)]


async def test_parameters_change_the_answer(fleet: Any) -> None:
    changed = {
        "gpus-now": ({"node": "n2*"}, [("n2", 0, "H100", "bob", "8", 0, 90, 60, 8)]),
        "idle-now": ({"minutes": "300"}, []),
        "usage-by-label": (
            {"label": "size"},
            [("8", 1, 5.0, 80.0, 15.0), (None, 1, 2.0, 0.0, 6.0)],
        ),
        "waste-by-user": ({"since": "1m"}, []),
        "hottest": ({"top": "1"}, [("n1", 1, 100, 60)]),
    }
    for name, (given, expected) in changed.items():
        question = question_named(name)
        found = await answered(fleet, question.sql, question.values(given, NOW.replace(tzinfo=UTC)))
        assert found == expected, name


def test_each_question_declares_the_parameters_that_it_names() -> None:
    assert len({question.name for question in questions()}) == len(questions())
    for question in questions():
        named = set(re.findall(r"\$(\w+)", question.sql))
        assert named == {one.name for one in question.parameters}, question.name
        assert question.topic and "$" not in question.plain_sql


def test_what_is_given_wrong_is_said() -> None:
    question = question_named("idle-holders")
    for given, said in (
        ({"sinse": "1d"}, "idle-holders has no parameter sinse; it takes since, top"),
        ({"since": "yesterday"}, "since = yesterday is not a duration; write 6h or 7d"),
        ({"since": "999999d"}, "since = 999999d is longer ago than there are years"),
        ({"top": "many"}, "top = many is not a number"),
        ({"top": "NaN"}, "top = NaN is not a number"),
    ):
        with pytest.raises(ValueError, match=said):
            question.values(given, NOW)
    with pytest.raises(ValueError, match="is it idle-holders"):
        question_named("idle-holder")
    quoted = Question("x", "y", "z", "SELECT $a", (QuestionParameter("a", "it's", "text"),))
    assert quoted.plain_sql == "SELECT 'it''s'"
