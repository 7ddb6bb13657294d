"""Compiles the form of a rule, which `form` reads, to one SELECT: a row for each subject whose condition holds or is
unknown.

    gpu_samples_seen    for each table and window that it measures: aggregates, a row for each subject
    gpus_expected       with `expected`: the rows of the inventory that are judged, also those that send nothing
    seen                those of several in one row for each subject
    measured            with what is measured of its GPU or node, what is used of the inventory as a struct `gpus`, and
                        who holds the GPU
    judged_1, ...       the lets, in as many SELECTs over one another as they need
    others_1_1, ...     what a let asks about the others of a subject's node or model

`form_group` compiles several forms to one SELECT of the same parts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuwarden.metrics import Type
from gpuwarden.query import text_sql
from gpuwarden.schema import TABLES
from gpuwarden_rules.definition.partitions import PartitionAggregate, replaced

COVERED_PERCENT = 75
COVERAGE = "coverage_percent"
"""Name of the measure of how much of the window has readings."""
LATE_S = 240
"""Rollups come up to four minutes late: so much is added to the window."""
REBOOT_SLACK_S = 5
ROWS_ONLY = "\n  HAVING count(*) > 0"
"""Of no rows there is no row either where nothing is grouped."""
PERCENTILES = (5, 10, 25, 50, 75, 90, 95, 99)
"""Those that a measure can ask for: `p95(x)`."""
SLOTS = 12
"""Parts of a window in each of which a reading is looked for."""
DETAILS = "(CASE WHEN json_valid(details) THEN details::JSON END)"
KEY_OF_EVENTS = {
    "device": f"({DETAILS}->>'device')",
    "port": f"try_cast(({DETAILS}->>'port') AS SMALLINT)",
}
"""Where an event has what tells ports apart."""
HOLDER_COLUMNS = ("username", "job", "container_id", "pid", "process_name", "started_at")
WORK = "work"
"""Its job, its container, or else the processes that one launcher started: what several GPUs may work on."""
CADENCE_S = {
    "gpu_samples": 1,
    "host_samples": 1,
    "gpu_health_samples": 60,
    "coverage": 60,
    "collector_samples": 60,
}
"""Seconds between two rows; others come each ten."""
KEY_OF_INVENTORY = {"gpus": "gpu_uuid", "nodes": "node", "node_gpus": "node"}
"""The tables of the inventory; `node_gpus` is the GPUs of a node together."""
_NODE_GPUS = """(
    SELECT
      node, count(*) AS gpus, min(model) AS model,
      CASE WHEN count(usd_per_hour) = count(*) THEN sum(usd_per_hour) END AS usd_per_hour
    FROM gpus
    WHERE mig_instance IS NULL AND replaced_by IS NULL
    GROUP BY node
  ) AS node_gpus"""
NODE_GPUS_COLUMNS = ("gpus", "model", "usd_per_hour")
_NO_NUMBERS = (Type.BOOL, Type.STRING, Type.TIMESTAMP)
_ONE_READING = re.compile(
    r"\(?(?:arg_)?m(?:ax|in)\((?:\{'of': )?(?P<column>\w+)\}?(?:, ts\)(?:\)\.of)?|\))(?: FILTER .*)?",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What an alert can be about."""

    name: str
    """As a person calls it: "GPU"."""
    key: tuple[str, ...]
    labels: tuple[str, ...]
    tables: tuple[str, ...]
    """Tables whose columns it may measure; a column that several have is that of the first."""
    minutes: str | None = None
    hours: str | None = None
    inventory: str | None = None
    """Table of the inventory that has it."""
    around: Mapping[str, str] = field(default_factory=dict)
    """Tables about its GPU or node, each with the column that names that."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that measures are made of."""

    table: str
    window: str
    """SQL of its length in seconds."""
    is_own: bool
    """Whether its window is that of the rule, so that its rows decide what is judged."""
    is_rollup: bool
    parts: str = ""
    """The SELECT of a row for each part of the subject, where the measures are over its parts."""
    at: str = ""
    """The column that it is joined by, where its rows are about the GPU or node of the subject."""

    @property
    def is_inventory(self) -> bool:
        """Whether its rows are those of the inventory that are judged."""
        return self.table in KEY_OF_INVENTORY


@dataclass(frozen=True, slots=True)
class Measure:
    """A named aggregate."""

    name: str
    sql: str
    source: Source
    columns: frozenset[str]
    """Columns of the source that it reads."""
    text: str = ""
    """As it is written, without its window."""

    @property
    def is_number(self) -> bool:
        """Whether it can be the value of an alert: not one reading of a flag, a text or a time."""
        match = _ONE_READING.fullmatch(self.sql)
        types = {column.name: column.type for column in TABLES[self.source.table].columns}
        return match is None or types.get(match["column"]) not in _NO_NUMBERS


@dataclass(frozen=True, slots=True)
class Let:
    """A named expression over measures."""

    name: str
    sql: str
    used: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A rule's condition, read from its form."""

    subject: Subject
    labels: tuple[str, ...]
    key: tuple[str, ...]
    key_sql: Mapping[str, str]
    """SQL of each further part of the key over the rows of the source."""
    where: str
    expected: str
    """Which rows of the inventory are judged, also if they send nothing; empty: what sends something."""
    parts: "Form | None"
    """What is measured of each part of the subject."""
    kinds: tuple[str, ...]
    """Kinds of the events that are its rows."""
    until_reboot: bool
    measures: tuple[Measure, ...]
    lets: tuple[Let, ...]
    when: str
    until: str
    covered: str
    shown: Mapping[str, str]
    """SQL of further columns that its texts name: of the inventory, or of who holds the GPU."""
    inventory: Mapping[str, tuple[str, ...]]
    """Columns that it reads of each table of the inventory."""
    has_holder: bool
    requires: tuple[tuple[str, str], ...]
    """Table and column of what it cannot work without."""
    one_of: tuple[tuple[str, str], ...]
    """Columns of which it needs one."""
    optional: tuple[tuple[str, str], ...]

    @property
    def woken_by(self) -> tuple[str, ...]:
        """Kinds of events after which it may be judged otherwise."""
        return (*self.kinds, *(("agent_gap",) if self.until_reboot else ()))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Its sources, those of the rule's own window first."""
        distinct = dict.fromkeys(measure.source for measure in self.measures)
        if self.expected and self.subject.inventory:
            distinct = {Source(self.subject.inventory, "", True, False): None, **distinct}
        return tuple(sorted(distinct, key=lambda source: not source.is_own))

    @property
    def carried_labels(self) -> tuple[str, ...]:
        """Labels that are columns of its rows beside the key."""
        others = {*self.key, *(let.name for let in self.lets)}
        return tuple(name for name in self.labels if name not in others)

    @property
    def is_simulated_known(self) -> bool:
        """Whether its rows say that they are a simulator's."""
        return bool(self.key) and "simulated" in TABLES[self.sources[0].table].names


def sql_of(form: Form) -> str:
    """The SELECT of a form."""
    parts, judged, (seen,) = judged_sql([with_coverage(form)])
    result = [
        sql if sql == name else f"{sql} AS {name}" for name, sql in result_columns(form).items()
    ]
    where = f"NOT coalesce({ended(form)}, false)"
    return (
        f"WITH {', '.join(parts)}\nSELECT\n  {wrapped(result, 2)}\nFROM {judged}\n"
        f"WHERE {f'{seen} AND ' if seen else ''}{where}"
    )


def parts_sql(form: Form) -> str:
    """The SELECT of all that a form measures, a row for each of its subjects."""
    parts, judged, (seen,) = judged_sql([with_coverage(form)])
    names = dict.fromkeys((*form.key, *form.labels, *part_names(form)))
    names |= dict.fromkeys(["simulated"] if form.is_simulated_known else [])
    where = f"\nWHERE {seen}" if seen else ""
    return f"WITH {', '.join(parts)}\nSELECT {wrapped([*names], 2)}\nFROM {judged}{where}"


def trials(form: Form) -> Iterator[tuple[str, str]]:
    """Each expression of a form in order, with a SELECT that has it and those before it."""
    if form.parts is not None:
        yield from trials(form.parts)
    lets = {let.name for let in form.lets}
    bare = replace(
        form, measures=(), lets=(), when="true", until="false", covered="", where="", shown={}, labels=tuple(name for name in form.labels if name not in lets),
    )  # fmt: skip
    if form.expected:
        yield form.expected, sql_of(bare)
    own = [measure for measure in form.measures if measure.source.is_own]
    for measure in own:
        yield measure.sql, sql_of(replace(bare, measures=(measure,)))
    for measure in form.measures:
        if measure not in own:
            yield measure.sql, sql_of(replace(bare, measures=(*own[:1], measure)))
    if form.where and form.measures:
        yield form.where, sql_of(replace(bare, measures=form.measures, where=form.where))
    whole = replace(bare, measures=form.measures, where=form.where)
    for number, let in enumerate(form.lets, start=1):
        yield let.sql, sql_of(replace(whole, lets=form.lets[:number]))
    whole = replace(whole, lets=form.lets, labels=form.labels)
    for condition in (form.when, form.until):
        if condition:
            yield condition, sql_of(replace(whole, when=condition))
    if form.covered:
        yield form.covered, sql_of(replace(whole, covered=form.covered))


def part_names(form: Form) -> list[str]:
    """What a form measures, and what follows."""
    return [*(measure.name for measure in form.measures), *(let.name for let in form.lets)]


def ended(form: Form) -> str:
    """The condition that ends an alert."""
    return form.until or f"NOT ({form.when})"


def with_coverage(form: Form) -> Form:
    """The form with the coverage of its window among its measures, where its condition names it."""
    if not has_coverage(form):
        return form
    source = form.sources[0]
    coverage = Measure(COVERAGE, coverage_of(form, source), source, frozenset())
    return replace(form, measures=(*form.measures, coverage))


def judged_sql(forms: Sequence[Form]) -> tuple[list[str], str, list[str]]:
    """What several forms about one kind of subject measure and judge: common table expressions, the name of the last
    one, and for each form the condition that its windows have rows of a subject; empty: they have of all.

    Names of measures and lets must be those of the same expression.
    """
    first = forms[0]
    scans = scans_of(forms)
    of_subjects = [(rows, scan) for rows, scan in scans.items() if not rows.at]
    is_only = len(of_subjects) == 1
    parts = [
        scan_sql(first, rows, scan, is_only=is_only or bool(rows.at))
        for rows, scan in scans.items()
    ]
    below = of_subjects[0][1].name
    if not is_only:
        parts.append(_united_sql(first, [scan for _, scan in of_subjects]))
        below = "seen"
    selected, joins = [f"{below}.*"], []
    for rows, scan in scans.items():
        if rows.at:
            selected += [f"{scan.name}.{name}" for name in scan.aggregates]
            joins.append(f" LEFT JOIN {scan.name} ON {scan.name}.at_key = {below}.{rows.at}")
    inventory: dict[str, dict[str, None]] = {}
    for form in forms:
        for table, columns in form.inventory.items():
            inventory.setdefault(table, {}).update(dict.fromkeys(columns))
    selected += [_struct_sql(table, [*of_table]) for table, of_table in inventory.items()]
    joins += [_inventory_join(first, table, below) for table in inventory]
    if any(form.has_holder for form in forms):
        parts.append(_holders_sql())
        selected.append("holder")
        joins.append(" LEFT JOIN holders USING (gpu_uuid)")
    if joins:
        joined = below + "".join(joins)
        parts.append(f"measured AS (\n  SELECT {wrapped(selected, 4)}\n  FROM {joined}\n)")
        below = "measured"
    layered = [layers(form.lets) for form in forms]
    for depth in range(max(map(len, layered))):
        lets = [let for of in layered for layer in of[depth : depth + 1] for let in layer]
        parts += _judged_sql(lets, depth + 1, below)
        below = f"judged_{depth + 1}"
    return parts, below, [_seen_condition(form, scans) for form in forms]


def _judged_sql(lets: Sequence[Let], number: int, below: str) -> list[str]:
    """The common table expressions of a layer of lets: of what they ask about others of a subject's node or model, and
    of the lets.

    The others are aggregates that are joined: as window functions, which say the same, they would sort and copy rows
    with every measure of the group.
    """
    others: dict[tuple[str, ...], dict[str, str]] = {}

    def named(aggregate: PartitionAggregate) -> str:
        of_partition = others.setdefault(aggregate.columns, {})
        count = sum(map(len, others.values()))
        return of_partition.setdefault(aggregate.sql, f"other_{number}_{count + 1}")

    columns = [f"{replaced(let.sql, named)} AS {let.name}" for let in lets]
    parts, rows = [], below
    for count, (keys, aggregates) in enumerate(others.items(), start=1):
        name = f"others_{number}_{count}"
        selected = [f"{key} AS key_{at}" for at, key in enumerate(keys, start=1)]
        selected += [f"{sql} AS {alias}" for sql, alias in aggregates.items()]
        parts.append(
            f"{name} AS (\n  SELECT {wrapped(selected, 4)}\n  FROM {below}"
            f"\n  GROUP BY {', '.join(keys)}\n)"
        )
        same = (
            f"{key} IS NOT DISTINCT FROM {name}.key_{at}" for at, key in enumerate(keys, start=1)
        )
        rows += f" JOIN {name} ON {' AND '.join(same)}"
    selected = [f"{below}.*", *columns] if others else ["*", *columns]
    return [*parts, f"judged_{number} AS (\n  SELECT {wrapped(selected, 4)}\n  FROM {rows}\n)"]


def result_columns(form: Form) -> dict[str, str]:
    """SQL of each column of the result, by its name."""
    named = [*form.labels, *(m.name for m in form.measures), *(let.name for let in form.lets)]
    result = {name: name for name in named}
    if form.is_simulated_known:
        result["simulated"] = "simulated"
    result |= {name: sql for name, sql in form.shown.items() if name not in result}
    if number := next((measure.name for measure in form.measures if measure.is_number), None):
        result.setdefault("value", number)
    condition = f"({form.when})" + (f" AND ({form.covered})" if form.covered else "")
    result["holds"] = f"CASE WHEN {condition} THEN true END"
    return result


def layers(lets: Sequence[Let]) -> list[list[Let]]:
    """The lets in SELECTs over one another: a window function sees no name of its own SELECT, and a backtest can
    ask for many instants only where no SELECT uses a name that it makes of `$now`."""
    layers: list[list[Let]] = []
    windowed: set[str] = set()
    here: set[str] = set()
    for let in lets:
        is_windowed = re.search(r"\bover\b", let.sql, re.IGNORECASE) is not None
        if not layers or (is_windowed and let.used & here) or let.used & windowed:
            layers.append([])
            windowed, here = set(), set()
        layers[-1].append(let)
        here.add(let.name)
        if is_windowed or "$now" in let.sql:
            windowed.add(let.name)
    return layers


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table that count."""

    table: str
    is_rollup: bool
    at: str
    """The column that they are joined by, where they are about the GPU or node of the subject."""
    table_sql: str
    """What follows FROM."""
    conditions: tuple[str, ...]
    has_time: bool

    @property
    def newest_sql(self) -> str:
        """Time of the newest row; those of the inventory and of parts have none."""
        return "max(ts)" if self.has_time else "'epoch'::TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Scan:
    """Rows that are read once, and what is measured over them."""

    name: str
    """Its name in the SQL."""
    seen: str
    """Name of the column that says whether it has rows of a subject."""
    aggregates: dict[str, str] = field(default_factory=dict)
    """SQL by name."""


def scans_of(forms: Sequence[Form]) -> Mapping[Rows, Scan]:
    """What the forms read; the rows of their own windows come first."""
    scans: dict[Rows, Scan] = {}
    sources = [(form, source) for form in forms for source in form.sources]
    for form, source in sorted(sources, key=lambda of: not of[1].is_own):
        count = sum(rows.table == source.table for rows in scans)
        name = f"{source.table}_{'expected' if source.is_inventory else 'seen'}"
        name += f"_{count + 1}" if count else ""
        scan = scans.setdefault(rows_of(form, source), Scan(name, f"has_{len(scans) + 1}"))
        scan.aggregates.update((m.name, m.sql) for m in form.measures if m.source == source)
    return scans


def rows_of(form: Form, source: Source) -> Rows:
    """The rows of a source that count."""
    conditions = tuple(_conditions(form, source))
    table_sql = _table_sql(form, source)
    has_time = not (source.parts or source.is_inventory)
    return Rows(source.table, source.is_rollup, source.at, table_sql, conditions, has_time)


def _seen_condition(form: Form, scans: Mapping[Rows, Scan]) -> str:
    """The condition that a subject has rows in one of the form's own windows; empty: each has."""
    if sum(not rows.at for rows in scans) == 1:
        return ""
    own = [source for source in form.sources if source.is_own] or [form.sources[0]]
    names = [scans[rows_of(form, source)].seen for source in own]
    return names[0] if len(names) == 1 else f"({' OR '.join(names)})"


def scan_sql(form: Form, rows: Rows, scan: Scan, *, is_only: bool) -> str:
    """The common table expression that aggregates rows by the key of the form."""
    of_key = {**{part: part for part in form.key}, **form.key_sql}
    if rows.at:
        of_key = {"at_key": rows.at}
    if rows.table == "events":
        of_key |= {part: KEY_OF_EVENTS[part] for part in of_key if part in KEY_OF_EVENTS}
    columns = [sql if sql == part else f"{sql} AS {part}" for part, sql in of_key.items()]
    if not rows.at:
        columns += [f"{_label_sql(rows, label)} AS {label}" for label in form.carried_labels]
        if form.is_simulated_known and "simulated" in TABLES[rows.table].names:
            columns.append("bool_or(simulated) AS simulated")
    columns += [f"{sql} AS {name}" for name, sql in scan.aggregates.items()]
    if not is_only:
        columns += [f"true AS {scan.seen}", f"{rows.newest_sql} AS newest_ts"]
    numbers = ", ".join(str(number) for number, _ in enumerate(of_key, start=1))
    grouped = f"\n  GROUP BY {numbers}" if of_key else ROWS_ONLY
    where = "\n    AND ".join(rows.conditions)
    return (
        f"{scan.name} AS (\n  SELECT {wrapped(columns, 4)}\n"
        f"  FROM {rows.table_sql}\n  WHERE {where}{grouped}\n)"
    )


def _label_sql(rows: Rows, name: str) -> str:
    """A label beside the key: that of the newest row, or of any of samples, whose windows are short and rows many."""
    return f"arg_max({name}, ts)" if rows.is_rollup else f"any_value({name})"


def _table_sql(form: Form, source: Source) -> str:
    """What a source is read from, for FROM."""
    if source.parts:
        return "(\n{}\n  ) AS parts".format(
            "\n".join(f"    {line}" for line in source.parts.splitlines())
        )
    if form.until_reboot and source.is_own:
        return f"{source.table} LEFT JOIN ({_reboots_sql(source)}) AS reboots USING (node)"
    return source.table


def _conditions(form: Form, source: Source) -> list[str]:
    """Conditions of the rows of a source that count."""
    if source.parts:
        return ["true"]
    conditions = [f"({form.expected})" if source.is_inventory else _window_sql(source)]
    if "mig_instance" in TABLES[source.table].names and "mig_instance" not in form.labels:
        conditions.append("mig_instance IS NULL")
    if form.kinds and source.is_own:
        conditions.append(f"kind IN ({', '.join(map(text_sql, form.kinds))})")
    if form.where and source.is_own:
        conditions.append(f"({form.where})")
    if form.until_reboot and source.is_own:
        conditions.append(f"coalesce(ts > rebooted_at + INTERVAL {REBOOT_SLACK_S} SECOND, true)")
    return conditions


def _window_sql(source: Source) -> str:
    if source.is_rollup and source.table.endswith("_1m"):
        return (
            f"ts > $now::TIMESTAMP - to_seconds({source.window} + {LATE_S})"
            " AND ts <= $now::TIMESTAMP - INTERVAL 1 MINUTE"
        )
    return f"ts > $now::TIMESTAMP - to_seconds({source.window}) AND ts <= $now::TIMESTAMP"


def _reboots_sql(source: Source) -> str:
    """When each node was last rebooted: the time of its last reading before."""
    last = f"make_timestamp_ms(try_cast(({DETAILS}->>'last_ts_ms') AS BIGINT))"
    return (
        f"\n    SELECT node, max({last}) AS rebooted_at\n    FROM events"
        f"\n    WHERE {_window_sql(source)}"
        f"\n      AND kind = 'agent_gap' AND ({DETAILS}->>'rebooted') = 'true'"
        "\n    GROUP BY node\n  "
    )


def has_coverage(form: Form) -> bool:
    """Whether it needs to know how much of the window has readings."""
    return COVERAGE in form.covered


def coverage_of(form: Form, source: Source) -> str:
    """Percent of the window that has a reading of any column of the first measure."""
    columns = sorted(next(m for m in form.measures if m.source == source).columns)
    value = columns[0] if len(columns) == 1 else f"coalesce({', '.join(columns)})"
    return coverage_sql(source, value)


def coverage_sql(source: Source, value: str) -> str:
    """Percent of the window that has a reading: of a rollup its minutes, else parts of it, a bit for each."""
    if source.is_rollup:
        unit = 60 if source.table.endswith("_1m") else 3600
        return f"100.0 * {unit} * count({value}) / {source.window}"
    cadence_s = CADENCE_S.get(source.table, 10)
    slots = str(SLOTS)
    if cadence_s > 1:
        slots = f"greatest(1, least({SLOTS}, {source.window} // {1.5 * cadence_s:g}))::BIGINT"
    return (
        f"100.0 * bit_count(bit_or(1::BIGINT << (date_diff('ms', ts, $now::TIMESTAMP) * {slots}"
        f" // ({source.window} * 1000)::BIGINT)) FILTER ({value} IS NOT NULL)) / {slots}"
    )


def _united_sql(form: Form, scans: Sequence[Scan]) -> str:
    """The common table expression that has each subject of any of the scans.

    It is no FULL JOIN: a backtest cannot ask for many instants of one at once.
    """
    columns = [*form.key]
    columns += [f"arg_max({name}, newest_ts) AS {name}" for name in form.carried_labels]
    columns += ["bool_or(simulated) AS simulated"] if form.is_simulated_known else []
    names = [name for scan in scans for name in (*scan.aggregates, scan.seen)]
    columns += [f"any_value({name}) AS {name}" for name in names]
    union = " UNION ALL BY NAME ".join(f"FROM {scan.name}" for scan in scans)
    grouped = f"\n  GROUP BY {', '.join(form.key)}" if form.key else ROWS_ONLY
    return f"seen AS (\n  SELECT {wrapped(columns, 4)}\n  FROM ({union}){grouped}\n)"


def _inventory_join(form: Form, table: str, seen: str) -> str:
    """The join of a table of the inventory to what was seen."""
    key = KEY_OF_INVENTORY[table]
    rows = _NODE_GPUS if table == "node_gpus" else table
    if key in form.key:
        return f" LEFT JOIN {rows} USING ({key})"
    return f" LEFT JOIN {rows} ON {table}.{key} = {seen}.{key}"


def _holders_sql() -> str:
    """Who holds each GPU: its largest process."""
    columns = ", ".join(f"'{name}': {name}" for name in HOLDER_COLUMNS)
    return (
        "holders AS (\n"
        f"  SELECT gpu_uuid, {{{columns}, '{WORK}': coalesce(\n"
        "    job, 'container ' || left(container_id, 12),\n"
        "    'pid ' || min(pid) OVER (PARTITION BY node, username, command, cgroup) || ' on ' || node)} AS holder\n"
        "  FROM (\n"
        "    SELECT gpu_uuid, unnest(max_by(\n"
        f"      {{{columns}, 'node': node, 'command': command, 'cgroup': cgroup}}, coalesce(gpu_memory_bytes, 0)))\n"
        "    FROM process_samples\n"
        "    WHERE ts > $now::TIMESTAMP - INTERVAL 2 MINUTE AND ts <= $now::TIMESTAMP\n"
        "    GROUP BY gpu_uuid\n"
        "  )\n)"
    )


def _struct_sql(table: str, names: Sequence[str]) -> str:
    """Columns of a table as a struct of its name."""
    return "{" + ", ".join(f"'{name}': {table}.{name}" for name in names) + f"}} AS {table}"


def wrapped(columns: Sequence[str], indent: int) -> str:
    """Columns over as many lines as they need."""
    lines: list[str] = []
    for column in columns:
        if lines and len(lines[-1]) + len(column) < 100:
            lines[-1] += f", {column}"
        else:
            lines.append(column)
    return (",\n" + " " * indent).join(lines)
