"""Compiles the forms of several rules to one SELECT, which reads each window once for all of them.

Rules about the same kind of subject can be one SELECT: planning and scanning cost once, and a further rule only its own
aggregates. A row has what any of the rules says about one subject: `rule_3` whether the third one says anything of it
(its condition holds or is unknown), and the columns of the third one's result as `r3_name`. Parameters are literals, so the only
parameter is `$now`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuwarden.query import text_sql
from gpuwarden_rules.definition.expressions import Scope, rewritten
from gpuwarden_rules.definition.form_sql import (
    Form,
    Let,
    Measure,
    ended,
    judged_sql,
    result_columns,
    rows_of,
    with_coverage,
    wrapped,
)
from gpuwarden_rules.definition.yaml_positions import Scalar

_PARAMETER = re.compile(r"'(?:[^']|'')*'|\$(?!now\b)(\w+)")


@dataclass(frozen=True, slots=True)
class Member:
    """A rule of a group with the parameters of a part of the fleet."""

    form: Form
    params: Mapping[str, Scalar]


def kind_of(form: Form) -> tuple[Any, ...]:
    """Forms of equal kind can be one SELECT."""
    is_event = bool(form.kinds)
    return (form.subject.name, form.key, tuple(form.key_sql.items()), is_event)


@dataclass(frozen=True, slots=True)
class GroupSelect:
    """One SELECT for several rules."""

    sql: str
    columns: Sequence[Sequence[str]]
    """Columns of each member's result, as its texts call them."""

    def rows_of(self, number: int, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """The rows that the member's own SELECT would give."""
        mark, names = f"rule_{number}", self.columns[number]
        sources = [(name, f"r{number}_{name}") for name in names]
        for row in rows:
            if row[mark]:
                yield {name: row[source] for name, source in sources}


def select_of(members: Sequence[Member]) -> GroupSelect:
    """The SELECT of members of one kind."""
    aliases = _Aliases()
    renamed = [
        _renamed(_with_literals(member), number, aliases) for number, member in enumerate(members)
    ]
    parts, judged, seen = judged_sql([one.form for one in renamed])
    marks = []
    for number, (one, is_seen) in enumerate(zip(renamed, seen, strict=True)):
        holds_or_unknown = f"NOT coalesce({ended(one.form)}, false)"
        condition = f"{is_seen} AND {holds_or_unknown}" if is_seen else holds_or_unknown
        marks.append(f"{condition} AS rule_{number}")
    parts.append(f"marked AS (\n  SELECT *, {wrapped(marks, 4)}\n  FROM {judged}\n)")
    numbered = [f"rule_{number}" for number, _ in enumerate(renamed)]
    result = [*numbered, *(column for one in renamed for column in one.result)]
    sql = (
        f"WITH {', '.join(parts)}\nSELECT\n  {wrapped(result, 2)}\nFROM marked\n"
        f"WHERE {' OR '.join(numbered)}"
    )
    return GroupSelect(sql, [one.names for one in renamed])


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A form whose names are those of the group, and its result."""

    form: Form
    result: Sequence[str]
    names: Sequence[str]


class _Aliases:
    """Names of measures, the same for the same: two rules may measure it."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def of(self, form: Form, measure: Measure) -> str:
        """The name of a measure in the group."""
        same = rows_of(form, measure.source), measure.sql
        return self._names.setdefault(same, f"m{len(self._names) + 1}")


def _with_literals(member: Member) -> Form:
    """The form with the values of its parameters."""

    def put(sql: str) -> str:
        return _PARAMETER.sub(
            lambda match: _literal(member.params[match[1]]) if match[1] else match[0], sql
        )

    form = member.form
    measures = tuple(
        Measure(
            m.name,
            put(m.sql),
            replace(m.source, window=put(m.source.window), parts=put(m.source.parts)),
            m.columns,
            m.text,
        )
        for m in form.measures
    )
    return replace(
        form,
        measures=measures,
        lets=tuple(Let(let.name, put(let.sql), let.used) for let in form.lets),
        where=put(form.where),
        expected=put(form.expected),
        when=put(form.when),
        until=put(form.until),
        covered=put(form.covered),
    )


def _literal(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return text_sql(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


class _AnyName(Scope):
    """The names of one rule in the group; others are as they are."""

    __slots__ = ()

    def sql(self, name: str) -> str | None:
        return self.names.get(name, name)


def _renamed(form: Form, number: int, aliases: _Aliases) -> _Renamed:
    measured = with_coverage(form)
    names = {measure.name: aliases.of(form, measure) for measure in measured.measures}
    names |= {let.name: f"l{number}_{let.name}" for let in form.lets}
    scope = _AnyName(names, {})

    def named(sql: str) -> str:
        return rewritten(sql, scope, _refuse)

    result = {name: named(sql) for name, sql in result_columns(form).items()}
    renamed = replace(
        measured,
        measures=tuple(replace(one, name=names[one.name]) for one in measured.measures),
        lets=tuple(
            Let(names[let.name], named(let.sql), frozenset(names.get(one, one) for one in let.used))
            for let in form.lets
        ),
        labels=tuple(names.get(label, label) for label in form.labels),
        when=named(form.when),
        until=named(form.until),
    )
    return _Renamed(
        renamed, [f"{sql} AS r{number}_{name}" for name, sql in result.items()], [*result]
    )


def _refuse(offset: int, message: str) -> None:
    raise AssertionError(f"compiled SQL has an error at {offset}: {message}")
