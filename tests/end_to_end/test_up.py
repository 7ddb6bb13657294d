"""`gpuwarden up` as a stranger meets it."""

import json
import signal
import sqlite3
from pathlib import Path

import pytest
from tests.end_to_end.test_readme import QUESTIONS

from gpuwarden.data_folder import strangers
from gpuwarden.schema import WIRE_TABLES


@pytest.mark.slow
def test_it_starts_fires_an_alert_answers_and_loses_nothing_on_ctrl_c(world) -> None:
    """The first minutes: this machine's own samples grow, the simulated fleet has history, an idle GPU is
    named with its cost, the README's questions are answered, and Ctrl-C ends it cleanly."""
    data = world.folder / "data"
    words = ("up", "--port", str(world.port), "--data", str(data), "--simulate", "8")
    up = world.start(*words)
    world.wait_ready(up)
    _is_refused_beside_itself(world, up)
    world.wait_for(
        lambda: (world.one("select count(*) from host_samples where not simulated") or 0) >= 3,
        "this machine's own samples",
    )
    _spools_are_sqlite_files(data)
    rows = world.ask(
        "select node, gpu, util_percent, power_watts from gpu_samples order by ts desc limit 8"
    )
    assert len(rows) == 8
    assert all(power > 0 for *_, power in rows)

    firing = "select count(*) from alerts_now where state = 'firing' and rule like 'gpu_idle%'"
    world.wait_for(lambda: bool(world.one(firing)), "an idle alert fires", within_s=240)
    listed = world.run("alerts", "list", "--state", "firing", "--format", "json")
    first = next(a for a in json.loads(listed.stdout) if a["rule"].startswith("gpu_idle"))
    assert first["usd_per_hour"] > 0
    assert first["usd_so_far"] > 0
    assert first["simulated"] is True
    assert world.run("alerts", "list", "--exit-code").returncode == 1
    _answers_the_readme(world)

    seconds = "date_diff('second', min(ts), max(ts))"
    world.wait_for(
        lambda: (world.one(f"select {seconds} from gpu_samples") or 0) >= 7200,
        "two hours of history",
    )
    assert strangers(data) == []
    assert up.stop(signal.SIGINT) == 0
    assert strangers(data) == []
    output = up.output
    assert f"gpuwarden is up: {world.url}" in output
    assert "FIRING" in output
    assert "what to do:" in output
    assert "Traceback" not in output

    again = world.start(*words)
    world.wait_ready(again)
    total, distinct = world.ask("select count(*), count(distinct (gpu_uuid, ts)) from gpu_samples")[
        0
    ]
    assert total == distinct
    stored_before = int(output.rsplit("stopped; ", 1)[1].split(" ")[0].replace(",", ""))
    tables = WIRE_TABLES.keys() - {"nodes", "gpus"}
    everything = " + ".join(f"(select count(*) from {table})" for table in tables)
    assert world.one(f"select {everything}") >= stored_before * 0.99
    assert again.stop(signal.SIGINT) == 0


def _is_refused_beside_itself(world, up) -> None:
    """A second one on its folder, and one on its port, are refused in a line that says what to change."""
    data = str(world.folder / "data")
    line = refusal(world, "up", "--port", "0", "--data", data)
    assert data in line
    assert f"in use by process {up.popen.pid}" in line
    assert "--data" in line
    line = refusal(world, "up", "--port", str(world.port), "--data", str(world.folder / "other"))
    assert str(world.port) in line
    assert "--port" in line


def _spools_are_sqlite_files(data: Path) -> None:
    """A stranger who looks into the folder finds files that well-known tools open."""
    spools = list(data.rglob("*.sqlite"))
    assert spools
    for path in spools:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)


def _answers_the_readme(world) -> None:
    """Its questions, as written."""
    for words in QUESTIONS:
        done = world.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        assert done.stdout.strip()


def refusal(world, *words: str) -> str:
    done = world.run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(world) -> None:
    file = world.folder / "file"
    file.write_text("not a folder")
    assert str(file) in refusal(world, "up", "--port", "0", "--data", str(file / "data"))


@pytest.mark.slow
def test_on_a_system_that_is_not_linux_it_shows_the_host_and_says_what_it_cannot_read(
    world,
) -> None:
    """A Mac as far as Python's modules tell; readings, libraries and files are of this host."""
    world.env["PYTHONPATH"] = str(Path(__file__).with_name("not_linux"))
    up = world.start("up", "--port", str(world.port), "--data", "data", "--simulate", "0")
    world.wait_ready(up)
    columns = "cpu_util_percent, memory_used_bytes, psi_io_some_percent, tasks_running"
    question = f"select {columns} from host_samples where cpu_util_percent > 0 limit 1"
    world.wait_for(lambda: bool(world.ask(question)), "a row with CPU time")
    cpu, memory, *absent = world.ask(question)[0]
    assert 0 < cpu <= 100
    assert memory > 0
    assert absent == [None, None]
    assert up.stop(signal.SIGINT) == 0
    assert "host metrics only, without I/O wait, tasks, pressure (PSI)" in up.output
    assert "Traceback" not in up.output
