"""The campaign of faults: a few of its runs, short ones, and proof that it would find what once was wrong.

All its faults, and longer ones, are what `python -m bench.chaos` runs: lost packets and answers are in each world of
`bench.deterministic` too, and a lost disk with a standby is in tests/cluster.
"""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from bench.chaos import power_cut
from bench.chaos.history import Pace
from bench.chaos.marked import DEFECT
from bench.chaos.recorded_disk import Images, Left, RecordedDisk, mounted, run
from bench.chaos.run_fault import run_fault
from bench.chaos.stage import COLLECTOR_NS, namespaces

pytestmark = pytest.mark.slow
LASTS_S, PACE = 4.0, Pace(pause_s=1.2, rest_s=0.05)


@pytest.fixture
def disks(tmp_path: Path) -> None:
    """Skips where there are none: containers are often not let near FUSE, loop devices and mounts."""
    try:
        with ExitStack() as stack:
            RecordedDisk(tmp_path / "tried", stack, "")
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root, FUSE, loop devices and mkfs.ext4: {error}")


@pytest.fixture
def network() -> None:
    """Skips where no namespace may be made."""
    try:
        with namespaces():
            run("ip", "netns", "exec", COLLECTOR_NS, "nft", "list", "ruleset")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root, ip and nft: {error}")


@pytest.mark.usefixtures("disks")
def test_an_image_has_what_was_synced_before_its_position(tmp_path: Path) -> None:
    positions = []
    with ExitStack() as stack:
        disk = RecordedDisk(tmp_path / "disk", stack, "commit=300")
        for number in range(3):
            with (disk.path / f"synced-{number}").open("wb") as file:
                file.write(bytes([number]) * 10_000)
                (disk.path / f"written-{number}").write_bytes(b"w" * 10_000)
                file.flush()
                os.fsync(file.fileno())
            positions.append(disk.position.now)
    images = Images(tmp_path / "disk")
    for number, position in enumerate(positions):
        for left in Left:
            image = images.at(position, left, Random(number))
            with mounted(image, tmp_path / "image") as found:
                synced = sorted(found.glob("synced-*"))
                assert [path.read_bytes() for path in synced] == [
                    bytes([n]) * 10_000 for n in range(number + 1)
                ]
                last = found / f"written-{number}"
                assert not last.exists() or not last.stat().st_size, "nobody synced its bytes"


@pytest.mark.usefixtures("disks")
@pytest.mark.timeout(600)
async def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    found = await power_cut.campaign(tmp_path, seed=1, rounds=1, count=8, pace=PACE)
    assert [one for one in found if one.wrong or one.lost or one.doubled] == []
    assert sum(one.acknowledged for one in found) > 0
    assert len(power_cut.counted(found)) > 1, "different operations were cut off"


@pytest.mark.usefixtures("disks")
@pytest.mark.timeout(600)
async def test_files_that_were_not_synced_before_the_catalogue_are_found_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEFECT, "unsynced")
    found = await power_cut.campaign(tmp_path, seed=1, rounds=1, count=12, pace=PACE)
    assert [one for one in found if one.wrong or one.lost]


@pytest.mark.usefixtures("network")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "collector's disk full",
        "partition, collector killed",
    ],
)
def test_a_fault_loses_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    verdict = run_fault(name, 1, tmp_path / "run", LASTS_S)
    assert verdict.wrong == []
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.acknowledged > 0
    assert verdict.catch_up_s is not None
