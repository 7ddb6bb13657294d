"""Reads the output of `amd-smi metric`, `monitor`, `static` and `list` with `--json`.

Names are those of the tool's sources up to ROCm 7.14, where a value is `{"value": 5, "unit": "W"}` or a text; there
was no capture to check. Its MB are MiB. Identity is as in the agent's AMD probe: the chip's serial number, which
`static` prints as `asic_serial`.

A GPU in compute partitions has an answer for each. The first partition's is that of the whole GPU, with the
utilization of all (`gfx_busy_inst`). Of the others only the utilization is read: they repeat the whole GPU's
memory. An answer is of another partition if it says so (`partition_id`, `xcp`), or by the function of its PCI
address.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuwarden_agent.collect.amd import sysfs as amd_sysfs
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import ImportTally, Origin, Row, TableRow, Value
from gpuwarden_importing.rocm import documents
from gpuwarden_importing.values import (
    DETAILS,
    GPUS,
    HEALTH,
    SAMPLES,
    Converter,
    LogField,
    converter,
    plain,
    text,
)

_FIELDS: tuple[tuple[str, LogField], ...] = (
    (r"(usage/)?gfx_activity|gfx|gfx_util(ization)?|gfx_percent", LogField(SAMPLES, "util_percent", "percent", "%")),
    (r"(usage/)?umc_activity|mem|mem_util(ization)?|mem_percent", LogField(SAMPLES, "memory_util_percent", "percent", "%")),
    (r"(power/)?(socket_power|current_socket_power|power_usage)", LogField(SAMPLES, "power_instant_watts", "watts", "W")),
    (r"(power/)?average_socket_power", LogField(SAMPLES, "power_watts", "watts", "W")),
    (r"temperature/(hotspot|edge)|hotspot(_temperature)?|edge(_temperature)?", LogField(SAMPLES, "temperature_celsius", "celsius", "C")),
    (r"temperature/mem|mem_temperature|memory_temperature|temperature_mem", LogField(SAMPLES, "memory_temperature_celsius", "celsius", "C")),
    (r"clock/gfx_0/clk|gfx_0_clk|gfx_clk|gfx_clock", LogField(SAMPLES, "sm_clock_mhz", "mhz", "MHz")),
    (r"clock/mem_0/clk|mem_0_clk|mem_clk|mem_clock|clock/uclk_0/clk", LogField(SAMPLES, "memory_clock_mhz", "mhz", "MHz")),
    (r"(mem_usage/)?(total_vram|vram_total)|vram/vram_total", LogField(SAMPLES, "memory_total_bytes", "bytes", "MiB")),
    (r"(mem_usage/)?(used_vram|vram_used)|vram/vram_used", LogField(SAMPLES, "memory_used_bytes", "bytes", "MiB")),
    (r"(mem_usage/)?(free_vram|vram_free)", LogField(SAMPLES, "memory_free_bytes", "bytes", "MiB")),
    (r"(energy/)?total_energy_consumption", LogField(SAMPLES, "energy_joules_total", "joules", "J")),
    (r"fan/usage|fan_usage", LogField(DETAILS, "fan_percent", "percent", "%")),
    (r"pcie/width|width", LogField(DETAILS, "pcie_width", "lanes")),
    (r"pcie/replay_count|replay_count|pcie_replay", LogField(DETAILS, "pcie_replays_total", "count")),
    (r"pcie/replay_roll_over_count|replay_roll_over_count", LogField(DETAILS, "pcie_replay_rollovers_total", "count")),
    (r"pcie/l0_to_recovery_count|l0_to_recovery_count", LogField(DETAILS, "pcie_l0_to_recovery_total", "count")),
    (r"pcie/nak_sent_count|nak_sent_count", LogField(DETAILS, "pcie_naks_sent_total", "count")),
    (r"pcie/nak_received_count|nak_received_count", LogField(DETAILS, "pcie_naks_received_total", "count")),
    (r"clock/vclk_0/clk|vclk_0_clk|vclk_clock|vclock", LogField(DETAILS, "video_clock_mhz", "mhz", "MHz")),
    (r"(ecc/)?total_correctable_count|total_correctable|single_bit_ecc", LogField(HEALTH, "ecc_corrected_volatile_total", "count")),
    (r"(ecc/)?total_uncorrectable_count|total_uncorrectable|double_bit_ecc", LogField(HEALTH, "ecc_uncorrected_volatile_total", "count")),
    (r"(asic/)?market_name", LogField(GPUS, "model", "text")),
    (r"(board/)?product_serial", LogField(GPUS, "serial", "text")),
    (r"(vbios|ifwi)/part_number|vbios_part_number|ifwi_part_number", LogField(GPUS, "vbios_version", "text")),
    (r"(vram/)?size", LogField(GPUS, "memory_total_bytes", "bytes", "MiB")),
    (r"(bus/)?max_pcie_width", LogField(GPUS, "pcie_width_max", "lanes")),
    (r"limit/slowdown_hotspot_temperature", LogField(GPUS, "temperature_slowdown_celsius", "celsius", "C")),
    (r"limit/shutdown_hotspot_temperature", LogField(GPUS, "temperature_shutdown_celsius", "celsius", "C")),
    (r"(limit/)?(ppt0/)?min_power(_limit)?", LogField(GPUS, "power_limit_min_watts", "watts", "W")),
    (r"(bus/)?bdf", LogField(GPUS, "pci_bus_id", "bus_id")),
    (r"(numa/)?numa_node|numa/node", LogField(GPUS, "numa_node", "count")),
    (r"limit/max_power|(limit/)?(ppt0/)?max_power_limit", LogField(GPUS, "power_limit_max_watts", "watts", "W")),
    # `monitor` calls the limit that is set max_power.
    (r"(limit/)?(ppt0/)?(socket_power_limit|current_power|power_cap)|max_power|limit/socket_power", LogField(SAMPLES, "power_limit_watts", "watts", "W")),
)  # fmt: skip
_KNOWN: tuple[tuple[re.Pattern[str], LogField, Converter], ...] = tuple(
    (re.compile(rf"(?:{shape})\Z"), known, converter(known.quantity, known.unit))
    for shape, known in _FIELDS
)
_ELSEWHERE = re.compile(
    r"gpu|timestamp|(asic/)?asic_serial|driver/version|driver_version|uuid|xcp|(partition/)?(partition_id"
    r"|(accelerator|compute)_partition)|.*/xcp_\d+"
)
_FUNCTION = re.compile(r".*\.([1-7])")
_MODES = ("spx", "dpx", "tpx", "qpx", "cpx")
_HOTSPOT = re.compile(r"(?:temperature/)?hotspot")


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader`: one document, or several in sequence."""
    file = _File(origin, tally)
    for document, line in documents(lines, tally):
        inner = document.get("gpu_data")
        for each in inner if isinstance(inner, list) else [document]:
            if isinstance(each, dict):
                file.take(dict(_flat(each)), line, _busy(each))
    yield from file.rest()


def _flat(document: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, str]]:
    """Paths and texts; a value with its unit is one text."""
    for name, value in document.items():
        path = f"{start}{name}".lower()
        match value:
            case {"value": amount, **unit} if not isinstance(amount, dict | list):
                yield path, f"{amount} {unit.get('unit') or ''}".strip()
            case dict():
                yield from _flat(value, f"{path}/")
            case str() | int() | float():
                yield path, str(value)


def _busy(document: Mapping[str, Any]) -> dict[int, float]:
    """Utilization of each partition: the mean of its compute dies."""
    usage = document.get("usage")
    partitions = usage.get("gfx_busy_inst") if isinstance(usage, dict) else None
    found = {}
    for name, dies in partitions.items() if isinstance(partitions, dict) else ():
        number = re.fullmatch(r"xcp_(\d)", str(name))
        cells = [each.get("value") if isinstance(each, dict) else each for each in _listed(dies)]
        known = [
            float(cell) for cell in cells if isinstance(cell, int | float) and 0 <= cell <= 100
        ]
        if number and known:
            found[int(number[1])] = sum(known) / len(known)
    return found if len(found) > 1 else {}


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _partition(said: Mapping[str, str]) -> int:
    """Number of the partition that an answer is about; 0: the whole GPU."""
    for name in ("partition/partition_id", "partition_id", "xcp"):
        number = said.get(name, "")
        if number.isdecimal() and len(number) < 3:
            return int(number)
    function = _FUNCTION.fullmatch(said.get("bus/bdf") or said.get("bdf") or "")
    return int(function[1]) if function else 0


class _File(LogFile):
    """A file; its rows wait for the document that names their GPUs."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self._node = origin.node_or(None)
        self._unnamed: list[tuple[str, int, Row]] = []
        self._serials: dict[int, str] = {}
        self._places: dict[int, str] = {}
        self._facts: dict[int, Row] = {}
        self._driver: Value = None
        self._partitions: dict[int, int] = {}
        """Number of the partition by that of an answer, where it is of another one than the first."""
        self._modes: dict[int, str] = {}
        self._busy: list[tuple[int, int, Value, float]] = []
        """Number of an answer, partition, time, utilization."""

    def take(self, said: Mapping[str, str], line: int, busy: Mapping[int, float]) -> None:
        """Take the values of a GPU from one document; `busy`: utilization of its partitions."""
        number = said.get("gpu", "")
        if not number.isdecimal() or len(number) > 4:
            self.tally.skip("an answer that names no GPU", line)
            return
        gpu = int(number)
        values: dict[str, Row] = {SAMPLES: {}, DETAILS: {}, HEALTH: {}, GPUS: {}}
        for name, cell in said.items():
            self._take_value(values, name, cell, line)
        samples = values[SAMPLES]
        if samples.get("power_watts") is None and samples.get("power_instant_watts") is not None:
            samples["power_watts"] = samples["power_instant_watts"]
        self._identify(gpu, said, values[GPUS])
        facts = self._facts.setdefault(gpu, {"gpu": gpu, "vendor": "amd"})
        facts |= {n: v for n, v in values.pop(GPUS).items() if v is not None}
        if samples.get("memory_total_bytes") is not None:
            facts["memory_total_bytes"] = samples["memory_total_bytes"]
        ts_ms = self._time(said.get("timestamp"), line)
        for table, row in values.items():
            if ts_ms is not None and any(value is not None for value in row.values()):
                self._unnamed.append((table, gpu, {"ts": ts_ms, "gpu": gpu, **row}))
        if ts_ms is not None:
            self._busy += [(gpu, part, ts_ms, percent) for part, percent in busy.items()]

    def _identify(self, gpu: int, said: Mapping[str, str], facts: Row) -> None:
        """Learn whose answer it is."""
        serial = said.get("asic/asic_serial") or said.get("asic_serial") or ""
        if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", serial):
            self._serials[gpu] = f"{int(serial, 16):016x}"
        if (place := facts.get("pci_bus_id")) is not None:
            self._places[gpu] = str(place)
        if part := _partition(said):
            self._partitions[gpu] = part
        for name in ("accelerator_partition", "compute_partition"):
            mode = (said.get(f"partition/{name}") or said.get(name) or "").lower()
            if mode in _MODES:
                self._modes[gpu] = mode
        self._driver = (
            text(said.get("driver/version") or said.get("driver_version") or "") or self._driver
        )

    def _take_value(self, values: dict[str, Row], name: str, cell: str, line: int) -> None:
        for shape, known, convert in _KNOWN:
            if not shape.match(name):
                continue
            # An APU prints 65535 MHz for a clock that it does not know.
            is_unknown = known.quantity == "mhz" and cell.startswith("65535")
            value = None if is_unknown else self.read(name, cell, convert, line)
            row = values[known.table]
            # Of several sensors the hotspot counts.
            if value is not None and (row.get(known.column) is None or _HOTSPOT.match(name)):
                row[known.column] = value
            return
        if plain(cell) is not None and not _ELSEWHERE.fullmatch(name):
            self.tally.unmapped[name] += 1

    def _time(self, said: str | None, line: int) -> int | None:
        if said is None or plain(said) is None:
            return self.assumed_time()
        return self.time(said, line)

    def rest(self) -> Iterator[TableRow]:
        """Hand on all rows, with the UUIDs of the whole file."""
        uuids = {gpu: self._uuid(gpu) for gpu in self._facts}
        wholes = {uuids[gpu]: gpu for gpu in self._facts if gpu not in self._partitions}
        told: set[tuple[str, Value]] = set()
        for gpu, part, ts_ms, percent in self._busy:
            uuid = self._part(uuids[gpu], gpu, part)
            told.add((uuid, ts_ms))
            self._add_part(uuid, gpu, part, ts_ms, percent)
        for table, gpu, row in self._unnamed:
            if gpu not in self._partitions:
                self.add(table, {**row, "node": self._node, "gpu_uuid": uuids[gpu]})
                continue
            part, used = self._partitions[gpu], row.get("util_percent")
            gpu = wholes.get(uuids[gpu], gpu)
            uuid = self._part(uuids[gpu], gpu, part)
            if isinstance(used, float) and (uuid, row["ts"]) not in told:
                self._add_part(uuid, gpu, part, row["ts"], used)
        for gpu, facts in self._facts.items():
            if gpu not in self._partitions:
                self.inventory.add_gpu(uuids[gpu], self._node, facts)
        if self._facts:
            self.inventory.add_node(self._node, {"driver_version": self._driver})
        yield from super().rest()

    def _add_part(self, uuid: str, gpu: int, part: int, ts_ms: Value, percent: float) -> None:
        row = {"ts": ts_ms, "gpu": gpu, "node": self._node, "gpu_uuid": uuid}
        instance = f"{self._mode(gpu)}/{part}"
        self.add(SAMPLES, {**row, "mig_instance": instance, "util_percent": percent})

    def _part(self, whole: str, gpu: int, part: int) -> str:
        """UUID of a partition, which becomes part of the inventory."""
        uuid = f"{whole}-{part}"
        mode = self._mode(gpu)
        model = self._facts[gpu].get("model") or "AMD GPU"
        facts: Row = {"gpu": gpu, "vendor": "amd", "mig_instance": f"{mode}/{part}"}
        facts |= {"parent_gpu_uuid": whole, "model": f"{model} {mode.upper()}"}
        self.inventory.add_gpu(uuid, self._node, facts)
        return uuid

    def _mode(self, gpu: int) -> str:
        """The partition mode as the file tells it, or by the number of partitions."""
        if gpu in self._modes:
            return self._modes[gpu]
        serial = self._serials.get(gpu)
        for other, mode in self._modes.items():
            if serial is not None and self._serials.get(other) == serial:
                return mode
        count = len({part for _, part, _, _ in self._busy})
        return {2: "dpx", 3: "tpx", 4: "qpx"}.get(count, "cpx")

    def _uuid(self, gpu: int) -> str:
        if serial := self._serials.get(gpu):
            return amd_sysfs.gpu_uuid(serial, "", self._node)
        place = self._places.get(gpu)
        if place and gpu in self._partitions:
            place = f"{place[:-1]}0"
        which = "PCI bus id" if place else "number"
        self.tally.note(
            f"no asic_serial in the file (`amd-smi static`): the GPU's {which} and its node stand for its UUID"
        )
        return amd_sysfs.gpu_uuid(None, place or f"gpu{gpu}", self._node)
