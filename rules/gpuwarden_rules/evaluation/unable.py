"""Finds the rules that cannot judge a device, as its source does not tell what they require.

A rule requires columns. Of a device's own tables a column without a value in an hour with samples is not told: the
vendor has no such reading, the model lacks it, or the agent may not read it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.idleness import IDLE_1M
from gpuwarden.query import Querier, query_all
from gpuwarden.rollups import REASONS, ROLLUPS
from gpuwarden.schema import TABLES
from gpuwarden_rules.definition.language import Rule

WINDOW = timedelta(hours=1)
_VENDOR = "SELECT vendor FROM gpus WHERE gpu_uuid = $gpu_uuid"
OF_DEVICES = ("gpus", "gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples")
"""Tables that a source fills for each device, whether or not anything runs on it."""
SAMPLES = "gpu_samples"
XIDS = "Xids"
_REASONS = frozenset(column.name for column in REASONS.values())


@dataclass(frozen=True, slots=True)
class Unable:
    """A rule that cannot judge a device."""

    rule: Rule
    missing: Sequence[str]
    """Columns that it requires and that are not told: "gpu_samples.clocks_event_reasons", a table, or `XIDS`."""


def rules_of_gpus(rules: Iterable[Rule]) -> list[Rule]:
    """Rules about single GPUs."""
    return [rule for rule in rules if "gpu" in rule.labels]


def unable(rules: Iterable[Rule], vendor: str, told: Mapping[str, Collection[str]]) -> list[Unable]:
    """Those of the rules about GPUs that cannot judge a device. `told`: columns with a value by table; a table without
    rows is absent."""
    found = []
    for rule in rules_of_gpus(rules):
        missing = dict.fromkeys(_missing(rule, told))
        if vendor != "nvidia" and ("xid" in rule.labels or rule.path.endswith("xid.yaml")):
            missing[XIDS] = None
        if missing:
            found.append(Unable(rule, [*missing]))
    return found


def _missing(rule: Rule, told: Mapping[str, Collection[str]]) -> Iterator[str]:
    """What it requires; all of which it needs one; or all that it can do with, if it requires nothing of the device."""
    required, one_of, optional = (
        [(table, name) for table, name in map(_of_samples, columns) if _is_of_device(table, name)]
        for columns in (rule.requires, rule.one_of, rule.optional)
    )
    if one_of and not any(name in told.get(table, ()) for table, name in one_of):
        required += one_of
    elif not required and any(
        name in told.get(table, ()) for table, name in optional if table != "gpus"
    ):
        return
    if not required and not one_of:
        required = [one for one in optional if one[0] != "gpus"]
    for table, name in required:
        if table not in told:
            yield table
        elif name not in told[table]:
            yield f"{table}.{name}"


def _is_of_device(table: str, name: str) -> bool:
    """Whether the agent fills a column from the device; others of `gpus` are the collector's."""
    return table in OF_DEVICES and name in TABLES[table].names


def _of_samples(column: tuple[str, str]) -> tuple[str, str]:
    """The column of samples that a column of rollups is made of."""
    table, name = column
    if table == IDLE_1M.name:
        return SAMPLES, "memory_used_bytes" if name.startswith("held") else "util_percent"
    if table not in ROLLUPS:
        return column
    if name in _REASONS:
        return SAMPLES, "clocks_event_reasons"
    stem, _, made = name.rpartition("_")
    for source in OF_DEVICES[1:]:
        for known in TABLES[source].names:
            if known in (name, stem) or (made == "delta" and known == f"{stem}_total"):
                return source, known
    return column


async def read_unable(
    querier: Querier, rules: Sequence[Rule], gpu_uuid: str, now: datetime
) -> list[Unable] | None:
    """Rules that cannot judge a device. None: it has no samples of the last hour. Raises QueryError."""
    read = {
        _of_samples(column)
        for rule in rules_of_gpus(rules)
        for column in (*rule.requires, *rule.one_of, *rule.optional)
    }
    asked = {
        table: sorted({name for of, name in read if of == table} & set(TABLES[table].names))
        for table in OF_DEVICES
    }
    answers = await query_all(
        querier,
        [
            (_counts_sql(table, columns), {"gpu_uuid": gpu_uuid, "since": now - WINDOW})
            for table, columns in asked.items()
        ],
    )
    told = {}
    for (table, columns), answer in zip(asked.items(), answers, strict=True):
        rows, *counts = answer.rows[0]
        if rows:
            told[table] = {name for name, count in zip(columns, counts, strict=True) if count}
    if SAMPLES not in told:
        return None
    vendor = await querier.query(_VENDOR, {"gpu_uuid": gpu_uuid})
    return unable(rules, str(vendor.rows[0][0]) if vendor.rows else "", told)


def _counts_sql(table: str, columns: Sequence[str]) -> str:
    counts = "".join(f', count("{name}")' for name in columns)
    since = (
        "AND ts > $since::TIMESTAMP" if "ts" in TABLES[table].names else "AND $since IS NOT NULL"
    )
    return f"SELECT count(*){counts} FROM {table} WHERE gpu_uuid = $gpu_uuid {since}"
