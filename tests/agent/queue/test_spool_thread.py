"""The spool off the event loop."""

import asyncio
import threading
from pathlib import Path

from gpuwarden.clock import SystemClock
from gpuwarden_agent.daemon import close_spool
from gpuwarden_agent.queue.spool import Spool, open_spool
from gpuwarden_agent.worker import Worker


async def test_a_batch_goes_in_comes_out_and_is_forgotten() -> None:
    spool, submit = Spool(None, bytes_max=100, clock=SystemClock(), boot="b"), Worker("s").submit
    put = await submit(spool.put, b"abc", 2, last_ts_ms=1000)
    assert (spool.count, spool.size_bytes, spool.boot_id, spool.bytes_max) == (1, 3, "b", 100)
    oldest, newest = await submit(spool.oldest), await submit(spool.newest)
    assert oldest
    assert oldest == newest
    assert await submit(spool.oldest, skip={put.sequence}) == []
    assert await submit(spool.acknowledge, put.sequence)
    second = await submit(spool.put, b"d", 1, last_ts_ms=None)
    assert await submit(spool.refuse, second.sequence, "400: no")
    assert spool.count == 0


async def test_closing_waits_for_a_call_whose_caller_gave_up(tmp_path: Path) -> None:
    spool, worker = open_spool(tmp_path, bytes_max=100, clock=SystemClock()), Worker("s")
    giving_up = asyncio.ensure_future(worker.submit(spool.put, b"a", 1, last_ts_ms=None))
    await asyncio.sleep(0)
    giving_up.cancel()
    await close_spool(spool, worker)
    again = open_spool(tmp_path, bytes_max=100, clock=SystemClock())
    assert again.count == 1
    again.close()


async def test_sqlite_runs_on_the_workers_thread() -> None:
    used: list[str] = []
    spool = Spool(None, bytes_max=100, clock=SystemClock())
    spool._db.set_trace_callback(lambda _: used.append(threading.current_thread().name))
    await Worker("spool thread").submit(spool.put, b"a", 1, last_ts_ms=None)
    assert set(used) == {"spool thread"}
