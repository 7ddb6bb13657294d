"""A collector's account of itself: a row at the start and each minute, and a document for its doctor."""

import asyncio
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuwarden import __version__
from gpuwarden.doctor import WARN
from gpuwarden_collector.daemon import running
from gpuwarden_collector.ops.health import QUESTIONS, Duties, Health, pressure_percent
from gpuwarden_collector.ops.health_checks import health_checks
from gpuwarden_collector.processes import control_socket as control
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Levels, Stats
from gpuwarden_collector.storage.disk import Budget, DiskMonitor, Usage
from gpuwarden_collector.timetable import Timetable


async def document(folder: Path) -> dict[str, Any]:
    said = await asyncio.to_thread(control.ask, folder, "health", 20.0)
    assert said is not None
    return said


async def test_each_start_leaves_a_row_with_the_duties_of_the_process(
    start: Any, data_dir: Path, clock: Any
) -> None:
    async with start():
        pass
    settings = CollectorSettings(port=0, data_dir=data_dir)
    duties = Duties(64, ("a", "b"), ("chat",), 7, rules_slow=((17.5, 5.0), (16.0, 10.0)))
    async with running(settings, clock, duties=lambda: duties) as collector:
        rows = await collector.querier.query("FROM collector_samples ORDER BY rules NULLS FIRST")
    row, with_duties = rows.records()
    assert (row["version"], row["host"]) == (__version__, socket.gethostname())
    assert (row["batches"], row["ingest_lag_seconds"], row["rules"]) == (0, None, None)
    assert row["disk_free_bytes"] > 0 and row["certificate_ends_at"] is None
    names = ("rules", "rules_failing", "receivers_failing", "messages_waiting")
    assert [with_duties[name] for name in names] == [64, "a, b", "chat", 7]
    slow = ("rules_slow", "rules_slow_seconds", "rules_slow_intervals_seconds")
    assert [with_duties[name] for name in slow] == [2, 33.5, 15.0]


def test_a_disk_that_queries_spill_to_is_not_filling(clock: Any) -> None:
    levels = Levels(0, 0, 0, True, False, disk=Usage(free_bytes=10, used_bytes=5, spill_bytes=7))
    unused: Any = None
    health = Health(
        "c",
        unused,
        Stats(),
        clock,
        unused,
        lambda: levels,
        Budget(bytes_max=0, free_bytes_min=9),
        Duties,
        unused,
    )
    row = health.row(clock.now())
    assert (row["disk_free_bytes"], row["disk_used_bytes"]) == (17, 5)


async def test_a_job_that_does_not_end_is_in_the_row_and_in_the_doctors_document(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()

    def hangs(self: DiskMonitor, **_: Any) -> None:
        may_go.wait(60)

    monkeypatch.setitem(Timetable.every.__kwdefaults__, "late_s", 0.1)
    async with start() as collector:
        monkeypatch.setattr(DiskMonitor, "look", hangs)
        try:
            for _ in range(300):
                found = await document(tmp_path)
                if "disk" in (found["sample"]["late_jobs"] or ""):
                    break
                await asyncio.sleep(0.05)
        finally:
            may_go.set()
        (check,) = (c for c in health_checks(found) if c.name == "jobs")
        assert (check.status, "do not end" in check.finding, "disk" in check.finding) == (
            WARN,
            True,
            True,
        )
        assert collector.is_alive()


async def test_the_document_has_what_came_since_the_last_row_and_describes_the_fleet(
    start: Any, wire: Any, post: Any, clock: Any, tmp_path: Path
) -> None:
    def node(name: str, version: str) -> bytes:
        agent = {"agent_id": "a", "boot_id": "b", "agent_version": version, "simulated": True}
        return bytes(wire.stream("nodes", [{"node": name, **agent}]))

    ahead = {"node": "n1", "simulated": True, "ts": wire.now + timedelta(seconds=20)}
    bodies = [wire.stream("gpu_samples", [wire.gpu_row(second=s)]) for s in (-90, -80, -10)]
    bodies += [node("n1", "0.1.0"), node("n2", "0.2.0")]
    async with start() as collector:
        for number, body in enumerate(bodies, 1):
            assert (await post(collector.url, body, number, encoding=None))[0] == 204
        await post(collector.url, b"rubbish", 999, encoding=None)
        found = await document(tmp_path)
        sample = found["sample"]
        counts = (sample["batches"], sample["refused_batches"], sample["commit_failures"])
        assert counts == (len(bodies), 1, 0)
        assert sample["ingest_lag_seconds"] == 80.0
        assert found["not_ready"] == {}
        assert all(isinstance(found[name], list) for name in QUESTIONS), found
        body = wire.stream("host_samples", [ahead])
        assert (await post(collector.url, body, 9, encoding=None))[0] == 204
        assert (await document(tmp_path))["clocks"] == [
            {"nodes": 1, "ahead": 1, "ahead_s": 20.0, "example": "n1"}
        ]
        clock.advance(120)
        found = await document(tmp_path)
    assert found["nodes"][0]["nodes"] == found["nodes"][0]["silent"] == 2
    assert sorted(found["nodes"][0]["silent_names"]) == ["n1", "n2"]
    versions = [(row["version"], row["nodes"]) for row in found["versions"]]
    assert versions == [("0.1.0", 1), ("0.2.0", 1)]


def test_pressure_is_that_of_the_last_minute_where_the_kernel_says(tmp_path: Path) -> None:
    path = tmp_path / "cpu"
    assert pressure_percent(path) is None
    path.write_text(
        "some avg10=50.00 avg60=12.34 avg300=0.60 total=1\nfull avg10=0.00 avg60=0.00\n"
    )
    assert pressure_percent(path) == 12.34
    path.write_text("")
    assert pressure_percent(path) is None
