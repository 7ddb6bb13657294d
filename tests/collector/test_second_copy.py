"""With a standby, a batch is acknowledged when both collectors have it, and a lost disk loses none."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.recovery import recover
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.second_copy import (
    COPIES,
    CopyConflictError,
    CopyFolder,
    SecondCopy,
    Standby,
)
from gpuwarden_collector.storage.segment import FOLDER, segment_numbers, segment_path
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

COUNT_SQL = "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples"
ROWS = 4


def body(wire: Any, sequence: int) -> bytes:
    return wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(ROWS, [sequence])))


async def counted(collector: Any) -> tuple[int, int]:
    answer = await collector.querier.query(COUNT_SQL)
    return tuple(answer.rows[0])


def identity(data_dir: Path) -> str:
    with_state = StateFile(data_dir / FILE_NAME, is_read_only=True)
    try:
        return with_state.collector
    finally:
        with_state.close()


@pytest.fixture
def standby_dir(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    folder = tmp_path_factory.mktemp("standby")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    (folder / FILE_NAME).unlink()  # an identity of its own
    return folder


async def test_what_is_acknowledged_can_be_read_from_the_copy_alone(
    start: Any, post: Any, wire: Any, data_dir: Path, standby_dir: Path, clock: ManualClock
) -> None:
    async with start(data_dir=standby_dir) as standby:
        for run in range(2):  # a restart begins another segment
            async with start(standby_url=standby.url) as primary:
                for sequence in range(3 * run + 1, 3 * run + 4):
                    assert (await post(primary.url, body(wire, sequence), sequence))[0] == 204
        copy = CopyFolder(standby_dir).data_dir(identity(data_dir))
        numbers = segment_numbers(copy / FOLDER)
        assert len(numbers) == 2
        for number in numbers:
            written = segment_path(data_dir / FOLDER, number).read_bytes()
            assert segment_path(copy / FOLDER, number).read_bytes() == written
    shutil.rmtree(data_dir / FOLDER)
    async with start(data_dir=copy) as recovered:
        assert await counted(recovered) == (6 * ROWS, 6 * ROWS)
        # Its ledger has come along.
        assert (await post(recovered.url, body(wire, 6), 6))[0] == 204
        assert await counted(recovered) == (6 * ROWS, 6 * ROWS)


async def test_nothing_is_acknowledged_while_the_standby_is_away_and_all_once_when_it_is_back(
    start: Any, post: Any, wire: Any, session: Any, standby_dir: Path, clock: ManualClock
) -> None:
    async with start(data_dir=standby_dir) as standby:
        port = int(standby.url.rpartition(":")[2])
    async with start(standby_url=f"http://127.0.0.1:{port}") as primary:
        for _ in range(2):  # the second time the batch is a duplicate
            status, answer, headers = await post(primary.url, body(wire, 1))
            assert status == 503
            assert "has no second copy: Connection refused" in answer
            assert headers["Retry-After"] == "5"
            async with session.get(f"{primary.url}/readyz") as ready:
                assert ready.status == 503
            clock.advance(2)
        async with start(data_dir=standby_dir, port=port):
            assert (await post(primary.url, body(wire, 1)))[0] == 204
            assert (await post(primary.url, body(wire, 2), 2))[0] == 204
        assert await counted(primary) == (2 * ROWS, 2 * ROWS)


async def test_copies_of_sealed_segments_go(
    start: Any, post: Any, wire: Any, data_dir: Path, standby_dir: Path
) -> None:
    async with (
        start(data_dir=standby_dir) as standby,
        start(standby_url=standby.url) as primary,
    ):
        copied = CopyFolder(standby_dir).data_dir(identity(data_dir)) / FOLDER
        assert (await post(primary.url, body(wire, 1)))[0] == 204
        first = segment_numbers(copied)
        assert await primary.seal() >= ROWS
        assert (await post(primary.url, body(wire, 2), 2))[0] == 204
        assert segment_numbers(copied) == [number + 1 for number in first]


async def test_a_recovered_collector_is_refused_with_what_to_do(
    start: Any, post: Any, wire: Any, data_dir: Path, standby_dir: Path, clock: ManualClock
) -> None:
    async with (
        start(data_dir=standby_dir) as standby,
        start(standby_url=standby.url) as primary,
    ):
        assert (await post(primary.url, body(wire, 1)))[0] == 204
        CopyFolder(standby_dir).note_recovered(identity(data_dir), "2026-03-01T00:00:00Z")
        status, answer, _ = await post(primary.url, body(wire, 2), 2)
        assert status == 503
        assert "was recovered here" not in answer
        assert "were recovered here on 2026-03-01T00:00:00Z: stop it" in answer


async def test_recovering_asks_for_a_lake_that_both_share(
    data_dir: Path, standby_dir: Path, clock: ManualClock
) -> None:
    CopyFolder(standby_dir).append(identity(data_dir), 1, 0, b"a", oldest=1)
    settings = CollectorSettings(data_dir=standby_dir)
    with pytest.raises(StartError, match="no lake that both collectors share"):
        await recover(settings, identity(data_dir), clock)
    with pytest.raises(StartError, match="has no segments"):
        await recover(settings, "another", clock)
    with pytest.raises(StartError, match="not the identity"):
        await recover(settings, "../lake", clock)
    assert CopyFolder(standby_dir).collectors() == [identity(data_dir)]


def test_a_piece_that_does_not_follow_is_refused_and_a_failed_one_leaves_nothing(
    tmp_path: Path, files_of_at_most: Any
) -> None:
    copies = CopyFolder(tmp_path)
    copies.append("c", 1, 0, b"a" * 1_000, oldest=1)
    for offset in (0, 999, 1_001):
        with pytest.raises(CopyConflictError, match=f"has 1000 bytes, not {offset}"):
            copies.append("c", 1, offset, b"b", oldest=1)
    with files_of_at_most(1_500), pytest.raises(OSError):
        copies.append("c", 1, 1_000, b"b" * 1_000, oldest=1)
    path = segment_path(tmp_path / COPIES / "c" / FOLDER, 1)
    assert path.read_bytes() == b"a" * 1_000
    copies.append("c", 1, 1_000, b"b", oldest=1)
    copies.append("c", 3, 0, b"c", oldest=3)
    assert segment_numbers(path.parent) == [3]


def test_no_piece_deletes_what_it_is_not_behind_and_copies_belong_to_who_sent_first(
    tmp_path: Path,
) -> None:
    copies = CopyFolder(tmp_path)
    copies.append("c", 1, 0, b"a", oldest=1)
    with pytest.raises(CopyConflictError, match="is behind segment 2"):
        copies.append("c", 2, 0, b"a", oldest=3)
    assert segment_numbers(tmp_path / COPIES / "c" / FOLDER) == [1]
    copies.claim("c", "")
    copies.claim("c", "token aaaa")
    copies.claim("c", "token aaaa")
    with pytest.raises(CopyConflictError, match=r"to another token \(token aaaa\).*c.sender"):
        copies.claim("c", "token bbbb")
    copies.claim("d", "token bbbb")


@pytest.mark.parametrize("url", ["", "collector", "ftp://collector", "http://"])
def test_a_url_that_is_none_is_refused_at_the_start(
    url: str, tmp_path: Path, clock: ManualClock
) -> None:
    with pytest.raises(StartError, match="standby_url"):
        SecondCopy(tmp_path, "c", Standby(url), clock)
