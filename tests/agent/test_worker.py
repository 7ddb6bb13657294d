"""A thread of one's own for calls that block."""

import asyncio
import subprocess
import sys
import threading

import pytest

from gpuwarden_agent.worker import Worker, WorkerBusyError, within


async def test_calls_run_in_order_on_one_thread_that_is_not_the_loops() -> None:
    worker = Worker("w")
    names = await asyncio.gather(
        *(worker.submit(lambda n=n: (n, threading.current_thread().name)) for n in range(3))
    )
    assert names == [(0, "w"), (1, "w"), (2, "w")]
    worker.close()


async def test_what_a_call_raises_reaches_whoever_awaits_it() -> None:
    worker = Worker("w")
    with pytest.raises(ZeroDivisionError):
        await worker.submit(lambda: 1 / 0)
    assert await worker.submit(lambda: "still there") == "still there"
    worker.close()


async def test_the_queue_is_bounded() -> None:
    worker = Worker("w", calls_max=1)
    go_on = threading.Event()
    began = threading.Event()

    def block() -> None:
        began.set()
        go_on.wait(30)

    running = worker.submit(block)
    await asyncio.to_thread(began.wait, 30)
    waiting = worker.submit(lambda: None)
    with pytest.raises(WorkerBusyError, match="w: 1 calls wait"):
        worker.submit(lambda: None)
    go_on.set()
    await asyncio.gather(running, waiting)
    worker.close()


async def test_a_cancelled_wait_does_not_disturb_the_next_call() -> None:
    worker = Worker("w")
    go_on = threading.Event()
    stuck = worker.submit(go_on.wait, 30)
    stuck.cancel()
    go_on.set()
    assert await worker.submit(lambda: 1) == 1
    worker.close()


def test_a_call_that_never_returns_does_not_keep_the_process_alive() -> None:
    code = """
import asyncio, threading
from gpuwarden_agent.worker import Worker
async def main():
    began = threading.Event()
    def hang():
        began.set()
        threading.Event().wait()
    Worker("stuck").submit(hang)
    while not began.is_set():
        await asyncio.sleep(0.001)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=20, check=False)
    assert done.returncode == 0


def test_what_the_call_gives_or_raises_is_passed_on() -> None:
    assert within(30, lambda: 7, "call") == 7
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 // 0, "call")


def test_a_call_that_does_not_return_is_left_behind() -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"^it has not answered for 0\.01 s$"):
            within(0.01, lambda: release.wait(30), "call")
    finally:
        release.set()
