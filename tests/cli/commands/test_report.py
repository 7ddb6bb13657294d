"""`gpuwarden report`: what it shows adds up, and the hour that runs is in it."""

import asyncio
import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.collector.made_up_store import LIMITS, put

from gpuwarden.clock import SystemClock
from gpuwarden.query import Result
from gpuwarden_cli.job_report import read
from gpuwarden_cli.main import main
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database

NOW = datetime.now(UTC).replace(tzinfo=None)
HOUR = NOW.replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
Row = dict[str, Any]


def stored(data: Path, **tables: list[Row]) -> None:
    database = Database.open(data, LIMITS)
    for name, rows in tables.items():
        number = itertools.count(1)
        selects = (
            "SELECT " + ", ".join(f"${next(number)} AS {key}" for key in row) for row in rows
        )
        parameters = [value for row in rows for value in row.values()]
        put(database, name, " UNION ALL BY NAME ".join(selects), parameters)
    database.close()


@pytest.mark.parametrize("since", ["soon", "0h", "999999999d"])
def test_a_span_that_is_none_is_refused(capsys: Any, since: str) -> None:
    assert main(["report", "right-size", "--since", since]) == 2
    assert f"--since {since} is" in capsys.readouterr().err


def minutes_ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def job_rows() -> dict[str, list[Row]]:
    """Job 55 of ada had two GPUs of n1 for a quarter of an hour; one of them did nothing."""
    about = {"node": "n1", "simulated": False}
    job = {
        **about,
        "source": "node",
        "job": "55",
        "username": "ada",
        "account": "physics",
        "started_at": minutes_ago(20),
    }
    of_controller = {
        "ts": minutes_ago(4),
        "source": "controller",
        "qos": "high",
        "state": "completed",
        "ended_at": minutes_ago(5),
    }
    used = {"cpu_seconds_total": 1800.0, "memory_used_bytes": 2**30, "memory_limit_bytes": 2**34}
    return {
        "gpus": [
            {"gpu_uuid": uuid, "node": "n1", "gpu": n, "model": "NVIDIA H100", "memory_total_bytes": 80 * 2**30, "simulated": False}
            for n, uuid in enumerate(("GPU-a", "GPU-b"))
        ],
        "slurm_job_samples": [
            {**job, "ts": minutes_ago(20), "state": "running", "cpus": 4, "gpus": 2, "gpu_uuids": "GPU-a,GPU-b"},
            {**job, **used, "ts": minutes_ago(5), "state": "ended", "cpus": 4, "gpus": 2, "gpu_uuids": "GPU-a,GPU-b", "ended_at": minutes_ago(5), "exit_code": 0},
            {**job, **of_controller},
        ],
        "gpu_samples": [
            {**about, "ts": minutes_ago(at), "gpu": n, "gpu_uuid": uuid, "util_percent": util, "memory_used_bytes": memory}
            for at in (25, 15, 10, 1)
            for n, (uuid, util, memory) in enumerate((("GPU-a", 80.0, 20 * 2**30), ("GPU-b", 0.0, 0)))
        ],
    }  # fmt: skip


def process_rows() -> dict[str, list[Row]]:
    """Pod ml/train of bob has a GPU since three minutes, and job 102 of ada had one for a minute and a half."""
    about = {"node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "simulated": False, "pid": 7}
    of_pod = {"username": "bob", "job": "ml/train", "pod": "ml/train", "cpu_percent": 150.0, "rss_bytes": 2**30}  # fmt: skip
    minute = {"process_name": "python", "job": "102", "username": "ada", "samples": 6, "started_at": HOUR + timedelta(seconds=32)}  # fmt: skip
    return {
        "process_samples": [{**about, **of_pod, "ts": minutes_ago(at)} for at in (3, 2, 1)],
        "process_1m": [{**about, **minute, "ts": HOUR + timedelta(minutes=i)} for i in range(3)],
    }


@pytest.mark.usefixtures("fresh_now")
async def test_jobs_have_reports_by_slurm_and_by_their_processes(
    data_dir: Path, monkeypatch: Any, capsys: Any
) -> None:
    stored(data_dir, **job_rows(), **process_rows())
    settings = CollectorSettings(port=0, data_dir=data_dir)
    async with running(settings, SystemClock()) as collector:
        monkeypatch.setenv("GPUWARDEN_URL", collector.url)

        async def report(*words: str) -> str:
            assert await asyncio.to_thread(main, ["report", *words]) == 0
            return str(capsys.readouterr().out)

        of_slurm = await report("job", "55")
        document = await report("job", "55", "--format", "json")
        of_pod, over = await report("job", "ml/train"), await report("job", "102")
        assert await asyncio.to_thread(main, ["report", "job", "4711"]) == 2
    for line in (
        "ada/physics",
        "COMPLETED",
        "Run time: 0:15:00",
        "0:30:00 of CPU time of 4 CPUs (50%)",
        "1.0 GiB of 16.0 GiB (6%)",
        "GPU 0        80.0 %, memory 20.0 GiB of 80.0 GiB",
        "GPU 1         0.0 %",
    ):
        assert line in of_slurm, of_slurm
    assert "1 of 2 GPUs were never used. Ask for 1" in " ".join(of_slurm.split())
    found = json.loads(document)
    assert found["shares"] == {"cpu": 0.5, "memory": 0.0625, "gpu": 0.4, "gpu_memory": 0.125}
    assert found["facts"]["qos"] == "high" and found["summary"]["gpus"] == 2
    assert "bob" in of_pod and "GPU 0" in of_pod and "1.0 GiB" in of_pod
    # It begins with its process, and ends with its last minute.
    for line in (f"Started: {HOUR:%Y-%m-%d %H}:00:32 UTC", "State: ENDED", "Run time: 0:01:28\n"):
        assert line in over, over


async def test_no_figures_are_read_of_a_job_that_was_short() -> None:
    asked = []

    class Querier:
        async def query(self, sql: str, params: Any = None, **_: Any) -> Result:
            asked.append(sql)
            names = ["job", "started_at", "ended_at", "gpu_uuids"]
            begin = datetime(2026, 11, 23, 8, tzinfo=UTC)
            return Result(names, [], [("7", begin, begin + timedelta(seconds=59), "GPU-a")])

    found = await read(Querier(), "7", datetime(2026, 11, 23, 9, tzinfo=UTC), short_s=60)
    assert found is not None and found.seconds == 59 and found.nodes == ()
    assert len(asked) == 1
