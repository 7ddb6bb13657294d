"""Looking at many instants by one query finds what looking at each by itself finds."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.built_in import FILES, cases_in

from gpuwarden.clock import ManualClock
from gpuwarden.query import QueryError, QueryTimeoutError, Result
from gpuwarden_rules.backtest.query import BacktestQuery, lateral_sql, lower_bounds, mentioned
from gpuwarden_rules.definition.language import Rule, builtin_rules, parse
from gpuwarden_rules.definition.overrides import Location, Locations, OverridePlan, parse_overrides
from gpuwarden_rules.evaluation.state import RowsError
from gpuwarden_rules.testing import MemoryDatabase
from gpuwarden_rules.testing.cases import START as CASES_START

START = datetime(2026, 1, 1, tzinfo=UTC)
HOT = """
WITH seen AS (
  SELECT node, max(cpu_util_percent) AS value FROM host_samples
  WHERE ts > $now::TIMESTAMP - to_seconds($window) AND ts <= $now::TIMESTAMP
  GROUP BY node
)
SELECT node, value FROM seen WHERE value > $above
"""


def rule_of(sql: str = HOT, params: str = "{window: 10m, above: 50}") -> Rule:
    indented = sql.strip().replace("\n", "\n      ")
    (rule,) = parse(
        f"""
rules:
  - name: hot
    severity: info
    labels: [node]
    params: {params}
    summary: "{{node}}"
    remedy: r
    sql: |
      {indented}
""",
        "r.yaml",
    )
    return rule


def minutes(*numbers: float) -> list[datetime]:
    return [START + timedelta(minutes=number) for number in numbers]


@pytest.fixture(scope="module")
def hosts() -> Iterator[MemoryDatabase]:
    """n1 is hot in minutes 20 to 29, n2 all the time."""
    database = MemoryDatabase()
    database.insert(
        "host_samples",
        [
            {"ts": at, "node": node, "simulated": False, "cpu_util_percent": percent}
            for number, at in enumerate(minutes(*range(60)))
            for node, percent in (("n1", 90 if 20 <= number < 30 else 10), ("n2", 80))
        ],
    )
    yield database
    database.close()


class Counting:
    """A Querier in front of another one: it remembers what was asked, and may fail."""

    def __init__(self, querier: MemoryDatabase, instants_max: int = 1_000_000) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.instants_max = instants_max
        self._querier = querier

    async def query(self, sql, params=None, *, timeout_s=None, row_limit=None) -> Result:
        self.asked.append(params)
        if str(params.get("instants", "")).count(",") >= self.instants_max:
            raise QueryTimeoutError("the query took longer than it may")
        return await self._querier.query(sql, params, timeout_s=timeout_s, row_limit=row_limit)


def nodes(evaluations) -> list[list[str]]:
    return [sorted(row["node"] for row in evaluation.rows) for evaluation in evaluations]


async def test_many_instants_are_one_query(hosts) -> None:
    querier = Counting(hosts)
    query = BacktestQuery(rule_of(), querier, ManualClock(START))
    found = await query.at(minutes(5, 20, 38, 40, 75))
    assert [evaluation.at for evaluation in found] == minutes(5, 20, 38, 40, 75)
    assert nodes(found) == [["n2"], ["n1", "n2"], ["n1", "n2"], ["n2"], []]
    assert found[1].rows[0].keys() == {"node", "value"}
    # How far back the rule reads, all instants, and two of them by themselves to compare.
    assert [sorted(params) for params in querier.asked] == [
        ["window"],
        ["above", "instants", "instants_from", "instants_until", "window"],
        ["above", "now", "window"],
        ["above", "now", "window"],
    ]
    assert querier.asked[1]["instants_from"] == minutes(-5)[0]
    assert querier.asked[1]["instants_until"] == minutes(75)[0]
    assert (query.evaluations, query.queries) == (5, 4)


async def test_what_takes_too_long_together_is_asked_for_in_halves(hosts) -> None:
    querier = Counting(hosts, instants_max=3)
    query = BacktestQuery(rule_of(), querier, ManualClock(START))
    instants = minutes(*range(20))
    found = await query.at(instants)
    assert [evaluation.at for evaluation in found] == instants
    assert nodes(found[:3]) == [["n2"]] * 3
    assert query.at_once <= 3


async def test_a_select_that_cannot_be_asked_together_is_asked_one_by_one(hosts) -> None:
    sql = HOT.replace("FROM seen WHERE", "FROM seen ANTI JOIN seen s ON s.value < $above WHERE")
    with pytest.raises(QueryError):
        hosts.run(
            lateral_sql(sql, is_bounded=False),
            {"window": 600, "above": 50, "instants": "2026-01-01"},
        )
    found = await BacktestQuery(rule_of(sql), hosts, ManualClock(START)).at(minutes(15, 25))
    assert nodes(found) == [[], ["n1", "n2"]]


async def test_a_rule_whose_answers_together_are_wrong_is_asked_one_by_one(hosts) -> None:
    """The fault: a database that takes `$now` for the last of the instants."""

    class Faulty(Counting):
        async def query(self, sql, params=None, **limits) -> Result:
            found = await super().query(sql, params, **limits)
            if "instants" not in params:
                return found
            last = [row[1:] for row in found.rows if row[0] == params["instants"].count(",")]
            rows = [(n, *row) for n in range(params["instants"].count(",") + 1) for row in last]
            return Result(found.columns, found.types, rows)

    query = BacktestQuery(rule_of(), Faulty(hosts), ManualClock(START))
    found = await query.at(minutes(5, 20, 30))
    assert nodes(found) == [["n2"], ["n1", "n2"], ["n1", "n2"]]
    assert query.at_once == 1


@pytest.mark.parametrize(("together_s", "is_kept"), [(30.0, True), (40.0, False)])
async def test_what_takes_longer_together_than_one_by_one_is_asked_one_by_one(
    hosts, together_s: float, is_kept: bool
) -> None:
    """A query of one instant takes a second: 24 of them, and two to compare with."""
    clock = ManualClock(START)

    class Slow(Counting):
        async def query(self, sql, params=None, *, timeout_s=None, row_limit=None) -> Result:
            clock.advance(together_s if "instants" in params else 1.0)
            return await super().query(sql, params, timeout_s=timeout_s, row_limit=row_limit)

    counting = Slow(hosts)
    query = BacktestQuery(rule_of(), counting, clock)
    evaluations = await query.at(minutes(*range(24)))
    assert query.at_once == (24 if is_kept else 1)
    evaluations += await query.at(minutes(*range(24, 48)))
    assert sum("instants" in asked for asked in counting.asked) == (2 if is_kept else 1)
    assert nodes(evaluations) == nodes(
        await BacktestQuery(rule_of(), hosts, clock).at(minutes(*range(48)))
    )


async def test_that_nothing_is_found_together_is_compared_as_well(hosts) -> None:
    """The fault: a database that loses all rows."""

    class Faulty(Counting):
        async def query(self, sql, params=None, **limits) -> Result:
            found = await super().query(sql, params, **limits)
            return Result(found.columns, found.types, []) if "instants" in params else found

    query = BacktestQuery(rule_of(), Faulty(hosts), ManualClock(START))
    assert nodes(await query.at(minutes(5, 20, 30))) == [["n2"], ["n1", "n2"], ["n1", "n2"]]


async def test_a_wrong_query_is_an_error_in_the_end(hosts) -> None:
    with pytest.raises(QueryError, match="nowhere"):
        await BacktestQuery(
            rule_of("SELECT node FROM nowhere WHERE $now > $above + $window"),
            hosts,
            ManualClock(START),
        ).at(minutes(1, 2, 3))


async def test_too_many_rows_of_one_instant_are_an_error() -> None:
    class Many:
        async def query(self, sql, params=None, **limits) -> Result:
            return Result(["node"], ["VARCHAR"], [("n1",)], truncated=True)

    with pytest.raises(RowsError, match="narrow the rule's SQL"):
        await BacktestQuery(rule_of(), Many(), ManualClock(START)).at(minutes(1, 2, 3))


async def test_each_place_is_asked_with_its_own_parameters(hosts) -> None:
    rule = rule_of()
    overrides = parse_overrides(
        """
        overrides:
          - {rules: [hot], match: {node: n1}, params: {window: 20m}}
          - {rules: [hot], match: {node: n2}, enabled: false}
        """,
        "overrides.yaml",
        [rule],
    )
    plan = OverridePlan(
        rule, overrides, Locations(nodes={node: Location(node) for node in ("n1", "n2")})
    )
    found = await BacktestQuery(rule, hosts, ManualClock(START), plan=plan).at(
        minutes(15, 25, 45, 55)
    )
    assert nodes(found) == [[], ["n1"], ["n1"], []]


@pytest.fixture(scope="module")
def changing() -> Iterator[MemoryDatabase]:
    """Three hosts whose load changes every five minutes."""
    database = MemoryDatabase()
    database.execute(
        "INSERT INTO host_samples BY NAME SELECT TIMESTAMP '2026-01-01' + to_seconds(7 * i) AS ts, 'n' || n AS node, "
        "true AS simulated, hash(n, i // 40) % 100 AS cpu_util_percent FROM range(700) s(i), range(3) t(n)"
    )
    yield database
    database.close()


@settings(max_examples=15)
@given(seconds=st.lists(st.integers(0, 5400), min_size=2, max_size=8, unique=True))
async def test_instants_asked_together_give_what_each_alone_gives(
    changing, seconds: list[int]
) -> None:
    def query() -> BacktestQuery:
        rule = rule_of(params="{window: 2m, above: 60}")
        return BacktestQuery(rule, changing, ManualClock(START))

    instants = [START + timedelta(seconds=s) for s in sorted(seconds)]
    alone = [(await query().at([at]))[0].fingerprints for at in instants]
    together = await query().at(instants)
    assert [evaluation.fingerprints for evaluation in together] == alone


NAMED = """
WITH known AS (
  SELECT node, max(cpu_util_percent) AS value FROM host_samples
  WHERE ts > $now::TIMESTAMP - to_seconds($window) AND ts <= $now::TIMESTAMP
  GROUP BY node
),
busy AS (SELECT node FROM known WHERE value > $above)
"""
"""At some instants n1 is busy, at others it is not."""


@pytest.mark.parametrize(
    "select",
    [
        "SELECT node FROM known WHERE node IN (SELECT node FROM busy)",
        "SELECT node FROM known WHERE node NOT IN (SELECT node FROM busy)",
        "SELECT node FROM known k WHERE NOT (k.node IN (SELECT b.node FROM busy b))",
        "SELECT node FROM known WHERE node = ANY (SELECT node FROM busy)",
        "SELECT node, node IN (SELECT node FROM busy) AS holds FROM known",
        "SELECT node FROM known WHERE node IN (SELECT node FROM busy UNION SELECT node FROM busy)",
        "SELECT node FROM known WHERE node IN (SELECT k.node FROM known k JOIN busy AS b USING (node))",
        "SELECT DISTINCT node FROM host_samples WHERE node NOT IN (SELECT node FROM busy) AND $now::TIMESTAMP > ts",
        "SELECT node, node IN (SELECT node FROM busy) AS holds FROM host_samples WHERE ts = $now::TIMESTAMP",
        "SELECT node FROM host_samples WHERE ts = $now::TIMESTAMP GROUP BY node HAVING node IN (SELECT node FROM busy)",
        "SELECT node FROM (SELECT * FROM host_samples WHERE ts = $now::TIMESTAMP) WHERE node IN (SELECT node FROM busy)",
        "SELECT DISTINCT node FROM host_samples h JOIN known USING (node) WHERE node IN (SELECT node FROM busy)",
        "SELECT node FROM known WHERE node <> ') from busy' AND node IN (SELECT node FROM busy /* known) */)",
        "SELECT node FROM host_samples WHERE ts = $now::TIMESTAMP AND node IN (SELECT node FROM known WHERE node IN (FROM busy))",
    ],
)
async def test_what_is_in_a_named_query_is_in_it_at_that_instant(hosts, select: str) -> None:
    """The fault: DuckDB finds n1 in `busy` at all instants when it was in it at one of them."""
    instants = minutes(5, 15, 20, 25, 45)
    rule = rule_of(NAMED + select)
    alone = [hosts.run(rule.sql, rule.bindings(at)).rows for at in instants]
    params = {"window": 600, "above": 50, "instants": ",".join(str(at)[:19] for at in instants)}
    found = hosts.run(lateral_sql(rule.sql, is_bounded=False), params).rows
    assert [
        sorted(row for number, *row in found if number == evaluation)
        for evaluation in range(len(instants))
    ] == [sorted(map(list, rows)) for rows in alone]


CASES_A_RULE = 3


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_built_in_rules_find_together_what_they_find_alone(database, path: Path) -> None:
    """Over the tables of their cases, at the instants that these name."""
    counts = Counter[str]()
    for case in cases_in(path):
        names = {e.rule for e in case.expectations if counts[e.rule] < CASES_A_RULE}
        if not names:
            continue
        counts.update(names)
        database.clear()
        for table, rows in case.rows.items():
            database.insert(table, rows)
        for name in names:
            rule = case.rules[name]
            told = {e.at_s for e in case.expectations if e.rule == name}
            instants = [CASES_START + timedelta(seconds=s) for s in sorted({0, *told})]
            alone = [database.run(rule.sql, rule.bindings(at)).records() for at in instants]
            found = [
                evaluation.rows
                for evaluation in await BacktestQuery(rule, database, ManualClock(START)).at(
                    instants
                )
            ]
            keys = (*rule.labels, "holds")
            assert [_said(rows, keys) for rows in found] == [_said(rows, keys) for rows in alone], (
                case.name
            )


def _said(rows, keys: tuple[str, ...]) -> list[str]:
    return sorted(str([row.get(key) for key in keys]) for row in rows)


def test_built_in_rules_tell_how_far_back_they_read() -> None:
    """A rule that does not is right as well, and has all that is stored read for each query."""
    unbounded = {r.name for r in builtin_rules() if mentioned(r.sql) and not lower_bounds(r.sql)}
    assert unbounded == set()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM events WHERE ts <= $now",
        "SELECT * FROM events WHERE ts > $now - INTERVAL 1 DAY AND EXISTS (SELECT 1 FROM gpu_1m)",
        "SELECT * FROM events WHERE ts > $now - to_seconds(coalesce($window, 1))",
    ],
)
def test_a_rule_that_may_read_further_back_is_not_cut_short(sql: str) -> None:
    assert lower_bounds(sql) == []
