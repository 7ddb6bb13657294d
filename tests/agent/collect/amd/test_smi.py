"""AMD's Python package, which is outside world: a module of its name stands in for it."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.agent.collect.amd.boards import MI300X, T, gpu_metrics, plant, probe_of

from gpuwarden_agent.collect.amd.smi import SmiMetrics
from gpuwarden_agent.collect.files import DeviceFiles

BUS_ID = "0000:83:00.0"
INFO = {
    "common_header.content_revision": 9,
    "average_gfx_activity": 55,
    "energy_accumulator": 2 << 16,
    "xgmi_link_width": 16,
    "xgmi_link_speed": 32,
    "xgmi_read_data_acc": ["N/A", 3, 0],
    "xgmi_write_data_acc": ["N/A", "N/A"],
    "temperature_mem": "N/A",
    "nested": {"a": 1},
}


class Library(ModuleType):
    """A stand-in for `amdsmi`: what it was asked, and what fails."""

    class AmdSmiException(Exception):  # noqa: N818  # the package's name
        pass

    class AmdSmiLibraryException(AmdSmiException):
        pass

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.users = 0
        self.fails: set[str] = set()

    def _call(self, name: str) -> None:
        if name in self.fails:
            raise self.AmdSmiLibraryException(name)

    def amdsmi_init(self) -> None:
        self._call("init")
        self.users += 1

    def amdsmi_shut_down(self) -> None:
        self.users -= 1

    def amdsmi_get_processor_handle_from_bdf(self, bdf: str) -> str:
        self._call("handle")
        assert bdf == BUS_ID
        return "handle"

    def amdsmi_get_gpu_metrics_info(self, handle: str) -> dict[str, Any]:
        self._call("metrics")
        assert handle == "handle"
        return INFO


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "amdsmi", made)
    return made


def newer(values: bytes = b"") -> bytes:
    """A file of a version that came after those with a layout."""
    return bytes((100, 0, 1, 9)) + values.ljust(96, b"\x00")


def test_metrics_of_a_newer_version_come_from_the_package(tmp_path: Path, library: Library) -> None:
    board = {
        k: v for k, v in MI300X.items() if k not in ("gpu_busy_percent", "hwmon/energy1_input")
    }
    device = plant(tmp_path, board)
    (device / "gpu_metrics").write_bytes(newer())
    probe = probe_of(device)
    reading = probe.read(T)
    (row,) = reading["gpu_samples"]
    assert (row["util_percent"], row["energy_joules_total"]) == (55.0, 2.0)
    (link,) = reading["link_samples"]
    assert (link["link"], link["rx_bytes_total"]) == (1, 3072)
    assert library.users == 1
    probe.close()
    assert library.users == 0


def test_the_package_is_not_loaded_for_a_version_that_is_known(
    tmp_path: Path, library: Library
) -> None:
    device = plant(tmp_path, MI300X)
    (device / "gpu_metrics").write_bytes(gpu_metrics((1, 8)))
    probe_of(device).read(T)
    assert library.users == 0


def test_a_package_that_is_not_installed_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # what Python does for "not installed"
    metrics = SmiMetrics(DeviceFiles({"gpu": 0}), BUS_ID)
    assert metrics.read() == {}
    monkeypatch.setitem(sys.modules, "amdsmi", Library())
    assert metrics.read() == {}
    metrics.close()


def test_a_library_that_does_not_start_gives_nothing(library: Library) -> None:
    library.fails = {"init"}
    metrics = SmiMetrics(DeviceFiles({"gpu": 0}), BUS_ID)
    assert metrics.read() == {}
    metrics.close()
    assert library.users == 0


@pytest.mark.parametrize("call", ["handle", "metrics"])
def test_a_call_that_fails_is_counted_and_made_again(library: Library, call: str) -> None:
    files = DeviceFiles({"gpu": 0})
    metrics = SmiMetrics(files, BUS_ID)
    library.fails = {call}
    assert metrics.read() == {}
    assert files.failed == {"amdsmi: AmdSmiLibraryException": 1}
    library.fails.clear()
    assert metrics.read()["average_gfx_activity"] == 55
