"""Devices that come later are found; a look that fails or hangs costs nothing else."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tests.agent.fakes import fake_probe

from gpuwarden_agent.probe import Probe
from gpuwarden_agent.sampling.rediscovery import keep_rediscovering


async def test_what_a_look_finds_is_handed_on() -> None:
    stop, taken = asyncio.Event(), []
    finds: list[Sequence[Probe]] = [[], [fake_probe("gpu1")], [fake_probe("gpu2"), fake_probe("x")]]

    def take_in(probe: Probe) -> None:
        taken.append(probe.name)
        if len(taken) == 3:
            stop.set()

    async with asyncio.timeout(10):
        await keep_rediscovering(stop, lambda: finds.pop(0), take_in, every_s=0.001)
    assert taken == ["gpu1", "gpu2", "x"]


async def test_a_look_that_fails_is_logged_once_for_each_reason_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, tries = asyncio.Event(), iter(range(100))

    def look() -> Sequence[Probe]:
        number = next(tries)
        if number == 6:
            stop.set()
        if number < 5:
            raise OSError("first" if number < 3 else "second")
        return []

    async with asyncio.timeout(10):
        await keep_rediscovering(stop, look, lambda _: None, every_s=0.001)
    assert len(caplog.records) == 2


async def test_a_look_that_hangs_does_not_keep_the_agent_from_stopping() -> None:
    stop, go_on = asyncio.Event(), threading.Event()
    began = threading.Event()

    def look() -> Sequence[Probe]:
        began.set()
        go_on.wait(30)
        return []

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        looking = group.create_task(keep_rediscovering(stop, look, lambda _: None, every_s=0.001))
        await asyncio.to_thread(began.wait, 10)
        stop.set()
        await looking
    go_on.set()
