"""Checks rule files before they run: their syntax, their SQL against the public schema, and that every column
that it reads is declared."""

import re
from collections.abc import Iterable
from pathlib import Path

from gpuwarden.clock import EPOCH
from gpuwarden.query import Querier, QueryError
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_rules.definition import sql_text
from gpuwarden_rules.definition.charts import chart_problems
from gpuwarden_rules.definition.form_sql import trials
from gpuwarden_rules.definition.language import (
    Rule,
    builtin_rules,
    column_problems,
    parse_leniently,
    repeated,
)
from gpuwarden_rules.definition.overrides import FILE_NAME, load_overrides
from gpuwarden_rules.definition.rule_set import cause_problems
from gpuwarden_rules.definition.yaml_positions import FileProblem, RuleFileError, read_text
from gpuwarden_rules.testing.database import MemoryDatabase

_THRESHOLD = re.compile(r"[^<>][<>]=?[^<>]")
ALWAYS_THERE = frozenset(
    {"gpu", "gpu_uuid", "mig_instance", "simulated", "first_seen_at", "last_seen_at"}
)
"""Columns that need not be declared: they identify the row, or the collector always sets them."""


async def check(paths: Iterable[Path], querier: Querier | None = None) -> list[FileProblem]:
    """All problems of rule files, in file order.

    The SQL is bound to `querier`'s tables, by default to an empty schema in memory.
    """
    problems: list[FileProblem] = []
    rules: list[Rule] = []
    overriding = []
    for path in paths:
        if path.name == FILE_NAME:
            overriding.append(path)
            continue
        try:
            text = read_text(path)
        except RuleFileError as error:
            problems += error.problems
            continue
        found, wrong = parse_leniently(text, str(path))
        problems += wrong
        rules += found
    problems += repeated(rules)
    names = {rule.name for rule in rules}
    together = [*rules, *(rule for rule in builtin_rules() if rule.name not in names)]
    own = {rule.path for rule in rules}
    problems += [problem for problem in cause_problems(together) if problem.path in own]
    for path in overriding:
        try:
            load_overrides(path, together)
        except RuleFileError as error:
            problems += error.problems
    database = MemoryDatabase()
    try:
        for rule in rules:
            problems += await _bound(rule, querier or database)
            problems += undeclared(rule, database)
    finally:
        database.close()
    return sorted(set(problems))


def undeclared(rule: Rule, database: MemoryDatabase) -> list[FileProblem]:
    """A problem if the SQL reads columns that are in none of `requires`, `one_of` and `optional`."""
    try:
        read = database.columns_read(rule.sql, rule.bindings(EPOCH))
    except QueryError:
        return []  # `_bound` reports SQL that cannot be bound
    declared = {*rule.requires, *rule.one_of, *rule.optional}
    lacking = sorted(
        f"{table}.{column}"
        for table, column in read - declared
        if column not in ALWAYS_THERE and column not in _required(table)
    )
    if not lacking:
        return []
    message = (
        f"the SQL reads {', '.join(lacking)}; put each into requires, if the rule cannot work"
        " without it, or into optional"
    )
    return [rule.problem("requires", message)]


def _required(table: str) -> set[str]:
    return {column.name for column in stored_columns(TABLES[table]) if column.required}


def gaps(rules: Iterable[Rule]) -> list[FileProblem]:
    """What is no mistake, and better said: how an alert ends that holds by one threshold alone."""
    return [
        rule.problem(
            "when",
            "it ends as soon as `when` is false, so a value near the limit comes and goes; give `until` or"
            " `keep_firing_for`",
        )
        for rule in rules
        if rule.form is not None
        and _THRESHOLD.search(rule.form.when)
        and not (rule.form.until or rule.form.kinds or rule.form.expected or rule.keep_firing_for_s)
    ]


async def _of_expression(rule: Rule, querier: Querier) -> FileProblem | None:
    """The problem of the first expression of a form that DuckDB cannot bind, at its place."""
    for expression, sql in trials(rule.form) if rule.form else ():
        values = {**rule.params, "now": EPOCH}
        names = {parameter.name for parameter in sql_text.parameters(sql)}
        try:
            await querier.query(sql, {name: values[name] for name in names}, row_limit=1)
        except QueryError as error:
            # DuckDB goes on with every signature of the function.
            message = str(error).splitlines()[0].split(" Candidate functions:")[0]
            words = re.findall(r"\w+", message.lower())
            marks = [mark for word in words if (mark := f"{expression}#{word}") in rule.marks]
            return rule.problem(marks[0] if marks else expression, message)
    return None


async def _bound(rule: Rule, querier: Querier) -> list[FileProblem]:
    """Problems of the rule's SQL when it runs at the epoch."""
    try:
        # At the epoch there are no samples, so the query is cheap.
        result = await querier.query(rule.sql, rule.bindings(EPOCH), row_limit=1)
    except QueryError as error:
        return [await _of_expression(rule, querier) or rule.problem("sql", str(error))]
    columns = list(result.columns)
    twice = sorted({name for name in columns if columns.count(name) > 1})
    problems = [rule.problem("sql", f"column {name!r} stands twice") for name in twice]
    named = dict(zip(columns, result.types, strict=True))
    return problems + column_problems(rule, named) + chart_problems(rule, named)
