"""The real application under Textual's pilot: keys, 10,000 rows, a collector that goes away, hostile names, no colour."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.cli.top.fake_source import FakeSource, unreachable
from textual.pilot import Pilot
from textual.worker import WorkerFailed

from gpuwarden.clock import SystemClock
from gpuwarden_cli.top.app import TopApp
from gpuwarden_cli.top.model import State
from gpuwarden_cli.top.request import RowsRequest, TopView


@asynccontextmanager
async def shown(
    source: FakeSource, size: tuple[int, int] = (80, 24), every_s: float = 0.05
) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    app = TopApp(source, State(source.name, every_s=every_s), SystemClock())
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.state.shown is not None or app.state.problem is not None)
        yield app, pilot


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110  of the application there is nothing to wait for
            await asyncio.sleep(0.01)


async def test_nodes_then_gpus_then_one_gpu_and_back() -> None:
    source = FakeSource()
    async with shown(source) as (app, pilot):
        text = app.lines.text
        assert "10,000 GPUs, 1,250 nodes: 200 silent, 8,000 busy, 1,000 idle, 10 throttled" in text
        assert (
            "util 62 %  5.12 MW  $29,500/h, $2,950 wasted  63 alerts (32 critical)  simulated"
            in text
        )
        assert "> gpu-00000" in text
        await pilot.press("down", "enter")
        await until(lambda: app.state.rows is not None and app.state.rows.count == 8)
        assert "of gpu-00001" in app.lines.text
        await pilot.press("enter")
        await until(lambda: app.state.gpu is not None)
        for said in (
            "utilization",
            "⣿⣿⣿",
            "python train.py",
            " 16.0 ",
            "critical",
            "gpu_hung for 1m, $3.00",
        ):
            assert said in app.lines.text, said
        await pilot.press("escape", "escape")
        await until(lambda: app.state.rows is not None and app.state.rows.count == 1_250)
        assert app.state.page.at == 1
        await pilot.press("q")
    assert source.ran
    assert app.return_code in (0, None)


async def test_ten_thousand_rows_are_never_asked_for_at_once() -> None:
    source = FakeSource()
    async with shown(source, size=(200, 60)) as (app, pilot):
        await pilot.press("2", "end")
        await until(lambda: app.state.row_at(9_999) is not None)
        assert "gpu-01249/7" in app.lines.text
        assert "9,947-10,000 of 10,000" in app.lines.text
        await pilot.resize_terminal(80, 24)
        await until(lambda: app.size.height == 24 and app.state.height == 24)
    limits = {request.limit for request in source.asked if isinstance(request, RowsRequest)}
    assert max(limits) == 54


async def test_a_collector_that_is_started_again_is_found_again() -> None:
    source = FakeSource(16)
    async with shown(source) as (app, _pilot):
        source.problem = unreachable()
        await until(lambda: app.state.problem is not None)
        assert "trying again: no collector answers" in app.lines.text
        assert "gpu-00001" in app.lines.text, "what was known stays"
        source.problem = None
        await until(lambda: app.state.problem is None)
        assert "trying again" not in app.lines.text


async def test_a_bug_ends_it_with_the_error_and_not_with_a_silent_screen() -> None:
    source = FakeSource(16)
    with pytest.raises(WorkerFailed, match="a bug"):
        async with shown(source) as (app, _pilot):
            source.problem = ZeroDivisionError("a bug")
            await until(lambda: app.return_code not in (0, None))


async def test_names_of_anybody_cannot_leave_their_cells() -> None:
    hostile = "a\x1b[31m\u202eb\r\n\u200bжे漢字" * 3
    source = FakeSource(
        16, lambda row: {**row, "username": hostile, "place": hostile, "util_percent": None}
    )
    async with shown(source) as (app, pilot):
        await pilot.press("2")
        await until(lambda: app.state.page.view is TopView.GPUS and app.state.rows is not None)
        for line in app.lines.text.split("\n"):
            assert line.isprintable()
        assert "�" in app.lines.text
        assert " – " in app.lines.text


async def test_search_why_and_help_are_over_the_rows() -> None:
    source = FakeSource(100)
    async with shown(source) as (app, pilot):
        await pilot.press("2", "slash", *"00011")
        await until(lambda: app.state.rows is not None and app.state.rows.count == 8)
        assert "search: 00011_" in app.lines.text
        await pilot.press("enter", "w")
        await until(lambda: app.state.overlay is not None and app.state.overlay.lines is not None)
        assert "GPU-88: LOADER_WORKERS" in app.lines.text
        await pilot.press("x", "question_mark")
        assert "sort by the column before or behind" in app.lines.text


async def test_every_line_has_the_width_of_the_screen_when_it_is_drawn() -> None:
    async with shown(FakeSource(100), size=(61, 17)) as (app, _pilot):
        for y in range(17):
            assert app.lines.render_line(y).cell_length == 61
