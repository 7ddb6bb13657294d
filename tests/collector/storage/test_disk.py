"""Batches are refused before the disk is full, and taken again when there is room."""

from math import ceil
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.storage.disk import (
    Budget,
    DiskMonitor,
    Usage,
    excess,
    folder_bytes,
    refusal,
)
from gpuwarden_collector.storage.retention import Excess

GIB = 2**30
BUDGET = Budget(bytes_max=100 * GIB, free_bytes_min=GIB)


def test_room_is_made_before_batches_are_refused() -> None:
    near = Usage(free_bytes=2 * GIB - 1, used_bytes=96 * GIB)
    assert excess(near, 0, BUDGET) == Excess(GIB, 1, 1)
    assert refusal(near, BUDGET, is_refusing=False) is None


def test_batches_are_accepted_again_once_a_tenth_more_than_the_reserve_is_free() -> None:
    full = excess(Usage(free_bytes=0, used_bytes=0), 0, BUDGET)
    assert (full.disk_bytes, full.useful_bytes) == (2 * GIB, ceil(1.1 * GIB))
    usage = Usage(free_bytes=full.useful_bytes, used_bytes=0)
    assert refusal(usage, BUDGET, is_refusing=True) is None


def test_what_leaves_the_disk_anyway_is_not_dropped_again() -> None:
    near = Usage(free_bytes=GIB, used_bytes=96 * GIB)
    assert excess(near, 2 * GIB, BUDGET) == Excess()


@given(st.integers(0, 4 * GIB), st.integers(0, 200 * GIB))
def test_refusing_means_making_room_too_and_goes_on(free: int, used: int) -> None:
    usage = Usage(free, used)
    if refusal(usage, BUDGET, is_refusing=False):
        assert refusal(usage, BUDGET, is_refusing=True)
    if refusal(usage, BUDGET, is_refusing=True):
        assert excess(usage, 0, BUDGET) != Excess()


def test_a_look_decides_and_does_not_flicker(tmp_path: Path) -> None:
    sizes = [2 * GIB, GIB - 1, GIB + 1, int(1.05 * GIB), int(1.2 * GIB)]
    left = iter(sizes)
    disk = DiskMonitor(tmp_path, Budget(0, GIB), free=lambda _: next(left))
    states = []
    for _ in sizes:
        disk.look()
        states.append(disk.refusal is not None)
    assert states == [False, True, True, True, False]
    assert disk.is_short


def test_a_disk_that_cannot_be_read_refuses_nothing(tmp_path: Path) -> None:
    def fails(_: Path) -> int:
        raise OSError("stale file handle")

    disk = DiskMonitor(tmp_path, BUDGET, free=fails)
    disk.look()
    assert (disk.usage, disk.refusal, disk.is_short) == (None, None, False)


def test_files_of_all_folders_count(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 10_000)
    (tmp_path / "loop").symlink_to(tmp_path)
    disk = DiskMonitor(tmp_path, BUDGET)
    disk.look()
    assert disk.usage is not None
    assert 10_000 <= disk.usage.used_bytes < 30_000
    assert folder_bytes(tmp_path / "absent") == 0


async def test_a_collector_without_room_says_so_and_takes_no_batch(
    start: Any, post: Any, session: Any, wire: Any
) -> None:
    body = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(1, range(3))))
    async with start(disk_free_bytes_min=2**60) as collector:
        status, text, headers = await post(collector.url, body)
        assert (status, headers["Retry-After"]) == (503, "30")
        assert "disk_free_bytes_min is 1048576.0 TiB: make room on it" in text
        async with session.get(collector.url + "/readyz") as answer:
            assert answer.status == 503
            assert "make room on it" in await answer.text()
        async with session.get(collector.url + "/metrics") as answer:
            metrics = await answer.text()
        assert "gpuwarden_collector_disk_full 1.0\n" in metrics
        assert 'gpuwarden_collector_refused_batches_total{status="503"} 1.0\n' in metrics
    async with start() as collector:
        assert (await post(collector.url, body))[0] == 204, "the same batch, when there is room"
