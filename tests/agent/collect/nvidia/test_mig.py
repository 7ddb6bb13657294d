"""MIG devices come, go and share instances, and none of it stops the GPU that they are part of."""

import pytest
from tests.agent.collect.nvidia.fake_driver import (
    H100_IDLE,
    UNSUPPORTED,
    Fails,
    FakeDevice,
    FakeMigDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.mig import MigReader
from gpuwarden_agent.collect.nvidia.query import Query
from gpuwarden_agent.probe import ProbeError


class Cut:
    """An H100 that is cut into these parts, and a reader of them."""

    def __init__(self, clock: ManualClock, *parts: FakeMigDevice) -> None:
        self.parts = dict(enumerate(parts))
        answers = H100_IDLE | {
            "is_mig_enabled": True,
            "mig_device": lambda index: self.parts.get(index, Fails(nvml.NOT_FOUND)),
        }
        self.device = FakeDevice(answers)
        self.device.open()
        self.query = Query(self.device, clock)
        self.reader = MigReader(self.query, clock)

    def uuids(self) -> list[object]:
        return [row["gpu_uuid"] for row in self.reader.samples()]


@pytest.fixture
def parts() -> tuple[FakeMigDevice, FakeMigDevice]:
    return FakeMigDevice(0, 2, 40448), FakeMigDevice(1, 9, 9984)


def test_compute_instances_that_share_a_gpu_instance_have_no_activity(clock: ManualClock) -> None:
    cut = Cut(
        clock,
        FakeMigDevice(0, 2, 40448, compute_instance=0),
        FakeMigDevice(1, 2, 40448, compute_instance=1),
        FakeMigDevice(2, 9, 9984),
    )
    assert len(cut.uuids()) == 3
    cut.reader.details()
    clock.advance(10)
    assert [row["mig_instance"] for row in cut.reader.details()] == ["9/0"]


@pytest.mark.parametrize(
    "code", [nvml.NOT_FOUND, nvml.INVALID_ARGUMENT, nvml.UNINITIALIZED, nvml.GPU_IS_LOST]
)
def test_a_part_that_was_destroyed_is_left_out_and_its_successor_found(
    code: int, clock: ManualClock, parts: tuple[FakeMigDevice, ...]
) -> None:
    cut = Cut(clock, *parts)
    assert len(cut.uuids()) == 2
    parts[1].gone = code
    new = FakeMigDevice(7, 9, 9984)
    cut.parts[1] = new
    assert cut.uuids() == [parts[0].uuid]
    assert cut.uuids() == [parts[0].uuid, new.uuid]


def test_a_new_part_is_found_by_the_next_description(
    clock: ManualClock, parts: tuple[FakeMigDevice, ...]
) -> None:
    cut = Cut(clock, *parts)
    cut.uuids()
    cut.parts[4] = FakeMigDevice(4, 10, 9984)
    assert len(cut.uuids()) == 2
    cut.reader.learn(is_mig=True)
    assert len(cut.uuids()) == 3


def test_the_looks_at_a_part_that_is_gone_are_given_back(
    clock: ManualClock, parts: tuple[FakeMigDevice, ...]
) -> None:
    cut = Cut(clock, *parts)
    cut.uuids()
    cut.reader.details()
    del cut.parts[1]
    cut.reader.learn(is_mig=True)
    assert [(s.instance, s.is_free) for s in cut.device.gpm_samples] == [(2, False), (9, True)]
    cut.reader.forget()
    assert all(sample.is_free for sample in cut.device.gpm_samples)


def test_mig_switched_off_leaves_no_part(
    clock: ManualClock, parts: tuple[FakeMigDevice, ...]
) -> None:
    cut = Cut(clock, *parts)
    cut.uuids()
    cut.reader.learn(is_mig=False)
    assert cut.reader.inventory() == []


def test_a_gpu_without_mig_devices_is_not_asked_for_them(clock: ManualClock) -> None:
    cut = Cut(clock)
    cut.device.answers["mig_devices_max"] = UNSUPPORTED
    assert cut.uuids() == []
    assert cut.device.calls["mig_device"] == 0


def test_a_lost_gpu_is_noticed_by_the_look_for_its_parts(
    clock: ManualClock, parts: tuple[FakeMigDevice, ...]
) -> None:
    cut = Cut(clock, *parts)
    cut.uuids()
    for part in parts:
        part.gone = nvml.GPU_IS_LOST
    cut.device.answers["mig_devices_max"] = Fails(nvml.GPU_IS_LOST)
    assert cut.uuids() == []
    with pytest.raises(ProbeError, match="lost"):
        cut.uuids()
