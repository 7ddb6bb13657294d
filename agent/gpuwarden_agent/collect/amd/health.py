"""Reads memory errors (RAS counters) and retired pages of an AMD GPU.

Counters are read once a minute, because each read makes the driver query and clear every memory
channel. The block umc is the memory controller: DRAM. The blocks of `_SRAM` count errors of their own
memories. Links (pcie_bif, xgmi_wafl) and blocks without memory are only in events.
"""

from collections.abc import Mapping
from pathlib import Path

from gpuwarden_agent.collect.amd import sysfs as parse
from gpuwarden_agent.collect.files import DeviceFiles, listed
from gpuwarden_agent.probe import Value

Counts = Mapping[str, int]
"""Errors by kind: "ue", "ce", "de"."""

_DRAM = frozenset({"umc"})
_SRAM = frozenset({"gfx", "sdma", "mmhub", "athub", "hdp", "vcn", "jpeg"})


class HealthReader:
    """Reads error counters and bad pages of one GPU."""

    def __init__(self, files: DeviceFiles, device: Path) -> None:
        self._files = files
        self._folder = device / "ras"
        self._last: dict[str, Counts] = {}

    def read(self) -> tuple[dict[str, Value], dict[str, Counts]]:
        """Columns of `gpu_health_samples`, and the growth of the counters since the last reading, by
        block. The first reading has no growth: the counters start when the driver is loaded.
        """
        counts = self._counts()
        grown: dict[str, Counts] = {
            block: more
            for block, count in counts.items()
            if count is not None and (more := parse.growth(self._last.get(block), count))
        }
        self._last |= {block: count for block, count in counts.items() if count is not None}
        pages = self._files.read_whole(self._folder / "gpu_vram_bad_pages", parse.bad_pages)
        return error_columns(counts) | (pages or {}), grown

    def forget(self) -> None:
        """Another GPU is in this place: drop the last counters."""
        self._last.clear()

    def _counts(self) -> dict[str, Counts | None]:
        """Error counts by block; None: not available now."""
        counts: dict[str, Counts | None] = {}
        for entry in sorted(listed(self._folder)):
            block, is_count, _ = entry.partition("_err_count")
            if is_count:
                counts[block] = self._files.read(self._folder / entry, parse.ras_counts)
        return counts


def error_columns(counts: Mapping[str, Counts | None]) -> dict[str, Value]:
    """Errors since the driver was loaded.

    A deferred error was not corrected, either; it was found before the data was used. A sum with a
    missing part is absent, because it would fall and grow again.
    """
    columns: dict[str, Value] = {}
    for name, blocks in (("dram", _DRAM), ("sram", _SRAM), ("ecc", _DRAM | _SRAM)):
        found = [counts[block] for block in blocks & counts.keys()]
        there = [count for count in found if count is not None]
        if not there or len(there) < len(found):
            continue
        columns[f"{name}_corrected_volatile_total"] = sum(count["ce"] for count in there)
        columns[f"{name}_uncorrected_volatile_total"] = sum(
            count["ue"] + count.get("de", 0) for count in there
        )
    return columns
