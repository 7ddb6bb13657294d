"""Drivers and GPUs that come, go and come back while the agent runs."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.amd.boards import RX6700XT, plant
from tests.agent.collect.nvidia.fake_driver import Fails, FakeDevice
from tests.agent.collect.nvidia.fake_nvidia import FakeDriver

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.discovery import Discovery, discover
from gpuwarden_agent.collect.nvidia import discovery as nvidia
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.discovery import (
    RETRY_S,
    RETRY_S_MAX,
    TRIES_FOR_NEW,
    RediscoveryState,
    Signs,
    decide,
    read_signs,
)
from gpuwarden_agent.collect.nvidia.nvml import Driver, NvmlUnavailable
from gpuwarden_agent.probe import Probe, ProbeError, Row
from gpuwarden_agent.sampling.rediscovery import LOOK_EVERY_S

NO_LIBRARY = NvmlUnavailable("not found", nvml.LIBRARY_NOT_FOUND)
NOT_LOADED = NvmlUnavailable("the module is not loaded", nvml.DRIVER_NOT_LOADED)
MISMATCH = NvmlUnavailable("library and module differ", nvml.LIB_RM_VERSION_MISMATCH)
A, B, C = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
NOTHING = Signs(None)


class Host:
    """A host whose driver a test loads, unloads and changes, and the agent's looks at it."""

    def __init__(self, clock: ManualClock, tmp_path: Path) -> None:
        self.clock = clock
        self.signs = NOTHING
        self.answer: Driver | NvmlUnavailable = NO_LIBRARY
        self.opened = 0
        self.sys = tmp_path / "sys"
        self.folder = tmp_path
        self.found: Discovery | None = None
        self.probes: list[Probe] = []

    def open(self) -> Driver | NvmlUnavailable:
        self.opened += 1
        return self.answer

    def start(self, backend: str = "auto") -> list[str]:
        kmsg = self.folder / "kmsg"
        kmsg.touch()
        self.found = discover(
            backend, self.clock, self.open, node="n", sys=self.sys, signs=lambda: self.signs
        )
        module = self.folder / "module"
        if self.signs.module:
            module.touch()
        self.probes = self.found.all_probes(self.folder, self.clock, module, kmsg)
        return [probe.name for probe in self.probes]

    def look(self, times: int = 1) -> list[str]:
        """Names of what looks find, as far apart as the daemon's."""
        assert self.found
        names: list[str] = []
        for _ in range(times):
            self.clock.advance(LOOK_EVERY_S)
            new = self.found.rediscover()
            self.probes += new
            names += [probe.name for probe in new]
        return names

    def probe(self, name: str) -> Probe:
        (found,) = [probe for probe in self.probes if probe.name == name]
        return found

    def read(self, name: str) -> Sequence[Row]:
        """Rows of the probe's first table."""
        probe = self.probe(name)
        return probe.read(0, [next(iter(probe.tables))])[next(iter(probe.tables))]

    def load(self, driver: FakeDriver, *bus_ids: str, version: str = "590") -> None:
        self.signs, self.answer = Signs(version, frozenset(bus_ids)), driver


@pytest.fixture
def host(clock: ManualClock, tmp_path: Path) -> Host:
    return Host(clock, tmp_path)


def gpu(index: int, name: str | None = None, **answers: Any) -> FakeDevice:
    device = FakeDevice(index=index, uuid=f"GPU-{name or index}")
    device.answers |= answers
    return device


def trouble_of(host: Host) -> str:
    with pytest.raises(ProbeError) as raised:
        host.read("nvml")
    return raised.value.kind


def test_where_there_is_no_driver_nothing_is_opened_ever(host: Host) -> None:
    assert host.start() == ["host"]
    assert host.look(times=100) == []
    assert host.opened == 1


def test_a_driver_that_is_loaded_later_brings_its_gpus(host: Host) -> None:
    host.start()
    host.load(FakeDriver(gpu(0), gpu(1)), A, B)
    assert host.look() == ["gpu0", "gpu1", "processes", "nvml", "kmsg"]
    assert host.look(times=30) == []
    assert host.read("gpu1")[0]["gpu_uuid"] == "GPU-1"
    assert host.read("processes") == []
    (row,) = host.read("nvml")
    assert row["message"] == "NVIDIA driver 590.48.01 was opened with 2 GPUs"
    (facts,) = host.probe("nvml").describe()["nodes"]
    assert facts == {"gpus": 2, "driver_version": "590.48.01", "cuda_version": "13.1"}


def test_a_driver_that_cannot_be_used_is_told_and_tried_again_more_and_more_rarely(
    host: Host,
) -> None:
    host.load(FakeDriver(), A)
    host.answer = MISMATCH
    assert host.start() == ["host", "nvml", "kmsg"]
    assert trouble_of(host) == "driver_mismatch"
    opened = host.opened
    host.look(times=100)
    assert opened + 5 <= host.opened <= opened + 10
    host.answer = FakeDriver(gpu(0))
    assert host.look(times=int(RETRY_S_MAX / LOOK_EVERY_S) + 1) == ["gpu0", "processes"]
    assert host.read("nvml")[0]["kind"] == "driver_opened"
    assert host.read("nvml") == []


def test_a_new_module_is_opened_at_once_whatever_failed_before(host: Host) -> None:
    host.load(FakeDriver(), A)
    host.answer = MISMATCH
    host.start()
    host.look(times=100)
    host.load(FakeDriver(gpu(0)), A, version="595")
    assert host.look() == ["gpu0", "processes"]


def test_a_driver_reload_is_survived_by_the_same_probes(host: Host) -> None:
    devices = [gpu(0), gpu(1)]
    driver = FakeDriver(*devices)
    host.load(driver, A, B)
    host.start()
    for name in ("gpu0", "gpu1"):
        host.read(name)
    for device in devices:
        device.answers["open"] = device.answers["field_values"] = Fails(nvml.UNINITIALIZED)
        device.answers["is_mig_enabled"] = Fails(nvml.UNINITIALIZED)
    driver.has_ended_now, host.signs = True, NOTHING
    with pytest.raises(ProbeError) as raised:
        host.read("gpu0")
    assert raised.value.kind == "driver_not_loaded"
    assert host.look(times=5) == []
    assert driver.renewals == 0, "there is nothing to open"
    for device in devices:
        device.answers["open"] = None
        del device.answers["field_values"]
        device.answers["is_mig_enabled"] = False
    driver.version, driver.listed = "595.10", [gpu(0), gpu(1)]
    host.load(driver, A, B, version="595")
    assert host.look() == []
    assert driver.renewals == 1
    assert host.read("gpu0")[0]["gpu_uuid"] == "GPU-0"
    (row,) = host.read("nvml")
    assert row["message"] == (
        "NVIDIA driver 595.10 instead of 590.48.01 was opened again with 2 GPUs"
    )
    assert host.look(times=30) == []
    assert driver.renewals == 1


def test_a_driver_that_does_not_come_back_is_one_trouble_until_it_does(host: Host) -> None:
    driver = FakeDriver(gpu(0))
    host.load(driver, A)
    host.start()
    driver.has_ended_now, driver.unavailable = True, NOT_LOADED
    host.look(times=3)
    assert trouble_of(host) == "driver_not_loaded"
    driver.unavailable = None
    host.look(times=int(RETRY_S_MAX / LOOK_EVERY_S) + 1)
    assert [row["kind"] for row in host.read("nvml")] == ["driver_opened"]


def test_a_call_that_hangs_while_the_driver_must_be_opened_says_what_to_do(host: Host) -> None:
    driver = FakeDriver(gpu(0))
    host.load(driver, A)
    host.start()
    driver.has_ended_now = True
    driver.unavailable = NvmlUnavailable("a call of it has not returned", nvml.IN_USE)
    host.look(times=2)
    with pytest.raises(ProbeError, match="cannot be opened again: a call of it has not returned"):
        host.read("nvml")


def test_a_gpu_that_is_plugged_in_gets_a_probe_and_the_others_keep_theirs(host: Host) -> None:
    first, second = gpu(0, "one"), gpu(1, "two")
    driver = FakeDriver(first, second)
    host.load(driver, A, C)
    host.start()
    host.read("gpu0"), host.read("gpu1")
    # The new one comes between them on the bus, and shifts what is behind it.
    driver.listed = [gpu(0, "one"), gpu(1, "new"), gpu(2, "two")]
    host.load(driver, A, B, C)
    assert host.look() == ["gpu2"]
    row = host.read("gpu2")[0]
    assert (row["gpu"], row["gpu_uuid"]) == (2, "GPU-new")
    assert host.read("gpu1")[0]["gpu_uuid"] == "GPU-two"
    assert host.read("processes") == []
    new = host.found.nvidia._state.devices[-1]  # type: ignore[union-attr]
    assert new.calls["compute_processes_v3"] == 1  # type: ignore[attr-defined]


def test_a_gpu_that_the_driver_lists_late_is_looked_for_a_few_times(host: Host) -> None:
    driver = FakeDriver(gpu(0))
    host.load(driver, A)
    host.start()
    host.read("gpu0")
    host.load(driver, A, B)
    assert host.look() == []
    driver.listed = [gpu(0), gpu(1)]
    assert host.look(times=5) == ["gpu1"]
    driver.renewals = 0
    host.load(driver, A, B, C)
    host.look(times=100)
    assert driver.renewals == TRIES_FOR_NEW, "one that is not ours to use never comes"


def test_a_gpu_that_vanishes_and_comes_back_is_the_same_one(host: Host) -> None:
    left, right = gpu(0, "left"), gpu(1, "right")
    driver = FakeDriver(left, right)
    host.load(driver, A, B)
    host.start()
    host.read("gpu0"), host.read("gpu1")
    right.answers["open"] = right.answers["is_mig_enabled"] = Fails(nvml.GPU_IS_LOST)
    right.answers["field_values"] = Fails(nvml.GPU_IS_LOST)
    driver.listed = [gpu(0, "left")]
    host.signs = Signs("590", frozenset({A}))
    with pytest.raises(ProbeError) as raised:
        host.read("gpu1")
    assert raised.value.kind == "gpu_lost"
    assert host.look(times=3) == []
    assert driver.renewals == 0, "the others are left in peace"
    assert host.read("gpu0")
    right.answers["open"], right.answers["is_mig_enabled"] = None, False
    del right.answers["field_values"]
    driver.listed = [gpu(0, "left"), gpu(1, "right")]
    host.signs = Signs("590", frozenset({A, B}))
    assert host.look(times=30) == []
    assert host.read("gpu1")[0]["gpu_uuid"] == "GPU-right"


def test_a_gpu_that_was_dead_at_the_start_is_not_found_twice(host: Host) -> None:
    dead = gpu(1, open=Fails(nvml.GPU_IS_LOST))
    driver = FakeDriver(gpu(0), dead)
    host.load(driver, A, B)
    host.start()
    host.read("gpu0")
    driver.listed = [gpu(0), gpu(1)]
    host.load(driver, A, B, version="595")
    assert host.look() == []
    dead.answers["open"] = None
    assert host.read("gpu1")[0]["gpu_uuid"] == "GPU-1"


def test_indices_of_amd_gpus_are_not_taken(host: Host) -> None:
    plant(host.sys, RX6700XT, "0000:83:00.0", card=0)
    assert host.start() == ["gpu0", "host"]
    host.load(FakeDriver(gpu(0, "one"), gpu(1, "two")), A, B)
    assert host.look() == ["gpu1", "gpu2", "processes", "nvml", "kmsg"]
    rows = [host.read(name)[0] for name in ("gpu0", "gpu1", "gpu2")]
    assert [row["gpu"] for row in rows] == [0, 1, 2]
    assert [row["gpu_uuid"] for row in rows[1:]] == ["GPU-one", "GPU-two"]


def test_the_nodes_driver_is_amds_while_nvidias_has_no_gpu(host: Host) -> None:
    plant(host.sys, RX6700XT, "0000:83:00.0", card=0)
    host.load(FakeDriver())
    assert host.start() == ["gpu0", "host", "nvml", "kmsg"]
    assert host.probe("nvml").describe() == {}


def test_without_a_backend_nothing_is_looked_at(host: Host) -> None:
    assert host.start("none") == ["host"]
    host.load(FakeDriver(gpu(0)), A)
    assert host.look(times=3) == []
    assert host.opened == 0


def test_a_driver_that_hides_its_module_is_opened_again_too(host: Host) -> None:
    driver = FakeDriver(gpu(0))
    host.answer = driver
    host.start()
    driver.has_ended_now = True
    host.look(times=2)
    assert driver.renewals == 1


def test_a_new_gpu_that_never_answers_does_not_hold_up_the_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "OPEN_LIMIT_S", 0.05)
    release = threading.Event()
    driver = FakeDriver(gpu(0))
    host.load(driver, A)
    host.start()
    host.read("gpu0")
    hung = gpu(1, open=lambda: release.wait(30))
    driver.listed = [gpu(0), hung, gpu(2)]
    host.load(driver, A, B, C)
    try:
        assert host.look() == ["gpu1", "gpu2"]
        assert host.read("gpu2")
    finally:
        release.set()


def test_the_kernels_files_are_read_as_they_are(tmp_path: Path) -> None:
    module, bound = tmp_path / "nvidia", tmp_path / "bound"
    assert read_signs(module, bound) == NOTHING
    module.mkdir()
    (module / "version").write_text("NVRM version: 590.48.01\n")
    assert read_signs(module, bound) == Signs("NVRM version: 590.48.01\n")
    for name in (A, "00000001:3b:00.0", "bind", "module", "new_id"):
        (bound / name).mkdir(parents=True)
    assert read_signs(module, bound).gpus == {A, "00000001:3b:00.0"}


signs = st.sampled_from([NOTHING, Signs("590", frozenset({A})), Signs("590", frozenset({A, B}))])


@settings(max_examples=50)
@given(st.lists(st.tuples(signs, st.booleans()), min_size=1, max_size=200))
def test_the_driver_is_never_opened_without_a_reason_or_more_often_than_it_may_be(
    looks: list[tuple[Signs, bool]],
) -> None:
    outlook, opened_at = RediscoveryState(NOTHING), -1e9
    for number, (seen, is_well) in enumerate(looks):
        now_s, before = number * LOOK_EVERY_S, outlook
        outlook, is_time = decide(outlook, seen, is_well=is_well, now_s=now_s)
        is_new = seen.module != before.signs.module or bool(seen.gpus - before.signs.gpus)
        if seen.module is None:
            assert not is_time
        elif is_new:
            assert is_time
        elif is_time:
            assert not is_well or before.awaits_gpu
            assert now_s - opened_at >= RETRY_S
        opened_at = now_s if is_time else opened_at


def test_the_wait_doubles_up_to_a_minute_and_begins_anew_when_all_was_well() -> None:
    def opened(is_well: Callable[[int], bool]) -> list[int]:
        outlook, at = RediscoveryState(Signs("590")), []
        for second in range(400):
            outlook, is_time = decide(
                outlook, Signs("590"), is_well=is_well(second), now_s=float(second)
            )
            at += [second] if is_time else []
        return at

    assert opened(lambda s: False) == [0, 3, 9, 21, 45, 93, 153, 213, 273, 333, 393]
    assert opened(lambda s: s not in (0, 100)) == [0, 100]
    assert opened(lambda s: s % 2 == 0)[:4] == [1, 5, 11, 23], "flapping is not a recovery"
