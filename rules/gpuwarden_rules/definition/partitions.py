"""Finds in an expression of SQL the aggregates over the rows of a partition: `avg(x) OVER (PARTITION BY node)`."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_TOKENS = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<word>[A-Za-z_]\w*)(?=\s*(?P<call>\())?|.""",
    re.DOTALL,
)
_FILTER = re.compile(r"\s*filter\s*(?=\()", re.IGNORECASE)
_OVER = re.compile(r"\s*over\s*\(\s*partition\s+by\s+(?P<columns>\w[\w\s.,]*?)\s*\)", re.IGNORECASE)
_ORDERED = re.compile(r"\b(?:order\s+by|rows|range|groups)\b", re.IGNORECASE)
_NO_AGGREGATES = frozenset(
    {
        *("row_number", "rank", "dense_rank", "rank_dense", "percent_rank", "cume_dist", "ntile"),
        *("lag", "lead", "first_value", "last_value", "nth_value", "fill"),
    }
)
"""Functions that are over a partition alone."""


@dataclass(frozen=True, slots=True)
class PartitionAggregate:
    """An aggregate over a partition, without an order."""

    begin: int
    end: int
    """Where it stands in the expression."""
    sql: str
    """With its FILTER, without OVER."""
    columns: tuple[str, ...]
    """SQL of what the rows of a partition have in common."""


def partition_aggregates(sql: str) -> Iterator[PartitionAggregate]:
    """The aggregates over partitions, in order."""
    at = 0
    while match := _TOKENS.match(sql, at):
        at = match.end()
        if match["call"] is None or match["word"].lower() in _NO_AGGREGATES:
            continue
        end = _closed(sql, match.start("call"))
        if inner := _FILTER.match(sql, end):
            end = _closed(sql, inner.end())
        over = _OVER.match(sql, end)
        if over is not None and not _ORDERED.search(over["columns"]):
            columns = tuple(" ".join(name.split()) for name in over["columns"].split(","))
            yield PartitionAggregate(match.start(), over.end(), sql[match.start() : end], columns)
            at = over.end()


def replaced(sql: str, replacement: Callable[[PartitionAggregate], str]) -> str:
    """The expression with each aggregate over a partition replaced."""
    pieces, at = [], 0
    for aggregate in partition_aggregates(sql):
        pieces += [sql[at : aggregate.begin], replacement(aggregate)]
        at = aggregate.end
    return "".join([*pieces, sql[at:]])


def _closed(sql: str, opened: int) -> int:
    """Offset behind the parenthesis that closes the one at `opened`."""
    depth, at = 0, opened
    while match := _TOKENS.match(sql, at):
        at = match.end()
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth:
            break
    return at
