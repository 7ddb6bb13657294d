"""Builds the relations of a PromQL expression as named parts of one SQL statement.

A vector is two relations: `series` (sid, l), with the labels `l` as MAP(VARCHAR, VARCHAR) whose keys are sorted, and
`points` (sid, i, v), with one value `v` for a series and step `i`. So labels are handled once for each series, and
values are joined and grouped by integers. A scalar has `points` (i, v) or is an SQL expression.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuwarden.query import text_sql

NAME = "__name__"
QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`")
"""A text in PromQL."""
BLOCK_STEPS = 16
"""Steps that are kept together, see `kept_answers.py`."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The instants at which an expression is evaluated: `start_ms + i * step_ms`, `i` from 0 to `steps - 1`."""

    start_ms: int
    step_ms: int
    steps: int
    skipped: int = 0
    """Steps before the start that are known already; rollups are chosen for all steps, so that values are the same."""

    @property
    def whole_steps(self) -> int:
        """The number of steps with those skipped."""
        return self.skipped + self.steps

    @property
    def whole_start_ms(self) -> int:
        """The first instant, of the steps skipped too."""
        return self.start_ms - self.skipped * self.step_ms

    @property
    def end_ms(self) -> int:
        """The last instant."""
        return self.start_ms + (self.steps - 1) * self.step_ms

    def at(self, ms: int) -> "Grid":
        """One instant."""
        return replace(self, start_ms=ms, steps=1, skipped=0)

    def moved(self, ms: int) -> "Grid":
        """The same steps, later by `ms`."""
        return replace(self, start_ms=self.start_ms + ms)

    @property
    def ms_sql(self) -> str:
        """SQL of the instant of step `i` in milliseconds."""
        return f"({self.start_ms} + i * {self.step_ms})"

    @property
    def steps_sql(self) -> str:
        """SQL of a relation (i) of all steps."""
        return f"(SELECT unnest(range({self.steps})) AS i)"


@dataclass(slots=True)
class SqlBuilder:
    """The named parts of a statement, in order."""

    parts: list[tuple[str, str]] = field(default_factory=list)

    def add(self, kind: str, sql: str, *, materialized: bool = False) -> str:
        """Add a part; its name. `kind`: the first letters of the name."""
        name = f"{kind}{len(self.parts)}"
        self.parts.append((name, f"AS {'MATERIALIZED ' if materialized else ''}({sql})"))
        return name

    def shared(self, kind: str, sql: str) -> str:
        """Add a materialized part, unless there is one with this SQL; its name."""
        content = f"AS MATERIALIZED ({sql})"
        found = next((name for name, part in self.parts if part == content), None)
        return found or self.add(kind, sql, materialized=True)

    def text(self, select: str) -> str:
        """The statement with this SELECT at its end."""
        if not self.parts:
            return select
        return "WITH " + ",\n".join(f"{name} {sql}" for name, sql in self.parts) + f"\n{select}"


@dataclass(frozen=True, slots=True)
class Vector:
    """An instant vector at each step."""

    series: str
    points: str
    has_names: bool = False
    """Whether its series may have a `__name__`."""
    may_repeat: bool = False
    """Whether two series may have the same labels, which is an error where both have a value."""
    order: str = ""
    """ORDER BY of an instant query's result."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number at each step: an expression of the step `i`, or points."""

    sql: str = ""
    points: str = ""
    constant: float | None = None
    """The number, if it is the same at all steps and known before the query runs."""

    def points_at(self, grid: Grid) -> str:
        """SQL of a relation (i, v) of its number at each step."""
        return self.points or f"(SELECT i, {self.sql} AS v FROM {grid.steps_sql})"


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class RangeVector:
    """A range vector: relation `samples` (sid, t, v), `t` in milliseconds, in windows of `window_ms` that end at the
    steps of `grid`, their start excluded."""

    series: str
    samples: str
    window_ms: int
    grid: Grid
    has_names: bool
    may_repeat: bool
    has_parts: bool = False
    """Whether `samples` are parts of windows already, see `functions.OVER_TIME`."""
    expand_to: int = 0
    """The grid is one instant, whose values stand for this many steps; 0: it is not."""


def list_sql(values: Iterable[str]) -> str:
    """Texts as SQL literals, separated by commas."""
    return ", ".join(map(text_sql, values)) or "''"


def number_sql(value: float) -> str:
    """A number as an SQL literal of type DOUBLE."""
    return f"'{value!r}'::DOUBLE"


def labels_sql(pairs: Sequence[tuple[str, str]]) -> str:
    """A map of labels from names and SQL of VARCHAR values; an empty or NULL value means no label."""
    entries = ", ".join(
        f"{{'key': {text_sql(name)}, 'value': CAST({sql} AS VARCHAR)}}"
        for name, sql in sorted(pairs)
    )
    return (
        f"map_from_entries(list_filter([{entries}], lambda e: e.value <> ''))"
        if pairs
        else "MAP {}::MAP(VARCHAR, VARCHAR)"
    )


def without_sql(labels: Iterable[str], of: str = "l") -> str:
    """Labels without these."""
    return f"map_from_entries(list_filter(map_entries({of}), lambda e: e.key NOT IN ({list_sql(labels)})))"


def only_sql(labels: Iterable[str], of: str = "l") -> str:
    """Only these labels."""
    return (
        f"map_from_entries(list_filter(map_entries({of}), lambda e: e.key IN ({list_sql(labels)})))"
    )


def with_sql(pairs: Iterable[tuple[str, str]], of: str = "l") -> str:
    """Labels with these names set to SQL of VARCHAR values; an empty value takes the label away."""
    names, entries = [], []
    for name, value in pairs:
        names.append(name)
        entries.append(f"{{'key': {text_sql(name)}, 'value': {value}}}")
    kept = f"map_entries({without_sql(names, of)})"
    return (
        f"map_from_entries(list_sort(list_concat({kept}, "
        f"list_filter([{', '.join(entries)}], lambda e: e.value <> ''))))"
    )


def identity_sql(of: str = "l") -> str:
    """A text that is equal for equal labels."""
    return f"CAST(to_json({of}) AS VARCHAR)"


def label_sql(name: str, of: str = "l") -> str:
    """The value of a label; "" if the series does not have it."""
    return f"coalesce({of}[{text_sql(name)}], '')"


def nameless(statement: SqlBuilder, vector: Vector) -> Vector:
    """The vector without names of metrics."""
    if not vector.has_names:
        return vector
    series = statement.add("s", f"SELECT sid, {without_sql([NAME])} AS l FROM {vector.series}")
    return replace(vector, series=series, has_names=False, order="")


def no_series(statement: SqlBuilder) -> str:
    """A relation of no series."""
    return statement.add("s", f"SELECT 0::BIGINT AS sid, {labels_sql([])} AS l WHERE false")


def renumbered(statement: SqlBuilder, selects: Sequence[str]) -> tuple[str, str]:
    """Give equal labels one number. `selects`: SELECTs of (part, sid, l). Returns the relation of new series, and that
    of (part, sid, gid), which maps old to new numbers."""
    union = " UNION ALL ".join(selects)
    found = statement.add(
        "m",
        f"SELECT part, sid, l, dense_rank() OVER (ORDER BY {identity_sql()}) AS gid FROM ({union})",
        materialized=True,
    )
    return statement.add(
        "s", f"SELECT gid AS sid, any_value(l) AS l FROM {found} GROUP BY gid"
    ), found
