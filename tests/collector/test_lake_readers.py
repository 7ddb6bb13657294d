"""Engines that know Parquet alone read the files of the lake that its catalogue lists, as docs/store.md says."""

from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.collector.made_up_store import LIMITS, asked, move_all

from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.extensions import load_extension

polars = pytest.importorskip("polars", reason="polars is not installed")
ROWS = 3_000
"""Of one commit: more than the catalogue keeps for itself."""


def test_polars_reads_the_files_that_the_catalogue_lists(tmp_path: Path, wire: Any) -> None:
    database = Database.open(tmp_path, LIMITS)
    for power in (100.0, 200.0):
        rows = [wire.gpu_row(second=second, power_watts=power) for second in range(ROWS)]
        commit(database, Changes(appended={"gpu_samples": wire.table("gpu_samples", rows)}))
        move_all(database)
    with closing(duckdb.connect()) as lake:
        load_extension(lake, "ducklake")
        load_extension(lake, "sqlite_scanner")
        catalogue = tmp_path / FOLDER / CATALOGUE
        lake.execute(f"ATTACH 'ducklake:sqlite:{catalogue}' AS fleet (READ_ONLY)")
        found = lake.execute(
            "SELECT data_file, delete_file FROM ducklake_list_files('fleet', 'gpu_samples')"
        ).fetchall()
    assert [deleted for _, deleted in found] == [None] * len(found)
    frame = polars.scan_parquet([path for path, _ in found])
    shown = frame.select(polars.len(), polars.col("power_watts").mean()).collect().row(0)
    assert [shown] == asked(database, "SELECT count(*), avg(power_watts) FROM gpu_samples")
    assert shown == (2 * ROWS, 150.0)
    database.close()
