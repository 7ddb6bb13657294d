"""The whole agent against a real collector's port: start, stop, kill, start again."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tests.agent.fakes import fake_probe, until_true

from gpuwarden.clock import ManualClock, SystemClock, to_ms
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.daemon import run
from gpuwarden_agent.queue.spool import Put, Spool, open_spool
from gpuwarden_agent.sampling.rediscovery import keep_rediscovering
from gpuwarden_agent.settings import AgentSettings, Timing
from gpuwarden_agent.supervision import SEAL_TIMEOUT_S


def settings(url: str, state_dir: Path, **more: Any) -> AgentSettings:
    return AgentSettings(
        **{
            "node": "n1",
            "collector_url": (url,),
            "state_dir": state_dir,
            "interval_s": 0.1,
            "batch_s": 0.3,
        }
        | more
    )


def ts_ms_of(row: dict[str, Any]) -> int:
    """Timestamps of the wire are UTC without saying so."""
    return to_ms(row["ts"].replace(tzinfo=UTC))


async def run_until(condition: Callable[[], bool], *args: Any, **more: Any) -> Counters:
    """Run an agent until the condition holds, then stop it in good order."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        timing = {"timing": Timing(backoff_max_s=0.2, stop_timeout_s=2.0)}
        agent = group.create_task(run(*args, SystemClock(), stop, **timing | more))
        await until_true(condition)
        stop.set()
    return agent.result()


async def test_samples_inventory_and_events_arrive_and_nothing_is_left(
    stub_collector: Any, tmp_path: Path
) -> None:
    probe = fake_probe("host", blocking=True)
    probe.inventory = {"nodes": [{"kernel": "6.1"}]}
    counters = await run_until(
        lambda: len(stub_collector.rows("host_samples")) >= 8,
        settings(stub_collector.url, tmp_path),
        probes=[probe],
    )
    samples = stub_collector.rows("host_samples")
    stamps = sorted(row["ts"] for row in samples)
    assert len(set(stamps)) == len(stamps) == counters.rows["host_samples"]
    assert all(ts.microsecond % 100_000 == 0 for ts in stamps)
    node = stub_collector.rows("nodes")[-1]
    assert (node["node"], node["kernel"], node["backend"]) == ("n1", "6.1", "none")
    assert stub_collector.kinds()[0] == "agent_started"
    assert stub_collector.kinds()[-1] == "agent_stopped"
    assert "agent_gap" not in stub_collector.kinds()
    assert counters.batches_acknowledged == counters.batches_sealed
    assert (counters.spool_batches, counters.spool_bytes) == (0, 0)
    assert probe.closed == 1


async def test_a_clean_stop_and_start_tells_the_gap_as_information(
    stub_collector: Any, tmp_path: Path
) -> None:
    for runs in (1, 2):
        await run_until(
            lambda runs=runs: (
                stub_collector.kinds().count("agent_started") == runs
                and len(stub_collector.rows("host_samples")) >= 3 * runs
            ),
            settings(stub_collector.url, tmp_path),
            probes=[fake_probe()],
        )
        if runs == 1:
            await asyncio.sleep(0.5)  # the gap itself: real time has to pass
    (gap,) = [row for row in stub_collector.rows("events") if row["kind"] == "agent_gap"]
    assert gap["severity"] == "info"
    assert "it had been stopped" in gap["message"]
    assert gap["duration_seconds"] >= 0.5
    assert '"rebooted": false' in gap["details"]
    stamps = [row["ts"] for row in stub_collector.rows("host_samples")]
    assert len(set(stamps)) == len(stamps)
    assert len({key[0] for key in stub_collector.stored}) == 1


async def test_what_could_not_be_sent_waits_for_the_next_start(
    stub_collector: Any, tmp_path: Path
) -> None:
    await stub_collector.stop()
    probe = fake_probe()
    first = await run_until(
        lambda: len(probe.read_at) >= 8,
        settings(stub_collector.url, tmp_path),
        probes=[probe],
    )
    assert first.spool_batches == first.batches_sealed > 0
    await stub_collector.start()
    again = fake_probe()
    await run_until(
        lambda: len(again.read_at) >= 2,
        settings(stub_collector.url, tmp_path),
        probes=[again],
    )
    stamps = sorted(ts_ms_of(row) for row in stub_collector.rows("host_samples"))
    assert stamps == sorted(probe.read_at + again.read_at)


async def test_refused_batches_are_told_at_once_and_the_rest_before_the_end(
    stub_collector: Any, tmp_path: Path
) -> None:
    stub_collector.script = [400, 204, 400, 400]
    ready: list[Counters] = []
    counters = await run_until(
        lambda: "batches_refused" in stub_collector.kinds() and ready[0].batches_refused == 3,
        settings(stub_collector.url, tmp_path),
        probes=[fake_probe()],
        on_ready=ready.append,
    )
    assert counters.batches_refused == 3
    told = [r for r in stub_collector.rows("events") if r["kind"] == "batches_refused"]
    assert [json.loads(row["details"])["batches"] for row in told] == [1, 2]
    assert stub_collector.kinds()[-1] == "agent_stopped"


async def test_a_spool_that_was_set_aside_is_reported(stub_collector: Any, tmp_path: Path) -> None:
    (tmp_path / "spool.sqlite").write_bytes(b"junk" * 2000)
    await run_until(
        lambda: "spool_set_aside" in stub_collector.kinds(),
        settings(stub_collector.url, tmp_path),
        probes=[fake_probe()],
    )
    (event,) = [r for r in stub_collector.rows("events") if r["kind"] == "spool_set_aside"]
    assert "kept as spool.sqlite.corrupt-" in event["message"]


async def test_a_stuck_driver_stops_neither_shipping_nor_the_end(
    stub_collector: Any, tmp_path: Path
) -> None:
    hung = fake_probe("gpu0", blocking=True, gpu_uuid="GPU-0")
    hung.inventory = {"gpus": [{"gpu_uuid": "GPU-0", "gpu": 0}]}
    hung.go_on.clear()
    try:
        async with asyncio.timeout(10):
            await run_until(
                lambda: (
                    "probe_stuck" in stub_collector.kinds()
                    and len(stub_collector.rows("host_samples")) >= 5
                ),
                settings(stub_collector.url, tmp_path),
                timing=Timing(probe_deadline_s=0.2),
                probes=[hung, fake_probe("host", blocking=True)],
            )
    finally:
        hung.go_on.set()
    assert stub_collector.rows("gpu_samples") == []


async def test_a_gpu_that_comes_later_is_watched_and_told(
    stub_collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_rediscovering, "__kwdefaults__", {"every_s": 0.05})
    late = fake_probe("gpu1", blocking=True, gpu_uuid="GPU-1")
    finds = [[], [late]]
    await run_until(
        lambda: len(stub_collector.rows("gpu_samples")) >= 3,
        settings(stub_collector.url, tmp_path),
        probes=[fake_probe("host", blocking=True)],
        rediscover=lambda: finds.pop(0) if finds else [],
    )
    (event,) = [r for r in stub_collector.rows("events") if r["kind"] == "gpu_appeared"]
    assert event["gpu_uuid"] == "GPU-1"
    assert late.closed == 1


async def test_the_counters_are_logged_once_an_hour_and_at_the_end(
    stub_collector: Any, tmp_path: Path, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    probe, stop = fake_probe(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            run(settings(stub_collector.url, tmp_path), manual_clock, stop, probes=[probe])
        )
        await until_true(lambda: len(probe.read_at) == 1)
        manual_clock.advance(3601)
        await until_true(lambda: "counters" in [r.message for r in caplog.records])
        stop.set()
    hourly, last = [r for r in caplog.records if r.message == "counters"]
    assert 1 <= hourly.ticks <= last.ticks  # type: ignore[attr-defined]
    assert hourly.node == "n1"  # type: ignore[attr-defined]


async def test_an_address_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    settings_ = settings("http://collector:8750/?tenant=1", tmp_path)
    with pytest.raises(StartError, match="collector_url = .*one looks like"):
        await run(settings_, SystemClock(), asyncio.Event(), probes=[fake_probe()])


async def test_systemd_hears_ready_watchdog_and_stopping(
    stub_collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")

        def listen() -> list[bytes]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    heard.append(manager.recv(100))
            return heard

        await run_until(
            lambda: listen().count(b"WATCHDOG=1") >= 2,
            settings(stub_collector.url, tmp_path / "state"),
            probes=[fake_probe()],
        )
        assert listen()[0] == b"READY=1"
        assert listen()[-1] == b"STOPPING=1"


@pytest.mark.slow
async def test_a_disk_that_hangs_does_not_keep_the_agent_from_stopping(
    stub_collector: Any, tmp_path: Path
) -> None:
    """As a state folder on a network disk whose server is gone."""
    go_on, hung = threading.Event(), threading.Event()

    class HangingSpool(Spool):
        def put(self, *args: Any, **more: Any) -> Put:
            hung.set()
            assert go_on.wait(60)
            return super().put(*args, **more)

    spool = HangingSpool(tmp_path / "spool.sqlite", bytes_max=10**8, clock=SystemClock())
    began_s = time.monotonic()
    try:
        await run_until(
            hung.is_set,
            settings(stub_collector.url, tmp_path),
            timing=Timing(stop_timeout_s=0.2),
            probes=[fake_probe()],
            spool=spool,
        )
    finally:
        go_on.set()
    assert time.monotonic() - began_s < 3 * SEAL_TIMEOUT_S + 4


async def test_an_event_that_the_last_batch_gives_rise_to_is_sealed_as_well(
    stub_collector: Any, tmp_path: Path, caplog: Any
) -> None:
    await stub_collector.stop()
    spool = Spool(tmp_path / "spool.sqlite", bytes_max=4000, clock=SystemClock())
    spool.put(os.urandom(3999), 1)
    probe = fake_probe()
    counters = await run_until(
        lambda: len(probe.read_at) == 1,
        settings(stub_collector.url, tmp_path, batch_s=60),
        timing=Timing(stop_timeout_s=0),
        probes=[probe],
        spool=spool,
    )
    assert counters.batches_dropped == 1
    assert counters.rows_dropped == 0
    assert counters.batches_sealed == spool.count
    assert "the spool took no last batch; its rows are lost" not in caplog.messages


TOO_HEAVY = (
    *("duckdb", "numpy", "pandas", "pyarrow", "google.protobuf", "grpc", "hpack"),
    *("aiohttp", "h2", "psutil", "csv", "unicodedata", "encodings.idna"),
    *("decimal", "fractions", "statistics", "importlib.metadata", "importlib.resources", "pickle"),
)
OTHER_PARTS = (
    "gpuwarden_simulator.fleet, gpuwarden_simulator, gpuwarden_agent.once,"
    " gpuwarden_agent.collect.discovery, gpuwarden_agent.collect.schedulers.kubelet,"
    " gpuwarden_cli.composition.agent, gpuwarden_cli.main"
)


AGENT = """
import asyncio, sys
from pathlib import Path
from gpuwarden.clock import SystemClock
from gpuwarden_agent.daemon import run
from gpuwarden_agent.settings import AgentSettings, Timing

class Host:
    name, tables, simulated, blocking, gpu_uuid = (
        "host", {"host_samples": 1}, False, True, None)
    def describe(self): return {}
    def read(self, ts_ms, due): return {"host_samples": [{"load_1m": 1.0}]}
    def close(self): pass

settings = AgentSettings(node="n1", collector_url=(sys.argv[1],), state_dir=Path(sys.argv[2]),
                         interval_s=0.1, batch_s=0.5)
asyncio.run(run(settings, SystemClock(), asyncio.Event(), probes=[Host()],
                timing=Timing(backoff_max_s=0.2)))
"""


SHIPPED = """
async def main():
    stop, counters = asyncio.Event(), []
    async with asyncio.TaskGroup() as group:
        group.create_task(
            run(settings, SystemClock(), stop, probes=[Host()], on_ready=counters.append))
        while not (counters and counters[0].batches_acknowledged):
            await asyncio.sleep(0.02)
        stop.set()

asyncio.run(main())
print([name for name in sys.argv[3].split(",") if name in sys.modules])
"""


async def test_what_a_shipping_agent_has_loaded_stays_small(
    stub_collector: Any, tmp_path: Path
) -> None:
    """A GPU host pays for it: no DuckDB, no data frames, no HTTP library, not even for a lookup by name."""
    code = f"import {OTHER_PARTS}\n" + AGENT.rpartition("asyncio.run(")[0] + SHIPPED
    url = f"http://localhost:{stub_collector.port}"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, url, str(tmp_path), ",".join(TOO_HEAVY)),
        stdout=subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(child.communicate(), 30)
    assert out.decode().strip() == "[]"


@pytest.mark.slow
async def test_kill_9_costs_at_most_what_was_not_sealed_and_the_gap_is_told(
    stub_collector: Any, tmp_path: Path
) -> None:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", AGENT, stub_collector.url, str(tmp_path)])

    child = start()
    try:
        await until_true(lambda: len(stub_collector.rows("host_samples")) >= 10, timeout_s=20)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    killed_ms = to_ms(SystemClock().now())
    sealed = open_spool(tmp_path, bytes_max=10**8, clock=SystemClock())
    last_ts_ms = sealed.last_run.last_ts_ms
    assert last_ts_ms is not None
    assert killed_ms - last_ts_ms <= 500 + 1000  # the open batch, and the moment until it is sealed
    sealed.close()
    before = len(stub_collector.rows("host_samples"))

    def is_told() -> bool:
        """Whether the event says how long the hole is; what was left of the first run comes last."""
        stamps = sorted(ts_ms_of(row) for row in stub_collector.rows("host_samples"))
        gaps = [row for row in stub_collector.rows("events") if row["kind"] == "agent_gap"]
        return any(
            abs((b - a) / 1000 - gap["duration_seconds"]) <= 0.11
            for a, b in itertools.pairwise(stamps)
            for gap in gaps
        )

    child = start()
    try:
        await until_true(
            lambda: len(stub_collector.rows("host_samples")) >= before + 10 and is_told()
        )
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    stamps = [ts_ms_of(row) for row in stub_collector.rows("host_samples")]
    assert len(set(stamps)) == len(stamps), "nothing doubled"
    (gap,) = [row for row in stub_collector.rows("events") if row["kind"] == "agent_gap"]
    assert "it was killed or crashed" in gap["message"]
    assert gap["severity"] == "warning"
