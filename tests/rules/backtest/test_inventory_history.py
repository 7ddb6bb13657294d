"""A replay knows when nodes and GPUs last reported at each instant, not as of now."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_rules.backtest import inventory_history as history_module
from gpuwarden_rules.backtest.inventory_history import inventory_history_of, outages_between
from gpuwarden_rules.backtest.query import BacktestQuery
from gpuwarden_rules.backtest.replay import replay
from gpuwarden_rules.definition.language import builtin_rules, parse
from gpuwarden_rules.definition.overrides import Location, Locations, OverridePlan, parse_overrides
from gpuwarden_rules.evaluation.state import RowsError
from gpuwarden_rules.testing import MemoryDatabase

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = {rule.name: rule for rule in builtin_rules()}


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def filled(database: MemoryDatabase) -> MemoryDatabase:
    """Six hours: n1 always reported, n2 not from 60 to 100 and from 200 to 202, n3 no longer since
    minute 300, n4 only since minute 240; n5 has been away for a day and came back at minute 30."""
    for node, first, last, silent in (
        ("n1", -1440, 360, []),
        ("n2", -1440, 360, [(60, 100), (200, 202)]),
        ("n3", -1440, 300, []),
        ("n4", 240, 360, []),
        ("n5", -2880, 360, [(-1440, 30)]),
    ):
        heard = [m for m in range(first, last) if not any(a <= m < b for a, b in silent)]
        rows = [{"ts": minute(m), "node": node, "simulated": True, "samples": 60} for m in heard]
        database.insert("host_1m", rows)
        seen = {"simulated": True, "first_seen_at": minute(first), "last_seen_at": minute(last)}
        agent = {"node": node, "agent_id": "a", "boot_id": "b", "gpus": 1}
        database.insert("nodes", [agent | seen])
        board = {"node": node, "gpu": 0, "gpu_uuid": f"GPU-{node}", "usd_per_hour": 3.0, **seen}
        database.insert("gpus", [board])
    return database


@pytest.fixture(scope="module")
def fleet() -> Iterator[MemoryDatabase]:
    database = filled(MemoryDatabase())
    yield database
    database.close()


def fired(done) -> list[tuple[str, float, float | None]]:
    """Node, minute it fired, and minute it was over."""

    def number(at: datetime | None) -> float | None:
        return None if at is None else round((at - START).total_seconds() / 60, 1)

    return [(a.labels["node"], number(a.fired_at), number(a.resolved_at)) for a in done.episodes]


async def replayed(rule, database, **more):
    return await replay(rule, database, START, minute(360), ManualClock(minute(360)), **more)


async def test_a_node_that_was_down_and_came_back_is_found(fleet) -> None:
    done = await replayed(RULES["node_down"], fleet)
    came = {node: (fired_at, over_at) for node, fired_at, over_at in fired(done)}
    assert came.keys() == {"n2", "n3", "n5"}
    assert came["n2"][0] == pytest.approx(64.75, abs=1.1)
    assert came["n2"][1] == pytest.approx(100, abs=1.1)
    assert came["n3"][0] == pytest.approx(304.75, abs=1.1)
    assert came["n3"][1] is None
    assert came["n5"][1] == pytest.approx(30, abs=1.1)
    (alert,) = (a for a in done.episodes if a.labels["node"] == "n2")
    assert alert.began_at == minute(60)
    assert alert.usd_so_far(minute(360)) == pytest.approx(2.0, abs=0.06)


async def test_alerts_of_silent_nodes_go_on_stale_and_end_after_half_an_hour(fleet) -> None:
    (hot,) = parse(
        """
        rules:
          - {name: hot, severity: info, labels: [node], interval: 60s, summary: "{node}", remedy: r,
             sql: "SELECT DISTINCT node FROM host_1m WHERE ts <= $now::TIMESTAMP AND node IN ('n2', 'n3')
                   AND ts > $now::TIMESTAMP - INTERVAL 90 SECOND AND $now::TIMESTAMP >= '2026-01-01 00:30:00'"}
        """,
        "r.yaml",
    )
    before = fired(await replayed(hot, fleet))
    assert [node for node, *_ in before] == ["n2", "n3", "n2", "n2"]
    outages = await outages_between(fleet, START, minute(360))
    first, gone, again = fired(await replayed(hot, fleet, outages=outages))
    assert first == ("n2", 30, pytest.approx(90, abs=1.1))
    assert gone == ("n3", 30, pytest.approx(330, abs=1.1))
    assert again == ("n2", pytest.approx(100, abs=1.1), None)


async def test_looks_are_many_at_a_time_and_each_is_as_by_itself(fleet) -> None:
    rule = RULES["node_down"]
    history = await inventory_history_of(rule, fleet, START, minute(360))
    instants = [minute(m) for m in range(0, 360, 7)]
    query = BacktestQuery(rule, fleet, ManualClock(START), history=history)
    together = await query.at(instants)
    assert query.at_once > 1
    for at, evaluation in zip(instants, together, strict=True):
        alone = BacktestQuery(rule, fleet, ManualClock(START), history=history)
        assert (await alone.at([at]))[0].fingerprints == evaluation.fingerprints


async def test_what_overrides_change_is_asked_of_the_past_as_well(fleet) -> None:
    rule = RULES["node_down"]
    overrides = parse_overrides(
        "overrides: [{rules: [node_down], match: {node: n2}, params: {down_after: 20m}}]",
        "overrides.yaml",
        [rule],
    )
    plan = OverridePlan(
        rule, overrides, Locations(nodes={f"n{i}": Location(f"n{i}") for i in range(1, 6)})
    )
    came = {node: at for node, at, _ in fired(await replayed(rule, fleet, plan=plan))}
    assert came["n2"] == pytest.approx(80.75, abs=1.1)
    assert came["n3"] == pytest.approx(304.75, abs=1.1)


async def test_a_gpu_is_not_missed_before_it_was_there(database) -> None:
    """Its node was; the board that it replaced was the one to be missed."""
    fleet = filled(database)
    fleet.execute("DELETE FROM gpus")
    known = {"node": "n1", "gpu": 0, "simulated": True, "model": "NVIDIA H100", "usd_per_hour": 3.0}
    old = {"first_seen_at": minute(-1440), "last_seen_at": minute(100), "replaced_by": "GPU-new"}
    new = {"first_seen_at": minute(200), "last_seen_at": minute(360)}
    fleet.insert(
        "gpus", [{**known, "gpu_uuid": "GPU-old", **old}, {**known, "gpu_uuid": "GPU-new", **new}]
    )
    fleet.insert(
        "host_samples", [{"ts": minute(m), "node": "n1", "simulated": True} for m in range(360)]
    )
    fleet.insert(
        "gpu_samples",
        [
            {"ts": minute(m), "node": "n1", "gpu": 0, "gpu_uuid": uuid, "simulated": True}
            for uuid, begin, end in (("GPU-old", 0, 100), ("GPU-new", 200, 360))
            for m in range(begin, end)
        ],
    )
    done = await replayed(RULES["gpu_lost"], fleet)
    assert [alert.labels["gpu_uuid"] for alert in done.episodes] == ["GPU-old"]
    ((_, fired_at, over_at),) = fired(done)
    assert fired_at == pytest.approx(103, abs=2.1)
    assert over_at == pytest.approx(200, abs=1.1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(heard=st.sets(st.integers(0, 239), min_size=1), is_full=st.booleans())
async def test_silences_are_the_minutes_between_those_heard(
    database, heard: set[int], is_full: bool
) -> None:
    """`is_full`: the second hour, which is kept as one, has reports throughout."""
    database.clear()
    heard |= set(range(60, 120)) if is_full else set()
    database.insert(
        "host_1m",
        [{"ts": minute(m), "node": "n1", "simulated": True, "samples": 1} for m in heard],
    )
    history = await inventory_history_of(RULES["node_down"], database, START, minute(240))
    assert history is not None
    assert [(s.from_at, s.until_at) for s in history.silences] == [
        (minute(a + 1), minute(b)) for a, b in pairwise(sorted(heard)) if b > a + 1
    ]


async def test_a_rule_that_asks_nothing_of_the_kind_reads_what_it_says(fleet) -> None:
    assert await inventory_history_of(RULES["gpu_idle_held"], fleet, START, minute(360)) is None


async def test_names_that_with_gives_texts_and_aliases_stay(fleet) -> None:
    sql = (
        "WITH gpus AS (SELECT node FROM nodes n WHERE last_seen_at > $now::TIMESTAMP)\n"
        "SELECT 'from nodes' AS said, nodes.node FROM nodes, gpus -- from nodes\n"
    )
    history = await inventory_history_of(RULES["node_down"], fleet, START, minute(360))
    assert history is not None
    rule = history.as_of(replace(RULES["node_down"], sql=sql), [minute(10)])
    told = rule.sql
    assert told.count("FROM main.nodes n LEFT JOIN") == 2
    assert "main.gpus" not in told
    assert "'from nodes' AS said" in told
    assert told.endswith("-- from nodes\n")
    assert fleet.run(told, rule.bindings(minute(10))).rows == []


async def test_too_many_silences_are_an_error_that_says_what_to_do(
    fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "OUTAGES_MAX", 2)
    with pytest.raises(RowsError, match="shorten --since"):
        await replayed(RULES["node_down"], fleet)
