"""The record of a board by the command."""

from pathlib import Path

import pytest

from gpuwarden_cli.main import main


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--attach", "log"], "--attach needs --archive, the file to put it into"),
        (["--archive", "a.tar.gz", "--attach", "log"], "--attach log is not a file"),
        (["--since", "ever"], "--since ever is not a duration; write 6h or 7d"),
    ],
)
def test_a_call_that_is_wrong_says_so(
    tmp_path: Path, monkeypatch, capsys, flags: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rma", "n1/0", *flags]) == 2
    assert capsys.readouterr().err == f"gpuwarden: {said}\n"
    assert list(tmp_path.iterdir()) == []
