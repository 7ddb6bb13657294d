"""Fills a store with rows of two teams, to see that neither sees the other's."""

from datetime import datetime, timedelta

import duckdb
from tests.collector.made_up_store import move_all, put

from gpuwarden.metrics import Type
from gpuwarden.query import text_sql
from gpuwarden.schema import TABLES, UPSERTED, stored_columns
from gpuwarden.teams import Team
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.segment import SCHEMAS

VISION = Team("vision", nodes=("v*",), users=("vera",), namespaces=("vision",), accounts=("vi",))
SECRET = "hushhush"
"""In every name and text of rows that only others may see."""
PUBLIC = frozenset({"gpu_offers"})
_NUMBERS = {Type.BOOL: "true", Type.FLOAT32: "1.5", Type.FLOAT64: "2.5"}


_ALERT = {"severity": "'warning'", "consequence": "'waste'", "muted": "NULL", "resolved_at": "NULL"}
_KNOWN = {
    "alerts": {**_ALERT, "rule": "'gpu_idle_held'", "state": "'firing'"},
    "incidents": {**_ALERT, "rule": "'gpu_idle_held'", "state": "'open'", "merged_into": "NULL"},
    "incident_alerts": {"rule": "'gpu_idle_held'", "ended_at": "NULL", "cause": "NULL"},
    "diagnoses": {
        "kind": "'gpu'",
        "bottleneck": "'idle_held'",
        "ended_at": "NULL",
        "evidence": "'[]'",
        "misses": "'[]'",
    },
}
"""Values of columns that can have only some."""


def _row(table: str, who: str, at: datetime) -> dict[str, str]:
    """SQL of each column of a row whose names and texts are `who`."""
    found = {}
    for column in stored_columns(TABLES[table]):
        if column.type is Type.TIMESTAMP:
            found[column.name] = f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}'"
        elif column.type is Type.STRING:
            is_json = column.name in (
                "labels",
                "matchers",
                "details",
                "evidence",
                "misses",
                "peers",
                "tags",
                "pod_labels",
            )
            found[column.name] = text_sql(
                f'{{"of": "{who}"}}' if is_json else f"{column.name} {who}"
            )
        else:
            found[column.name] = _NUMBERS.get(column.type, "3")
    return found


def plant(database: Database, table: str, at: datetime, **names: str) -> None:
    """A row with these names."""
    row = _row(table, "plain", at) | _KNOWN.get(table, {})
    row |= {name: text_sql(value) for name, value in names.items()}
    row = {
        name: value
        for name, value in row.items()
        if name in {c.name for c in stored_columns(TABLES[table])}
    }
    put(
        database,
        table,
        "SELECT " + ", ".join(f'{value} AS "{name}"' for name, value in row.items()),
    )


def fill(database: Database, names: dict[str, str], who: str, at: datetime) -> None:
    """A row of each table, of the node, GPU and people of these names."""
    appended, upserted = {}, {}
    with duckdb.connect(config={"threads": 1}) as connection:
        for table in sorted(set(TABLES) - PUBLIC):
            row = _row(table, who, at)
            row |= {column: text_sql(value) for column, value in names.items() if column in row}
            if table == "gpus":
                row |= {"parent_gpu_uuid": "NULL", "replaced_by": "NULL"}
            if table == "budgets":
                row |= {"kind": "'team'", "name": text_sql(names["team"])}
            row |= {name: value for name, value in _KNOWN.get(table, {}).items() if name in row}
            row = {
                name: value
                for name, value in row.items()
                if name != "last_seen_at" or table in ("nodes", "gpus")
            }
            listed = ", ".join(f'{value} AS "{name}"' for name, value in row.items())
            connection.register("empty", SCHEMAS[table].empty_table())
            rows = connection.execute(f"FROM empty UNION ALL BY NAME SELECT {listed}")
            made = rows.to_arrow_table().select(SCHEMAS[table].names).cast(SCHEMAS[table])
            (upserted if table in UPSERTED else appended)[table] = made
    commit(database, Changes(appended=appended, upserted=upserted))


def fill_both(database: Database, now: datetime, *, has_others: bool = True) -> None:
    """Rows of the team and of others a minute ago in the lake, and of now in segments."""
    for is_lake in (True, False):
        at = now - timedelta(seconds=50 if is_lake else 5)
        fill(database, OWN, "own", at)
        if has_others:
            fill(database, OTHERS, SECRET, at)
        if is_lake:
            move_all(database)


OWN = {
    "node": "v1", "gpu_uuid": "GPU-v1", "username": "vera", "owner": "vera", "pod": "vision/p", "namespace": "vision",
    "account": "vi", "team": "vision", "slurm_node": "v1", "fingerprint": "f-own", "id": "i-own",
    "incident": "i-own", "subject": "own", "category": "busy", "job": "11",
}  # fmt: skip
OTHERS = {
    "node": f"s1-{SECRET}", "gpu_uuid": f"GPU-{SECRET}", "username": SECRET, "owner": SECRET, "pod": f"{SECRET}/p",
    "namespace": SECRET, "account": SECRET, "team": SECRET, "slurm_node": SECRET,
    "fingerprint": SECRET, "id": SECRET, "incident": SECRET, "subject": SECRET, "category": "busy", "job": SECRET,
}  # fmt: skip
