"""Evaluates a rule's SQL at many instants of the past, in one query where possible.

The rule's SELECT becomes a LATERAL subquery over a list of instants, with `$now` as a column of that list:
it is planned once, and reads its tables once, for all instants. DuckDB cannot do this with every SELECT, and
a collector limits time and rows: a query that fails is split in halves, in the end into single instants.
"""

import logging
import re
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden.query import Querier, QueryError, Result
from gpuwarden.schema import TABLES
from gpuwarden_rules.backtest.inventory_history import InventoryHistory
from gpuwarden_rules.definition import sql_text
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import OverridePlan
from gpuwarden_rules.evaluation.state import RowsError, fingerprints_in

log = logging.getLogger(__name__)

ROWS_MAX = 100_000
BATCH_FIRST, BATCH_MAX = 24, 288
"""Instants of the first query, and of the largest. Their number doubles while queries are fast and do not fail."""
LONG_S = 4.0
"""Above this the number of instants does not grow: collectors cancel queries that take much longer."""
LOSS_FROM = 1.5
"""If an instant costs this many times as much together as alone, instants are queried one by one."""
COMPARED = 3
"""How many of the first results with rows, and of those without, a backtest compares with a query of one instant."""

Rows = Sequence[Mapping[str, Any]]

_NUMBER = "_instant"
_INSTANTS = """FROM (
  SELECT unnest(instants) AS "at", generate_subscripts(instants, 1) - 1 AS "number"
  FROM (SELECT string_split($instants, ',')::TIMESTAMP[] AS instants)
) AS "_instants"
"""
_LOWER_BOUND = re.compile(
    r"\bts\s*>=?\s*\$now\s*(?:::\s*timestamp\s*)?-\s*(to_seconds\s*\([^()]*\)|interval\s+\d+\s+\w+)",
    re.IGNORECASE,
)
_MEMBERS = re.compile(r"\b(?:in|any|all)\s*\((?=\s*(?:select|from)\b)", re.IGNORECASE)
"""Where a subquery of IN, ANY or ALL begins."""
_TABLE_WHERE = re.compile(
    r"\bfrom\s+(\w+)(?:\s+\w+)?\s+where\b(?!.*\b(?:from|select|group|having|qualify)\b)",
    re.IGNORECASE | re.DOTALL,
)
_INNERMOST = re.compile(r"\([^()]*\)")
_TIMED = frozenset(name for name, table in TABLES.items() if "ts" in table.names)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the rule's SQL returned at an instant."""

    at: datetime
    rows: Rows
    fingerprints: tuple[frozenset[str], frozenset[str]]
    """Alerts whose condition holds, and those for which this is unknown."""


class BacktestQuery:
    """Evaluates one rule at instants of the past.

    `plan` is the rule with its overrides; `history`: the inventory is that of each instant, not of now.
    `compared`: how many results of each kind are compared with a query of one instant.
    """

    def __init__(
        self,
        rule: Rule,
        querier: Querier,
        clock: Clock,
        *,
        plan: OverridePlan | None = None,
        history: InventoryHistory | None = None,
        timeout_s: float | None = None,
        compared: int = COMPARED,
    ) -> None:
        self.queries = self.evaluations = 0
        self.at_once = BATCH_FIRST
        """The number of instants that a call of `at` should have."""
        self._rule = rule
        self._querier = querier
        self._clock = clock
        self._plan = plan
        self._history = history
        self._timeout_s = timeout_s
        self._compared_max = compared
        self._most = BATCH_MAX
        self._compared: Counter[bool] = Counter()
        self._alone_s: list[float] = []
        """Seconds of the queries of one instant that results were compared with."""
        self._reaches: dict[tuple[tuple[str, Any], ...], timedelta | None] = {}

    async def at(self, instants: Sequence[datetime]) -> list[Evaluation]:
        """An evaluation at each instant, in their order. Raises QueryError and RowsError."""
        found: list[Evaluation] = []
        while len(found) < len(instants):
            part = instants[len(found) : len(found) + self.at_once]
            began_s = self._clock.monotonic()
            try:
                found += await self._many(part) if len(part) > 1 else [await self._one(part[0])]
            except (QueryError, RowsError):
                if len(part) == 1:
                    raise
                self._most = min(self._most, len(part) // 2)
                self.at_once = self._most
            else:
                took_s = self._clock.monotonic() - began_s
                if len(part) > 1 and self._is_loss(took_s / len(part)):
                    self.at_once = self._most = 1
                elif took_s < LONG_S:
                    self.at_once = min(2 * self.at_once, self._most)
        self.evaluations += len(found)
        return found

    def _is_loss(self, each_s: float) -> bool:
        """Whether an instant costs more in a group than alone."""
        return bool(self._alone_s) and each_s > LOSS_FROM * statistics.median(self._alone_s)

    async def _one(self, at: datetime) -> Evaluation:
        async def rows_of(rule: Rule) -> list[dict[str, Any]]:
            rule = self._as_of(rule, [at])
            return (await self._query(rule.sql, rule.bindings(at))).records()

        return self._evaluation(at, await self._rows(rows_of))

    async def _many(self, instants: Sequence[datetime]) -> list[Evaluation]:
        async def rows_of(rule: Rule) -> list[dict[str, Any]]:
            reach = await self._reach(rule)
            rule = self._as_of(rule, instants)
            params: dict[str, Any] = {k: v for k, v in rule.params.items() if k in rule.parameters}
            params["instants"] = ",".join(map(sql_text.timestamp_text, instants))
            if reach is not None:
                params["instants_from"], params["instants_until"] = (
                    min(instants) - reach,
                    max(instants),
                )
            sql = lateral_sql(rule.sql, is_bounded=reach is not None)
            return (await self._query(sql, params)).records()

        rows: list[list[dict[str, Any]]] = [[] for _ in instants]
        for row in await self._rows(rows_of):
            rows[row.pop(_NUMBER)].append(row)
        evaluations = [
            self._evaluation(at, found) for at, found in zip(instants, rows, strict=True)
        ]
        by_rows = sorted(evaluations, key=lambda evaluation: len(evaluation.rows))
        for evaluation in (by_rows[0], by_rows[-1]):
            await self._compare(evaluation)
        return evaluations

    def _as_of(self, rule: Rule, instants: Sequence[datetime]) -> Rule:
        return self._history.as_of(rule, instants) if self._history else rule

    async def _compare(self, evaluation: Evaluation) -> None:
        """Check that a query of one instant finds the same; otherwise query every instant alone from now on."""
        if self._compared[bool(evaluation.rows)] >= self._compared_max:
            return
        self._compared[bool(evaluation.rows)] += 1
        began_s = self._clock.monotonic()
        alone = await self._one(evaluation.at)
        self._alone_s.append(self._clock.monotonic() - began_s)
        if alone.fingerprints != evaluation.fingerprints:
            log.warning("rule is replayed one instant at a time", extra={"rule": self._rule.name})
            self._most = 1
            raise RowsError("a query of many instants differs from one of a single instant")

    async def _rows(
        self, query: Callable[[Rule], Awaitable[list[dict[str, Any]]]]
    ) -> list[dict[str, Any]]:
        return await (self._plan.rows(query) if self._plan else query(self._rule))

    def _evaluation(self, at: datetime, rows: Rows) -> Evaluation:
        return Evaluation(at, rows, fingerprints_in(rows, self._rule, at))

    async def _query(self, sql: str, params: Mapping[str, Any]) -> Result:
        self.queries += 1
        result = await self._querier.query(
            sql, params, timeout_s=self._timeout_s, row_limit=ROWS_MAX
        )
        if result.truncated:
            raise RowsError(f"more than {ROWS_MAX} rows; narrow the rule's SQL")
        return result

    async def _reach(self, rule: Rule) -> timedelta | None:
        """How far back the rule reads; None where its SQL does not show it."""
        key = tuple(sorted(rule.params.items()))
        if key not in self._reaches:
            self._reaches[key] = await self._asked_reach(rule)
        return self._reaches[key]

    async def _asked_reach(self, rule: Rule) -> timedelta | None:
        bounds = lower_bounds(rule.sql)
        if not bounds:
            return None
        sql = (
            f"SELECT max(epoch(reach)) FROM (VALUES {', '.join(f'({b})' for b in bounds)}) t(reach)"
        )
        named = {p.name for p in sql_text.parameters(sql)}
        try:
            found = await self._query(sql, {name: rule.params[name] for name in named})
        except QueryError:
            return None
        return timedelta(seconds=float(found.rows[0][0]))


def lateral_sql(sql: str, *, is_bounded: bool) -> str:
    """A rule's SELECT over the instants `$instants` (texts, separated by commas); the column `_instant` says which one, from 0.

    `is_bounded`: tables have only their rows between `$instants_from` and `$instants_until`, so that DuckDB
    does not compare `$now` with every stored row.
    """
    shadows = ", ".join(
        f"{name} AS NOT MATERIALIZED (SELECT * FROM main.{name} "
        "WHERE ts > $instants_from::TIMESTAMP AND ts <= $instants_until::TIMESTAMP)"
        for name in sorted(set(mentioned(sql)))
    )
    sql = _tied(sql)
    pieces, end = [], 0
    for parameter in sql_text.parameters(sql):
        if parameter.name == "now":
            pieces.append(sql[end : parameter.offset] + '"_instants"."at"')
            end = parameter.offset + len("$now")
    pieces.append(sql[end:])
    return (
        (f"WITH {shadows}\n" if is_bounded and shadows else "")
        + f'SELECT "_instants"."number" AS {_NUMBER}, "_rows".*\n{_INSTANTS}, '
        + f'LATERAL (\n{"".join(pieces)}\n) AS "_rows"'
    )


def _tied(sql: str) -> str:
    """The SQL with a mention of the instant wherever `x IN (SELECT ...)` reads what WITH names.

    Without it, DuckDB 1.5 evaluates such a subquery once for all instants, and x is in it if it was at any of
    them. In a condition on a table alone DuckDB is right, and faster without the mention.
    """
    plain = sql_text.without_texts(sql)
    named = sql_text.with_names(plain)
    reads = {
        read
        for members in _MEMBERS.finditer(plain)
        if not _is_of_a_table(plain[: members.start()], named)
        for read in sql_text.table_reads(plain, members.end(), _closing(plain, members.end()))
        if read.name in named
    }
    return sql_text.with_tables_from(
        sql, reads, lambda name: f'(FROM {name} WHERE "_instants"."at" IS NOT NULL)'
    )


def _is_of_a_table(before: str, named: Container[str]) -> bool:
    """Whether the SELECT that `before` ends in is in its WHERE and reads only a table."""
    found = _TABLE_WHERE.search(_flat(before).rpartition("(")[2])
    return found is not None and found[1].lower() not in named


def _closing(plain: str, offset: int) -> int:
    """Offset of the parenthesis that closes the one opened before `offset`."""
    return offset + _flat(plain[offset:]).find(")")


def _flat(plain: str) -> str:
    """The text with blanks instead of everything in parentheses."""
    while (flatter := _INNERMOST.sub(lambda found: " " * len(found[0]), plain)) != plain:
        plain = flatter
    return plain


def lower_bounds(sql: str) -> list[str]:
    """The spans before `$now` that a rule reads; none where it may read a table from further back."""
    found = _LOWER_BOUND.findall(sql)
    return found if len(found) >= len(mentioned(sql)) else []


def mentioned(sql: str) -> list[str]:
    """Tables with a column `ts` that the SQL reads; a table that it reads twice comes twice."""
    return [
        read.name
        for read in sql_text.table_reads(sql_text.without_texts(sql))
        if read.name in _TIMED
    ]
