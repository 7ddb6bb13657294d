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
