"""`gpuwarden import` against a real collector: each row once, whatever was imported before."""

import asyncio
import gzip
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial

import pytest
import zstandard

from gpuwarden.clock import SystemClock
from gpuwarden_cli.main import main
from gpuwarden_client.http import ask
from gpuwarden_collector import stages
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.settings import CollectorSettings

HEADER = "timestamp, index, uuid, utilization.gpu [%], power.draw [W]\n"


def log(seconds: int) -> str:
    return HEADER + "".join(
        f"2025/02/03 04:{s // 60:02d}:{s % 60:02d}.000, {g}, GPU-{g}, {g + 5} %, 70.25 W\n"
        for s in range(seconds)
        for g in range(2)
    )


@pytest.fixture
async def collector(data_dir, monkeypatch) -> AsyncIterator[Collector]:
    monkeypatch.setattr(stages, "SqlQuerier", partial(SqlQuerier, rows_max=50))
    settings = CollectorSettings(port=0, data_dir=data_dir)
    async with running(settings, SystemClock()) as found:
        yield found


async def run(collector: Collector, *arguments: object) -> int:
    words = ["import", "--url", collector.url, *map(str, arguments)]
    return await asyncio.to_thread(main, words)


async def rows(collector: Collector, sql: str) -> list:
    return (await asyncio.to_thread(ask, sql, url=collector.url)).rows


COUNT = "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples"


async def test_an_old_log_is_stored_and_once(collector, tmp_path, capsys) -> None:
    file = tmp_path / "smi.csv"
    file.write_text(log(60))
    assert await run(collector, file, "--node", "n1") == 0
    assert "gpu_samples  120     0" in capsys.readouterr().out
    assert await run(collector, file, "--node", "n1") == 0
    assert "gpu_samples  0       120" in capsys.readouterr().out
    file.write_text(log(90))
    assert await run(collector, file, "--node", "n1") == 0, "the log has grown"
    assert "gpu_samples  60      120" in capsys.readouterr().out
    assert await rows(collector, COUNT) == [[180, 180]]
    (first,) = await rows(
        collector,
        "SELECT * FROM (SELECT ts, node, power_watts FROM gpu_samples ORDER BY ALL LIMIT 1)",
    )
    assert first == ["2025-02-03T04:00:00.000Z", "n1", 70.25]


async def test_a_folder_is_read_packed_or_not_and_says_nothing_about_who_is_there_now(
    collector, tmp_path, capsys
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.csv.gz").write_bytes(gzip.compress(log(1).encode()))
    (folder / "b.csv.zst").write_bytes(zstandard.compress(log(2).encode()))
    (folder / "c.csv").write_bytes(log(3).encode("utf-16"))
    (folder / "README").write_text("not a log")
    assert await run(collector, folder, "--node", "n1") == 0
    assert "README: unknown format" in capsys.readouterr().out
    assert await rows(collector, COUNT) == [[6, 6]]
    assert await rows(collector, "SELECT node, last_seen_at FROM nodes") == [["n1", None]]
    assert await rows(collector, "SELECT gpu_uuid, last_seen_at FROM gpus ORDER BY 1") == [
        ["GPU-0", None],
        ["GPU-1", None],
    ]
    # Equal events are two events, and both come once.
    line = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 43, pid=7, name=x, Ch 8\n"
    file = tmp_path / "dmesg"
    file.write_text(line * 2)
    for _ in range(2):
        assert await run(collector, file, "--node", "n1") == 0
    assert await rows(collector, "SELECT count(*) FROM events WHERE kind = 'xid'") == [[2]]


def test_a_dry_run_sends_nothing(tmp_path, capsys) -> None:
    file = tmp_path / "smi.csv"
    file.write_text(log(3))
    words = ["import", str(file), "--node", "n1", "--dry-run", "--url", "http://127.0.0.1:9"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "gpu_samples  6" in out
    assert "2 GPUs of n1, 2025-02-03 04:00:00 to 2025-02-03 04:00:02 UTC; nothing was sent" in out
    assert "taken as UTC" in out
    assert "keep_samples_days" in out


def test_a_line_that_is_lost_changes_the_exit_code(tmp_path, capsys) -> None:
    file = tmp_path / "smi.csv"
    file.write_text(log(2) + "2025/02/03 04:00:02.000, 0, GPU-0, 5 bananas, 70.25 W\n")
    assert main(["import", str(file), "--node", "n1", "--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "gpu_samples  5" in out
    assert "skipped: utilization.gpu has an unknown unit (1, first in line 6)" in out


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [(log(1), (), "name it with --node NAME"), ("hello\n", (), "unknown format"), ("", (), "it is empty"),
     ("2025/02/03 04:00:00.000, 0, GPU-12345678-, 5 %\n", (), "--fields")],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_is_the_answer_no(
    tmp_path, capsys, text, flags, said
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert main(["import", str(file), "--dry-run", *flags]) == 1
    assert said in capsys.readouterr().out


def test_a_machine_without_the_agents_packages_can_import() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(['pynvml', 'nanoarrow', 'duckdb', 'aiohttp']);"
        " import gpuwarden_cli.import_logs.run"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
