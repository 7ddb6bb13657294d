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
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_cli.commands.report import BY, hosts_sentence
from gpuwarden_cli.job_report import read
from gpuwarden_cli.main import main
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database

NOW = datetime.now(UTC).replace(tzinfo=None)
HOUR = NOW.replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
Row = dict[str, Any]
Report = Callable[..., list[tuple[int, str]]]


def hour(label: str, seconds: float, **more: Any) -> Row:
    return {
        "ts": HOUR,
        "node": "n1",
        "gpu_uuid": "GPU-a",
        "gpu": 0,
        "model": "NVIDIA H100",
        "label": label,
        "seconds": seconds,
        "usd": seconds / 1000,
        "simulated": False,
        **more,
    }


HOURS = [
    hour("productive", 1800, username="ada", slurm_job_id="55", team="vision", energy_kwh=0.3),
    hour("idle_held", 600, username="ada", slurm_job_id="55", team="vision"),
    hour("free", 1200),
    hour("starved", 900, username="bob", pod="ml/train", gpu_uuid="GPU-b", gpu=1),
    hour("productive", 2700, username="bob", gpu_uuid="GPU-b", gpu=1, usd=None),
]


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
            settings = CollectorSettings(port=0, data_dir=data_dir, threads=1)
            async with running(settings, SystemClock()) as collector:
                monkeypatch.setenv("GPUWARDEN_URL", collector.url)
                for command in commands:
                    code = await asyncio.to_thread(main, ["report", *command.split()])
                    answers.append((code, capsys.readouterr().out))

        asyncio.run(asked())
        return answers

    return run


def table(out: str) -> dict[str, dict[str, str]]:
    """Lines of the table by their first cell."""
    head, ruler, *lines = [line for line in out.splitlines()[2:] if line.strip()]
    edges, at = [], 0
    for dashes in ruler.split("  "):
        edges.append((at, at + len(dashes)))
        at += len(dashes) + 2
    cells = [[line[a:b].strip() for a, b in edges] for line in [head, *lines] if "GPUs" not in line]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[1:]}


def test_lines_add_up_to_the_total(report: Report) -> None:
    (code, out), (_, short) = report("waste", "waste --top 1", waste_1h=HOURS)
    assert code == 0
    found = table(out)
    assert list(found) == ["(none)", "bob", "ada", "total"]
    assert found["ada"] == {
        "user": "ada",
        "GPU hours": "0.7",
        "productive": "0.5",
        "starved": "0",
        "idle_held": "0.2",
        "free": "0",
        "productive %": "75",
        "cost $": "2.4",
        "wasted $": "0.6",
    }
    assert found["total"]["GPU hours"] == "2"
    assert found["total"]["productive %"] == "62.5"
    assert (found["total"]["cost $"], found["total"]["wasted $"]) == ("4.5", "2.7")
    assert "Some GPUs had no price then" in out
    # What is not among the first lines is summed up.
    assert list(table(short)) == ["(none)", "2 more", "total"]
    assert table(short)["2 more"]["GPU hours"] == "1.7"


NAMES = {
    "user": ["(none)", "bob", "ada"],
    "node": ["n1"],
    "job": ["(none)", "ml/train", "55"],
    "account": ["(none)"],
    "team": ["(none)", "vision"],
    "model": ["NVIDIA H100"],
    "gpu": ["n1 GPU 0", "n1 GPU 1"],
}


@pytest.mark.slow
def test_it_can_be_by_each_of_them(report: Report) -> None:
    assert list(NAMES) == list(BY)
    commands = [f"waste --by {by} --format json" for by in BY]
    for by, (code, out) in zip(BY, report(*commands, waste_1h=HOURS), strict=True):
        rows = json.loads(out)
        assert (code, [row["name"] for row in rows]) == (0, NAMES[by])
        assert sum(row["gpu_hours"] for row in rows) == pytest.approx(2)


@pytest.mark.slow
def test_efficiency_says_how_busy_and_what_a_productive_hour_cost(report: Report) -> None:
    gpu_hour = {
        "ts": HOUR,
        "node": "n1",
        "gpu_uuid": "GPU-a",
        "simulated": False,
        "samples": 3600,
        "detail_samples": 0,
        "health_samples": 0,
        "util_percent_avg": 60.0,
    }
    ((code, out),) = report("efficiency --by gpu", waste_1h=HOURS, gpu_1h=[gpu_hour])
    assert code == 0
    first = table(out)["n1 GPU 0"]
    assert (first["productive %"], first["util %"], first["SM active %"]) == ("50", "60", "–")
    assert (first["kWh"], first["$ a productive hour"]) == ("0.3", "7.2")


@pytest.mark.slow
def test_the_hour_that_runs_is_labelled_for_the_report(report: Report) -> None:
    gpu = {
        "gpu_uuid": "GPU-a",
        "node": "n1",
        "gpu": 0,
        "model": "NVIDIA H100",
        "simulated": False,
        "first_seen_at": HOUR,
        "last_seen_at": NOW,
    }
    minutes = [
        {
            "ts": HOUR + timedelta(minutes=m),
            "node": "n1",
            "gpu_uuid": "GPU-a",
            "simulated": False,
            "samples": 60,
            "detail_samples": 0,
            "health_samples": 0,
            "idle_seconds": 0.0,
            "busy_seconds": 60.0,
            "unknown_seconds": 0.0,
        }
        for m in range(60, 75)
    ]
    stored = [hour("free", 3600)]
    ((_, out),) = report("waste --by node", gpus=[gpu], gpu_1m=minutes, waste_1h=stored)
    first = table(out)["n1"]
    assert (first["free"], first["busy, not judged"]) == ("1", "0.2")


@pytest.mark.slow
def test_energy_is_what_was_measured_and_the_rest_is_named(report: Report) -> None:
    measured = {"energy_usd": 0.06, "co2_kg": 0.12}
    rows = [
        hour("busy", 1800, username="ada", energy_kwh=0.3, **measured),
        hour("free", 1800, username="ada", energy_kwh=0.05, energy_usd=0.01, co2_kg=0.02),
        hour("busy", 3600, username="bob", gpu_uuid="GPU-b", gpu=1),
    ]
    ((code, out),) = report("energy --by user", waste_1h=rows)
    found = table(out)
    assert code == 0
    assert list(found["ada"].values())[1:] == ["1", "0.35", "0.05", "0.07", "0.14"]
    assert list(found["bob"].values())[1:] == ["1", *["–"] * 4]
    assert "Power was measured in 50.0 % of the GPU hours." in out


def test_a_fleet_without_rows_is_said(report: Report) -> None:
    ((code, out),) = report("waste")
    assert (code, out[:21]) == (0, "No GPU was seen since")


@pytest.mark.parametrize("since", ["soon", "0h", "999999999d"])
def test_a_span_that_is_none_is_refused(capsys: Any, since: str) -> None:
    assert main(["report", "waste", "--since", since]) == 2
    assert f"--since {since} is" in capsys.readouterr().err


def minutes_ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def job_rows() -> dict[str, list[Row]]:
    """Job 55 of ada had two GPUs of n1 for a quarter of an hour; one of them did nothing."""
    about = {"node": "n1", "simulated": False}
    job = {
        **about,
        "source": "node",
        "slurm_job_id": "55",
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
    (code, screen), (_, document), (_, accounts) = report(
        "job 55",
        "job 55 --format json",
        "waste --by account --format csv",
        waste_1h=HOURS,
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
    assert [line.split(",")[0] for line in accounts.splitlines()[1:]] == ["(none)", "physics"]


@pytest.mark.usefixtures("fresh_now")
def test_a_job_that_only_its_processes_tell_of(report: Report) -> None:
    rows = [
        {"ts": minutes_ago(at), "node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "simulated": False, "pid": 7, "username": "bob", "pod": "ml/train",
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
        "slurm_job_id": "102", "username": "ada", "samples": 6, "started_at": HOUR + timedelta(seconds=32),
    }  # fmt: skip
    minutes = [{**minute, "ts": HOUR + timedelta(minutes=i)} for i in range(3)]
    ((code, screen),) = report("job 102", process_1m=minutes)
    assert code == 0
    assert f"Started: {HOUR:%Y-%m-%d %H}:00:32 UTC" in screen
    assert "State: ENDED" in screen
    assert "Run time: 0:01:28\n" in screen


def test_a_job_that_nobody_knows_is_said(report: Report, capsys: Any) -> None:
    ((code, _),) = report("job 4711", waste_1h=HOURS)
    assert code == 2


async def test_no_figures_are_read_of_a_job_that_was_short() -> None:
    asked = []

    class Querier:
        async def query(self, sql: str, params: Any = None, **_: Any) -> Result:
            asked.append(sql)
            names = ["slurm_job_id", "started_at", "ended_at", "gpu_uuids"]
            begin = datetime(2026, 11, 23, 8, tzinfo=UTC)
            return Result(names, [], [("7", begin, begin + timedelta(seconds=59), "GPU-a")])

    found = await read(Querier(), "7", datetime(2026, 11, 23, 9, tzinfo=UTC), short_s=60)
    assert found is not None and found.seconds == 59 and found.nodes == ()
    assert len(asked) == 1


def test_what_hosts_drew_is_said_beside_their_gpus(report: Report) -> None:
    assert hosts_sentence((0, None, None, None, None)) is None
    assert hosts_sentence((2, 10.0, 6.0, 1.5, 0.25)) == (
        "Hosts: 2 nodes with a meter drew 10.00 kWh in all; its GPUs drew 60 % of it; CPUs drew 1.50 kWh, 0.25 their"
        " memory, by their counters. Not in the table, nor is the PUE of [energy] in kWh."
    )
    minute = {"ts": hour("free", 1800)["ts"], "node": "n1", "simulated": False}
    host = {
        **minute,
        "host_power_watts_avg": 6000.0,
        "cpu_energy_joules_delta": 7.2e4,
        "samples": 60,
    }
    counts = {
        column.name: 60
        for column in stored_columns(TABLES["gpu_1m"])
        if column.required and column.name.endswith("samples")
    }
    gpu = {**minute, "gpu": 0, "gpu_uuid": "GPU-1", "power_watts_avg": 3000.0, **counts}
    rows = [hour("busy", 1800, username="ada", energy_kwh=0.3)]
    ((_, out),) = report("energy --by user", waste_1h=rows, host_1m=[host], gpu_1m=[gpu])
    assert (
        "1 node with a meter drew 0.10 kWh in all; its GPUs drew 50 % of it; CPUs drew 0.02 kWh, by"
        in out
    )
