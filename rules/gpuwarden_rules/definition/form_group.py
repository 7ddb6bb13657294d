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
    Source,
    aggregated_sql,
    carried,
    coverage_of,
    has_coverage,
    holders_sql,
    inventory_join,
    layers,
    on_key,
    result_columns,
    source_conditions,
    source_rows,
    struct_sql,
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
    forms = [_with_literals(member) for member in members]
    aliases = _Aliases()
    for form in forms:
        for source in form.sources:
            aliases.scans.setdefault(_scan(form, source), {})
        for measure in form.measures:
            aliases.add(_scan(form, measure.source), measure.sql)
        if has_coverage(form):
            source = form.sources[0]
            aliases.add(_scan(form, source), coverage_of(form, source))
    first = forms[0]
    scans = sorted(aliases.scans, key=lambda scan: not scan.is_own)
    parts = [_scan_sql(first, scan, name, aliases) for name, scan in aliases.named(scans)]
    names = [name for name, _ in aliases.named(scans)]
    own = [name for name, scan in aliases.named(scans) if scan.is_own]
    joined = names[0]
    for name, scan in [*aliases.named(scans)][1:]:
        kind = "FULL" if scan.is_own else "LEFT"
        joined += f" {kind} JOIN {name} {on_key(first, scan.source, name, own)}"
    inventory: dict[str, dict[str, None]] = {}
    for form in forms:
        for table, columns in form.inventory.items():
            inventory.setdefault(table, {}).update(dict.fromkeys(columns))
    joined += "".join(inventory_join(first, table, own) for table in inventory)
    selected = [*first.key, *carried(first, own)]
    selected += [f"{name}.is_seen AS {name}_is_seen" for name in own]
    selected += aliases.all()
    selected += [struct_sql(table, tuple(columns)) for table, columns in inventory.items()]
    if any(form.has_holder for form in forms):
        parts.append(holders_sql())
        joined += " LEFT JOIN holders USING (gpu_uuid)"
        selected.append("holder")
    parts.append(f"measured AS (\n  SELECT {wrapped(selected, 4)}\n  FROM {joined}\n)")
    renamed = [_renamed(form, number, aliases) for number, form in enumerate(forms)]
    below = "measured"
    for depth in range(max(len(one.layers) for one in renamed)):
        at_depth = [layer for one in renamed for layer in one.layers[depth : depth + 1]]
        named = [f"{let.sql} AS {let.name}" for layer in at_depth for let in layer]
        parts.append(f"judged_{depth} AS (\n  SELECT *, {wrapped(named, 4)}\n  FROM {below}\n)")
        below = f"judged_{depth}"
    marks = [
        f"({' OR '.join(f'coalesce({name}_is_seen, false)' for name in one.seen)})"
        f" AND NOT coalesce({one.ended}, false) AS rule_{number}"
        for number, one in enumerate(renamed)
    ]
    parts.append(f"marked AS (\n  SELECT *, {wrapped(marks, 4)}\n  FROM {below}\n)")
    result = [f"rule_{number}" for number, _ in enumerate(forms)]
    result += [column for one in renamed for column in one.result]
    any_rule = " OR ".join(f"rule_{number}" for number, _ in enumerate(forms))
    sql = f"WITH {', '.join(parts)}\nSELECT\n  {wrapped(result, 2)}\nFROM marked\nWHERE {any_rule}"
    return GroupSelect(sql, [one.names for one in renamed])


@dataclass(frozen=True, slots=True)
class _Scan:
    """Rows that are read once: a source with its conditions."""

    source: Source
    rows: str
    conditions: tuple[str, ...]
    is_own: bool


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A form whose names are those of the group."""

    layers: Sequence[Sequence[Let]]
    ended: str
    seen: Sequence[str]
    """Scans whose rows decide what it judges."""
    result: Sequence[str]
    names: Sequence[str]


class _Aliases:
    """Names of aggregates, each once: two rules may measure the same."""

    def __init__(self) -> None:
        self.scans: dict[_Scan, dict[str, str]] = {}
        self._count = 0

    def add(self, scan: _Scan, sql: str) -> str:
        of_scan = self.scans.setdefault(scan, {})
        if sql not in of_scan:
            self._count += 1
            of_scan[sql] = f"m{self._count}"
        return of_scan[sql]

    def name(self, scan: _Scan) -> str:
        return f"seen_{[*self.scans].index(scan)}"

    def named(self, scans: Iterable[_Scan]) -> Iterator[tuple[str, _Scan]]:
        return ((self.name(scan), scan) for scan in scans)

    def all(self) -> list[str]:
        return [alias for of_scan in self.scans.values() for alias in of_scan.values()]


def _scan(form: Form, source: Source) -> _Scan:
    # A window of another rule may be this rule's own: rows of both are the same.
    conditions = tuple(source_conditions(form, source))
    return _Scan(replace(source, is_own=True), source_rows(form, source), conditions, source.is_own)


def _scan_sql(form: Form, scan: _Scan, name: str, aliases: _Aliases) -> str:
    aggregates = [f"{sql} AS {alias}" for sql, alias in aliases.scans[scan].items()]
    aggregates.append("true AS is_seen")
    return aggregated_sql(form, scan.source, name, aggregates, scan.rows, scan.conditions)


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
    names = {m.name: aliases.add(_scan(form, m.source), m.sql) for m in form.measures}
    names |= {let.name: f"l{number}_{let.name}" for let in form.lets}
    if has_coverage(form):
        source = form.sources[0]
        names["coverage_percent"] = aliases.add(_scan(form, source), coverage_of(form, source))
    scope = _AnyName(names, {})

    def named(sql: str) -> str:
        return rewritten(sql, scope, _refuse)

    renamed = [
        [Let(names[let.name], named(let.sql), let.used) for let in layer]
        for layer in layers(form.lets)
    ]
    result = {name: named(sql) for name, sql in result_columns(form).items()}
    return _Renamed(
        layers=renamed,
        ended=named(form.until or f"NOT ({form.when})"),
        seen=[aliases.name(_scan(form, source)) for source in form.sources if source.is_own],
        result=[f"{sql} AS r{number}_{name}" for name, sql in result.items()],
        names=[*result],
    )


def _refuse(offset: int, message: str) -> None:
    raise AssertionError(f"compiled SQL has an error at {offset}: {message}")
