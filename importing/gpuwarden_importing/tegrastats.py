"""Reads lines of `tegrastats`, the tool of NVIDIA's Jetson boards, from JetPack 4 to 7.

Sources of the format: Jetson Linux Developer Guide, "tegrastats Utility"; lines of all boards in the
tests of github.com/rbonghi/jetson_stats. Memory and CPUs in a line are the host's. Lines before
JetPack 5 have no time; they are assumed to be a second apart, the tool's default.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from gpuwarden_agent.collect.jetson.readings import OFF_CELSIUS, rail_of
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import ImportedRows, ImportTally, Origin, Row, Value, place_uuid
from gpuwarden_importing.values import SAMPLES

LINE = re.compile(
    r"(?:(?P<time>\d{2}-\d{2}-\d{4} \d{2}:\d{2}:\d{2}) )?RAM \d+/\d+MB (?=.*(?:CPU \[|GR3D_FREQ ))"
)
LINE_MS = 1000
"""Time between lines without times."""
_GPU = re.compile(
    r"\bGR3D_FREQ (?:(?P<load>\d{1,3})%)?(?:@(?:(?P<mhz>\d{1,5})(?= )|\[(?P<each>[\d,]{1,99})\]))?"
)
_SENSOR = re.compile(r"\b(?P<name>[A-Za-z]\w*)@(?P<celsius>-?\d{1,4}(?:\.\d{1,6})?)C")
_RAIL = re.compile(r"\b(?P<name>[A-Z]\w*) (?P<now>\d{1,7})(?:mW)?/\d{1,7}(?:mW)?(?=[ /]|$)")


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """A `Reader`."""
    log = _Tegrastats(origin, tally)
    for number, line in enumerate(lines, 1):
        log.take(line.strip(), number)
        if log.is_full:
            yield from log.rows()
    log.end()
    yield from log.rest()


class _Tegrastats(LogFile):
    """A file of one board, which has one GPU."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        # tegrastats writes the month first, everywhere.
        super().__init__(replace(origin, day_first=False), tally)
        self._node = origin.node_or(None)
        self._uuid = place_uuid(None, 0, self._node)
        self._untimed: list[Row] = []
        self._has_begun = False

    def take(self, line: str, number: int) -> None:
        """Take a line."""
        found = LINE.match(line)
        if found is None:
            if line:
                self.tally.skip("other text", number)
            return
        row: Row = {"node": self._node, "gpu": 0, "gpu_uuid": self._uuid, **self._values(line)}
        if not self._has_begun:
            self._begin()
        if found["time"] is None:
            self._untimed.append(row)
        elif (ts_ms := self.time(found["time"], number)) is not None:
            self.add(SAMPLES, {"ts": ts_ms, **row})

    def end(self) -> None:
        """Give times to the lines that have none."""
        if not self._untimed:
            return
        self.tally.note(
            "no times: lines are taken to be a second apart, and the last to be of"
            f" {self.origin.at_source}"
        )
        first_ms = self.origin.at() - (len(self._untimed) - 1) * LINE_MS
        for number, row in enumerate(self._untimed):
            self.add(SAMPLES, {"ts": first_ms + number * LINE_MS, **row})

    def _begin(self) -> None:
        self._has_begun = True
        self.inventory.add_node(self._node, {})
        self.inventory.add_gpu(self._uuid, self._node, {"gpu": 0, "vendor": "nvidia"})
        self.tally.note("the GPU is named by index: index and node stand for the UUID")

    def _values(self, line: str) -> dict[str, Value]:
        # In front of it are memory and CPUs, which look like rails.
        _, _, rest = line.partition("] ")
        rest = rest or line
        sensors = {found["name"]: float(found["celsius"]) for found in _SENSOR.finditer(rest)}
        rails = {found["name"]: int(found["now"]) / 1000 for found in _RAIL.finditer(rest)}
        rail = rail_of(rails)
        sensor = next((name for name in sensors if name.lower() == "gpu"), None)
        for name in (sensors.keys() - {sensor}) | (rails.keys() - {rail}):
            self.tally.unmapped[name] += 1
        gpu = _GPU.search(line)
        celsius = None if sensor is None else sensors[sensor]
        return {
            "util_percent": _load(gpu),
            "sm_clock_mhz": _clock(gpu),
            "temperature_celsius": None if celsius is None or celsius <= OFF_CELSIUS else celsius,
            "power_watts": None if rail is None else rails[rail],
        }


def _load(gpu: re.Match[str] | None) -> float | None:
    if gpu is None or gpu["load"] is None:
        return None
    return float(gpu["load"])


def _clock(gpu: re.Match[str] | None) -> int | None:
    """The clock of the fastest part; None: not told, or off."""
    if gpu is None:
        return None
    words = (gpu["mhz"] or gpu["each"] or "").split(",")
    return max((int(word) for word in words if word), default=0) or None
