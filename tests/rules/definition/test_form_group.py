"""One SELECT for several rules gives each the rows that its own SELECT gives."""

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.rules.built_in import FILES, cases_in

from gpuwarden_rules.definition.form_group import Member, kind_of, select_of
from gpuwarden_rules.definition.language import Rule, builtin_rules, parse
from gpuwarden_rules.testing import Case
from gpuwarden_rules.testing.cases import START
from gpuwarden_rules.testing.database import MemoryDatabase

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
HEAD = "    severity: info\n    summary: '{node}'\n    remedy: r\n"
RULES = f"""
rules:
  - name: hot
{HEAD}    of: gpu
    window: 3m
    params: {{most: 90}}
    measure: {{hottest: max(temperature_celsius)}}
    when: hottest > $most
    until: hottest < 80
  - name: hotter
{HEAD}    of: gpu
    window: 3m
    measure: {{hottest: max(temperature_celsius), usual: p50(temperature_celsius)}}
    let: {{spread: hottest - usual, above: hottest - peers(hottest), others: count_peers(hottest)}}
    when: spread > 5 or above > 5
  - name: margin
{HEAD}    of: gpu
    window: 2m
    measure: {{margin: last(temperature_margin_celsius), core: last(temperature_celsius)}}
    let: {{value: margin, room: "coalesce(margin, gpus.temperature_gpu_max_celsius - core)"}}
    when: room < 10
    until: room > 20
  - name: busy
{HEAD}    of: gpu
    window: 2m
    where: util_percent >= 50
    measure: {{util: avg(util_percent), links: max(nvlinks_active) over 7d}}
    when: util > 90 and holder.username = 'ada'
  - name: cooler
{HEAD}    of: gpu
    window: 10s
    measure: {{core: max(temperature_celsius), before: "avg(temperature_celsius) filter (age > 20s) over 2m"}}
    let: {{near: siblings(core), warmth: "sum(core) over (partition by node)"}}
    when: core < before or core < near or warmth < 50
"""


def members_of(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules that can be one SELECT."""
    groups = defaultdict(list)
    for rule in rules:
        if rule.form is not None:
            groups[kind_of(rule.form)].append(rule)
    return [*groups.values()]


def assert_same_rows(
    database: MemoryDatabase, rules: Sequence[Rule], now: datetime, names: set[str]
) -> int:
    """Compare the rows of the rules with these names; how many there were."""
    if not names & {rule.name for rule in rules}:
        return 0
    select = select_of([Member(rule.form, rule.params) for rule in rules if rule.form])
    grouped = database.run(select.sql, {"now": now}).records()
    count = 0
    for number, rule in enumerate(rules):
        if rule.name in names:
            alone = database.run(rule.sql, rule.bindings(now)).records()
            together = [*select.rows_of(number, grouped)]
            assert _sorted(together) == _sorted(alone), rule.name
            count += len(alone)
    return count


def _sorted(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(_rounded(row).items(), key=lambda item: item[0])) for row in rows)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Means of another order of rows differ in the last digit."""
    return {
        name: float(f"{value:.9g}")
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
        for name, value in row.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_rules_over_random_samples_say_the_same_alone_and_together(
    database: MemoryDatabase, seed: int
) -> None:
    choose = random.Random(seed)
    for number in range(12):
        uuid = f"GPU-{number}"
        place = {
            "node": f"n{number % 3}",
            "gpu": number,
            "gpu_uuid": uuid,
            "simulated": number == 3,
        }
        limit = choose.choice([None, 90.0])
        model = choose.choice(["A", "B", None])
        database.insert("gpus", [{**place, "model": model, "temperature_gpu_max_celsius": limit}])
        for table, column in (
            ("gpu_samples", "temperature_celsius"),
            ("gpu_samples", "util_percent"),
            ("gpu_detail_samples", "temperature_margin_celsius"),
        ):
            if choose.random() < 0.3:
                continue
            level = choose.uniform(5, 100)
            begin = choose.choice([0, 0, 130])
            rows = [
                {
                    **place,
                    "ts": NOW - timedelta(seconds=ago, milliseconds=column == "util_percent"),
                    column: choose.choice([None, level, level + 8]),
                }
                for ago in range(begin, 200, choose.choice([1, 10]))
            ]
            database.insert(table, rows)
        holder = {"pid": number, "username": choose.choice(["ada", "bob"])}
        database.insert("process_samples", [{**place, **holder, "ts": NOW}])
    (rules,) = members_of(parse(RULES, "r.yaml"))
    assert assert_same_rows(database, rules, NOW, {rule.name for rule in rules}) > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_built_in_rule_says_the_same_alone_and_together_where_it_fires(
    database, path: Path
) -> None:
    """In the case of each pack in which most of its rules fire."""

    def firing(case: Case) -> dict[str, float]:
        return {one.rule: one.at_s for one in case.expectations if one.alerts}

    case = max(cases_in(path), key=lambda one: len(firing(one)))
    for table, rows in case.rows.items():
        database.insert(table, rows)
    at = START + timedelta(seconds=min(firing(case).values()))
    for group in members_of(builtin_rules()):
        assert_same_rows(database, group, at, {*firing(case)})


def test_rules_of_a_kind_are_one_statement_whichever_of_them_a_fleet_has(database) -> None:
    for group in members_of(builtin_rules()):
        for first, second in zip(group, [*group[1:], group[0]], strict=True):
            members = [Member(rule.form, rule.params) for rule in (first, second) if rule.form]
            database.run(f"EXPLAIN {select_of(members).sql}", {"now": NOW})
