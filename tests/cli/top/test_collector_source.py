"""Results of top's queries over planted rows, in a DuckDB and, under the application, of a real collector over HTTP."""

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.cli.top.test_app import until

from gpuwarden.clock import SystemClock, to_ms
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_agent.queue.encode import encode
from gpuwarden_cli.top.app import TopApp
from gpuwarden_cli.top.collector import CollectorSource
from gpuwarden_cli.top.columns import COLUMNS
from gpuwarden_cli.top.model import State
from gpuwarden_cli.top.request import (
    GpuAnswer,
    GpuRequest,
    NodeAnswer,
    NodeRequest,
    RowsAnswer,
    RowsRequest,
    SourceError,
    TopView,
    WhyRequest,
)
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_rules.testing import MemoryDatabase

NOW = datetime.now(UTC)
pytestmark = pytest.mark.usefixtures("fresh_now")


async def rows_of(database: MemoryDatabase, view: TopView, **more: Any) -> RowsAnswer:
    found = await CollectorSource("http://unused", database).ask(RowsRequest(view, **more))
    assert isinstance(found, RowsAnswer)
    return found


async def test_totals_say_where_the_rules_have_not_judged(fleet) -> None:
    said: list[str | None] = ["Not judged yet.", None]

    async def unjudged() -> str | None:
        return said.pop(0)

    source = CollectorSource(None, fleet, unjudged)
    for _ in range(2):  # the second within the time for which the first is good
        answer = await source.ask(RowsRequest(TopView.ALERTS, 0, 10))
        assert isinstance(answer, RowsAnswer)
        assert answer.totals["unjudged"] == "Not judged yet."
    assert said == [None]


async def test_totals_come_with_every_view_also_with_one_that_has_no_rows(
    fleet: MemoryDatabase,
) -> None:
    for view in TopView:
        totals = (await rows_of(fleet, view, text="nobody is called so")).totals
        assert (totals["gpus"], totals["reporting"], totals["nodes"]) == (6, 4, 3)
        assert (totals["busy"], totals["idle"], totals["unknown"]) == (2, 1, 1)
        assert (totals["alerts"], totals["critical"]) == (2, 1)
        assert totals["usd_per_hour"] == 18.0
        assert totals["power_watts"] == 1200.0


async def test_nodes_in_trouble_come_first_and_absent_is_absent(fleet: MemoryDatabase) -> None:
    nodes = await rows_of(fleet, TopView.NODES)
    assert [row["node"] for row in nodes.rows] == ["n2", "n0", "n1"]
    silent, n0, n1 = nodes.rows
    assert (silent["state"], silent["util_percent"], silent["power_watts"]) == (
        "silent",
        None,
        None,
    )
    assert (n0["gpus"], n0["idle"], n0["util_percent"], n0["usd_wasted"]) == (2, 1, 45.0, 3.0)
    assert (n1["util_percent"], n1["alerts"], n1["level"]) == (70.0, 1, 2)
    assert n1["labels"] == "rack=r7"


async def test_gpus_have_owner_job_and_alert(fleet: MemoryDatabase) -> None:
    gpus = await rows_of(fleet, TopView.GPUS, node="n1")
    first, second = gpus.rows
    assert (first["username"], first["job"], first["alert"], first["state"]) == (
        "bob",
        "77",
        "gpu_hung",
        "busy",
    )
    assert (second["util_percent"], second["state"], second.get("username")) == (
        None,
        "unknown",
        None,
    )
    assert [r["place"] for r in (await rows_of(fleet, TopView.GPUS, job="77")).rows] == [
        "n0/0",
        "n1/0",
    ]
    assert (await rows_of(fleet, TopView.GPUS, text="BOB")).count == 2


async def test_processes_and_jobs_are_those_of_now(fleet: MemoryDatabase) -> None:
    processes = await rows_of(fleet, TopView.PROCESSES)
    assert [(row["pid"], row["cpu_percent"]) for row in processes.rows] == [(5, 2.0), (6, 2.0)]
    (job,) = (await rows_of(fleet, TopView.JOBS)).rows
    assert (job["job"], job["gpus"], job["nodes"], job["util_percent"]) == ("77", 2, 2, 80.0)
    assert job["where"] == "n0 n1"


async def test_columns_sort_up_and_down_with_what_is_absent_last(fleet: MemoryDatabase) -> None:
    for view in TopView:
        whole = (await rows_of(fleet, view)).count
        for at, column in enumerate(COLUMNS[view]):
            is_descending = at % 2 == 0
            found = await rows_of(fleet, view, sort=column.key, is_descending=is_descending)
            values = [row[column.key] for row in found.rows]
            known = [value for value in values if value is not None]
            assert len(values) == whole
            assert values[: len(known)] == sorted(known, reverse=is_descending), column.key


async def test_a_page_is_rows_from_its_offset_on(fleet: MemoryDatabase) -> None:
    page = await rows_of(fleet, TopView.GPUS, offset=4, limit=3)
    assert ([row["place"] for row in page.rows], page.count) == (["n2/0", "n2/1"], 6)


async def test_a_refusal_and_an_absent_collector_are_told_apart(answering: Any) -> None:
    answering(401, {"error": "this needs a token", "status": 401})
    for url, said, is_refusal in (
        (os.environ["GPUWARDEN_URL"], "needs a token", True),
        ("http://127.0.0.1:9", "no collector answers", False),
    ):
        with pytest.raises(SourceError, match=said) as error:
            await CollectorSource(url).ask(RowsRequest(TopView.GPUS))
        assert error.value.is_refusal is is_refusal


async def test_a_gpu_has_history_processes_and_alerts(fleet: MemoryDatabase) -> None:
    source = CollectorSource("http://unused", fleet)
    one = await source.ask(GpuRequest("GPU-n1-0", 30))
    assert isinstance(one, GpuAnswer)
    assert (one.row["place"], one.row["username"]) == ("n1/0", "bob")
    util = one.series["util_percent"]
    assert (len(util), util[-1], util[19], util[0]) == (30, 70.0, 70.0, None)
    assert [row["pid"] for row in one.processes] == [6]
    assert [row["rule"] for row in one.alerts] == ["gpu_hung"]
    assert (await source.ask(GpuRequest("gone", 30))).row is None


async def test_a_node_has_graphs_of_its_host_and_gpus_and_no_rate_without_two_readings(
    fleet: MemoryDatabase,
) -> None:
    now = datetime.now(UTC)
    host = {"node": "n0", "simulated": False, "memory_used_bytes": 1, "memory_total_bytes": 4}
    fleet.insert(
        "host_samples",
        [
            {**host, "ts": now - timedelta(seconds=5), "cpu_util_percent": 30.0, "disk_read_bytes_total": 1_000,
             "disk_write_bytes_total": 500, "network_rx_bytes_total": 900, "psi_io_some_percent": 7.0,
             "psi_cpu_some_percent": 3.0},
            {**host, "ts": now - timedelta(seconds=3), "cpu_util_percent": 50.0, "disk_read_bytes_total": 3_000,
             "disk_write_bytes_total": 700, "network_rx_bytes_total": 100},
        ],
    )  # fmt: skip
    source = CollectorSource("http://unused", fleet)
    node = await source.ask(NodeRequest("n0", "util_percent", 60, 60))
    assert isinstance(node, NodeAnswer)
    assert [row["place"] for row in node.gpus] == ["n0/0", "n0/1"]
    read = {
        name: [value for value in values if value is not None] for name, values in node.host.items()
    }
    assert read == {
        "cpu_percent": [30.0, 50.0], "memory_percent": [25.0, 25.0], "disk_bytes_per_s": [1_100.0],
        "network_bytes_per_s": [], "pressure_percent": [7.0],
    }  # fmt: skip
    assert [v for v in node.series["GPU-n0-0"] if v is not None] == [90.0, 90.0]
    assert set(node.series) == {"GPU-n0-0", "GPU-n0-1"}
    assert [row["pid"] for row in node.processes] == [5]
    long = await source.ask(NodeRequest("n0", "power_watts", 60, 1800))
    assert isinstance(long, NodeAnswer)
    assert [v for v in long.series["GPU-n0-0"] if v is not None] == [300.0, 300.0]
    unknown = await source.ask(NodeRequest("gone", "util_percent", 60, 60))
    assert isinstance(unknown, NodeAnswer)
    assert (unknown.gpus, unknown.processes, any(any(v) for v in unknown.host.values())) == ([], [], False)  # fmt: skip


async def test_why_of_an_unknown_name_is_said_and_no_error(fleet: MemoryDatabase) -> None:
    answer = await CollectorSource("http://unused", fleet).ask(WhyRequest("n9"))
    assert "no GPU, node or running job is called 'n9'" in answer.lines[0]
    told = await CollectorSource("http://unused", fleet).ask(WhyRequest("n0"))
    assert any(line == "n0/1: UNKNOWN" for line in told.lines), told.lines


async def test_the_application_shows_a_real_collector_and_finds_it_again(tmp_path: Path) -> None:
    settings = CollectorSettings(port=0, data_dir=tmp_path / "store")
    stop, listening = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with running(settings, SystemClock()) as collector:
            listening.set_result(collector.url)
            await stop.wait()

    async with asyncio.TaskGroup() as group:
        lived = group.create_task(live())
        url = await listening
        await asyncio.to_thread(_send, url)
        app = TopApp(CollectorSource(url), State(url, every_s=0.2), SystemClock())
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda: app.state.rows is not None and app.state.rows.count == 1)
            assert "2 GPUs, 1 node" in app.lines.text
            await pilot.press("enter")
            await until(lambda: app.state.rows is not None and app.state.rows.count == 2)
            assert "n1/1" in app.lines.text
            await pilot.press("enter")
            await until(lambda: app.state.gpu is not None)
            assert "utilization" in app.lines.text
            await pilot.press("escape")
            await until(lambda: app.state.rows is not None and app.state.rows.count == 2)
            await pilot.press("w")
            await until(
                lambda: app.state.overlay is not None and app.state.overlay.lines is not None
            )
            await pilot.press("x")
            port = int(url.rpartition(":")[2])
            stop.set()
            await until(lambda: app.state.problem is not None)
            await lived
            await until(lambda: "trying again: no collector answers" in app.lines.text)
            async with running(replace(settings, port=port), SystemClock()):
                await until(lambda: app.state.problem is None)
                assert "trying again" not in app.lines.text


def _send(url: str) -> None:
    ts = to_ms(NOW)
    shared = {"node": "n1", "simulated": True}
    nodes = [{**shared, "agent_id": "a", "boot_id": "b"}]
    gpus = [{**shared, "gpu": n, "gpu_uuid": f"GPU-{n}", "model": "NVIDIA H100"} for n in range(2)]
    samples = [
        {**shared, "ts": ts - 1000 * s, "gpu": n, "gpu_uuid": f"GPU-{n}", "util_percent": 50.0}
        for n in range(2)
        for s in range(10)
    ]
    body = encode({"nodes": nodes, "gpus": gpus, "gpu_samples": samples})
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Content-Encoding": "zstd",
        **headers_of(BatchId("a", "boot", 1, 1)),
    }
    with urlopen(Request(url + INGEST_PATH, body, headers)) as answer:
        assert answer.status == 204
