"""Implements `Dialect` for PromQL, in query processes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwarden.query import QueryError
from gpuwarden_collector.query.port import (
    CatalogEngine,
    Description,
    Encoder,
    QuerySource,
    Translation,
    TypedValue,
)
from gpuwarden_prometheus.compile import QueryTimes, compiled
from gpuwarden_prometheus.encode import encoder_of
from gpuwarden_prometheus.relations import Grid
from gpuwarden_prometheus.series import federated, label_names, label_values, series_found
from gpuwarden_prometheus.tiers import RolledUntil


class PromqlDialect:
    """PromQL's `Dialect`: a query's text becomes SQL, which is checked and run as SQL of any client."""

    tables: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()

    def text(self, sql: str) -> str:
        return sql_of(sql)

    def translate(self, select: Any, source: str) -> Translation:
        return Translation()

    def parameter_types(
        self, selects: Sequence[Any], columns: Mapping[str, str]
    ) -> Mapping[str, str]:
        return {}

    def sample(self, sql_type: str) -> TypedValue | str:
        return ""

    def list_of(self, text: str) -> list[Any]:
        raise ValueError("PromQL has no parameters")

    def catalog_type(self, sql_type: str, *, is_parameter: bool) -> str:
        return sql_type

    def catalog(self, engine: CatalogEngine) -> QuerySource:
        raise AssertionError("PromQL has no catalogue")

    def encoder(self, form: str, schema: Any, types: Sequence[str]) -> Encoder:
        return encoder_of(form, schema)

    def described(self, description: Description) -> bytes:
        raise AssertionError("PromQL describes nothing")


def sql_of(text: str) -> str:
    """SQL of a query's text, as `request.py` writes it. Raises QueryError."""
    header, _, rest = text.partition("\n")
    match header.split():
        case ["#", "range", start, end, step, lookback, minutes, hours]:
            steps = (int(end) - int(start)) // int(step) + 1
            grid = Grid(int(start), int(step), steps)
            rolled = RolledUntil(int(minutes), int(hours))
            return compiled(rest, QueryTimes(grid, True, int(lookback), int(end), rolled))
        case ["#", "blocks", start, end, step, lookback, minutes, hours, known]:
            steps = (int(end) - int(start)) // int(step) + 1 - int(known)
            begin = int(start) + int(known) * int(step)
            grid = Grid(begin, int(step), steps, int(known))
            rolled = RolledUntil(int(minutes), int(hours))
            times = QueryTimes(grid, True, int(lookback), int(end), rolled, is_in_blocks=True)
            return compiled(rest, times)
        case ["#", "instant", at, lookback, minutes, hours]:
            rolled = RolledUntil(int(minutes), int(hours))
            grid = Grid(int(at), 1, 1)
            return compiled(rest, QueryTimes(grid, False, int(lookback), int(at), rolled))
        case ["#", "series", start, end]:
            return series_found(rest.splitlines(), int(start), int(end))
        case ["#", "federate", at, lookback]:
            return federated(rest.splitlines(), int(at), int(lookback))
        case ["#", "labels", start, end]:
            return label_names(rest.splitlines(), int(start), int(end))
        case ["#", "values", start, end, label]:
            return label_values(rest.splitlines(), int(start), int(end), label)
    raise QueryError("the query has no times")
