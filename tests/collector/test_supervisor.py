"""A storage process that stops, hangs or cannot open the store is replaced, and readiness says so meanwhile."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.storage import supervisor
from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.supervisor import again_after_s, replaced_for, trouble_of

pytestmark = pytest.mark.slow


def test_starts_that_come_to_nothing_are_tried_again_for_ever_at_growing_distances() -> None:
    waits = [again_after_s(failures) for failures in range(2_000)]
    assert waits[:4] == [0.0, 1.0, 3.0, 7.0]
    assert waits == sorted(waits)
    assert waits[-1] == 60.0


SECONDS = st.floats(0, 1e6)


@given(SECONDS, st.none() | SECONDS, SECONDS, st.booleans())
def test_trouble_is_told_of_whatever_stands_still_and_never_of_what_gets_on(
    idle_s: float, lag_s: float | None, rollup_idle_s: float, is_open: bool
) -> None:
    trouble = trouble_of(idle_s, lag_s, rollup_idle_s, is_open=is_open)
    is_late = (lag_s or 0) > supervisor.ROLLUPS_LATE_S and rollup_idle_s > supervisor.STALLED_S
    is_away = not is_open and idle_s > supervisor.ANSWER_S
    assert (trouble is not None) == (is_away or idle_s > supervisor.STALLED_S or is_late)
    assert replaced_for(idle_s, is_answering=False)
    why = replaced_for(idle_s, is_answering=True)
    assert (why is not None) == (idle_s > supervisor.STUCK_S)
    assert why is None or trouble is not None, "readiness knows before a process is replaced"


def children(name: str) -> list[int]:
    """Processes of this test's collector by their name."""
    below = psutil.Process().children(recursive=True)
    return [p.pid for p in below if p.is_running() and p.name() == name and p.status() != "zombie"]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ANSWER_S", 1.5)
    monkeypatch.setattr(supervisor, "again_after_s", lambda failures: 0.5)


async def sealed(collector: Collector) -> int:
    """Rows that the storage process has moved, once there is one again."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await collector.seal()
            except StoreUnavailableError:
                await asyncio.sleep(0.1)


async def posted(post: Any, wire: Any, url: str, sequence: int) -> None:
    body = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(2, [sequence])))
    assert (await post(url, body, sequence))[0] == 204


@pytest.mark.usefixtures("hurried")
async def test_a_storage_process_that_is_stopped_is_replaced_and_seals_go_on(
    start: Any, post: Any, wire: Any, eventually: Any
) -> None:
    async with start() as collector:
        before = children("gpuwarden-store")
        assert len(before) == 1
        os.kill(before[0], signal.SIGSTOP)
        await posted(post, wire, collector.url, 1)
        await eventually(lambda: collector.stats.storage_restarts == 1)
        assert await sealed(collector) >= 2
        assert children("gpuwarden-store") not in ([], before)


@pytest.mark.usefixtures("hurried")
async def test_a_storage_process_that_cannot_open_the_lake_is_started_until_it_can(
    start: Any, post: Any, wire: Any, session: Any, eventually: Any, data_dir: Path
) -> None:
    catalogue = data_dir / FOLDER / CATALOGUE
    async with start() as collector:
        kept = catalogue.rename(catalogue.with_suffix(".away"))
        catalogue.write_bytes(b"not SQLite" * 1_000)
        (process,) = children("gpuwarden-store")
        os.kill(process, signal.SIGKILL)
        await eventually(lambda: collector.stats.storage_restarts >= 3)
        await posted(post, wire, collector.url, 1)  # batches are stored as ever
        async with session.get(f"{collector.url}/readyz") as ready:
            assert ready.status == 503
            assert "the storage process does not start" in await ready.text()
        kept.rename(catalogue)
        assert await sealed(collector) >= 2
        async with session.get(f"{collector.url}/readyz") as ready:
            assert ready.status == 200


@pytest.mark.usefixtures("hurried")
async def test_a_step_that_never_ends_has_its_process_replaced_though_that_answers(
    start: Any, post: Any, wire: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = asyncio.Event()

    async def never(_: Any) -> None:
        await is_over.wait()

    async with start() as collector:
        await posted(post, wire, collector.url, 1)
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "freeze", never)
            patched.setattr(supervisor, "STUCK_S", 8.0)
            waiting = asyncio.ensure_future(collector.seal())
            await eventually(lambda: collector.stats.storage_restarts > 0)
        is_over.set()
        with pytest.raises(StoreUnavailableError):
            await waiting
        assert await sealed(collector) >= 2
