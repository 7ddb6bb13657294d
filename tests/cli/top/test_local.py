"""This host without a collector: simulated probes through the real runners, and what they cannot tell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.models import model_named
from gpuwarden_agent.probe import Probe, ProbeError
from gpuwarden_cli.top.local import LocalSource, page_of
from gpuwarden_cli.top.request import (
    GpuAnswer,
    GpuRequest,
    RowsAnswer,
    RowsRequest,
    TopView,
)
from gpuwarden_simulator import SimulatedNode


@asynccontextmanager
async def running(*probes: Probe) -> AsyncIterator[LocalSource]:
    source = LocalSource(probes, "n1", "n1 (this host)", SystemClock(), every_s=0.1)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(source.run())
        yield source
        task.cancel()


async def rows_of(source: LocalSource, view: TopView, least: int = 1, **more: object) -> RowsAnswer:
    """Rows, as soon as there are some."""
    async with asyncio.timeout(10):
        while True:
            found = await source.ask(RowsRequest(view, **more))
            assert isinstance(found, RowsAnswer)
            if len(found.rows) >= least:
                return found
            await asyncio.sleep(0.05)


def simulated(gpus: int) -> SimulatedNode:
    return SimulatedNode("n1", gpus, model_named("H100-SXM"), 1)


async def test_gpus_processes_and_the_node_are_read_with_prices() -> None:
    async with running(simulated(4)) as source:
        gpus = await rows_of(source, TopView.GPUS, 4)
        while any(row["state"] == "not reporting" for row in gpus.rows):
            gpus = await rows_of(source, TopView.GPUS, 4)
        assert [row["place"] for row in gpus.rows] == ["n1/0", "n1/1", "n1/2", "n1/3"]
        assert {row["usd_per_hour"] for row in gpus.rows} == {2.95}
        assert gpus.totals["gpus"] == gpus.totals["reporting"] == 4
        assert gpus.totals["simulated"] is True
        assert gpus.totals.get("alerts") is None
        (node,) = (await rows_of(source, TopView.NODES)).rows
        assert (node["node"], node["gpus"], node["state"]) == ("n1", 4, "reports")
        assert node["usd_per_hour"] == pytest.approx(4 * 2.95)
        processes = await rows_of(source, TopView.PROCESSES)
        assert processes.rows[0]["username"] is not None
        job = (await rows_of(source, TopView.JOBS)).rows[0]
        held = await rows_of(source, TopView.GPUS, job=job["job"])
        assert held.count == job["gpus"] <= 4
        one = await source.ask(GpuRequest(gpus.rows[0]["gpu_uuid"], 30, 1800))
        assert isinstance(one, GpuAnswer)
        assert one.row["place"] == "n1/0"
        assert one.series["util_percent"][-1] is not None
        assert one.series["util_percent"][0] is None, "it was not read then"


class Broken:
    """A probe that gives nothing."""

    name, tables, simulated, blocking, gpu_uuid = "gpu0", {"gpu_samples": 1}, True, True, "GPU-0"

    def describe(self):
        return {"gpus": [{"gpu_uuid": "GPU-0", "gpu": 0, "model": "NVIDIA H100"}]}

    def read(self, ts_ms, due=None):
        raise ProbeError("GPU 0 does not answer")

    def close(self):
        pass


async def test_a_probe_that_fails_leaves_the_others_and_its_readings_absent() -> None:
    async with running(Broken(), simulated(2)) as source:
        async with asyncio.timeout(10):
            while (await rows_of(source, TopView.GPUS)).totals["reporting"] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert {row["gpu_uuid"] for row in (await rows_of(source, TopView.GPUS)).rows}.isdisjoint(
            {"GPU-0"}
        )


def test_a_page_is_searched_sorted_with_what_is_absent_last_and_cut() -> None:
    rows = [{"name": "b", "v": 1}, {"name": "a", "v": None}, {"name": "Ab", "v": 3}]
    asked = RowsRequest(TopView.GPUS, sort="v", is_descending=True)
    assert [row["name"] for row in page_of(rows, asked)[0]] == ["Ab", "b", "a"]
    assert [r["name"] for r in page_of(rows, RowsRequest(TopView.GPUS, sort="v"))[0]] == [
        "b",
        "Ab",
        "a",
    ]
    found, count = page_of(rows, RowsRequest(TopView.GPUS, text="A", limit=1, offset=1))
    assert ([row["name"] for row in found], count) == (["Ab"], 2)
