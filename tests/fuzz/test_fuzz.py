"""What reads bytes of others is fuzzed for a second each, as coverage leads (atheris, which is libFuzzer for Python)."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.targets import TARGETS

pytest.importorskip("atheris", reason="atheris is not installed")
RUNS = 300


def fuzzed(name: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    corpus, findings = folder / "corpus", folder / "findings"
    for path in (corpus, findings):
        path.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.one", name, str(corpus), str(findings), "-seed=1", *options],
        capture_output=True, text=True, errors="replace", timeout=300, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TARGETS if name != "fails"])
def test_any_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    done = fuzzed(name, tmp_path, f"-runs={RUNS}", "-max_total_time=2")
    assert done.returncode == 0, f"{list((tmp_path / 'findings').iterdir())}\n{done.stderr[-4000:]}"


def test_a_finding_is_reported_and_can_be_tried_again(tmp_path: Path) -> None:
    assert fuzzed("fails", tmp_path, "-runs=10").returncode != 0
    (finding,) = (tmp_path / "findings").iterdir()
    done = fuzzed("fails", tmp_path, str(finding))
    assert "RuntimeError: found" in done.stdout + done.stderr
