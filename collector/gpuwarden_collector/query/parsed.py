"""What a query is before it runs, and what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the guard decides on."""

    word: str
    """First word of the query, in capitals: the kind of statement that it seems to be."""
    selects: tuple[Mapping[str, Any], ...] | None
    """Syntax tree of each statement, for EXPLAIN of what it explains; None: not all are SELECT."""
    parameters: frozenset[str]
    sql: str
    """The text to run: the one that the trees are of, behind an EXPLAIN if it is to be explained."""


@dataclass(frozen=True, slots=True)
class ResultRows:
    """Result of a query: an Arrow table, and the SQL type of each column."""

    data: Any
    types: tuple[str, ...]
    truncated: bool
