"""Reads rule files. Every problem of a file is reported with line and column.

    rules:
      - name: gpu_hot                       snake_case, unique
        severity: warning                   info, warning, critical
        labels: [node, gpu, gpu_uuid]       result columns that tell alerts of this rule apart
        interval: 15s                       how often it is evaluated (default 15s)
        on_events: [xid]                    also evaluated at once when an event of these kinds is stored
        for: 5m                             must hold this long before it fires (default 0s)
        keep_firing_for: 10m                keeps firing this long after it was last found (0s)
        warm_up: 10m                        a job (column job_started_at) this young is not judged
        judges_silent_nodes: true           also judges nodes that send nothing; else their alerts are stale
        params: {above_celsius: 85}         bound as $above_celsius; durations as seconds
        requires: [gpu_samples.temperature_celsius]   columns that it cannot work without (with `sql` only)
        one_of: [gpu_1m.sw_thermal_seconds_delta, ...]   columns of which it needs one (with `sql` only)
        optional: [gpus.model]              other columns that it reads
        consequence: slow_work              lost_work, failing_hardware, unwatched, slow_work, waste
        caused_by: {node_down: [node]}      joins the incident of that rule's alert for the same node
        together: [node, rack]              alerts that come at once at one of these are one incident
        many: ran hot                       verb for several GPUs or nodes, for the incident's title
        gather_for: 4m                      how long it waits for its cause before a notification
        reopens_within: 24h                 an alert that fires again within this reopens its incident (10m)
        summary: "{node} GPU {gpu} is at {value:.0f} °C"
        remedy: Check fans and inlet.
        page: {title: ..., description: ...}  optional: its page in the documentation
        promql: {expr: ...}                 optional: its condition for Prometheus, see `promql.py`
        chart: {temperature_celsius: above_celsius}   metrics to draw, each with its threshold
        doc: docs/rules/gpu_hot.md          optional
        of: gpu                             what it is about; then `window`, `measure`, `when`, ...: see `form.py`
        sql: |                              or one SELECT; one row is one alert; $now is the time
          SELECT node, gpu, gpu_uuid, ...

`docs/rules.md` is the full text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from yaml.nodes import MappingNode, Node

from gpuwarden.alert import Consequence, Severity
from gpuwarden.durations import seconds_of
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_rules.definition import sql_text, templates
from gpuwarden_rules.definition.form import KEYS as FORM_KEYS
from gpuwarden_rules.definition.form import FormReader
from gpuwarden_rules.definition.form_sql import Form, sql_of
from gpuwarden_rules.definition.promql import PromqlCondition, made_of, promql_of
from gpuwarden_rules.definition.yaml_positions import (
    FileProblem,
    RuleFileError,
    Scalar,
    YamlReader,
    read_text,
)

REQUIRED = ("name", "severity", "summary", "remedy")
OPTIONAL = (
    *("labels", "interval", "on_events", "for", "keep_firing_for", "warm_up", "params"),
    *("requires", "one_of", "optional"),
    *("judges_silent_nodes", "consequence", "caused_by", "together", "many", "gather_for"),
    *("reopens_within", "page", "doc", "chart", "promql", "sql"),
    *FORM_KEYS,
)
COLUMN_TYPES = {
    "value": "a number",
    "usd_per_hour": "a number",
    "began_at": "TIMESTAMP",
    "job_started_at": "TIMESTAMP",
    "owner": "VARCHAR",
    "severity": "VARCHAR",
    "simulated": "BOOLEAN",
    "holds": "BOOLEAN",
    "immediate": "BOOLEAN",
}
RESERVED = tuple(COLUMN_TYPES)
"""Result columns with a fixed meaning; none can be a label."""
OFFERED = ("active",)
"""Fields that the engine adds for texts: time since the begin."""
MONEY = ("cost", "usd_per_hour", "usd_so_far")
"""What no text says: an amount grows while the text stays, so it is shown beside it."""

INTERVAL_S_MIN, INTERVAL_S_MAX = 1.0, 86400.0
HOLD_S_MAX = 7 * 86400.0
GATHER_S_MAX = 3600.0
REOPENS_S = 600.0
FLEET = "fleet"
"""In `together`: alerts of the whole fleet."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
_NUMERIC = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|REAL|DECIMAL.*)\Z")


PAGE = ("description", "checks", "actions", "quiet", "sources")
SPANS = ("interval", "for", "keep_firing_for", "warm_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePage:
    """Text of a rule's page in the documentation, which is generated."""

    title: str
    """Title, also for the index."""
    description: str
    checks: str
    """How a person can check the condition by hand."""
    actions: str
    """What to do, where the SQL makes the remedy; else empty."""
    quiet: tuple[str, ...]
    """Cases in which it stays quiet although one might expect an alert."""
    sources: Mapping[str, str]
    """Reason or source of the value, by parameter or duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named SQL condition: each row it returns is an alert. Made by `load`."""

    name: str
    severity: Severity
    labels: tuple[str, ...]
    interval_s: float
    on_events: tuple[str, ...]
    """Kinds of events: when one is stored, the rule is evaluated at once."""
    for_s: float
    keep_firing_for_s: float
    warm_up_s: float
    judges_silent_nodes: bool
    """Whether the rule judges nodes that send nothing; if so, their alerts do not become stale."""
    params: Mapping[str, Scalar]
    requires: tuple[tuple[str, str], ...]
    """Table and column; without one of these the rule cannot run."""
    one_of: tuple[tuple[str, str], ...]
    """Table and column; of a GPU without any of these it can say nothing."""
    optional: tuple[tuple[str, str], ...]
    """Table and column of everything else that it reads."""
    consequence: Consequence
    caused_by: Mapping[str, tuple[str, ...]]
    """Labels that must be equal, by the name of the rule that is the cause."""
    together: tuple[str, ...] | None
    """Labels of the alert or its node: alerts that come at once with equal values have one cause; None: the default."""
    many: str
    """Verb for several nodes or GPUs, such as "stopped reporting"; empty: the title has the rule's name."""
    gather_s: float | None
    """How long an alert waits for its cause before a notification; None: by its severity."""
    reopens_within_s: float
    """An alert that fires again within this after its end reopens its incident."""
    sql: str
    form: Form | None = field(repr=False, compare=False)
    """What the SQL was made from; None: an author wrote it."""
    summary: templates.Template
    remedy: templates.Template
    page: RulePage | None
    doc: str | None
    chart: Mapping[str, str | None]
    """Metrics to draw, each with the parameter or column that has its threshold."""
    written_promql: PromqlCondition | None
    """What its `promql` says; None: it has none."""
    path: str
    line: int
    parameters: frozenset[str]
    """Names of the SQL's parameters, with `now`."""
    marks: Mapping[str, tuple[int, int]] = field(repr=False, compare=False)
    """Line and column of `name`, `sql`, `labels.column`, `caused_by.rule`, `summary@offset`, and of an expression of a form by its SQL."""

    @property
    def promql(self) -> PromqlCondition | None:
        """Its condition in PromQL, or why there is none; None: it has no form and nobody wrote either.

        That of a form is made here and not with the rule: only exports and pages read it.
        """
        if self.written_promql is not None or self.form is None:
            return self.written_promql
        return made_of(self.form, self.params, self.summary, self.title)

    @property
    def title(self) -> str:
        """That of its page, or its name."""
        return self.page.title if self.page else self.name

    def bindings(self, now: datetime) -> dict[str, Any]:
        """Values of the SQL's parameters."""
        values = {**self.params, "now": now}
        return {name: values[name] for name in self.parameters}

    def problem(self, mark: str, message: str) -> FileProblem:
        """A problem at one of the rule's `marks`."""
        line, column = self.marks.get(mark, (self.line, 1))
        return FileProblem(self.path, line, column, f"{self.name}: {message}")


def load(path: Path) -> list[Rule]:
    """The rules of a file. Raises RuleFileError with every problem in it."""
    return parse(read_text(path), str(path))


def load_all(paths: Iterable[Path]) -> list[Rule]:
    """The rules of several files; names must be unique. Raises RuleFileError with the problems of all files."""
    rules: list[Rule] = []
    problems: list[FileProblem] = []
    for path in paths:
        try:
            rules += load(path)
        except RuleFileError as error:
            problems += error.problems
    if problems := problems + repeated(rules):
        raise RuleFileError(problems)
    return rules


def builtin_paths() -> list[Path]:
    """Rule files of the built-in pack, in order."""
    pack = Path(str(files("gpuwarden_rules") / "packs"))
    return sorted(p for p in pack.glob("*.yaml") if not p.name.endswith(".test.yaml"))


def builtin_rules() -> list[Rule]:
    """The built-in pack, read once."""
    return [*_builtin_rules()]


@cache
def _builtin_rules() -> tuple[Rule, ...]:
    return tuple(load_all(builtin_paths()))


def parse(text: str, path: str) -> list[Rule]:
    """The rules in a file's text; `path` is for messages. Raises RuleFileError."""
    rules, problems = parse_leniently(text, path)
    if problems:
        raise RuleFileError(problems)
    return rules


def parse_leniently(text: str, path: str) -> tuple[list[Rule], list[FileProblem]]:
    """All problems of a file's text, and those of its rules whose SQL can still be checked. If there are
    problems, do not run the rules."""
    reader = YamlReader(path, text)
    rules: list[Rule] = []
    root = reader.root()
    if root is not None and "rules" in (document := reader.fields(root, required=("rules",))):
        for node in reader.items(document["rules"]):
            rule = _rule(reader, node)
            if rule is not None:
                rules.append(rule)
    reader.problems += repeated(rules)
    return rules, reader.problems


def repeated(rules: Sequence[Rule]) -> list[FileProblem]:
    """A problem for each rule with the name of an earlier one."""
    first: dict[str, Rule] = {}
    problems = []
    for rule in rules:
        other = first.setdefault(rule.name, rule)
        if other is not rule:
            where = f"{other.path}:{other.line}"
            problems.append(rule.problem("name", f"the name is taken by {where}"))
    return problems


def _rule(reader: YamlReader, node: Node) -> Rule | None:
    """The rule; None where its name is missing or its SQL cannot be bound. All problems are noted."""
    nodes = reader.fields(node, required=REQUIRED, optional=OPTIONAL)
    marks = {key: reader.position(value) for key, value in nodes.items()}
    name = _name(reader, nodes.get("name"))
    severity = reader.choice(nodes.get("severity"), "severity", Severity)
    labels = _labels(reader, nodes.get("labels"), marks)
    params = _params(reader, nodes.get("params"))
    if "window" in nodes:
        params["window"] = _duration(reader, nodes["window"], 0.0, 1.0, HOLD_S_MAX)
    interval_s = _duration(reader, nodes.get("interval"), 15.0, INTERVAL_S_MIN, INTERVAL_S_MAX)
    on_events = _on_events(reader, nodes.get("on_events"))
    for_s = _duration(reader, nodes.get("for"), 0.0, 0.0, HOLD_S_MAX)
    keep_s = _duration(reader, nodes.get("keep_firing_for"), 0.0, 0.0, HOLD_S_MAX)
    warm_up_s = _duration(reader, nodes.get("warm_up"), 0.0, 0.0, HOLD_S_MAX)
    judges_silent_nodes = reader.boolean(nodes.get("judges_silent_nodes")) is True
    columns = _column_lists(reader, nodes, marks)
    consequence = _consequence(reader, nodes.get("consequence"), severity)
    together = _together(reader, nodes["together"]) if "together" in nodes else None
    gather_s = _duration(reader, nodes.get("gather_for"), -1.0, 0.0, GATHER_S_MAX)
    reopens_s = _duration(reader, nodes.get("reopens_within"), REOPENS_S, 0.0, HOLD_S_MAX)
    summary = _text(reader, "summary", nodes.get("summary"), marks)
    remedy = _text(reader, "remedy", nodes.get("remedy"), marks)
    page = _page(reader, nodes["page"], params) if "page" in nodes else None
    before = len(reader.problems)
    if "of" in nodes:
        named = [field.name for text in (summary, remedy) for field in text.fields]
        condition = _form(reader, nodes, params, marks, named)
    else:
        condition = _Condition(*_sql(reader, node, nodes.get("sql"), params), labels, columns)
    labels = condition.labels
    can_be_bound = bool(name and condition.sql) and len(reader.problems) == before
    caused_by = _caused_by(reader, nodes.get("caused_by"), labels, marks)
    used = condition.parameters | {f.name for text in (summary, remedy) for f in text.fields}
    for key in params.keys() - used - {"window"} if can_be_bound or "of" not in nodes else ():
        reader.note(nodes["params"], f"parameter {key!r} is used neither in sql nor in a text")
    if not can_be_bound:
        return None
    title = page.title if page else name
    return Rule(
        name=name,
        severity=severity or Severity.INFO,
        labels=labels,
        interval_s=interval_s,
        on_events=tuple(dict.fromkeys((*on_events, *condition.woken_by))),
        for_s=for_s,
        keep_firing_for_s=keep_s,
        warm_up_s=warm_up_s,
        judges_silent_nodes=judges_silent_nodes,
        params=params,
        **condition.columns,
        consequence=consequence,
        caused_by=caused_by,
        together=together,
        many=reader.text(nodes.get("many")) or "",
        gather_s=None if gather_s < 0 else gather_s,
        reopens_within_s=reopens_s,
        sql=condition.sql,
        form=condition.form,
        summary=summary,
        remedy=remedy,
        page=page,
        doc=reader.text(nodes.get("doc")),
        chart=_chart(reader, nodes.get("chart")),
        written_promql=_written_promql(reader, nodes, condition, params, summary, title),
        path=reader.path,
        line=node.start_mark.line + 1,
        parameters=condition.parameters,
        marks=marks,
    )


def _written_promql(
    reader: YamlReader,
    nodes: Mapping[str, Node],
    condition: "_Condition",
    params: Mapping[str, Scalar],
    summary: templates.Template,
    title: str,
) -> PromqlCondition | None:
    if "promql" not in nodes:
        return None
    made = made_of(condition.form, params, summary, title) if condition.form else None
    return promql_of(reader, nodes["promql"], condition.labels, params, summary, made)


class _Condition(NamedTuple):
    """What a rule's form or its SQL says."""

    sql: str
    parameters: frozenset[str]
    labels: tuple[str, ...]
    columns: Mapping[str, Any]
    """The columns that it reads, by the names of the keys."""
    form: Form | None = None

    @property
    def woken_by(self) -> tuple[str, ...]:
        return () if self.form is None else self.form.woken_by


def _form(
    reader: YamlReader,
    nodes: Mapping[str, Node],
    params: Mapping[str, Scalar],
    marks: dict[str, tuple[int, int]],
    named: Sequence[str],
) -> _Condition:
    """The condition of a form, from which follows what columns it reads. `marks` gets the places of its expressions."""
    for key in ("sql", "labels", "requires", "one_of", "optional"):
        if key in nodes:
            reader.note(nodes[key], f"`of` says it already; a rule has `of` or `{key}`")
    form_reader = FormReader(reader, nodes, params)
    form = form_reader.read(named)
    if form is None:
        return _Condition("", frozenset(), form_reader.labels, {})
    marks.update(form_reader.places)
    sql = sql_of(form)
    mentioned = frozenset(parameter.name for parameter in sql_text.parameters(sql))
    for name in sorted(mentioned - {*params, "now"}):
        known = ", ".join(f"${one}" for one in ("now", *params))
        reader.note(nodes["of"], f"${name} has no value; known: {known}")
    read = {"requires": form.requires, "one_of": form.one_of, "optional": form.optional}
    return _Condition(sql, mentioned, form.labels, read, form)


def _name(reader: YamlReader, node: Node | None) -> str:
    name = reader.text(node) or ""
    if node and name and not _NAME.match(name):
        reader.note(node, f"name {name!r} must be snake_case, as in gpu_idle_held")
    return name


def _labels(
    reader: YamlReader, node: Node | None, marks: dict[str, tuple[int, int]]
) -> tuple[str, ...]:
    labels: list[str] = []
    for item in reader.items(node):
        label = reader.text(item)
        if label is None:
            continue
        if label in RESERVED or label in OFFERED:
            reader.note(item, f"column {label!r} is reserved and cannot be a label")
        elif not _NAME.match(label):
            reader.note(item, f"label {label!r} must be snake_case")
        elif label in labels:
            reader.note(item, f"label {label!r} stands twice")
        else:
            labels.append(label)
            marks[f"labels.{label}"] = reader.position(item)
    return tuple(labels)


def _params(reader: YamlReader, node: Node | None) -> dict[str, Scalar]:
    params: dict[str, Scalar] = {}
    for key, (key_node, value) in reader.parameters(node).items():
        if key == "now":
            reader.note(key_node, "$now is bound by the engine")
        elif not _NAME.match(key):
            reader.note(key_node, f"parameter {key!r} must be snake_case")
        else:
            params[key] = value
    return params


def _on_events(reader: YamlReader, node: Node | None) -> tuple[str, ...]:
    kinds = []
    for item in reader.items(node):
        kind = reader.text(item)
        if kind is not None and not _NAME.match(kind):
            reader.note(item, f"event kind {kind!r} must be snake_case, as in agent_gap")
        elif kind is not None:
            kinds.append(kind)
    return tuple(kinds)


def _column_lists(
    reader: YamlReader, nodes: Mapping[str, Node], marks: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """The columns that a rule reads, by the names of the keys; each column is in one list."""
    lists = {
        key: _columns(reader, key, nodes.get(key), marks)
        for key in ("requires", "one_of", "optional")
    }
    for (first, columns), (second, others) in combinations(lists.items(), 2):
        for table, column in set(columns) & set(others):
            reader.note(nodes[second], f"'{table}.{column}' is also in {first}")
    return lists


def _columns(
    reader: YamlReader, key: str, node: Node | None, marks: dict[str, tuple[int, int]]
) -> tuple[tuple[str, str], ...]:
    """Columns named as `table.column`, each of which the schema has."""
    found: list[tuple[str, str]] = []
    for item in reader.items(node):
        text = reader.text(item)
        if text is None:
            continue
        table, _, column = text.partition(".")
        if table not in TABLES:
            known = ", ".join(TABLES)
            reader.note(item, f"{text!r} is not table.column of a known table: {known}")
        elif column not in {c.name for c in stored_columns(TABLES[table])}:
            reader.note(item, f"table {table} has no column {column!r}; see docs/tables.md")
        elif (table, column) in found:
            reader.note(item, f"{text!r} stands twice")
        else:
            found.append((table, column))
            marks[f"{key}.{text}"] = reader.position(item)
    return tuple(found)


def _consequence(reader: YamlReader, node: Node | None, severity: Severity | None) -> Consequence:
    consequence = reader.choice(node, "consequence", Consequence) or Consequence.SLOW_WORK
    if node and consequence is Consequence.WASTE and severity is Severity.CRITICAL:
        reader.note(node, "waste cannot be critical: nobody must act at once")
    return consequence


def _together(reader: YamlReader, node: Node) -> tuple[str, ...]:
    """Labels of the alert or of its node; they are not checked, because the inventory has those of nodes."""
    return tuple(text for item in reader.items(node) if (text := reader.text(item)))


def _caused_by(
    reader: YamlReader,
    node: Node | None,
    labels: tuple[str, ...],
    marks: dict[str, tuple[int, int]],
) -> dict[str, tuple[str, ...]]:
    """Labels that must be equal, by the name of the rule that is the cause."""
    found: dict[str, tuple[str, ...]] = {}
    for rule, (key, value) in reader.entries(node).items():
        equal = [reader.text(item) for item in reader.items(value)]
        for label in equal:
            if label is not None and label not in labels:
                reader.note(value, f"{label!r} is not a label of this rule")
        found[rule] = tuple(label for label in equal if label is not None)
        marks[f"caused_by.{rule}"] = reader.position(key)
    return found


def _duration(
    reader: YamlReader, node: Node | None, default: float, least: float, most: float
) -> float:
    if node is None:
        return default
    value = reader.scalar(node)
    seconds = 0.0 if value == 0 and value is not False else None
    if isinstance(value, str):
        seconds = seconds_of(value)
    if value is None:
        return default
    if seconds is None:
        reader.note(node, f"{value!r} is not a duration; write 90s, 10m, 2h or 1d")
        return default
    if not least <= seconds <= most:
        reader.note(node, f"must be between {least:g}s and {most:g}s")
    return seconds


def _text(
    reader: YamlReader, key: str, node: Node | None, marks: dict[str, tuple[int, int]]
) -> templates.Template:
    source = reader.text(node)
    if node is None or source is None:
        return templates.Template(())
    text, problems = templates.parse(source)
    for offset, message in problems:
        reader.note(node, message, offset)
    for part in text.fields:
        marks[f"{key}@{part.offset}"] = reader.position(node, part.offset)
    if not source.strip():
        reader.note(node, f"{key} must not be empty")
    return text


def _page(reader: YamlReader, node: Node, params: Mapping[str, Scalar]) -> RulePage:
    nodes = reader.fields(node, required=("title",), optional=PAGE)
    texts = {
        key: (reader.text(nodes.get(key)) or "").strip()
        for key in ("title", "description", "checks", "actions")
    }
    quiet = [reader.text(item) for item in reader.items(nodes.get("quiet"))]
    sources: dict[str, str] = {}
    for name, (key, value) in reader.entries(nodes.get("sources")).items():
        if name not in params and name not in SPANS:
            reader.note(key, f"{name!r} is neither a parameter nor one of {', '.join(SPANS)}")
        sources[name] = reader.text(value) or ""
    return RulePage(**texts, quiet=tuple(text for text in quiet if text), sources=sources)


def _chart(reader: YamlReader, node: Node | None) -> dict[str, str | None]:
    return {
        metric: None if value.tag == "tag:yaml.org,2002:null" else reader.text(value)
        for metric, (_, value) in reader.entries(node).items()
    }


def _sql(
    reader: YamlReader, rule: Node, node: Node | None, params: Mapping[str, Scalar]
) -> tuple[str, frozenset[str]]:
    """The SQL and its parameters."""
    sql = reader.text(node)
    if node is None and isinstance(rule, MappingNode):
        reader.note(rule, "give `of`, `measure` and `when`, or `sql`")
    if node is None or sql is None:
        return "", frozenset()
    for offset, message in sql_text.problems(sql):
        reader.note(node, message, offset)
    mentioned = set()
    for parameter in sql_text.parameters(sql):
        if parameter.name not in mentioned and parameter.name not in {*params, "now"}:
            known = ", ".join(f"${name}" for name in ("now", *params))
            reader.note(node, f"${parameter.name} has no value; known: {known}", parameter.offset)
        mentioned.add(parameter.name)
    if "now" not in mentioned:
        reader.note(node, "the SQL must use $now, so that the rule can be replayed over history")
    return sql.rstrip(), frozenset(mentioned)


def column_problems(rule: Rule, columns: Mapping[str, str]) -> list[FileProblem]:
    """Problems of the SQL's result (DuckDB type by column) with the rule's labels and texts."""
    problems = [
        rule.problem(f"labels.{label}", f"label {label!r} is not a column of the SQL's result")
        for label in rule.labels
        if label not in columns
    ]
    problems += [
        rule.problem("sql", f"column {name!r} is a field of the engine; use another name")
        for name in OFFERED
        if name in columns
    ]
    if rule.warm_up_s and "job_started_at" not in columns:
        problems.append(rule.problem("warm_up", "warm_up needs the column job_started_at"))
    for name, kind in COLUMN_TYPES.items():
        if name in columns and not _is(columns[name], kind):
            problems.append(
                rule.problem("sql", f"column {name!r} must be {kind}, not {columns[name]}")
            )
    for key, text in (("summary", rule.summary), ("remedy", rule.remedy)):
        for part in text.fields:
            message = _field_problem(part, columns, rule)
            if message:
                problems.append(rule.problem(f"{key}@{part.offset}", message))
    return problems


def _field_problem(
    part: templates.TemplateField, columns: Mapping[str, str], rule: Rule
) -> str | None:
    if part.name in MONEY:
        return f"{{{part.name}}} would be out of date at once; page and message show the cost beside the text"
    if part.name in OFFERED or part.name in rule.params:
        return None
    if part.name not in columns:
        known = ", ".join((*columns, *OFFERED))
        return f"the text uses {{{part.name}}}, which the SQL does not return; known: {known}"
    kind = columns[part.name]
    if part.form and not (
        _is(kind, "a number") or (part.form == "duration" and kind == "INTERVAL")
    ):
        return f"{{{part.name}:{part.form}}} needs a number, the column is {kind}"
    return None


def _is(sql_type: str, kind: str) -> bool:
    # A column that is the literal NULL has no type of its own; DuckDB calls it "NULL" or INTEGER.
    if sql_type.strip('"') == "NULL":
        return True
    return bool(_NUMERIC.match(sql_type)) if kind == "a number" else sql_type == kind
