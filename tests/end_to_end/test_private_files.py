"""What a collector keeps is its user's and group's alone, however it is started."""

import os
from pathlib import Path

from tests.end_to_end.conftest import World


def test_nobody_else_reads_what_a_collector_keeps(world: World) -> None:
    before = os.umask(0)
    try:
        world.collector()
    finally:
        os.umask(before)
    store = world.folder / "store"
    paths = [store, *store.rglob("*")]
    assert len(paths) > 3
    assert not [f"{path}: {_mode(path):o}" for path in paths if _mode(path) & 0o027]


def _mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777
