"""Reads the output of `nvidia-smi dmon`, `nvidia-smi pmon` and `dcgmi dmon`: columns below a header with `#`.

GPUs have an index only. Without `-o DT` there are no timestamps: rounds of lines are assumed to be a second apart,
the tools' default, and the last round gets the file's time. `dmon` and `pmon` were checked with captures of drivers
580 (`-o DT`, `--gpm-metrics`), 590 and 595. There was no capture of `dcgmi dmon` with DCGM's
short names.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import ImportTally, Origin, Row, TableRow, Value, place_uuid
from gpuwarden_importing.values import (
    DETAILS,
    HEALTH,
    PROCESS_TYPES,
    PROCESSES,
    SAMPLES,
    Converter,
    LogField,
    converter,
    executable,
)

ROUND_MS = 1_000
_HEADER = re.compile(r"#\s*(?:Date\b|Time\b|gpu\b|Entity\b)", re.IGNORECASE)
_ENTITY = re.compile(
    r"\s*(?P<kind>GPU|GPU-I|GPU-CI|Switch|CPU|Core|Link)\s+(?P<id>\S+)\s+(?P<rest>\S.*)"
)


def _percent_of_ratio(cell: str) -> Value:
    value = _NUMBER(cell)
    return None if value is None else 100 * float(value)


def _type(cell: str) -> Value:
    return PROCESS_TYPES.get(cell.strip())


_NUMBER, _COUNT = converter("watts", "W"), converter("count")
_OWN: dict[str, Converter] = {"ratio": _percent_of_ratio, "type": _type, "executable": executable}

_PCIE = {"rxpci": "pcie_rx_bytes_per_second", "txpci": "pcie_tx_bytes_per_second"}
"""Columns of `-s t`. NVML measures them over 20 ms (nvmlDeviceGetPcieThroughput)."""

# The names of GPM's metrics 1 to 5, 10 and 12 (`--gpm-metrics`) are those of driver 580 on an H200.
_DMON = {
    "pwr": LogField(SAMPLES, "power_watts", "watts", "W"),
    "gtemp": LogField(SAMPLES, "temperature_celsius", "celsius", "C"),
    "temp": LogField(SAMPLES, "temperature_celsius", "celsius", "C"),
    "mtemp": LogField(SAMPLES, "memory_temperature_celsius", "celsius", "C"),
    "sm": LogField(SAMPLES, "util_percent", "percent", "%"),
    "mem": LogField(SAMPLES, "memory_util_percent", "percent", "%"),
    "enc": LogField(SAMPLES, "encoder_util_percent", "percent", "%"),
    "dec": LogField(SAMPLES, "decoder_util_percent", "percent", "%"),
    "jpg": LogField(DETAILS, "jpeg_util_percent", "percent", "%"),
    "ofa": LogField(DETAILS, "ofa_util_percent", "percent", "%"),
    "mclk": LogField(SAMPLES, "memory_clock_mhz", "mhz", "MHz"),
    "pclk": LogField(SAMPLES, "sm_clock_mhz", "mhz", "MHz"),
    "fb": LogField(SAMPLES, "memory_used_bytes", "bytes", "MiB"),
    "bar1": LogField(DETAILS, "bar1_used_bytes", "bytes", "MiB"),
    **{name: LogField(DETAILS, column, "bytes", "MiB") for name, column in _PCIE.items()},
    **{
        tag: LogField(DETAILS, f"{column}_percent", "percent", "%")
        for tag, column in {
            "gract": "graphics_active",
            "smutil": "sm_active",
            "smocc": "sm_occupancy",
            "intutil": "integer_active",
            "mmaact": "tensor_active",
            "dram": "dram_active",
            "fp32": "fp32_active",
        }.items()
    },
    "sbecc": LogField(HEALTH, "ecc_corrected_volatile_total", "count"),
    "dbecc": LogField(HEALTH, "ecc_uncorrected_volatile_total", "count"),
}
_PMON = {
    "pid": LogField(PROCESSES, "pid", "count"),
    "type": LogField(PROCESSES, "process_type", "type"),
    "sm": LogField(PROCESSES, "sm_util_percent", "percent", "%"),
    "fb": LogField(PROCESSES, "gpu_memory_bytes", "bytes", "MiB"),
    "command": LogField(PROCESSES, "process_name", "executable"),
}
_DCGM = {
    "gputl": LogField(SAMPLES, "util_percent", "percent", "%"),
    "mcutl": LogField(SAMPLES, "memory_util_percent", "percent", "%"),
    "encut": LogField(SAMPLES, "encoder_util_percent", "percent", "%"),
    "decut": LogField(SAMPLES, "decoder_util_percent", "percent", "%"),
    "power": LogField(SAMPLES, "power_watts", "watts", "W"),
    "totec": LogField(SAMPLES, "energy_joules_total", "joules", "mJ"),
    "tmptr": LogField(SAMPLES, "temperature_celsius", "celsius", "C"),
    "mmtmp": LogField(SAMPLES, "memory_temperature_celsius", "celsius", "C"),
    "smclk": LogField(SAMPLES, "sm_clock_mhz", "mhz", "MHz"),
    "mmclk": LogField(SAMPLES, "memory_clock_mhz", "mhz", "MHz"),
    "fbusd": LogField(SAMPLES, "memory_used_bytes", "bytes", "MiB"),
    "fbfre": LogField(SAMPLES, "memory_free_bytes", "bytes", "MiB"),
    "fbttl": LogField(SAMPLES, "memory_total_bytes", "bytes", "MiB"),
    **{
        tag: LogField(DETAILS, f"{column}_percent", "ratio")
        for tag, column in {
            "gract": "graphics_active",
            "smact": "sm_active",
            "smocc": "sm_occupancy",
            "tenso": "tensor_active",
            "drama": "dram_active",
            "fp64a": "fp64_active",
            "fp32a": "fp32_active",
            "fp16a": "fp16_active",
        }.items()
    },
}


@dataclass(slots=True)
class _Columns:
    """The columns of a header."""

    names: tuple[str, ...]

    @property
    def entity(self) -> str:
        """Name of the column that names the GPU."""
        return "gpu" if "gpu" in self.names else "entity"

    @property
    def fields(self) -> dict[str, LogField]:
        """Fields by column name."""
        if "entity" in self.names:
            return _DCGM
        return _PMON if "pid" in self.names else _DMON

    def cells(self, line: str) -> list[str] | None:
        """The cells of a line; None: the line is not of a GPU."""
        if self.names[0] == "entity":
            found = _ENTITY.match(line)
            return (
                None
                if found is None or found["kind"] != "GPU"
                else [found["id"], *found["rest"].split()]
            )
        # The program name is the last cell and may have blanks.
        cells = line.split(None, len(self.names) - 1)
        return [cell.strip() for cell in cells]


def columns_of(line: str) -> _Columns | None:
    """The columns, if a line is a header."""
    if _HEADER.match(line) is None:
        return None
    names = tuple(line.lstrip("# \t").lower().split())
    found = _Columns(names)
    known = {*names} & found.fields.keys()
    return found if known and ("gpu" in names or "entity" in names) else None


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader`."""
    file = _File(origin, tally)
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            file.columns = columns_of(line) or file.columns
        elif line.strip():
            file.take(line, number)
            yield from file.rows()
    yield from file.rest()


class _UntimedLine(NamedTuple):
    """A line that waits for the end of the file, which dates it."""

    round: int
    columns: _Columns
    line: str
    number: int


class _File(LogFile):
    """A file; rounds without timestamps wait for the end, which dates them."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self.columns: _Columns | None = None
        """Those of the last header."""
        self._node = origin.node_or(None)
        self._seen: set[tuple[str, str]] = set()
        """GPUs and process ids in the current round."""
        self._round = 0
        self._last_gpu = -1
        self._untimed: list[_UntimedLine] = []

    def take(self, line: str, number: int) -> None:
        """Take a line of values."""
        columns = self.columns
        if columns is None:
            self.tally.skip("text before the first header", number)
            return
        cells = columns.cells(line)
        if cells is None:
            if line.split()[0].lower() not in ("id", "idx"):
                self.tally.ignore("a line that is not of a whole GPU", number)
            return
        if len(cells) != len(columns.names):
            self.tally.skip(f"not the {len(columns.names)} cells of the header", number)
            return
        said = dict(zip(columns.names, cells, strict=True))
        gpu, pid = said[columns.entity], said.get("pid", "")
        index = int(gpu) if gpu.isdecimal() and len(gpu) < 5 else -1
        if index < self._last_gpu or (gpu, pid) in self._seen:
            self._round += 1
            self._seen.clear()
        self._seen.add((gpu, pid))
        self._last_gpu = index
        if pid == "-":
            return  # the GPU has no process
        if "date" not in said or "time" not in said:
            self._untimed.append(_UntimedLine(self._round, columns, line, number))
            return
        date = said["date"]
        if len(date) == 8 and date.isdecimal():
            date = f"{date[:4]}-{date[4:6]}-{date[6:]}"
        if (ts_ms := self.time(f"{date} {said['time']}", number)) is not None:
            self._add(ts_ms, columns, said, number)

    def rest(self) -> Iterator[TableRow]:
        """Hand on the last rows, rounds without timestamps, and the inventory."""
        if self._untimed:
            self.tally.note(
                "no times (`-o DT`): rounds are taken to be a second apart, and the last to be of"
                f" {self.origin.at_source}"
            )
        for number, columns, line, at in self._untimed:
            ts_ms = self.origin.at() - (self._round - number) * ROUND_MS
            cells = columns.cells(line) or []
            self._add(ts_ms, columns, dict(zip(columns.names, cells, strict=True)), at)
            yield from self.rows()
        yield from super().rest()

    def _add(self, ts_ms: int, columns: _Columns, said: dict[str, str], number: int) -> None:
        gpu = self.read(columns.entity, said[columns.entity], _COUNT, number)
        if gpu is None:
            self.tally.skip("no GPU is named", number)
            return
        uuid = place_uuid(None, gpu, self._node)
        if uuid not in self.inventory.gpus:
            self.inventory.add_gpu(uuid, self._node, {"gpu": gpu, "vendor": "nvidia"})
            self.inventory.add_node(self._node, {})
            self.tally.note("GPUs are named by index: index and node stand for the UUID")
        if _PCIE.keys() & said.keys():
            self.tally.note(
                "pcie_rx_bytes_per_second and pcie_tx_bytes_per_second are dmon's rxpci and txpci:"
                " 20 ms of each round"
            )
        tables: dict[str, Row] = {}
        for name, cell in said.items():
            known = columns.fields.get(name)
            if known is not None:
                convert = _OWN.get(known.quantity) or converter(known.quantity, known.unit)
                value = self.read(name, cell, convert, number)
                tables.setdefault(known.table, {})[known.column] = value
            elif name not in (columns.entity, "date", "time"):
                self.count_unmapped(name, cell)
        identity: Row = {"ts": ts_ms, "node": self._node, "gpu": gpu, "gpu_uuid": uuid}
        for table, row in tables.items():
            self.add(table, identity | row)
