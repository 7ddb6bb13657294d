"""Reads the output of `nvidia-smi dmon`, `nvidia-smi pmon` and `dcgmi dmon`: columns below a header with `#`.

GPUs have an index only. Without `-o DT` there are no timestamps: rounds of lines are assumed to be a second apart,
the tools' default, and the last round gets the file's time. `dmon` and `pmon` were checked with captures of drivers
580 (`-o DT`, `--gpm-metrics`), 590 and 595. There was no capture of `--format csv`, and of `dcgmi dmon` with DCGM's
short names.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gpuwarden_importing.cells import CellColumn, LineBlock, count_present
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import ImportedRows, ImportTally, Origin, Value, place_uuid
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

BLOCK_ROWS = 20_000
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


_NUMBER = converter("watts", "W")
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
    is_csv: bool

    @property
    def fields(self) -> dict[str, LogField]:
        """Fields by column name."""
        if "entity" in self.names:
            return _DCGM
        return _PMON if "pid" in self.names else _DMON

    def cells(self, line: str) -> list[str] | None:
        """The cells of a line; None: the line is not of a GPU."""
        if self.is_csv:
            return [cell.strip() for cell in line.split(",")]
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
    is_csv = "," in line
    text = line.lstrip("# \t").lower()
    names = tuple(name.strip() for name in (text.split(",") if is_csv else text.split()))
    found = _Columns(names, is_csv)
    known = {*names} & found.fields.keys()
    return found if known and ("gpu" in names or "entity" in names) else None


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """A `Reader`."""
    file = _File(origin, tally)
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            if (found := columns_of(line)) is not None:
                yield from file.begin(found)
        elif line.strip():
            yield from file.take(line, number)
    yield from file.rest()


class _File(LogFile):
    """A file; rounds without timestamps wait for the end, which dates them."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self._node = origin.node_or(None)
        self._columns: _Columns | None = None
        self._block: LineBlock | None = None
        self._entity_at = 0
        self._pid_at: int | None = None
        self._converted: dict[str, CellColumn] = {}
        self._seen: set[tuple[str, str]] = set()
        """GPUs and process ids in the current round."""
        self._round = 0
        self._last_gpu = -1
        self._rounds: list[int] = []
        """Round of each line in the block."""
        self._held: list[tuple[Any, list[tuple[str, dict[str, Any]]]]] = []

    def begin(self, columns: _Columns) -> Iterator[ImportedRows]:
        """Take a header, which repeats."""
        if self._columns is not None and columns.names == self._columns.names:
            return
        yield from self._handed_on()
        names = columns.names
        self._columns, self._block, self._converted = columns, LineBlock(len(names), ","), {}
        self._entity_at = names.index("gpu" if "gpu" in names else "entity")
        self._pid_at = names.index("pid") if "pid" in names else None

    def take(self, line: str, number: int) -> Iterator[ImportedRows]:
        """Take a line of values."""
        if self._columns is None or self._block is None:
            self.tally.skip("text before the first header", number)
            return
        cells = self._columns.cells(line)
        if cells is None:
            if line.split()[0].lower() not in ("id", "idx"):
                self.tally.skip("a line that is not of a whole GPU", number)
            return
        if len(cells) != len(self._columns.names):
            self.tally.skip(f"not the {len(self._columns.names)} cells of the header", number)
            return
        gpu = cells[self._entity_at]
        pid = "" if self._pid_at is None else cells[self._pid_at]
        index = int(gpu) if gpu.isdecimal() and len(gpu) < 5 else -1
        if index < self._last_gpu or (gpu, pid) in self._seen:
            self._round += 1
            self._seen.clear()
        self._seen.add((gpu, pid))
        self._last_gpu = index
        if pid == "-":
            return  # the GPU has no process
        if "," in line or '"' in line:
            cells = [re.sub(r'[",]', " ", cell) for cell in cells]
        self._block.add(",".join(cells) + "\n", number)
        self._rounds.append(self._round)
        if len(self._block.numbers) >= BLOCK_ROWS:
            yield from self._handed_on()

    def rest(self) -> Iterator[ImportedRows]:
        """Hand on the last rows, rounds without timestamps, and the inventory."""
        yield from self._handed_on()
        if self._held:
            self.tally.note(
                "no times (`-o DT`): rounds are taken to be a second apart, and the last to be of"
                f" {self.origin.at_source}"
            )
        end_ms = self.origin.at() if self._held else 0
        for rounds, tables in self._held:
            times = pa.array([end_ms - (self._round - n) * ROUND_MS for n in rounds], pa.int64())
            for table, columns in tables:
                yield ImportedRows(table, {"ts": times, **columns})
        yield from super().rest()

    def _handed_on(self) -> Iterator[ImportedRows]:
        if self._columns is None or self._block is None or not self._block.numbers:
            return
        names = self._columns.names
        cells, numbers = self._block.take()
        rounds, self._rounds = self._rounds, []
        at = {name: position for position, name in enumerate(names)}
        entity = "gpu" if "gpu" in at else "entity"
        indices = self._column(entity, converter("count")).values(
            cells[at[entity]], numbers, self.tally
        )
        uuids = {
            gpu: place_uuid(None, gpu, self._node)
            for gpu in set(indices.to_pylist())
            if gpu is not None
        }
        for gpu, uuid in uuids.items():
            self.inventory.add_gpu(uuid, self._node, {"gpu": gpu, "vendor": "nvidia"})
        if uuids:
            self.inventory.add_node(self._node, {})
            self.tally.note("GPUs are named by index: index and node stand for the UUID")
        identity = {
            "node": [self._node] * len(numbers),
            "gpu": indices,
            "gpu_uuid": [uuids.get(gpu) for gpu in indices.to_pylist()],
        }
        if _PCIE.keys() & at.keys():
            self.tally.note(
                "pcie_rx_bytes_per_second and pcie_tx_bytes_per_second are dmon's rxpci and txpci:"
                " 20 ms of each round"
            )
        tables: dict[str, dict[str, Any]] = {}
        for name, position in at.items():
            known = self._columns.fields.get(name)
            if known is not None:
                convert = _OWN.get(known.quantity) or converter(known.quantity, known.unit)
                values = self._column(name, convert).values(cells[position], numbers, self.tally)
                tables.setdefault(known.table, {})[known.column] = values
            elif name not in (entity, "date", "time") and (count := count_present(cells[position])):
                self.tally.unmapped[name] += count
        made = [(table, identity | columns) for table, columns in tables.items()]
        times = self._times(at, cells, numbers)
        if times is None:
            self._held.append((rounds, made))
            return
        for table, columns in made:
            yield ImportedRows(table, {"ts": times, **columns})

    def _column(self, name: str, convert: Converter) -> CellColumn:
        if name not in self._converted:
            self._converted[name] = CellColumn(name, convert)
        return self._converted[name]

    def _times(
        self, at: dict[str, int], cells: Sequence[Any], numbers: Sequence[int]
    ) -> list[int | None] | None:
        """Timestamp of each line; None: the columns have no date and time."""
        if "date" not in at or "time" not in at:
            return None
        found: list[int | None] = []
        memo: dict[tuple[str, str], int | None] = {}
        dates, clocks = (cells[at[name]].to_pylist() for name in ("date", "time"))
        for both, number in zip(zip(dates, clocks, strict=True), numbers, strict=True):
            if both not in memo:
                date, clock = both
                date = (
                    f"{date[:4]}-{date[4:6]}-{date[6:]}"
                    if len(date) == 8 and date.isdecimal()
                    else date
                )
                memo[both] = self.time(f"{date} {clock}", number)
            found.append(memo[both])
        return found
