"""Reads facts about the fleet: which required columns it reports, where each GPU is, which nodes are silent."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

from gpuwarden.query import ExpectedQuery, Querier
from gpuwarden.schema import TABLES
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import Location, Locations

Required = tuple[str, str]
"""Table and column."""

RECENT_MINUTES = 15
ROWS_MAX = 100_000
SILENT_AFTER = timedelta(seconds=60)
"""A node that sends nothing for this time is silent: agents send every few seconds."""
EVENT_TABLES = frozenset({"events"})
"""Tables whose recent rows do not show which columns the fleet can report."""

_PLACES_SQL = {
    "nodes": "SELECT node, labels FROM nodes",
    "gpus": "SELECT gpu_uuid, node, coalesce(catalogue_model, model, '') AS model FROM gpus",
}


async def absent_columns(
    querier: Querier, required: Iterable[Required], now: datetime
) -> dict[Required, str]:
    """Why rules that need these columns cannot run, by column, without the columns that the fleet reports.

    A column is absent if its table has recent rows and none has a value. A column of a table without recent
    rows is not absent: a fleet may have no processes now. Raises QueryError.
    """
    absent: dict[Required, str] = {}
    for table, names, sql in _counts(required):
        result = await querier.query(sql, {"now": now})
        _, rows, *values = result.rows[0]
        for name, known in zip(names, values, strict=True):
            if rows and not known:
                absent[table, name] = f"no {_subject(table)} of the fleet reports {table}.{name}"
    return absent


def expected(required: Iterable[Required], now: datetime) -> list[ExpectedQuery]:
    """The queries of `absent_columns`."""
    return [ExpectedQuery(sql, {"now": now}) for _, _, sql in _counts(required)]


def _counts(required: Iterable[Required]) -> Iterator[tuple[str, list[str], str]]:
    """Table, columns, and the SELECT that counts their values."""
    columns = sorted(key for key in set(required) if key[0] not in EVENT_TABLES)
    for table, keys in groupby(columns, key=itemgetter(0)):
        names = [column for _, column in keys]
        # One query for each table: opening it costs more than counting its columns.
        counts = ", ".join(f'count("{name}")' for name in names)
        yield (
            table,
            names,
            f"SELECT $now IS NOT NULL, count(*), {counts} FROM {table} WHERE {_recent(table)}",
        )


def is_needed(rule: Rule) -> bool:
    """Whether the rule needs columns that the fleet may not report."""
    return any(table not in EVENT_TABLES for table, _ in rule.requires)


def cannot_run(rule: Rule, absent: Mapping[Required, str]) -> str | None:
    """Why the rule cannot run; None where it can."""
    return "; ".join(absent[key] for key in rule.requires if key in absent) or None


async def silent_nodes(querier: Querier, now: datetime) -> frozenset[str]:
    """Nodes that have sent nothing for SILENT_AFTER. Raises QueryError."""
    result = await querier.query(
        "SELECT node FROM nodes WHERE last_seen_at <= $heard_until",
        {"heard_until": now - SILENT_AFTER},
        row_limit=ROWS_MAX,
    )
    return frozenset(str(node) for (node,) in result.rows)


async def locations(querier: Querier) -> Locations:
    """Locations of all GPUs and nodes. Raises QueryError."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, sql in _PLACES_SQL.items():
        rows[name] = (await querier.query(sql, row_limit=ROWS_MAX)).records()
    labels = {row["node"]: frozenset((row["labels"] or {}).items()) for row in rows["nodes"]}
    none: frozenset[tuple[str, str]] = frozenset()
    models: dict[str, set[str]] = {}
    gpus = {}
    for row in rows["gpus"]:
        node, model = row["node"], row["model"]
        models.setdefault(node, set()).add(model)
        gpus[row["gpu_uuid"]] = Location(node, model, labels.get(node, none))
    nodes = {}
    for node, found in labels.items():
        of_node = models.get(node, set())
        nodes[node] = Location(node, next(iter(of_node)) if len(of_node) == 1 else "", found)
    return Locations(gpus, nodes)


async def node_labels(querier: Querier) -> dict[str, dict[str, str]]:
    """Labels of the inventory by node. Raises QueryError."""
    rows = (await querier.query(_PLACES_SQL["nodes"], row_limit=ROWS_MAX)).records()
    return {row["node"]: row["labels"] or {} for row in rows}


def _recent(table: str) -> str:
    """Condition for recent rows; tables of the inventory have no time."""
    if "ts" not in TABLES[table].names:
        return "true"
    return f"ts > $now::TIMESTAMP - INTERVAL {RECENT_MINUTES} MINUTE AND ts <= $now::TIMESTAMP"


def _subject(table: str) -> str:
    return "GPU" if table.startswith("gpu") else "node"
