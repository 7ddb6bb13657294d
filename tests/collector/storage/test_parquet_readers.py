"""Engines that know Parquet alone read the files of the lake that its catalogue lists, as docs/store.md says."""

import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from tests.collector.made_up_store import LIMITS, asked, move_all

from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.extensions import load_extension

ROWS = 300
"""Of one commit: more than the catalogue keeps for itself."""


def test_polars_reads_the_files_that_the_catalogue_lists(tmp_path: Path, wire: Any) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    database, files = stored(tmp_path, wire)
    frame = polars.scan_parquet(files)
    shown = frame.select(polars.len(), polars.col("power_watts").mean()).collect().row(0)
    assert [shown] == asked(database, "SELECT count(*), avg(power_watts) FROM gpu_samples")
    assert shown == (2 * ROWS, 150.0)
    database.close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg imports pyarrow's client of S3, which `make setup` leaves out, and uses it for S3 alone."""
    if find_spec("pyarrow._s3fs") is None:
        module = ModuleType("pyarrow._s3fs")
        module.S3RetryStrategy = object  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.slow
@pytest.mark.usefixtures("s3")
def test_the_files_are_an_iceberg_table_without_a_copy(tmp_path: Path, wire: Any) -> None:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
    (tmp_path / "iceberg").mkdir()
    database, files = stored(tmp_path / "store", wire)
    catalog = sql.SqlCatalog(
        "fleet",
        uri=f"sqlite:///{tmp_path}/iceberg/catalog.db",
        warehouse=f"file://{tmp_path}/iceberg",
    )
    catalog.create_namespace("fleet")
    table = catalog.create_table("fleet.gpu_samples", schema=pq.read_schema(files[-1]))
    table.add_files(files)
    found = catalog.load_table("fleet.gpu_samples").scan(row_filter="power_watts > 150").to_arrow()
    assert (found.num_rows, set(found["power_watts"].to_pylist())) == (ROWS, {200.0})
    catalog.engine.dispose()
    assert not [*(tmp_path / "iceberg").rglob("*.parquet")]
    database.close()


def stored(folder: Path, wire: Any) -> tuple[Database, list[str]]:
    """A store with two files of samples, and those as the catalogue lists them."""
    folder.mkdir(exist_ok=True)
    database = Database.open(folder, LIMITS)
    for power in (100.0, 200.0):
        rows = [wire.gpu_row(second=second, power_watts=power) for second in range(ROWS)]
        commit(database, Changes(appended={"gpu_samples": wire.table("gpu_samples", rows)}))
        move_all(database)
    with closing(duckdb.connect()) as lake:
        load_extension(lake, "ducklake")
        load_extension(lake, "sqlite_scanner")
        catalogue = folder / FOLDER / CATALOGUE
        lake.execute(f"ATTACH 'ducklake:sqlite:{catalogue}' AS fleet (READ_ONLY)")
        found = lake.execute(
            "SELECT data_file, delete_file FROM ducklake_list_files('fleet', 'gpu_samples')"
        ).fetchall()
    assert [deleted for _, deleted in found] == [None] * len(found)
    return database, [path for path, _ in found]
