"""NVML's events through the real binding: what is asked for, and what is taken."""

from pathlib import Path

import pytest
from tests.agent.collect.nvidia.living_library import compiled, play

from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.event_source import ASKED_FOR, EVENTS_MAX

SCENE = """
install("590"); load("590 2")
driver = open_driver()
gpu, other = driver.devices()
gpu.open(), other.open()

def register(device):
    with device.lock:
        return driver.events_of(device)

def drained(source):
    return [[e.type, e.data, e.gpu_instance] for e in source.drain()]
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"), "590")


def test_events_come_in_order_each_with_its_own_data(libraries: Path, tmp_path: Path) -> None:
    scene = f"""{SCENE}
source = register(gpu)
say(drained(source))
tell("0 8 79 -1", "1 8 31 -1", "0 0x4000 0 -1", "0 8 13 5")
say(drained(source)); say(drained(source))
source.close()
"""
    assert play(libraries, tmp_path, scene) == [
        [], [[8, 79, None], [0x4000, 0, None], [8, 13, 5]], [],
    ]  # fmt: skip


def test_of_what_the_gpu_supports_clocks_are_not_asked_for(libraries: Path, tmp_path: Path) -> None:
    """The library refuses to register what the GPU does not support, or P-states and clocks."""
    assert not ASKED_FOR & 0x14
    scene = f"{SCENE}\nsay(register(gpu) is not None); say(register(other))"
    assert play(libraries, tmp_path, scene) == [True, None]


def test_a_storm_is_taken_in_portions(libraries: Path, tmp_path: Path) -> None:
    scene = f"""{SCENE}
source = register(gpu)
tell(*["0 8 13 -1"] * {EVENTS_MAX + 7})
say(len(drained(source))); say(len(drained(source)))
"""
    assert play(libraries, tmp_path, scene) == [EVENTS_MAX, 7]


def test_what_came_before_an_error_is_not_lost(libraries: Path, tmp_path: Path) -> None:
    scene = f"""{SCENE}
source = register(gpu)
tell("0 8 79 -1", "0 0 {nvml.GPU_IS_LOST} -1", "0 0 {nvml.GPU_IS_LOST} -1")
say(drained(source)); say(code_of(source.drain))
"""
    assert play(libraries, tmp_path, scene) == [[[8, 79, None]], nvml.GPU_IS_LOST]
