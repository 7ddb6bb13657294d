"""Reads the metrics of an AMD GPU by AMD's Python package `amdsmi`, where it is installed.

It is used only for versions of `gpu_metrics` that are newer than the layouts in this package: its
library knows them, and has the values under the same names. It is loaded at its first use, because it
costs memory.
"""

import importlib
import logging
from typing import Any

from gpuwarden_agent.collect.amd.gpu_metrics import BUSY_OF_PARTITION, PARTITIONS_MAX, Metrics
from gpuwarden_agent.collect.files import DeviceFiles

log = logging.getLogger(__name__)


class SmiMetrics:
    """The metrics of one GPU."""

    def __init__(self, files: DeviceFiles, pci_bus_id: str) -> None:
        """`files`: where failures are counted."""
        self._files = files
        self._pci_bus_id = pci_bus_id
        self._library: Any = None
        self._is_tried = False

    def read(self) -> Metrics:
        """The metrics; empty if the package is not installed or fails."""
        if not self._is_tried:
            self._is_tried = True
            self._library = _load()
        if self._library is None:
            return {}
        try:
            # Handles do not outlive a reset of the GPU, so each reading asks for a new one.
            handle = self._library.amdsmi_get_processor_handle_from_bdf(self._pci_bus_id)
            return only_numbers(self._library.amdsmi_get_gpu_metrics_info(handle))
        except self._library.AmdSmiException as error:
            self._files.note(f"amdsmi: {type(error).__name__}")
            return {}

    def close(self) -> None:
        """Shut the library down."""
        if self._library is not None:
            self._library.amdsmi_shut_down()
            self._library = None


def only_numbers(info: dict[str, Any]) -> Metrics:
    """The numbers and lists of numbers in the package's answer, in which "N/A" means absent."""
    found: dict[str, int | list[int | None]] = {}
    busy = info.get("xcp_stats.gfx_busy_inst")
    for partition, dies in enumerate(busy[:PARTITIONS_MAX] if isinstance(busy, list) else ()):
        if isinstance(dies, list) and any(_is_number(each) for each in dies):
            known = [each if _is_number(each) else None for each in dies]
            found[BUSY_OF_PARTITION.format(partition)] = known
    for name, value in info.items():
        if _is_number(value):
            found[name] = value
        elif isinstance(value, list) and any(_is_number(each) for each in value):
            found[name] = [each if _is_number(each) else None for each in value]
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _load() -> Any:
    """The initialised package; None if it is not installed, or its library does not work here."""
    try:
        library = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError) as error:
        # It loads its shared library at its import; the errors differ by version.
        log.info("no amdsmi", extra={"why": str(error)})
        return None
    try:
        library.amdsmi_init()
    except library.AmdSmiException as error:
        log.warning("amdsmi does not start", extra={"why": str(error)})
        return None
    return library
