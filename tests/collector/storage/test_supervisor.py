"""A storage process that stops, hangs or cannot open the store is replaced, and readiness says so meanwhile."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collector.child_processes import children
from tests.collector.slow_lake import SlowLake

from gpuwarden.lifecycle import StartError
from gpuwarden_collector import stages
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.ops.readiness import ASK_AGAIN_S
from gpuwarden_collector.query.querier import REFUSE_S
from gpuwarden_collector.storage import supervisor
from gpuwarden_collector.storage.address import CATALOGUE, FOLDER, local_address
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.stats import Effort
from gpuwarden_collector.storage.supervisor import (
    again_after_s,
    has_worked,
    replaced_for,
    trouble_of,
)

pytestmark = pytest.mark.slow


def test_starts_that_come_to_nothing_are_tried_again_for_ever_at_growing_distances() -> None:
    waits = [again_after_s(failures) for failures in range(2_000)]
    assert waits[:4] == [0.0, 1.0, 3.0, 7.0]
    assert waits == sorted(waits)
    assert waits[-1] == 60.0


SECONDS = st.floats(0, 1e6)


@given(SECONDS, SECONDS, st.none() | SECONDS, SECONDS, st.booleans())
def test_trouble_is_told_of_whatever_stands_still_and_never_of_what_gets_on(
    works_s: float, idle_s: float, lag_s: float | None, rollup_idle_s: float, is_open: bool
) -> None:
    step_s = works_s + idle_s
    trouble = trouble_of(step_s, idle_s, lag_s, rollup_idle_s, is_open=is_open)
    is_late = (lag_s or 0) > supervisor.ROLLUPS_LATE_S and rollup_idle_s > supervisor.STALLED_S
    is_away = not is_open and idle_s > supervisor.ANSWER_S
    is_stalled = idle_s > supervisor.STALLED_S or step_s > supervisor.ENDLESS_S
    assert (trouble is not None) == (is_away or is_stalled or is_late)
    assert replaced_for(step_s, idle_s, is_answering=False)
    why = replaced_for(step_s, idle_s, is_answering=True)
    is_stuck = idle_s > supervisor.STUCK_S or step_s > 2 * supervisor.ENDLESS_S
    assert (why is not None) == is_stuck
    assert why is None or trouble is not None, "readiness knows before a process is replaced"


def test_work_is_what_a_copy_a_merge_or_a_slow_disk_has_and_a_wait_for_ever_has_not() -> None:
    since = Effort(cpu_s=100.0, waits=1_000)
    for cpu_s, waits, is_work in (
        (20.0, 0, True),  # it computes
        (0.4, 4_000, True),  # it reads or deletes files, each in milliseconds
        (0.4, 240, False),  # what it does by the clock
        (0.0, 0, False),
    ):
        now = Effort(since.cpu_s + cpu_s, since.waits + waits)
        assert has_worked(since, now, 20.0) is is_work


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
    others = children("gpuwarden-store")
    async with start() as collector:
        await eventually(lambda: len(children("gpuwarden-store", others)) == 1)
        before = children("gpuwarden-store", others)
        os.kill(before[0], signal.SIGSTOP)
        await posted(post, wire, collector.url, 1)
        await eventually(lambda: collector.stats.storage_restarts == 1)
        assert await sealed(collector) >= 2
        assert children("gpuwarden-store", others) not in ([], before)


@pytest.mark.usefixtures("hurried")
async def test_a_storage_process_that_cannot_open_the_lake_is_started_until_it_can(
    start: Any, post: Any, wire: Any, session: Any, eventually: Any, data_dir: Path, clock: Any
) -> None:
    catalogue = data_dir / FOLDER / CATALOGUE
    others = children("gpuwarden-store")
    async with start() as collector:
        kept = catalogue.rename(catalogue.with_suffix(".away"))
        catalogue.write_bytes(b"not SQLite" * 1_000)
        (process,) = children("gpuwarden-store", others)
        os.kill(process, signal.SIGKILL)
        await eventually(lambda: collector.stats.storage_restarts >= 3)
        await posted(post, wire, collector.url, 1)  # batches are stored as ever
        async with session.get(f"{collector.url}/readyz") as ready:
            assert ready.status == 503
            assert "the storage process has not started" in await ready.text()
        kept.rename(catalogue)
        assert await sealed(collector) >= 2
        clock.advance(ASK_AGAIN_S)
        await asyncio.sleep(REFUSE_S)
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


def slow_lake(monkeypatch: pytest.MonkeyPatch, data_dir: Path, **slow: float) -> None:
    here = local_address(data_dir)
    lake = SlowLake(here.catalog, here.data, here.is_shared, **slow)
    monkeypatch.setattr(stages, "address_of", lambda *_: lake)
    monkeypatch.setattr(supervisor, "OPEN_S", 2.0)
    monkeypatch.setattr(supervisor, "EFFORT_S", 0.5)


async def test_a_lake_that_takes_long_to_open_is_waited_for_and_the_service_manager_told(
    start: Any, post: Any, wire: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_lake(monkeypatch, data_dir, cpu_s=3.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.bind(f"\0gpuwarden-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@gpuwarden-test-{os.getpid()}")
        async with start() as collector:
            await posted(post, wire, collector.url, 1)
        assert manager.recv(100) == b"EXTEND_TIMEOUT_USEC=2000000"


async def test_a_storage_process_that_does_nothing_ends_the_start_with_one_sentence(
    start: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_lake(monkeypatch, data_dir, wait_s=60.0)
    async with asyncio.timeout(30):
        with pytest.raises(StartError, match="is idle: `open` was given up") as failed:
            async with start():
                pass
    assert "\n" not in str(failed.value)


async def test_a_storage_process_that_is_stopped_before_it_begins_ends_the_start(
    start: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = supervisor.StorageProcess.begin

    async def stopped(self: supervisor.StorageProcess, writer: Any) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        monkeypatch.setattr(supervisor, "OPEN_S", 1.5)
        await begin(self, writer)

    monkeypatch.setattr(supervisor.StorageProcess, "begin", stopped)
    async with asyncio.timeout(40):
        with pytest.raises(StartError, match="`begin` was given up"):
            async with start():
                pass
