"""Small files are whole, their owner's alone, and replaced in one step."""

import os
from pathlib import Path

import pytest

from gpuwarden.files import make_folder, mark_of, write_whole


def test_a_file_is_replaced_whole_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    with path.open() as reader:
        write_whole(path, b"new")
        assert (
            reader.read() == "old"
        )  # who reads it at that moment has the old one, not half of each
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a-folder"
    path.mkdir()
    with pytest.raises(OSError):
        write_whole(path, b"new")
    assert os.listdir(tmp_path) == ["a-folder"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_writes_belongs_to_the_folders_owner_or_to_whom_it_is_for(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12346)
    write_whole(tmp_path / "a", b"")
    write_whole(tmp_path / "b", b"", owner=(23456, 23457))
    make_folder(tmp_path / "c" / "d")
    found = {name: (tmp_path / name).stat() for name in ("a", "b", "c", "c/d")}
    assert {name: (s.st_uid, s.st_gid) for name, s in found.items()} == {
        "a": (12345, 12346),
        "b": (23456, 23457),
        "c": (12345, 12346),
        "c/d": (12345, 12346),
    }


def test_a_mark_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert mark_of(path) is None
    write_whole(path, b"one")
    first = mark_of(path)
    assert first == mark_of(path)
    write_whole(path, b"two")
    assert mark_of(path) != first
