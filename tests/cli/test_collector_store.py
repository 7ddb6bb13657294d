"""`gpuwarden collector check|backup|restore|maintain` as an operator types them."""

from pathlib import Path

import pytest

from gpuwarden_cli.main import main
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.state import FILE_NAME


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store."""
    folder = tmp_path_factory.mktemp("store")
    Database.open(folder, EngineLimits(memory="512MiB", threads=1)).close()
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["collector", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_store_is_backed_up_restored_and_whole(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, again = tmp_path / "copy", tmp_path / "again"
    code, out, _ = said(capsys, "backup", copy, "--data-dir", store)
    assert (code, out.splitlines()[-1]) == (0, f"backed up and checked: {copy}")
    code, out, _ = said(capsys, "restore", copy, "--data-dir", again)
    assert (code, out.splitlines()[-1]) == (0, f"restored and checked: {again}")
    code, out, _ = said(capsys, "check", "--read", "--data-dir", again)
    assert (code, out.splitlines()[-1]) == (0, "no problem was found")


def test_what_is_wrong_is_said_and_repaired_when_asked(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "backup", tmp_path / "copy", "--data-dir", store)
    database = tmp_path / "copy" / FILE_NAME
    database.write_bytes(b"rubbish" * 2_000)
    code, out, _ = said(capsys, "check", "--data-dir", tmp_path / "copy")
    assert code == 1
    assert f"wrong: {database} is damaged" in out
    assert "do: restore a backup; --repair sets it aside" in out
    assert database.exists()
    code, out, _ = said(capsys, "check", "--repair", "--data-dir", tmp_path / "copy")
    assert (code, out.splitlines()[-1]) == (0, " done: repaired")
    assert not database.exists()
