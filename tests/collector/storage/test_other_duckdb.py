"""Another DuckDB reads the lake as docs/store.md says, run as written there."""

import re
import subprocess
import sys
from pathlib import Path

from tests.collector.made_up_store import LIMITS, asked, move_all, put

from gpuwarden_collector.storage.database import Database

PAGE = Path(__file__).parents[3] / "docs/store.md"
ROW = "SELECT TIMESTAMP '2026-03-01' + to_seconds(n) AS ts, 'n' AS node, 'g' AS gpu_uuid, true AS simulated"
AVG = "60.0 AS util_percent"

# Extensions come from the packages that this test has, as the network may be away.
READER = """
import sys, duckdb
from gpuwarden_collector.storage.extensions import load_extension
connection = duckdb.connect()
for name in ("ducklake", "sqlite_scanner"):
    load_extension(connection, name)
*before, ask = [s for s in sys.argv[1].split(";") if s.strip() and "INSTALL" not in s]
for statement in [*before, "BEGIN"]:
    connection.execute(statement)
counted = "SELECT count(*) FROM fleet.gpu_samples"
print(connection.execute(ask).fetchall(), connection.execute(counted).fetchone(), flush=True)
sys.stdin.readline()
print(connection.execute(counted).fetchone(), flush=True)
connection.execute("COMMIT")
print(connection.execute(counted).fetchone(), flush=True)
"""


def test_another_process_reads_what_is_sealed_while_the_store_is_open_and_holds_up_no_seal(
    tmp_path: Path,
) -> None:
    """Rows behind the lake are not there yet."""
    database = Database.open(tmp_path, LIMITS)  # a copy of a folder would need more words
    found = re.search(r"```sql\n(INSTALL.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    sql = found[1].replace("/var/lib/gpuwarden", str(tmp_path))

    def store(first: int, until: int) -> None:
        put(database, "gpu_samples", f"{ROW}, {AVG} FROM range({first}, {until}) r(n)")

    store(0, 2_000)
    move_all(database)
    store(2_000, 2_010)
    with subprocess.Popen(
        [sys.executable, "-c", READER, sql],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "[('n', 60.0)] (2000,)\n"
        move_all(database)
        store(3_000, 6_000)
        move_all(database)
        assert asked(database, "SELECT count(*) FROM gpu_samples") == [(5_010,)]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "(2000,)\n", "its transaction sees one moment"
        assert process.stdout.readline() == "(5010,)\n"
    database.close()
