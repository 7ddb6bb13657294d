"""Space that is held for when the disk is full."""

import resource
from pathlib import Path

from gpuwarden_agent.queue.reserve import Reserve


def test_what_is_held_takes_real_blocks_and_what_is_given_frees_them(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "r", 100_000)
    assert reserve.hold()
    assert reserve.hold()
    assert (tmp_path / "r").stat().st_blocks * 512 >= 100_000
    assert reserve.give()
    assert not (tmp_path / "r").exists()
    assert not reserve.give()


def test_a_disk_without_the_space_is_told_and_left_as_it_was(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "r", 100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (99_999, hard))
    try:
        assert not reserve.hold()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    assert reserve.hold()


def test_a_folder_that_is_gone_has_nothing_to_hold_or_give(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "gone" / "r")
    assert not reserve.hold()
    assert not reserve.give()
