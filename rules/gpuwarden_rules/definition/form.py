"""Reads the form of a rule: what it is about, what it measures, when it holds.

    of: gpu                                      one alert for each GPU; see SUBJECTS
    by: [link]                                   more columns, or lets, that tell its alerts apart
    events: [xid]                                its rows are events of these kinds
    until_reboot: true                           an event before the last reboot of its node counts no more
    window: 3m                                   how far back it looks; $window in texts and expressions
    where: link_type = 'nvlink'                  rows that count
    expected: age(gpus.last_seen_at) < 3d        judges these rows of the inventory, also those that send nothing
    each:                                        its parts, by the keys above; measures are then over their names
      of: link
      measure: {errors: delta(replay_errors_total)}
    measure:                                     aggregates over the rows of the window, by name
      hottest: max(memory_temperature_celsius)
      most_links: max(nvlinks_active) over 7d    another window
    let:                                         what follows from them, in order
      margin: gpus.temperature_memory_max_celsius - hottest
    when: margin < 5 C                           begins an alert
    until: margin > 8 C                          ends it; between the two nothing changes. Default: `when` is false
    covered: known >= 50 %                       what must be known to begin one. Default: a reading of the first measure
                                                 in three quarters of the window, if it is one over all of it
                                                 (an average, not the last reading); `true`: nothing

An expression is SQL over the names of its scope; see `expressions`. In `measure` these are the columns of the samples
and `age`, the seconds before now; elsewhere measures, lets, labels, parameters as `$name`, columns of the inventory
as `gpus.name` and `nodes.name`, and who holds the GPU as `holder.username`. The names `value`, `usd_per_hour`,
`began_at`, `owner`, `severity`, `immediate` and `job_started_at` have the meaning that they have as columns of `sql`.
A window of ten minutes or more is read from rollups where these have what is measured.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from yaml.nodes import Node

from gpuwarden.durations import seconds_of
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_rules.definition import sql_text
from gpuwarden_rules.definition.expressions import (
    Helper,
    Note,
    Scope,
    is_keyword,
    nearest,
    rewritten,
    words,
)
from gpuwarden_rules.definition.form_required import required_by
from gpuwarden_rules.definition.form_sql import (
    CADENCE_S,
    COVERED_PERCENT,
    DETAILS,
    HOLDER_COLUMNS,
    KEY_OF_EVENTS,
    KEY_OF_INVENTORY,
    NODE_GPUS_COLUMNS,
    PERCENTILES,
    WORK,
    Form,
    Let,
    Measure,
    Source,
    Subject,
    coverage_sql,
    part_names,
    parts_sql,
)
from gpuwarden_rules.definition.sql_syntax import reserved_words
from gpuwarden_rules.definition.yaml_positions import Scalar, YamlReader

KEYS = (
    *("of", "by", "events", "until_reboot", "window", "where", "expected", "each"),
    *("measure", "let", "when", "until", "covered"),
)
KEYS_OF_PARTS = ("of", "by", "where", "expected", "measure", "let")
ROLLUPS_FROM_S = 600
HOURS_FROM_S = 6 * 3600
"""Windows from which minutes and hours are read instead of samples."""
_GPU = ("node", "gpu", "gpu_uuid")
_OF_NODE = {"host_samples": "node", "coverage": "node"}
_OF_GPU = {"gpu_samples": "gpu_uuid", "gpu_1m": "gpu_uuid", **_OF_NODE}
# fmt: off
SUBJECTS: Mapping[str, Subject] = {
    "gpu": Subject("GPU", ("gpu_uuid",), _GPU, ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "process_1m", "events", "idle_1m"), "gpu_1m", "gpu_1h", "gpus", _OF_NODE),
    "link": Subject("link", ("gpu_uuid", "link"), (*_GPU, "link"), ("link_samples",), inventory="gpus", around=_OF_GPU),
    "process": Subject("process", ("gpu_uuid", "pid"), (*_GPU, "pid"), ("process_samples",), "process_1m", inventory="gpus", around=_OF_GPU),
    "node": Subject("node", ("node",), ("node",), ("host_samples", "coverage", "events"), "host_1m", inventory="nodes"),
    "port": Subject("port", ("node", "device", "port"), ("node", "device", "port"), ("infiniband_samples", "events"), inventory="nodes"),
    "job": Subject("job", ("job",), ("job",), ("progress_samples", "slurm_job_samples")),
    "user": Subject("user", ("username",), ("username",), ("process_samples",)),
    "collector": Subject("collector", ("host",), ("host",), ("collector_samples",)),
    "fleet": Subject("fleet", (), (), ("gpu_samples", "host_samples", "collector_samples"), "gpu_1m", "gpu_1h"),
}
# fmt: on

_OVER = re.compile(r"\s+over\s+(?P<span>\d+\s?[smhd]|\$[a-z]\w*)\s*\Z", re.IGNORECASE)
_CALL = re.compile(r"\b(avg|min|max|last|delta|rate)\(\s*([a-z]\w*)\s*\)", re.IGNORECASE)
_SPREAD = re.compile(
    r"\b(?:avg|min|max|share|median|quantile\w*|regr_\w+|p\d+)\((?!ts\))", re.IGNORECASE
)
"""Aggregates that say something about all of the window."""
_MODEL = "coalesce(gpus.model, 'unknown model')"
_CALLED = re.compile(r"\b[A-Za-z_]\w*(?=\s*\()")
_OF_PARTS = ("share", *(f"p{percent}" for percent in PERCENTILES))
"""Helpers that need no time."""
_AGE = {"age": "epoch($now::TIMESTAMP - ts)"}


class FormReader:
    """Reads the form of one rule; problems are noted in the reader of its file."""

    def __init__(
        self,
        reader: YamlReader,
        nodes: Mapping[str, Node],
        params: Mapping[str, Scalar],
        *,
        is_of_parts: bool = False,
    ) -> None:
        self._reader, self._nodes, self._params = reader, nodes, params
        self._is_of_parts = is_of_parts
        self._parts: Form | None = None
        """What is measured of each part of the subject."""
        self._part_names: list[str] = []
        self._subject = SUBJECTS["fleet"]
        self._columns: dict[tuple[str, str], None] = {}
        """Table and column of everything that is read."""
        self._inventory: dict[str, dict[str, None]] = {}
        self._has_holder = False
        self.places: dict[str, tuple[int, int]] = {}
        """Line and column of each expression by its SQL, and as `SQL#name` of each function in it."""
        self.labels: tuple[str, ...] = ()
        """The alert's labels, once it has been read."""

    def read(self, fields: Sequence[str]) -> Form | None:
        """The form; `fields`: names that the rule's texts use. None: it cannot be compiled, as noted."""
        before = len(self._reader.problems)
        subject = self._read_subject()
        if subject is None:
            return None
        by = self._texts("by")
        self.labels = (*subject.labels, *by)
        lets = self._reader.entries(self._nodes.get("let"))
        subject = self._subject = _having([name for name in by if name not in lets], subject)
        self._parts = self._read_parts()
        if "each" in self._nodes and self._parts is None:
            return None
        key_sql = self._key_sql(by, lets)
        where = self._expression("where", self._scope_of_rows(subject.tables[0], {}))
        expected = self._read_expected()
        measures = self._measures()
        for table in dict.fromkeys(one.source.table for one in measures if one.source.is_own):
            for column in sorted(_plain(where) & {*TABLES[table].names} - {"ts"}):
                self._read_column(table, column)
        named, names = self._lets(measures, self.labels)
        scope = self._scope_of_subjects(names)
        when, until = (self._expression(key, scope) for key in ("when", "until"))
        self._note_missing(measures, when)
        if len(self._reader.problems) > before:
            return None
        covered = self._covered(measures, names)
        shown = self._shown(fields, {*names})
        if len(self._reader.problems) > before:
            return None
        form = Form(
            subject=subject,
            labels=self.labels,
            key=(*subject.key, *key_sql),
            key_sql=key_sql,
            where=where,
            expected=expected,
            parts=self._parts,
            kinds=tuple(self._texts("events")),
            until_reboot=self._is_until_reboot(),
            measures=tuple(measures),
            lets=tuple(named),
            when=when or "true",
            until=until,
            covered=covered,
            shown=shown,
            inventory={table: tuple(columns) for table, columns in self._inventory.items()},
            has_holder=self._has_holder,
            requires=(),
            one_of=(),
            optional=(),
        )
        required, one_of = required_by(form)
        optional = tuple(one for one in self._columns if one not in (*required, *one_of))
        return replace(form, requires=required, one_of=one_of, optional=optional)

    def _read_parts(self) -> Form | None:
        """What `each` says of the parts of the subject."""
        if "each" not in self._nodes:
            return None
        node = self._nodes["each"]
        nodes = self._reader.fields(node, required=("of",), optional=KEYS_OF_PARTS[1:])
        if "of" not in nodes:
            return None
        nodes = {**nodes, "window": self._nodes["window"]}
        reader = FormReader(self._reader, nodes, self._params, is_of_parts=True)
        parts = reader.read(())
        if parts is None:
            return None
        names = [*dict.fromkeys((*parts.key, *parts.labels, *part_names(parts)))]
        missing = {*self._subject.key} - {*names}
        if missing:
            message = f"a {parts.subject.name} is no part of a {self._subject.name}"
            self._reader.note(nodes["of"], message)
        self._columns.update(reader._columns)
        self.places |= reader.places
        self._part_names = names
        return parts

    def _read_expected(self) -> str:
        """Which rows of the inventory are judged; empty: what sends something."""
        node = self._nodes.get("expected")
        if node is None:
            return ""
        table = self._subject.inventory
        if table is None or (KEY_OF_INVENTORY[table],) != self._subject.key:
            message = (
                "only GPUs and nodes are in the inventory; `expected` needs `of: gpu` or `of: node`"
            )
            self._reader.note(node, message)
            return ""
        for key in ("where", "events"):
            if key in self._nodes:
                message = f"`expected` says what is judged; write `filter` in `measure` instead of `{key}`"
                self._reader.note(self._nodes[key], message)
        columns = [f"{table}.{column.name}" for column in stored_columns(TABLES[table])]
        scope = Scope({name: name for name in columns}, {"age": _age}, subject=f"column of {table}")
        return self._expression("expected", scope)

    def _read_subject(self) -> Subject | None:
        node = self._nodes["of"]
        name = self._reader.text(node)
        subject = SUBJECTS.get(name or "")
        if subject is None:
            if name is not None:
                hint = nearest(name, [*SUBJECTS])
                self._reader.note(node, f"{name!r} is nothing that an alert can be of; {hint}")
            return None
        if not self._params.get("window"):
            self._reader.note(node, "`window` is missing: how far back the rule looks")
            return None
        if "events" in self._nodes:
            # An event may be without a GPU, so its node is part of what it is about.
            return replace(
                subject, key=subject.labels, tables=("events",), minutes=None, hours=None
            )
        if self._is_until_reboot():
            self._reader.note(self._nodes["until_reboot"], "it is for rules of `events`")
        return subject

    def _is_until_reboot(self) -> bool:
        is_so = self._reader.boolean(self._nodes.get("until_reboot")) is True
        if is_so:
            self._read_column("events", "details")
        return is_so

    def _note_missing(self, measures: Sequence[Measure], when: str) -> None:
        is_expected = "expected" in self._nodes
        if not measures and "measure" not in self._nodes and not is_expected:
            self._reader.note(self._nodes["of"], "`measure` is missing: a name and an aggregate")
        elif not (when or is_expected or self._is_of_parts) and not {"when", "events"} & {
            *self._nodes
        }:
            message = "`when` is missing: the condition that begins an alert"
            self._reader.note(self._nodes["of"], message)

    def _texts(self, key: str) -> list[str]:
        items = self._reader.items(self._nodes.get(key))
        return [text for item in items if (text := self._reader.text(item))]

    def _text_of(self, node: Node) -> str | None:
        """An expression's text; a number or true is one."""
        if node.tag == "tag:yaml.org,2002:null":
            message = "an expression is missing; within { } one with a comma stands in quotes"
            self._reader.note(node, message)
            return None
        value = self._reader.scalar(node)
        if isinstance(value, bool):
            return "true" if value else "false"
        return None if value is None else str(value)

    def _noting_at(self, node: Node) -> Note:
        return lambda offset, message: self._reader.note(node, message, offset)

    def _expression(self, key: str, scope: Scope) -> str:
        node = self._nodes.get(key)
        text = None if node is None else self._text_of(node)
        return "" if node is None or text is None else self._rewritten(node, text, scope)[0]

    def _rewritten(self, node: Node, text: str, scope: Scope) -> tuple[str, frozenset[str]]:
        """The SQL of an expression and the names that it uses, which are taken down."""
        for offset, message in sql_text.problems(text):
            self._reader.note(node, message, offset)
        used: set[str] = set()
        sql = " ".join(rewritten(text, scope, self._noting_at(node), used).split())
        for name in used:
            self._take_down(name)
        self.places[sql] = self._reader.position(node)
        for call in _CALLED.finditer(self._text_of(node) or ""):
            place = self._reader.position(node, call.start())
            self.places.setdefault(f"{sql}#{call[0].lower()}", place)
        return sql, frozenset(used)

    def _take_down(self, name: str) -> None:
        """Remember what a name needs: a column of the inventory, or who holds the GPU."""
        qualifier, _, column = name.rpartition(".")
        if qualifier in ("gpus", "nodes"):
            self._read_inventory(qualifier, column)
        elif qualifier == "holder":
            self._read_holder()
        elif qualifier == "details":
            self._read_column("events", "details")
        elif qualifier == "node_gpus" or (
            name in ("peers", "count_peers") and self._subject.inventory == "nodes"
        ):
            self._read_node_gpus(column if qualifier else "model", "gpus")
        elif name in ("model", *_PEERS) and self._subject.inventory == "gpus":
            self._read_inventory("gpus", "model")

    def _read_column(self, table: str, column: str) -> None:
        if column in {one.name for one in stored_columns(TABLES[table])}:
            self._columns[table, column] = None

    def _read_inventory(self, table: str, column: str) -> None:
        self._inventory.setdefault(table, {})[column] = None
        self._read_column(table, column)

    def _read_node_gpus(self, *names: str) -> None:
        for name in names:
            self._inventory.setdefault("node_gpus", {})[name] = None
            self._read_column("gpus", name)
        self._read_column("gpus", "replaced_by")

    def _read_holder(self) -> None:
        self._has_holder = True
        for column in (*HOLDER_COLUMNS, "gpu_memory_bytes", "command", "cgroup"):
            self._read_column("process_samples", column)

    def _key_sql(self, by: Sequence[str], lets: Container[str]) -> dict[str, str]:
        """SQL of each further label that is a column, or for events a key of the details, and none of the lets."""
        table = self._subject.tables[0]
        of_key: dict[str, str] = {}
        for item, name in zip(self._reader.items(self._nodes.get("by")), by, strict=True):
            if name in lets:
                continue
            if name in TABLES[table].names:
                of_key[name] = name
                self._read_column(table, name)
            elif table == "events" and name.isidentifier():
                of_key[name] = f"{DETAILS}->>'{name}'"
                self._read_column(table, "details")
            else:
                hint = nearest(name, TABLES[table].names)
                self._reader.note(item, f"{name!r} is no column of {table}; {hint}")
        return of_key

    def _scope_of_rows(self, table: str, helpers: Mapping[str, Helper]) -> Scope:
        """Names of the rows of a table."""
        qualified = {f"{table}.{name}": name for name in TABLES[table].names}
        return Scope(
            {name: name for name in TABLES[table].names} | qualified | _AGE,
            helpers,
            details=DETAILS if table == "events" else "",
            subject=f"column of {table}",
        )

    def _scope_of_subjects(self, names: Mapping[str, str]) -> Scope:
        """Names of a condition: measures, lets, labels, the inventory, and who holds the GPU."""
        known = dict(names)
        tables = [table for table in ("gpus", "nodes") if self._is_in(table)]
        for table in tables:
            columns = (f"{table}.{column.name}" for column in stored_columns(TABLES[table]))
            known |= {name: name for name in columns}
        if "nodes" in tables:
            columns = (f"node_gpus.{name}" for name in NODE_GPUS_COLUMNS)
            known |= {name: name for name in columns}
        if self._is_in("gpus"):
            known |= {f"holder.{name}": f"holder.{name}" for name in (*HOLDER_COLUMNS, WORK)}
        helpers: dict[str, Helper] = {"age": _age, "clamp": _clamp}
        if self._subject.inventory == "gpus":
            helpers |= _PEERS
        elif self._subject.inventory == "nodes":
            helpers |= _peers_of_nodes([name for name in self._subject.key if name != "node"])
        inventory = f" or column of {' or '.join(tables)}" if tables else ""
        return Scope(known, helpers, subject=f"measure{inventory}")

    def _is_in(self, table: str) -> bool:
        """Whether a table of the inventory has the subject or its node."""
        return ("node" if table == "nodes" else "gpu_uuid") in self._subject.labels

    def _measures(self) -> list[Measure]:
        measures = []
        for name, (key, node) in self._reader.entries(self._nodes.get("measure")).items():
            text = self._text_of(node)
            self._check_name(name, key)
            if text is not None and (measure := self._measure(name, text, node)):
                measures.append(measure)
        if "events" in self._nodes and "measure" not in self._nodes:
            source = Source("events", "$window", is_own=True, is_rollup=False)
            return [Measure("value", "count(*)", source, frozenset())]
        return measures

    def _check_name(self, name: str, key: Node) -> None:
        if not name.isidentifier() or is_keyword(name) or name in reserved_words():
            self._reader.note(key, f"{name!r} is a word of SQL, or no name; use another one")

    def _measure(self, name: str, text: str, node: Node) -> Measure | None:
        window, seconds, is_own = "$window", self._params["window"], True
        if match := _OVER.search(text):
            span, is_own, text = match["span"], False, text[: match.start()]
            value = (
                seconds_of(span.replace(" ", "")) if span[0] != "$" else self._params.get(span[1:])
            )
            window, seconds = (span if span[0] == "$" else f"{value:g}"), value or 0.0
        if not isinstance(seconds, int | float) or not seconds:
            self._reader.note(node, f"{window} is not the length of a window")
            return None
        if self._parts is not None and {*words(text)} <= {*self._part_names}:
            return self._measure_of_parts(name, text, node, self._parts)
        table, rolled_up = self._table(text, seconds, node)
        if table is None:
            return None
        at = self._subject.around.get(table, "")
        is_own = is_own and not at and "expected" not in self._nodes
        source = Source(table, window, is_own, table.endswith(("_1m", "_1h")), at=at)
        written = text
        if rolled_up:
            text = _CALL.sub(lambda call: rolled_up.get(call[0], call[0]), text)
        sql, used = self._rewritten(node, text, self._scope_of_rows(table, _helpers(source)))
        columns = {name.removeprefix(f"{table}.") for name in used} & {*TABLES[table].names}
        key = {one.name for one in TABLES[table].columns if not one.required} & {*self._subject.key}
        if table == "events" and {*self._subject.key} & {*KEY_OF_EVENTS}:
            key = {"details"}
        for column in sorted((columns - {"ts"}) | (key - {"gpu"})):
            self._read_column(table, column)
        return Measure(name, sql, source, frozenset(columns - {"ts"}), written)

    def _measure_of_parts(self, name: str, text: str, node: Node, parts: Form) -> Measure:
        """A measure over what `each` has of the parts."""
        table = parts.sources[0].table
        is_own = "expected" not in self._nodes
        source = Source(table, "$window", is_own, is_rollup=False, parts=parts_sql(parts))
        scope = Scope(
            {one: one for one in self._part_names},
            {one: helper for one, helper in _helpers(source).items() if one in _OF_PARTS},
            subject=f"name of each {parts.subject.name}",
        )
        sql, _ = self._rewritten(node, text, scope)
        return Measure(name, sql, source, frozenset(), text)

    def _table(self, text: str, seconds: float, node: Node) -> tuple[str | None, dict[str, str]]:
        """The table that a measure reads, and its calls over a rollup."""
        subject, names = self._subject, _plain(text)
        tables: tuple[str, ...] = (*subject.tables, *subject.around)
        qualifiers = {word.partition(".")[0] for word in words(text) if "." in word}
        if qualifiers:
            qualifiers = {"events" if one == "details" else one for one in qualifiers}
            rollups = [one for one in (subject.minutes, subject.hours) if one in qualifiers]
            tables = (*(one for one in tables if one in qualifiers), *rollups) or tables
        samples = next((one for one in tables if names <= {*TABLES[one].names}), None)
        rollup = subject.hours if seconds > HOURS_FROM_S else subject.minutes
        is_minutely = rollup == subject.minutes and CADENCE_S.get(samples or "", 0) >= 60
        if rollup and seconds >= ROLLUPS_FROM_S and not (is_minutely or qualifiers):
            calls = {
                call[0]: _over_rollup(call[1].lower(), call[2], rollup)
                for call in _CALL.finditer(text)
            }
            rolled_up = {call: sql for call, sql in calls.items() if sql is not None}
            of_rollup = _CALL.sub(lambda call: rolled_up.get(call[0], call[0]), text)
            if _plain(of_rollup) <= {*TABLES[rollup].names}:
                return rollup, rolled_up
        if samples is not None:
            return samples, {}
        tables = (*tables, *([rollup] if rollup else []))
        if rollup and names <= {*TABLES[rollup].names}:
            return rollup, {}
        columns = chain.from_iterable(TABLES[table].names for table in tables)
        known = [*dict.fromkeys((*self._part_names, *columns))]
        unknown = sorted(names - {*known})
        if unknown:
            place = re.search(rf"\b{unknown[0]}\b", text)
            hint = nearest(unknown[0], known)
            message = f"{unknown[0]!r} is no column of a {subject.name}; {_owned(unknown[0], subject) or hint}"
            self._reader.note(node, message, place.start() if place else 0)
        else:
            both = ", ".join(sorted(names))
            self._reader.note(node, f"{both} are in different tables; measure each by itself")
        return None, {}

    def _lets(
        self, measures: Sequence[Measure], labels: Sequence[str]
    ) -> tuple[list[Let], dict[str, str]]:
        """The lets in order, and the SQL of all names that a condition may use."""
        names = {name: name for name in self._reader.entries(self._nodes.get("measure"))}
        names |= {measure.name: measure.name for measure in measures}
        names |= {label: label for label in labels}
        if self._subject.inventory == "gpus":
            names.setdefault("model", _MODEL)
        lets = []
        for name, (key, node) in self._reader.entries(self._nodes.get("let")).items():
            text = self._text_of(node)
            self._check_name(name, key)
            if name in {measure.name for measure in measures}:
                self._reader.note(key, f"{name!r} is a measure already")
            if text is not None:
                sql, used = self._rewritten(node, text, self._scope_of_subjects(names))
                lets.append(Let(name, sql, used))
                names[name] = name
        return lets, names

    def _covered(self, measures: Sequence[Measure], names: Mapping[str, str]) -> str:
        """What must be known to begin an alert; empty: nothing."""
        if "covered" in self._nodes:
            text = self._expression("covered", self._scope_of_subjects(names))
            return "" if text == "true" else text
        if self._is_of_parts or not measures or not measures[0].source.is_own:
            return ""
        if measures[0].columns and _SPREAD.search(self._text_of_measure(measures[0])):
            return f"coverage_percent >= {COVERED_PERCENT}"
        return ""

    def _text_of_measure(self, measure: Measure) -> str:
        entries = self._reader.entries(self._nodes.get("measure"))
        _, node = entries.get(measure.name, (None, None))
        return (self._text_of(node) if node is not None else None) or ""

    def _shown(self, fields: Sequence[str], named: set[str]) -> dict[str, str]:
        """SQL of what texts name and nothing measures: the inventory, who holds the GPU."""
        shown = {}
        for name in dict.fromkeys(fields):
            column = self._shown_column(name)
            if column is not None and (name not in named or name == "model"):
                shown[name] = _MODEL if name == "model" else column
                self._take_down(column)
        return shown

    def _shown_column(self, name: str) -> str | None:
        inventory = self._subject.inventory
        if name in (*HOLDER_COLUMNS, "owner") and self._is_in("gpus"):
            return "holder.username" if name == "owner" else f"holder.{name}"
        if inventory is not None and name in TABLES[inventory].names:
            return f"{inventory}.{name}"
        return None


def _having(by: Sequence[str], subject: Subject) -> Subject:
    """The subject with those of its tables that have the further labels; all of them where none has."""

    def has_all(table: str) -> bool:
        return {*by} <= {*TABLES[table].names}

    tables = tuple(table for table in subject.tables if has_all(table))
    if not tables:
        return subject
    minutes, hours = (
        table if table and has_all(table) else None for table in (subject.minutes, subject.hours)
    )
    return replace(subject, tables=tables, minutes=minutes, hours=hours)


def _owned(column: str, subject: Subject) -> str:
    """A hint for a column that GPUs have, of which the subject has some; empty: it is not one."""
    of_gpu = SUBJECTS["gpu"]
    tables = (*of_gpu.tables, *filter(None, (of_gpu.minutes, of_gpu.hours)))
    if "gpu_uuid" in subject.labels or not any(column in TABLES[table].names for table in tables):
        return ""
    key = {"job": ", let: {job: holder.job}", "user": ", let: {username: holder.username}"}
    return f"a GPU has it: measure it in `each: {{of: gpu{key.get(subject.name, '')}}}`"


def _plain(text: str) -> set[str]:
    """Names of columns in an expression."""
    return {word for word in words(text) if "." not in word} - {"age", "ts"}


def _over_rollup(function: str, column: str, rollup: str) -> str | None:
    """A call over samples as one over a rollup; None: the rollup lacks it."""
    names = TABLES[rollup].names
    if function not in ("delta", "rate"):
        return f"{function}({column}_{function})" if f"{column}_{function}" in names else None
    grown = f"{column.removesuffix('_total')}_delta"
    if grown not in names:
        return None
    unit = 3600 if rollup.endswith("_1h") else 60
    return (
        f"sum({grown})"
        if function == "delta"
        else f"(sum({grown}) / nullif({unit} * count({grown}), 0))"
    )


def _helpers(source: Source) -> dict[str, Helper]:
    """Aggregates that a measure may use beside SQL's."""

    def share(arguments: Sequence[str], filtered: str) -> str:
        return f"100 * avg(({_one(arguments)})::INT){filtered}"

    def delta(arguments: Sequence[str], filtered: str) -> str:
        counter = _one(arguments)
        return f"(arg_max({counter}, ts){filtered} - min({counter}){filtered})"

    def rate(arguments: Sequence[str], filtered: str) -> str:
        told = f"FILTER ({_one(arguments)} IS NOT NULL)"
        if filtered:
            told = f"{filtered.strip()[:-1]} AND {_one(arguments)} IS NOT NULL)"
        return f"({delta(arguments, filtered)} / nullif(epoch(max(ts) {told} - min(ts) {told}), 0))"

    def since(arguments: Sequence[str], filtered: str) -> str:
        if filtered:
            raise ValueError("it takes no FILTER; write the condition with AND")
        return f"min(ts) FILTER ({_one(arguments)})"

    def coverage(arguments: Sequence[str], filtered: str) -> str:
        if filtered:
            raise ValueError("it takes no FILTER")
        return coverage_sql(source, _one(arguments))

    def newest(arguments: Sequence[str], filtered: str) -> str:
        return f"(arg_max({{'of': {_one(arguments)}}}, ts){filtered}).of"

    def by_time(function: str) -> Helper:
        return lambda arguments, filtered: f"{function}({_one(arguments)}, ts){filtered}"

    def percentile(percent: int) -> Helper:
        share = f"{percent / 100:g}"
        return lambda arguments, filtered: f"quantile_cont({_one(arguments)}, {share}){filtered}"

    return {
        "share": share,
        "last": by_time("arg_max"),
        "first": by_time("arg_min"),
        "newest": newest,
        "delta": delta,
        "rate": rate,
        "since": since,
        "coverage": coverage,
        **{f"p{percent}": percentile(percent) for percent in PERCENTILES},
    }


def _one(arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        raise ValueError("it takes one argument")
    return arguments[0]


def _clamp(arguments: Sequence[str], filtered: str) -> str:
    """A value between a lowest and a highest one. NULL stays NULL, of which `least` and `greatest` make a limit."""
    if len(arguments) != 3 or filtered:
        raise ValueError("it takes a value, the lowest and the highest that it can be")
    value, low, high = (f"({argument})" for argument in arguments)
    return (
        f"(CASE WHEN {value} < {low} THEN {low} WHEN {value} > {high} THEN {high} ELSE {value} END)"
    )


def _age(arguments: Sequence[str], filtered: str) -> str:
    if filtered:
        raise ValueError("it takes no FILTER")
    return f"epoch($now::TIMESTAMP - {_one(arguments)})"


def _peers(function: str, others: str = "") -> Helper:
    """An aggregate over the GPUs of the same model; a second argument says which count."""

    def peers(arguments: Sequence[str], filtered: str) -> str:
        if not 1 <= len(arguments) <= 2 or filtered:
            raise ValueError("it takes a measure, and if need be the condition of those that count")
        which = f" AND ({arguments[1]})" if len(arguments) == 2 else ""
        among = f"FILTER (gpus.model IS NOT NULL{which})"
        return f"{function.format(arguments[0])} {among} OVER (PARTITION BY {others}gpus.model)"

    return peers


_PEERS = {
    "peers": _peers("median({})"),
    "count_peers": _peers("count({})"),
    "siblings": _peers("quantile_disc({}, 0.5)", "node, "),
    "count_siblings": _peers("count({})", "node, "),
}


def _peers_of_nodes(within: Sequence[str]) -> dict[str, Helper]:
    """Aggregates over the nodes with as many GPUs of the same model, or over the same port of these."""
    parts = ", ".join(("node_gpus.model", "node_gpus.gpus", *within))

    def over(function: str) -> Helper:
        def peers(arguments: Sequence[str], filtered: str) -> str:
            if filtered:
                raise ValueError("it takes no FILTER")
            among = "FILTER (node_gpus.model IS NOT NULL)"
            return f"{function.format(_one(arguments))} {among} OVER (PARTITION BY {parts})"

        return peers

    return {"peers": over("quantile_disc({}, 0.5)"), "count_peers": over("count({})")}
