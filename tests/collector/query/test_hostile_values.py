"""What one node sends, however large or small, fails no question about all nodes: views, rules and examples."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collector.made_up_store import LIMITS, move_all, put, reader

from gpuwarden.metrics import Type
from gpuwarden.schema import EVENTS, TABLES, UPSERTED, WIRE_TABLES, stored_columns, view_words
from gpuwarden.table import Column
from gpuwarden_collector.storage.database import Database
from gpuwarden_rules.definition.language import builtin_rules

BITS = {Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
JSON_TEXTS = {"labels", "pod_labels", "peers", "details"}


def extreme(column: Column, *, largest: bool) -> str:
    """SQL of the largest or smallest value that is admitted."""
    if column.name in JSON_TEXTS:
        return """'{"team": "x", "rack": "%", "a''b": "\\"c"}'"""
    match column.type:
        case Type.TIMESTAMP:
            return "$at::TIMESTAMP" if largest else "TIMESTAMP '1970-01-01'"
        case Type.STRING:
            return "repeat('%', 256)" if largest else "'0'"
        case Type.BOOL:
            return str(largest).lower()
        case Type.FLOAT32 | Type.FLOAT64:
            kind = np.finfo(np.float32 if column.type is Type.FLOAT32 else np.float64)
            least, most = column.limits or (kind.min, kind.max)
            return (
                f"'{min(most, kind.max) if largest else max(least, kind.min)!r}'::DOUBLE".replace(
                    "np.float64(", ""
                )
                .replace("np.float32(", "")
                .replace(")'", "'")
            )
        case _:
            reach = 2 ** (BITS[column.type] - 1)
            least, most = column.limits or (-reach, reach - 1)
            return str(int(min(most, reach - 1)) if largest else int(max(least, -reach)))


def fill(database: Database, at: datetime) -> None:
    """Two hours of a node with extremes and of a good one, in each table that agents send, and of their minutes."""
    for name, table in TABLES.items():
        if name not in WIRE_TABLES:
            continue
        own = {
            "ts": "$at::TIMESTAMP - to_seconds(s * 60 + g)", "node": "if(g < 2, 'evil', 'good')",
            "gpu_uuid": "'g' || g", "gpu": "g", "mig_instance": "NULL", "simulated": "false",
            "kind": "if(s % 2 = 0, 'xid', 'gpu_lost')", "agent_id": "'a' || (g // 2)",
        }  # fmt: skip
        columns = {}
        for column in stored_columns(table):
            large, small = (extreme(column, largest=largest) for largest in (True, False))
            evil = f"if(s % 2 = 0, {large}, {small})"
            usual = "'x'" if column.type is Type.STRING else "1"
            usual = {Type.TIMESTAMP: "$at::TIMESTAMP", Type.BOOL: "true"}.get(column.type, usual)
            columns[column.name] = (
                own.get(column.name, f"if(g < 2, {evil}, NULL)")
                if (column.name in own or not column.required)
                else f"if(g < 2, {evil}, {usual})"
            )
        made_up = ", ".join(f'{sql} AS "{key}"' for key, sql in columns.items())
        rows = "range(3) a(g), range(1)" if name in UPSERTED else "range(3) a(g), range(120)"
        sql = f"SELECT DISTINCT ON ({', '.join(table.key)}) {made_up} FROM {rows} b(s)"
        put(database, name, sql, {"at": at} if "$at" in sql else {})
        if name == EVENTS.name:
            move_all(database)


@pytest.mark.slow
def test_no_question_about_all_nodes_fails(data_dir: Path, tmp_path: Path) -> None:
    database = Database.open(data_dir, LIMITS)
    at = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    fill(database, at)
    reading = reader(data_dir, tmp_path / "spill", bytes_max=0)
    failed: dict[str, str] = {}

    def ask(name: str, sql: str, params: Any = None) -> None:
        try:
            reading.ask(sql, params)
        except Exception as error:  # noqa: BLE001  all of them are shown
            failed[name] = str(error).partition("\n")[0]

    for view, _ in view_words():
        ask(view, f"SELECT * FROM {view}")
    for rule in builtin_rules():
        bound = rule.bindings(at.replace(tzinfo=UTC)).items()
        ask(
            rule.name,
            rule.sql,
            {k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in bound},
        )
    database.close()
    assert not failed, "\n".join(f"{k}: {v}" for k, v in failed.items())
