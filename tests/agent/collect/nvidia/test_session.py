"""NVML closed and opened again under handles, calls and threads: the real binding on a library that
ends the process when it is given a pointer of another life.
"""

from pathlib import Path

import pytest
from tests.agent.collect.nvidia.living_library import compiled, play

from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import NvmlError
from gpuwarden_agent.collect.nvidia.session import (
    NO_HANDLE,
    NVML,
    CallTally,
    NvmlSession,
    call,
    hold,
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"), "590", "595")


def test_a_module_that_is_loaded_again_is_opened_again(libraries: Path, tmp_path: Path) -> None:
    scene = """
install("590"); load("590 2")
driver = open_driver()
gpu, other = driver.devices()
gpu.open(), other.open()
say(ask(gpu, "utilization")[0])
module.unlink()
say(code_of(ask, gpu, "utilization")); say(code_of(gpu.open))
say(driver.has_ended()); say(driver.has_ended())
say(reason(driver.renew()))
say(code_of(gpu.open))
load("590 2")
say(reason(driver.renew()))
say(ask(gpu, "utilization")[0]); say(ask(other, "utilization")[0]); say(driver.has_ended())
"""
    assert play(libraries, tmp_path, scene) == [
        97, nvml.UNINITIALIZED, nvml.UNINITIALIZED, True, False,
        nvml.DRIVER_NOT_LOADED, nvml.UNINITIALIZED, None, 97, 97, False,
    ]  # fmt: skip


def test_a_driver_upgraded_under_the_agent_is_the_new_one(libraries: Path, tmp_path: Path) -> None:
    scene = """
install("590"); load("590 1")
driver = open_driver()
(gpu,) = driver.devices()
gpu.open()
say(driver.driver_version())
install("595"); load("595 1")
say(code_of(ask, gpu, "utilization")); say(driver.has_ended())
say(reason(driver.renew())); say(driver.driver_version()); say(ask(gpu, "utilization")[0])
with open("/proc/self/maps") as maps:
    say("(deleted)" in "".join(line for line in maps if "libnvidia-ml" in line))
"""
    assert play(libraries, tmp_path, scene) == [
        "590", nvml.UNINITIALIZED, True, None, "595", 97, False,
    ]  # fmt: skip


def test_a_library_that_is_installed_after_its_module_is_taken_then(
    libraries: Path, tmp_path: Path
) -> None:
    scene = """
say(reason(open_driver()))
install("590"); load("595 1")
say(reason(open_driver())); say(reason(open_driver()))
install("595")
say(open_driver().driver_version())
"""
    expected = [nvml.LIBRARY_NOT_FOUND, *[nvml.LIB_RM_VERSION_MISMATCH] * 2, "595"]
    assert play(libraries, tmp_path, scene) == expected


def test_while_a_call_hangs_nothing_is_closed_and_the_others_go_on(
    libraries: Path, tmp_path: Path
) -> None:
    scene = """
install("590"); load("590 2")
driver = open_driver()
hung, well = driver.devices()
hung.open(), well.open()
hang.touch()
answers = []
thread = threading.Thread(target=lambda: answers.append(code_of(ask, hung, "utilization")))
thread.start()
while not NVML._inside:
    time.sleep(0.001)
say(reason(driver.renew())); say(ask(well, "utilization")[0])
hang.unlink()
thread.join()
say(answers[0][0])
say(reason(driver.renew())); say(ask(hung, "utilization")[0])
"""
    assert play(libraries, tmp_path, scene) == [nvml.IN_USE, 97, 97, None, 97]


def test_threads_never_use_a_handle_of_an_earlier_session(libraries: Path, tmp_path: Path) -> None:
    scene = """
install("590"); load("590 4")
driver = open_driver()
devices = driver.devices()
done, codes = threading.Event(), set()

def read(device):
    device.open()
    while not done.is_set():
        answer = code_of(ask, device, "utilization")
        codes.add(answer if isinstance(answer, int) else "answer")

threads = [threading.Thread(target=read, args=(device,)) for device in devices]
for thread in threads:
    thread.start()
for number in range(30):
    version = "595" if number % 2 else "590"
    install(version); load(f"{version} 4")
    say(reason(driver.renew()))
    time.sleep(0.005)
done.set()
for thread in threads:
    thread.join()
say("answer" in codes); say(sorted(codes - {"answer", nvml.UNINITIALIZED}))
"""
    assert play(libraries, tmp_path, scene) == [*[None] * 30, True, []]


def test_what_the_driver_made_in_an_earlier_life_is_refused(
    libraries: Path, tmp_path: Path
) -> None:
    scene = """
from gpuwarden_agent.collect.nvidia.session import call
install("590"); load("590 1")
driver = open_driver()
(gpu,) = driver.devices()
gpu.open()
with gpu.lock:
    source = driver.events_of(gpu)
handle = gpu.handle
say(list(source.drain()))
driver.renew()
say(code_of(call, "nvmlDeviceGetUtilizationRates", handle))
say(code_of(source.drain)); say(source.close())
"""
    expected = [[], nvml.UNINITIALIZED, nvml.UNINITIALIZED, None]
    assert play(libraries, tmp_path, scene) == expected


@pytest.mark.parametrize(
    ("codes", "has_ended"),
    [
        ([], False),
        ([nvml.SUCCESS] * 9, False),
        ([nvml.SUCCESS] * 400 + [nvml.GPU_IS_LOST] * 6, False),
        ([nvml.GPU_IS_LOST, nvml.SUCCESS, nvml.SUCCESS], True),
        ([nvml.UNKNOWN] * 3, True),
        ([nvml.NOT_SUPPORTED, nvml.TIMEOUT, nvml.INVALID_ARGUMENT], False),
        ([nvml.SUCCESS] * 400 + [nvml.UNINITIALIZED], True),
        ([nvml.SUCCESS] * 400 + [nvml.LIB_RM_VERSION_MISMATCH], True),
    ],
)
def test_the_driver_has_ended_when_nobody_reaches_a_gpu(codes: list[int], has_ended: bool) -> None:
    life = NvmlSession()
    for code in codes:
        life.note(code)
    assert life.take_tally().has_ended == has_ended
    assert life.take_tally() == CallTally()


def test_a_call_that_fails_has_left() -> None:
    inside = NVML._inside
    with pytest.raises(NvmlError, match="nvmlNoSuchCall: FUNCTION_NOT_FOUND"):
        call("nvmlNoSuchCall")
    assert NVML._inside == inside


def test_a_handle_of_an_earlier_session_is_refused_before_any_call() -> None:
    for arguments, of in (((NO_HANDLE,), None), ((1, NO_HANDLE), None), ((), NO_HANDLE)):
        with pytest.raises(NvmlError, match="nvmlNoSuchCall: UNINITIALIZED"):
            call("nvmlNoSuchCall", *arguments, of=of)


def test_without_a_library_nothing_is_held() -> None:
    with pytest.raises(NvmlError, match="nvmlEventSetCreate: UNINITIALIZED"):
        hold("nvmlEventSetCreate")
