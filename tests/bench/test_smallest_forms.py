"""Every benchmark runs in its smallest form: it starts, checks the answers that it times, and prints figures."""

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


@dataclass(frozen=True)
class Form:
    """The arguments of a benchmark that make it short, and a figure of its last part as a pattern."""

    module: str
    arguments: str
    prints: str

    def __str__(self) -> str:
        return self.module


QUICK = (
    Form("bench.diagnosis.speed", "--gpus 16 --runs 1", r"verdicts +[\d.]+ s"),
    Form("bench.exporter", "--gpus 1 --links 2 --processes 4", r"memory +[\d.]+ MiB of state"),
    Form("bench.fleet", "--nodes 2 --gpus 2 --seconds 1", r"bytes [\d,]+, largest RSS \d+ MiB"),
    Form("bench.nvml", "--runs 5", r"mig: 8 GPUs: [\d.]+ % of a core"),
    Form("bench.probes", "--tiny", r"GPUs without processes: [\d.]+ ms"),
    Form("bench.recording", "--minutes 0.5", r"opening for replay: [\d.]+ s CPU"),
    Form(
        "bench.rules",
        "--gpus 8 --runs 1 --seconds 60 --rules gpu_idle_held,gpu_data_loader_bound",
        r"on their intervals: \d+ %",
    ),
    Form("bench.simulator", "--gpus 8 --seconds 5", r"memory +\d+ MiB"),
    Form("bench.usual", "--weeks 3 --gpus 2 --every 3600", r"all +[\d.]+ % of \d+ hours"),
    Form("bench.waste", "--gpus 100 --hours 1", r"\d+ rows, 360000 GPU-seconds"),
)
SLOW = (
    Form(
        "bench.agent",
        "--gpus 1 --seconds 2 --batches 6 --warm 2 --batch-s 1",
        r"encode: \d+ rows to [\d,]+ bytes",
    ),
    Form("bench.alert_latency", "--nodes 1 --every 1", r"median [\d.]+ s"),
    Form("bench.batch_cost", "--rates 20 --agents 4 --seconds 1", r"20 a second +\d+"),
    Form("bench.late", "--nodes 2 --gpus 1 --hours 1 --period-s 60", r'"mended_s": [\d.]+'),
    Form("bench.dashboards.jobs", "--gpus 8 --days 0.1 --rounds 1", r"page of the job [\d,]+ ms"),
    Form("bench.dashboards.live", "--seconds 4 --viewers 1", r"main thread of a page [\d.]+ %"),
    Form(
        "bench.dashboards.pictures",
        f"{tempfile.gettempdir()}/gpuwarden-pictures --states one broken --only fleet --views light-1440 dark-1440",
        r"\d+ pictures in ",
    ),
    Form("bench.dashboards.tasks", "--state many --tasks sick weeks", r"2 tasks done"),
    Form("bench.promql.dashboard", "--gpus 16 --hours 1 --runs 1", r"all at once +[\d.]+"),
    Form("bench.rest", "--gpus 1 --warm 12 --seconds 1", r"[1-9]\d* evaluations of rules"),
    Form("bench.rollups", "--agents 2 --minutes 1", r'"hour_us_a_batch": \d+'),
    Form("bench.sql", "--gpus 8 --days 0.05 --fleet 16 --runs 2", r"top ten nodes +[\d.]+"),
    Form(
        "bench.sql_export",
        "--rows 1 --gpus 1 --idle 0.5 --runs 1 --form arrow csv json command",
        r"gpuwarden, command +[\d,]+",
    ),
    Form(
        "bench.store.dashboards",
        "--seconds 2 --dashboards 2 --every 0.5 --agents 8 --making 4",
        r"all: p50 \d+",
    ),
    Form(
        "bench.store.hostile",
        "--seconds 0.5 --rate 20 --agents 4 --query-timeout 1 --only compute",
        r"beside hostile queries: \d+ batches",
    ),
    Form(
        "bench.top",
        "--nodes 1 --size 80x24 --seconds 4 --first 1.2 --alone 1 --views GPUs graphs tree --local-gpus 16",
        r"80x24 16 GPUs of one host +[\d.]+ % of a core",
    ),
    Form("bench.years", "--days 4 --nodes 2", r"day 4: start s [\d.]+"),
)
ELSEWHERE = {
    "bench.chaos.faulty_folder": "started by bench.chaos",
    "bench.chaos.history": "started by bench.chaos",
    "bench.chaos.witness": "started by bench.chaos",
    "bench.dashboards.serve": "started by bench.dashboards and bench.top",
    "bench.diagnosis.jobs": "started by bench.diagnosis.record, which needs PyTorch and root",
    "bench.diagnosis.search": "needs PyTorch, root and minutes",
    "bench.diagnosis.store": "started by bench.diagnosis.record",
    "bench.fuzz.one": "started by bench.fuzz.run",
    "bench.gpu.run": "test_gpu_run.py starts its file",
    "bench.hurried": "started by bench.store_kill",
    "bench.keeps_up": "a minute is rolled up after three, so that no run is short",
}
"""Modules that are started otherwise, and by what."""


def run(module: str, *arguments: str) -> str:
    """Run a benchmark, which must succeed; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize(
    "form", [*QUICK, *(pytest.param(form, marks=pytest.mark.slow) for form in SLOW)], ids=str
)
def test_the_smallest_form_succeeds_and_prints_figures(form: Form) -> None:
    if form.module == "bench.nvml" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the stand-in of NVIDIA's library")
    printed = run(form.module, *form.arguments.split())
    assert re.search(form.prints, printed), printed


@pytest.mark.slow
def test_a_made_up_store_is_whole_and_rules_fire_in_its_replay(tmp_path: Path) -> None:
    store = str(tmp_path / "week")
    printed = run("bench.week", store, "--gpus", "8", "--hours", "4")
    assert "115,200 rows of gpu_samples" in printed
    printed = run("bench.backtest", store, "--rules", "gpu_idle_held,gpu_power_brake")
    assert re.search(r"gpu_idle_held +\d+ +\d+ +[1-9]", printed), printed


def test_every_benchmark_is_run_by_some_test() -> None:
    """A module of bench/ that can be started is named by a test, or its place is in `ELSEWHERE`."""
    named = {name for path in (ROOT / "tests").rglob("test_*.py") for name in names_in(path)}
    missing = [
        name
        for path in sorted((ROOT / "bench").rglob("[!_]*.py"))
        if 'if __name__ == "__main__":' in path.read_text()
        and (name := ".".join(path.relative_to(ROOT).with_suffix("").parts)) not in named
    ]
    assert not missing, "give each a form here, or say in ELSEWHERE what starts it"


def names_in(path: Path) -> Iterator[str]:
    """Modules that a test imports, and texts that may be names of modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
