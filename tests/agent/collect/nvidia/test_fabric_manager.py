"""The fabric manager: its state by process and unit, its version, and how rarely anyone is asked."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia.fabric_manager import (
    FabricManager,
    kernel_module,
    parse_version,
    run_command,
)

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@b)\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
    "GCC version:  gcc version 11.4.0 (Open Kernel Module is not in this line)\n"
)


class Node:
    """A made-up node, what systemd and the program answer, and what they were asked."""

    def __init__(self, root: Path) -> None:
        self.root, self.proc = root, root / "proc"
        (self.proc / "driver/nvidia").mkdir(parents=True)
        self.asked: list[str] = []
        self.unit_state: str | None = "failed\n"

    def run(self, command: Sequence[str]) -> str | None:
        self.asked.append(Path(command[0]).name)
        if command[0] == "systemctl":
            return self.unit_state
        return "Fabric Manager version is : 570.86.15\n"

    def install(self) -> None:
        program = self.root / "usr/bin/nv-fabricmanager"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("x")

    def start(self, pid: int, comm: str = "nv-fabricmanage") -> Path:
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(f"{comm}\n")
        return folder


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def manager(node: Node, clock: ManualClock) -> FabricManager:
    return FabricManager(clock, node.proc, node.root, node.run)


def test_one_that_runs_is_active_and_systemd_is_not_asked(
    node: Node, manager: FabricManager
) -> None:
    node.install()
    node.start(41, "bash")
    node.start(42)
    for _ in range(3):
        assert manager.facts() == {
            "fabric_manager": "active",
            "fabric_manager_version": "570.86.15",
        }
    assert node.asked == ["nv-fabricmanager"]


def test_one_in_a_container_is_active_without_a_version(node: Node, manager: FabricManager) -> None:
    node.start(42)
    assert manager.facts() == {"fabric_manager": "active", "fabric_manager_version": None}
    assert node.asked == []


def test_one_that_died_is_failed_and_active_again_when_it_is_back(
    node: Node, manager: FabricManager, clock: ManualClock
) -> None:
    node.install()
    folder = node.start(42)
    assert manager.facts()["fabric_manager"] == "active"
    (folder / "comm").write_text("bash\n")  # the number was given to another
    assert manager.facts()["fabric_manager"] == "failed"
    clock.advance(60)
    assert manager.facts()["fabric_manager"] == "failed"
    assert node.asked.count("systemctl") == 1
    node.start(43)
    assert manager.facts()["fabric_manager"] == "active"


def test_systemd_is_asked_again_after_ten_minutes(
    node: Node, manager: FabricManager, clock: ManualClock
) -> None:
    """A unit that restarts repeatedly is "activating" most of the time."""
    node.install()
    node.unit_state = "activating\n"
    assert manager.facts()["fabric_manager"] == "failed"
    node.unit_state = "inactive\n"
    clock.advance(599)
    assert manager.facts()["fabric_manager"] == "failed"
    clock.advance(1)
    assert manager.facts()["fabric_manager"] == "inactive"


def test_without_systemd_one_that_is_installed_is_inactive(
    node: Node, manager: FabricManager
) -> None:
    node.unit_state = None
    unit = node.root / "lib/systemd/system/nvidia-fabricmanager.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    assert manager.facts() == {"fabric_manager": "inactive", "fabric_manager_version": None}


def test_where_it_is_not_installed_nothing_is_known_and_nobody_asked(
    node: Node, manager: FabricManager
) -> None:
    assert manager.facts() == {"fabric_manager": None, "fabric_manager_version": None}
    assert node.asked == []


def test_without_the_driver_of_nvidia_nobody_looks(node: Node, manager: FabricManager) -> None:
    (node.proc / "driver/nvidia").rmdir()
    node.install()
    assert manager.facts() == {}
    assert node.asked == []


def test_a_program_that_was_replaced_is_asked_for_its_version_again(
    node: Node, manager: FabricManager
) -> None:
    node.install()
    node.start(42)
    manager.facts()
    (node.root / "usr/bin/nv-fabricmanager").write_text("another one")
    manager.facts()
    assert node.asked == ["nv-fabricmanager"] * 2


def test_the_kernel_module_is_open_proprietary_or_unknown() -> None:
    assert kernel_module(OPEN) == "open"
    assert kernel_module(CLOSED) == "proprietary"
    assert kernel_module("") is None
    assert kernel_module("NVRM version: something else\n") is None


def test_versions_of_two_and_three_parts_and_of_nothing() -> None:
    assert parse_version("Fabric Manager version is : 470.82.01\n") == "470.82.01"
    assert parse_version("Fabric Manager version is : 595.10") == "595.10"
    assert parse_version("error while loading shared libraries: libfoo.so.1") is None
    assert parse_version(None) is None


def test_a_command_that_is_missing_or_hangs_gives_nothing() -> None:
    assert run_command(("no-such-command-anywhere",)) is None
    assert run_command(("sleep", "60")) is None
    assert run_command(("sh", "-c", "echo failed; exit 3")) == "failed\n"
