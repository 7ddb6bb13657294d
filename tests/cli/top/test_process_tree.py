"""The tree of processes: the same rows from SQL and from memory, in one order, closed and opened."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_cli.top.collector import CollectorSource
from gpuwarden_cli.top.columns import TREE_COLUMNS
from gpuwarden_cli.top.process_tree import tree_rows
from gpuwarden_cli.top.request import RowsAnswer, RowsRequest, TopView
from gpuwarden_rules.testing import MemoryDatabase

PARTS = {
    "main_cpu_percent": 60.0, "pin_cpu_percent": None, "loader_workers": 4, "loader_cpu_percent": 25.0,
    "children_cpu_percent": 3.0,
}  # fmt: skip


def process(pid: int, gpu: int, **more: Any) -> dict[str, Any]:
    """A row of a process on a GPU."""
    return {
        "node": "n0", "gpu": gpu, "gpu_uuid": f"GPU-n0-{gpu}", "pid": pid, "username": "bob", "job": "77",
        "memory_bytes": 2**30, "sm_percent": 40.0, "cpu_percent": 100.0, "rss_bytes": 2**31, "age_s": 60,
        "command": "train", "state": "S", "started_by": f"slurmstepd (2) > torchrun ({pid - 1})", **PARTS, **more,
    }  # fmt: skip


PROCESSES = [
    process(5, 0),
    process(5, 1, memory_bytes=2**31, sm_percent=90.0),
    process(6, 1, sm_percent=10.0, cpu_percent=None),
    process(7, 0, job=None, username="amy", memory_bytes=None, loader_workers=0, loader_cpu_percent=None),
    process(8, 1, job=None, username=None, sm_percent=None, state="D", started_by=None, main_cpu_percent=None, children_cpu_percent=None),
]  # fmt: skip


def planted(rows: list[dict[str, Any]]) -> MemoryDatabase:
    """A database with these processes, and nothing else."""
    database = MemoryDatabase()
    names = {"username": "username", "job": "job", "memory_bytes": "gpu_memory_bytes", "sm_percent": "sm_util_percent", "started_by": "ancestors"}  # fmt: skip
    now = datetime.now(UTC)
    shared = {"ts": now - timedelta(seconds=2), "simulated": False, "process_name": "python"}
    database.insert(
        "process_samples",
        [
            {**shared, **{names.get(key, key): value for key, value in row.items() if key != "age_s"},
             "started_at": now - timedelta(seconds=row["age_s"])}
            for row in rows
        ],
    )  # fmt: skip
    return database


def comparable(rows: Any) -> list[dict[str, Any]]:
    """Rows without their age, which the clock of the database changes."""
    return [
        {key: value for key, value in row.items() if key not in ("age_s", "line_")} for row in rows
    ]


def request(**more: Any) -> RowsRequest:
    return RowsRequest(TopView.PROCESSES, limit=100, is_tree=True, **more)


def test_a_job_counts_each_process_once_and_closed_rows_hide_what_is_below() -> None:
    rows = tree_rows(PROCESSES, request(sort="memory_bytes", is_descending=True))
    assert [(row["depth"], row["place"]) for row in rows] == [
        (0, "job 77"), (1, "n0/0,1"), (1, "n0/1"), (0, "unknown user"), (1, "n0/1"), (0, "user amy"), (1, "n0/0"),
    ]  # fmt: skip
    job, first = rows[:2]
    assert job["command"] == "2 processes, 2 GPUs"
    assert (job["memory_bytes"], job["sm_percent"], job["cpu_percent"]) == (4 * 2**30, 70.0, 100.0)
    assert (first["memory_bytes"], first["sm_percent"], first["cpu_percent"]) == (3 * 2**30, 65.0, 100.0)  # fmt: skip
    assert first["rss_bytes"] == 2**31, "host memory is not counted for each GPU"
    assert rows[-1]["memory_bytes"] is None
    closed = tree_rows(PROCESSES, request(toggled=frozenset({"job 77"})))
    assert [row["place"] for row in closed if row["job"] == "77"] == ["job 77"]


def test_an_open_process_has_its_gpus_and_parts_below() -> None:
    rows = tree_rows(PROCESSES, request(toggled=frozenset({"process n0 5", "process n0 8"})))
    parts = [row for row in rows if row["depth"] == 2]
    assert [(row["place"], row["memory_bytes"], row["cpu_percent"]) for row in parts] == [
        ("started by", None, None), ("GPU 0", 2**30, None), ("GPU 1", 2**31, None), ("busiest thread", None, 60.0),
        ("4 loader workers", None, 100.0), ("other descendants", None, 3.0), ("4 loader workers", None, 100.0),
    ]  # fmt: skip
    assert [row["command"] for row in parts if row["place"] == "started by"] == [
        "slurmstepd (2) > torchrun (4)"
    ]
    assert len({row["process"] for row in rows}) == len(rows)


async def test_sql_makes_the_same_tree_by_every_column() -> None:
    database = planted(PROCESSES)
    source = CollectorSource("http://unused", database)
    toggled = frozenset({"process n0 5", "user amy", "process n0 8"})
    columns = ("", *(column.key for column in TREE_COLUMNS if column.key != "age_s"))
    for at, column in enumerate(columns):
        asked = request(sort=column, is_descending=at % 2 == 1, toggled=toggled)
        found = await source.ask(asked)
        assert isinstance(found, RowsAnswer)
        assert comparable(found.rows) == comparable(tree_rows(PROCESSES, asked))
        assert found.count == len(found.rows)
    part = await source.ask(RowsRequest(TopView.PROCESSES, text="AMY", is_tree=True, offset=1, limit=1))  # fmt: skip
    assert isinstance(part, RowsAnswer)
    assert ([row["pid"] for row in part.rows], part.count) == ([7], 2)
    database.close()


ROWS = st.lists(
    st.builds(
        process,
        st.integers(1, 4),
        st.integers(0, 2),
        job=st.sampled_from(["1", "2", None]),
        username=st.sampled_from(["amy", None]),
        memory_bytes=st.none() | st.integers(0, 3),
        sm_percent=st.none() | st.integers(0, 3),
    ),
    max_size=8,
    unique_by=lambda row: (row["pid"], row["gpu"]),
)


@settings(max_examples=50)
@given(ROWS, st.sampled_from([column.key for column in TREE_COLUMNS]), st.booleans(), st.randoms())
def test_the_order_does_not_depend_on_the_order_of_readings(
    rows: list[dict[str, Any]], sort: str, is_descending: bool, random: Any
) -> None:
    asked = request(sort=sort, is_descending=is_descending)
    mixed = list(rows)
    random.shuffle(mixed)
    found = tree_rows(rows, asked)
    assert found == tree_rows(mixed, asked)
    pids = [row["pid"] for row in found if row["depth"] == 1]
    assert sorted(pids) == sorted({row["pid"] for row in rows}), "each process is shown once"
    heads = [row[sort] for row in found if row["depth"] == 0]
    known = [value for value in heads if value is not None]
    assert heads[: len(known)] == sorted(known, reverse=is_descending)
