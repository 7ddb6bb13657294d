"""Another DuckDB reads the lake as docs/store.md says, run as written there."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from gpuwarden_collector.storage import lake
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.segment import SCHEMAS, Frame
from gpuwarden_collector.storage.views import hot_table

PAGE = Path(__file__).parents[3] / "docs/store.md"

# Extensions come from the packages that this test has, as the network may be away.
READER = """
import sys, duckdb
from gpuwarden_collector.storage.extensions import load_extension
connection = duckdb.connect()
for name in ("ducklake", "sqlite_scanner"):
    load_extension(connection, name)
for statement in sys.argv[1].split(";"):
    if statement.strip() and "INSTALL" not in statement:
        connection.execute(statement)
print(connection.fetchall())
"""


def test_another_process_reads_what_is_sealed_while_the_store_is_open(tmp_path: Path) -> None:
    """Rows behind the lake are not there yet."""
    database = Database.open(tmp_path, EngineLimits())
    try:
        database.append(frame("n1", [20.0, 40.0]))
        segment = database.freeze()
        with database.maintaining(["gpu_samples"], until=segment) as cursor:
            source = {"gpu_samples": f"SELECT * FROM {hot_table('gpu_samples')}"}
            lake.seal(cursor, database.lake_root, database.collector, segment, source)
        database.append(frame("n2", [60.0]))
        assert read(sql_of_the_page(tmp_path)) == "[('n1', 30.0)]"
    finally:
        database.close()


def frame(node: str, utils: list[float]) -> Frame:
    schema = SCHEMAS["gpu_samples"]
    rows = [
        {"node": node, "util_percent": u, "ts": n, "gpu_uuid": "g"} for n, u in enumerate(utils)
    ]
    return Frame({"gpu_samples": pa.Table.from_pylist(rows, schema=schema)})


def sql_of_the_page(data_dir: Path) -> str:
    found = re.search(r"```sql\n(INSTALL.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    return found[1].replace("/var/lib/gpuwarden", str(data_dir))


def read(sql: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", READER, sql], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
