"""Reads lines of `xpu-smi dump`, the tool of Intel's discrete GPUs, and of `xpumcli dump`, its like.

Source of the format: intel.github.io/xpumanager, "xpu-smi user guide", `dump`: CSV whose header names metric and unit.
Its times are times of day. The last line is of the 24 hours before `--at`; the days of others follow from it.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from gpuwarden.clock import from_ms
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import ImportedRows, ImportTally, Origin, Row, place_uuid
from gpuwarden_importing.values import SAMPLES, Converter, converter

HEADER = re.compile(r"\s*Timestamp\s*,\s*DeviceId\s*,")
FIELDS: dict[str, tuple[str, Converter]] = {
    "GPU Utilization (%)": ("util_percent", converter("percent", "%")),
    "GPU Power (W)": ("power_watts", converter("watts", "W")),
    "GPU Frequency (MHz)": ("sm_clock_mhz", converter("mhz", "MHz")),
    "GPU Core Temperature (C)": ("temperature_celsius", converter("celsius", "C")),
    "GPU Memory Temperature (C)": ("memory_temperature_celsius", converter("celsius", "C")),
    "GPU Memory Used (MiB)": ("memory_used_bytes", converter("bytes", "MiB")),
    "GPU Energy Consumed (J)": ("energy_joules_total", converter("joules", "J")),
}  # fmt: skip
"""Columns of `gpu_samples` by name in the header. Memory utilization there is memory in use, which `Memory Used` tells."""
TURN_S = 3_600
"""A line that is earlier in the day than the one before, by more, is of the next day: lines of several GPUs may swap."""
_START = re.compile(r"[^,]{8,40},\s*\d{1,4}\s*,", re.ASCII)
_TIME_OF_DAY = re.compile(r"(\d{2}):(\d{2}):(\d{2})(\.\d{1,6})?", re.ASCII)


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """A `Reader`. Raises UnreadableError."""
    log = _Dump(origin, tally)
    for number, line in enumerate(lines, 1):
        log.take(line.strip(), number)
    yield from log.all()


class _Dump(LogFile):
    """A file of the GPUs of one node."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self._node = origin.node_or(None)
        self._names: tuple[str, ...] = ()
        self._lines: list[tuple[int, str, tuple[str, ...]]] = []
        """Number, text, and the names of the columns, of lines with readings."""

    def take(self, line: str, number: int) -> None:
        """Take a line: the day of its time is known when the last line is there."""
        if HEADER.match(line):
            # Versions spell the unit in two ways.
            header = line.replace("(Celsius Degree)", "(C)")
            self._names = tuple(cell.strip() for cell in header.split(","))
        elif not line:
            return
        elif line.count(",") != len(self._names) - 1 or not _START.match(line):
            self.tally.skip("other text, or half of a line", number)
        elif "TileId" in self._names:
            self.tally.skip("readings of a tile: dump without --tile gives the GPU's", number)
        else:
            self._lines.append((number, line, self._names))

    def all(self) -> Iterator[ImportedRows]:
        """All rows."""
        times = [line.partition(",")[0].strip() for _, line, _ in self._lines]
        of_day = [_seconds(text) for text in times]
        told = [seconds for seconds in of_day if seconds is not None]
        last = self._last_day(told[-1]) if told else None
        before = days_before(of_day)
        for (number, line, names), text, days in zip(self._lines, times, before, strict=True):
            date = None if last is None or days is None else last - timedelta(days=days)
            ts_ms = self.time(text if date is None else f"{date:%Y-%m-%d} {text}", number)
            if ts_ms is not None:
                self._add(ts_ms, line, names, number)
            if self.is_full:
                yield from self.rows()
        yield from self.rest()

    def _add(self, ts_ms: int, line: str, names: tuple[str, ...], number: int) -> None:
        _, index, *cells = (cell.strip() for cell in line.split(","))
        gpu = int(index)
        row: Row = {"ts": ts_ms, "node": self._node, "gpu": gpu}
        row["gpu_uuid"] = uuid = place_uuid(None, gpu, self._node)
        for name, cell in zip(names[2:], cells, strict=True):
            if name in FIELDS:
                column, convert = FIELDS[name]
                row[column] = self.read(name, cell, convert, number)
            else:
                self.tally.unmapped[name] += 1
        self.tally.note("GPUs are named by index: index and node stand for the UUID")
        self.inventory.add_node(self._node, {})
        self.inventory.add_gpu(uuid, self._node, {"gpu": gpu, "vendor": "intel", "kind": "gpu"})
        self.add(SAMPLES, row)

    def _last_day(self, seconds: float) -> datetime:
        """Midnight before the last line, which is the last with this time of day that is not after `--at`."""
        self.tally.note(
            "times have no date: the last line is taken to be of the 24 hours before"
            f" {self.origin.at_source}"
        )
        # A file is written within the second after its last line.
        at = from_ms(self.origin.at()).astimezone(self.origin.zone) + timedelta(seconds=1)
        midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
        is_today = (at - midnight).total_seconds() >= seconds
        return midnight if is_today else midnight - timedelta(days=1)


def days_before(times: Sequence[float | None]) -> list[int | None]:
    """How many days before the last line's each line is, of their seconds since midnight, in order.

    None: the line has a date of its own.
    """
    found: list[int | None] = []
    days, later = 0, None
    for seconds in reversed(times):
        if seconds is not None:
            days += later is not None and seconds > later + TURN_S
            later = seconds
        found.append(None if seconds is None else days)
    return found[::-1]


def _seconds(text: str) -> float | None:
    """Seconds since midnight; None: it is not a time of day, or has a date."""
    found = _TIME_OF_DAY.fullmatch(text)
    if found is None:
        return None
    return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3]) + float(found[4] or 0)
