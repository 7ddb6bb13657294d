"""Tables made from the catalogue are what DuckDB accepts and what the names promise."""

import re
from pathlib import Path

import duckdb
import pytest

from gpuwarden.schema import (
    INVENTORY_EXTRA,
    TABLES,
    UPSERTED,
    WIRE_TABLES,
    create_sql,
    stored_columns,
    views_sql,
)
from gpuwarden.table import MAP, Table
from gpuwarden_rules.testing.database import MemoryDatabase


def test_duckdb_has_exactly_the_promised_columns() -> None:
    with duckdb.connect() as db:
        for table in TABLES.values():
            db.execute(create_sql(table))
            described = db.execute(f"DESCRIBE {table.name}").fetchall()
            assert [row[0] for row in described] == [c.name for c in stored_columns(table)]
            for row, column in zip(described, stored_columns(table), strict=True):
                assert (row[2] == "NO") == (column.required or column.name in keys_of(table))
        db.execute(views_sql())
        assert db.execute("SELECT count(*) FROM gpus_now").fetchone() == (0,)
        assert db.execute("SELECT usd_so_far FROM alerts_now").fetchall() == []


def keys_of(table: Table) -> tuple[str, ...]:
    return table.key if table.name in UPSERTED else ()


def test_agents_cannot_send_what_the_collector_adds() -> None:
    for name, columns in INVENTORY_EXTRA.items():
        assert not {c.name for c in columns} & set(WIRE_TABLES[name].names)
    assert "alerts" not in WIRE_TABLES


def test_an_unknown_column_is_a_key_error_that_names_it() -> None:
    with pytest.raises(KeyError, match="gpu_samples has no column 'watts'"):
        TABLES["gpu_samples"].column("watts")


def test_labels_are_asked_for_in_the_same_way_in_every_table_and_view() -> None:
    database = MemoryDatabase()
    columns = "SELECT table_name, data_type FROM information_schema.columns"
    types = dict(database.run(f"{columns} WHERE column_name = 'labels'").rows)
    assert types == dict.fromkeys(types, MAP)
    assert {"nodes", "alerts", "alerts_now", "incidents", "incident_alerts", "gpu_usage"} <= {
        *types
    }
    agent = {"agent_id": "a", "boot_id": "b", "simulated": False}
    database.insert("nodes", [{"node": "n1", **agent, "labels": {"zone": 'it\'s "a"'}}])
    database.insert("nodes", [{"node": "n2", **agent, "labels": None}])
    asked = "SELECT labels['zone'], labels ->> 'zone', labels['rack'] FROM nodes ORDER BY node"
    assert database.run(asked).rows == [('it\'s "a"',) * 2 + (None,), (None,) * 3]
    assert database.run("FROM node_labels").rows == [("n1", "zone", 'it\'s "a"')]


def test_the_page_on_sql_sums_up_gpu_hours_by_label() -> None:
    page = Path(__file__).parents[2] / "docs" / "sql.md"
    (example,) = re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL)
    database = MemoryDatabase()
    hour = database.run("SELECT date_trunc('hour', now()::TIMESTAMP) - INTERVAL 3 HOUR").rows[0][0]
    for node, rack, seconds in (("n1", "r7", 1800), ("n2", "r7", 3600), ("n3", "r8", 3600)):
        agent = {"agent_id": "a", "boot_id": "b", "simulated": False}
        labels = {"rack": rack, "zone": "east"}
        database.insert("nodes", [{"node": node, **agent, "labels": labels}])
        of = {"ts": hour, "node": node, "gpu_uuid": node, "category": "busy", "simulated": False}
        database.insert("waste_1h", [{**of, "seconds": seconds, "usd": 2.0}])
    assert database.run(example).rows == [("east", 1.5, 4.0)]
