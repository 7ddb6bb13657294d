"""CSV and Parquet with the catalogue's column names."""

import io
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuwarden.clock import to_ms
from gpuwarden_importing.catalogue import is_header, read_csv, read_parquet, table_of
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError

CSV = """ts,node,gpu,gpu_uuid,util_percent,power_watts,mood
2026-03-01T12:00:00.000Z,n7,0,GPU-1,50.5,,happy
2026-03-01T12:00:01.000Z,n7,0,GPU-1,,300.25,
"""


def test_what_sql_printed_comes_back(imported) -> None:
    found = imported(read_csv, CSV, node=None)
    assert found["gpu_samples"] == [
        {"ts": to_ms(datetime(2026, 3, 1, 12, 0, s, tzinfo=UTC)), "node": "n7", "gpu": 0,
         "gpu_uuid": "GPU-1", "util_percent": u, "power_watts": w}
        for s, u, w in ((0, 50.5, None), (1, None, 300.25))
    ]  # fmt: skip
    assert found.tally.unmapped == {"mood": 1}


def test_the_table_follows_from_the_columns() -> None:
    known = table_of(["ts", "gpu_uuid", "sm_active_percent"])
    assert known is not None and known.name == "gpu_detail_samples"
    assert table_of(["index", "power.draw [W]"]) is None
    assert table_of(["ts", "gpu_uuid"]) is None
    assert is_header("ts,gpu_uuid,util_percent")
    assert not is_header("timestamp, index, utilization.gpu [%]")
    with pytest.raises(UnreadableError, match="lacks gpu_uuid"):
        table_of(["ts", "util_percent"], "gpu_samples")


def parquet(**columns) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "ts",
    [pa.array([1772366400000], pa.timestamp("ms", "UTC")), pa.array([1772366400000000], pa.timestamp("us")),
     pa.array(["2026-03-01 12:00:00"]), pa.array([1772366400]), pa.array([1772366400000])],
)  # fmt: skip
def test_parquet_takes_any_form_of_time(ts) -> None:
    file = parquet(ts=ts, gpu_uuid=["GPU-1"], util_percent=pa.array([5], pa.int64()))
    ((_, row),) = read_parquet(file, Origin(node="n1"), ImportTally())
    assert row["ts"] == 1772366400000


def test_naive_times_of_parquet_are_of_the_zone_that_was_named() -> None:
    ts = pa.array([to_ms(datetime(2026, 7, 1, 12, tzinfo=UTC)) * 1000], pa.timestamp("us"))
    file = parquet(ts=ts, gpu_uuid=["GPU-1"], util_percent=[5.0])
    ((_, row),) = read_parquet(
        file, Origin(node="n1", zone=ZoneInfo("Europe/Berlin")), ImportTally()
    )
    assert row["ts"] == to_ms(datetime(2026, 7, 1, 10, tzinfo=UTC))


def test_a_damaged_parquet_file_is_one_sentence() -> None:
    damaged = io.BytesIO(parquet(ts=[1], gpu_uuid=["x"], util_percent=[1.0]).getvalue()[:-20])
    with pytest.raises(UnreadableError, match="not a readable Parquet file"):
        list(read_parquet(damaged, Origin(node="n1"), ImportTally()))
