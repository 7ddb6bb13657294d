"""Aggregates over a partition are found where they can be joined as aggregates of its rows."""

import pytest

from gpuwarden_rules.definition.partitions import partition_aggregates, replaced


@pytest.mark.parametrize(
    ("sql", "aggregates"),
    [
        (
            "m - median(m) FILTER (m > 0 AND f(m)) OVER (PARTITION BY node,  gpus.model)",
            [("median(m) FILTER (m > 0 AND f(m))", ("node", "gpus.model"))],
        ),
        (
            "coalesce(count( m ) over (partition by node) > sum(k) OVER (PARTITION BY job), a)",
            [("count( m )", ("node",)), ("sum(k)", ("job",))],
        ),
        ("max(m || ') over (') OVER (PARTITION BY node)", [("max(m || ') over (')", ("node",))]),
        ("sum(m) OVER (PARTITION BY node ORDER BY ts)", []),
        ("row_number() OVER (PARTITION BY node)", []),
        ("sum(m) OVER ()", []),
        ("'sum(m) OVER (PARTITION BY node)'", []),
        ("max(m", []),
    ],
)
def test_an_aggregate_has_the_columns_of_its_partition_unless_its_order_matters(
    sql: str, aggregates: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert [(one.sql, one.columns) for one in partition_aggregates(sql)] == aggregates


def test_what_stands_around_an_aggregate_stays() -> None:
    sql = "100 * (1 - m / median(m) OVER (PARTITION BY node))"
    assert replaced(sql, lambda one: "other") == "100 * (1 - m / other)"
