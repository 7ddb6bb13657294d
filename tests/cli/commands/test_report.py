"""`gpuwarden report`: what it shows adds up, and the hour that runs is in it."""

import asyncio
import itertools
import json
from collections.abc import Callable
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
Report = Callable[..., list[tuple[int, str]]]


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


@pytest.fixture
def report(data_dir: Path, monkeypatch: Any, capsys: Any) -> Report:
    """Runs commands against a collector that has those rows: exit code and output of each."""

    def run(*commands: str, **tables: list[Row]) -> list[tuple[int, str]]:
        stored(data_dir, **tables)
        answers = []

        async def asked() -> None:
            settings = CollectorSettings(port=0, data_dir=data_dir)
            async with running(settings, SystemClock()) as collector:
                monkeypatch.setenv("GPUWARDEN_URL", collector.url)
                for command in commands:
                    code = await asyncio.to_thread(main, ["report", *command.split()])
                    answers.append((code, capsys.readouterr().out))

        asyncio.run(asked())
        return answers

    return run


@pytest.mark.parametrize("since", ["soon", "0h", "999999999d"])
def test_a_span_that_is_none_is_refused(capsys: Any, since: str) -> None:
    assert main(["report", "right-size", "--since", since]) == 2
    assert f"--since {since} is" in capsys.readouterr().err


def test_a_fleet_without_processes_has_nothing_to_save(report: Report) -> None:
    (_, screen), (_, document) = report(
        "right-size --all", "right-size --by username --format json"
    )
    assert "No process held a whole GPU in that time." in screen
    assert json.loads(document) == []


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


@pytest.mark.usefixtures("fresh_now")
def test_a_job_of_slurm_has_a_report(report: Report) -> None:
    (code, screen), (_, document) = report(
        "job 55",
        "job 55 --format json",
        **job_rows(),
    )
    assert code == 0
    for line in (
        "ada/physics",
        "COMPLETED",
        "Run time: 0:15:00",
        "0:30:00 of CPU time of 4 CPUs (50%)",
        "1.0 GiB of 16.0 GiB (6%)",
        "GPU 0        80.0 %, memory 20.0 GiB of 80.0 GiB",
        "GPU 1         0.0 %",
    ):
        assert line in screen, screen
    assert "1 of 2 GPUs were never used. Ask for 1" in " ".join(screen.split())
    found = json.loads(document)
    assert found["shares"] == {"cpu": 0.5, "memory": 0.0625, "gpu": 0.4, "gpu_memory": 0.125}
    assert found["facts"]["qos"] == "high" and found["summary"]["gpus"] == 2


@pytest.mark.usefixtures("fresh_now")
def test_a_job_that_only_its_processes_tell_of(report: Report) -> None:
    rows = [
        {"ts": minutes_ago(at), "node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "simulated": False, "pid": 7, "username": "bob", "job": "ml/train", "pod": "ml/train",
         "cpu_percent": 150.0, "rss_bytes": 2**30}
        for at in (3, 2, 1)
    ]  # fmt: skip
    gpus = job_rows()["gpu_samples"]
    ((code, screen),) = report(
        "job ml/train", process_samples=rows, gpu_samples=gpus, gpus=job_rows()["gpus"]
    )
    assert code == 0 and "bob" in screen and "GPU 0" in screen and "1.0 GiB" in screen


def test_a_job_without_slurms_data_begins_with_its_process_and_ends_with_its_last(
    report: Report,
) -> None:
    minute: Row = {
        "node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "simulated": False, "pid": 7, "process_name": "python",
        "job": "102", "username": "ada", "samples": 6, "started_at": HOUR + timedelta(seconds=32),
    }  # fmt: skip
    minutes = [{**minute, "ts": HOUR + timedelta(minutes=i)} for i in range(3)]
    ((code, screen),) = report("job 102", process_1m=minutes)
    assert code == 0
    assert f"Started: {HOUR:%Y-%m-%d %H}:00:32 UTC" in screen
    assert "State: ENDED" in screen
    assert "Run time: 0:01:28\n" in screen


def test_a_job_that_nobody_knows_is_said(report: Report, capsys: Any) -> None:
    ((code, _),) = report("job 4711")
    assert code == 2


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
