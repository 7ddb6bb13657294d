"""Keeps a reader to the rows of its own in tables that others write about everybody: pure, on the syntax tree.

Each such table becomes a subquery of the rows of one token. It ends with a LIMIT that no table reaches: DuckDB
moves no condition of the query behind one, so that an error of a condition tells nothing of the rows of others.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from gpuwarden.query import QueryError
from gpuwarden.schema import ADMINS_ONLY
from gpuwarden_collector.query.guard import nodes_of, with_names

ALL = "*"
"""Of everybody."""
NOBODY = ""
_ROWS_MAX = 1_000_000_000


def own_rows_sql(table: str, token: str) -> str:
    """A query whose FROM is what stands for that table. `token`: letters and digits."""
    if not token.isalnum():
        raise ValueError(f"{token!r} is no id of a token")
    rows = f"SELECT * FROM main.{table} WHERE token = '{token}' LIMIT {_ROWS_MAX}"
    return f"FROM ({rows}) AS {table}"


def closed_tables(read: Iterable[str], log_of: str) -> list[str]:
    """Of the tables that a query reads those that are not wholly open. `log_of`: a token, ALL or NOBODY."""
    return [] if log_of == ALL else sorted(ADMINS_ONLY & set(read))


def keep_to_own(select: Any, standing: Mapping[str, Mapping[str, Any]]) -> None:
    """Put what stands for tables in their places. Raises QueryError."""
    nodes = [*nodes_of(select)]
    for name in (name.lower() for node in nodes for name in with_names(node)):
        if name in standing:
            raise QueryError(f"a WITH may not name a query {name}: a table is called so")
    for node in nodes:
        found = standing.get(str(node.get("table_name", "")).lower())
        if found is None or node.get("type") != "BASE_TABLE":
            continue
        kept = {key: node[key] for key in ("alias", "sample", "column_name_alias") if key in node}
        assert isinstance(node, dict)
        node.clear()
        node.update(deepcopy(dict(found)))
        node.update({key: value for key, value in kept.items() if value})
