"""What reads bytes of others is fuzzed for a few seconds, and a target that fails is named."""

from pathlib import Path

import pytest
from bench.fuzz.run import main

pytest.importorskip("atheris", reason="atheris is not installed")


@pytest.mark.slow
def test_no_target_fails_within_a_few_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--minutes", "0.5", "--runs", "300", "--folder", str(tmp_path)]) == 0
    assert "targets, 0 with findings" in capsys.readouterr().out


def test_a_finding_is_told_and_can_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fails", "--runs", "10", "--folder", str(tmp_path)]) == 1
    (finding,) = (tmp_path / "findings" / "fails").iterdir()
    assert f"FOUND {finding}" in capsys.readouterr().out
    assert main(["fails", "--folder", str(tmp_path), "--again", str(finding)]) == 1
    assert "RuntimeError: found" in capsys.readouterr().out
