"""Every benchmark runs in its smallest form: it starts, checks the answers that it times, and prints figures."""

import re
import subprocess
import sys
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
    Form(
        "bench.rules",
        "--gpus 8 --runs 1 --seconds 60 --rules gpu_idle_held,gpu_data_loader_bound",
        r"on their intervals: \d+ %",
    ),
)
SLOW = (
    Form(
        "bench.agent",
        "--gpus 1 --seconds 2 --batches 6 --warm 2 --batch-s 1",
        r"encode: \d+ rows to [\d,]+ bytes",
    ),
    Form("bench.rest", "--gpus 1 --warm 12 --seconds 1", r"[1-9]\d* evaluations of rules"),
    Form("bench.sql", "--gpus 8 --days 0.05 --fleet 16 --runs 2", r"top ten nodes +[\d.]+"),
)


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
    printed = run(form.module, *form.arguments.split())
    assert re.search(form.prints, printed), printed
