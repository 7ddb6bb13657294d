"""Reads the output of `rocm-smi --json`, versions 4 to 7: one document or several.

There are no timestamps, so a document gets the file's time. Names of values change between versions, but not their
meaning. Units and identity are as in the agent's AMD probe.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuwarden_agent.collect.amd import sysfs as amd_sysfs
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import ImportTally, Origin, Row, TableRow, UnreadableError, Value
from gpuwarden_importing.values import (
    DETAILS,
    GPUS,
    PROCESSES,
    SAMPLES,
    Converter,
    bus_id,
    converter,
    executable,
    plain,
    text,
)

DOCUMENT_CHARS_MAX = 64 * 1024 * 1024
_CARD = re.compile(r"card(\d{1,4})\Z")
_PROCESS = re.compile(r"PID(\d{1,9})\Z")
_HEX = re.compile(r"0x[0-9a-f]+\Z", re.IGNORECASE)
_PCIE = re.compile(r"\(?(?P<speed>\d+(?:\.\d+)?)\s*GT/s(?:\s+PCIe)?\s*x(?P<width>\d+)\)?")
_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

_PERCENT, _WATTS, _CELSIUS = (
    converter("percent", "%"),
    converter("watts", "W"),
    converter("celsius", "C"),
)
_BYTES, _CLOCK, _COUNT = converter("bytes", "B"), converter("clock"), converter("count")
_MICROJOULES = converter("joules", "uJ")


def _warm(cell: str) -> Value:
    """A temperature; 0 means that the sensor is missing."""
    return _CELSIUS(cell) or None


def _drawn(cell: str) -> Value:
    """Power; 0 means no measurement, and "N/A (Secondary die)" that the first die includes it."""
    return None if cell.strip().upper().startswith("N/A") else _WATTS(cell) or None


_SAMPLES: tuple[tuple[str, str, Converter], ...] = (
    (r"GPU use \(%\)", "util_percent", _PERCENT),
    (r"GPU memory use \(%\)", "memory_util_percent", _PERCENT),
    (r"GPU Memory Read/Write Activity \(%\)", "memory_util_percent", _PERCENT),
    (r"Average Graphics Package Power \(W\)", "power_watts", _drawn),
    (r"Current (?:Socket )?Graphics Package Power \(W\)", "power_instant_watts", _drawn),
    (r"Max Graphics Package Power \(W\)", "power_limit_watts", _drawn),
    (r"Accumulated Energy \(uJ\)", "energy_joules_total", _MICROJOULES),
    (r"Temperature \(Sensor edge\) \(C\)", "temperature_celsius", _warm),
    (r"Temperature \(Sensor memory\) \(C\)", "memory_temperature_celsius", _warm),
    (r"sclk clock speed:?", "sm_clock_mhz", _CLOCK),
    (r"mclk clock speed:?", "memory_clock_mhz", _CLOCK),
    (r"VRAM Total Memory \(B\)", "memory_total_bytes", _BYTES),
    (r"VRAM Total Used Memory \(B\)", "memory_used_bytes", _BYTES),
)
_DETAILS: tuple[tuple[str, str, Converter], ...] = (
    (r"Fan speed \(%\)", "fan_percent", _PERCENT),
    (r"PCIe Replay Count", "pcie_replays_total", _COUNT),
    (r"vclk clock speed:?", "video_clock_mhz", _CLOCK),
)


def _name(cell: str) -> Value:
    """A name; a hexadecimal id, printed when the host has no list of names, is absent."""
    found = text(cell)
    return None if found is None or str(found) == "0" or _HEX.match(str(found)) else found


_GPUS: tuple[tuple[str, str, Converter], ...] = (
    (r"VBIOS version", "vbios_version", text),
    (r"Serial Number", "serial", _name),
    (r"PCI Bus", "pci_bus_id", bus_id),
    (r"Card [Ss]eries", "model", _name),
)
_NAMES = tuple(
    (re.compile(shape + r"\Z"), table, column, convert)
    for table, shapes in ((SAMPLES, _SAMPLES), (DETAILS, _DETAILS), (GPUS, _GPUS))
    for shape, column, convert in shapes
)
_ELSEWHERE = ("Unique ID", "GPU ID", "Device ID", "(Topology) Numa Node", "pcie clock level")
"""Values that other functions read."""
_JUNCTION = "Temperature (Sensor junction) (C)"


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader`."""
    file = LogFile(origin, tally)
    for document, line in documents(lines, tally):
        _take(file, document, line)
    yield from file.rest()


def documents(lines: Iterator[str], tally: ImportTally) -> Iterator[tuple[dict[str, Any], int]]:
    """JSON objects, in sequence or in a list, with their first lines."""
    parts: list[str] = []
    size = 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size > DOCUMENT_CHARS_MAX:
            raise UnreadableError("it has more than 64 MiB, which no rocm-smi has written")
    content = "".join(parts)
    decoder = json.JSONDecoder()
    at = 0
    while (at := _next_object(content, at)) >= 0:
        line_number = content.count("\n", 0, at) + 1
        try:
            found, at = decoder.raw_decode(content, at)
        except (ValueError, RecursionError):
            tally.skip("a document that is not JSON", line_number)
            at += 1
            continue
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, dict):
                yield each, line_number


def _next_object(content: str, at: int) -> int:
    found = [position for mark in "{[" if (position := content.find(mark, at)) >= 0]
    return min(found, default=-1)


def _take(file: LogFile, document: Mapping[str, Any], line: int) -> None:
    cards = {n: v for n, v in document.items() if _CARD.match(n) and isinstance(v, dict)}
    if not cards:
        file.tally.skip("a document without cards", line)
        return
    node, ts_ms = file.origin.node_or(None), file.assumed_time()
    uuids: dict[int, str] = {}
    for name, card in cards.items():
        said = {str(k): str(v) for k, v in card.items() if isinstance(v, str | int | float)}
        index = int(name.removeprefix("card"))
        found = _values(file, said, name, line)
        gpu = found.pop(GPUS) | _facts(said)
        uuid = _uuid(said, gpu.get("pci_bus_id"), index, node, file.tally)
        uuids[index] = uuid
        for table, row in found.items():
            if any(value is not None for value in row.values()):
                identity: Row = {"ts": ts_ms, "node": node, "gpu": index, "gpu_uuid": uuid}
                file.add(table, identity | row)
        total = found[SAMPLES].get("memory_total_bytes")
        gpu |= {"gpu": index, "vendor": "amd", "memory_total_bytes": total}
        file.inventory.add_gpu(uuid, node, gpu)
    system = document.get("system")
    system = system if isinstance(system, dict) else {}
    driver = system.get("Driver version")
    for name, told in system.items():
        if (process := _PROCESS.match(str(name))) is None:
            if name != "Driver version" and plain(str(told)) is not None:
                file.tally.unmapped[f"system: {name}"] += 1
        elif made := _process(file, int(process[1]), str(told), uuids, line):
            file.add(PROCESSES, {"ts": ts_ms, "node": node, **made})
    file.inventory.add_node(node, {"driver_version": text(str(driver or "")), "gpus": len(cards)})


def _process(file: LogFile, pid: int, said: str, uuids: Mapping[int, str], line: int) -> Row | None:
    """A process of `--showpids`: name, how many GPUs, bytes, and two more."""
    cells = [cell.strip() for cell in said.rsplit(",", 4)]
    if len(cells) != 5 or not cells[1].isdecimal():
        file.tally.skip("a process (PID...) in an unknown form", line)
    elif int(cells[1]) == 0:
        file.tally.ignore("a process (PID...) that is on no GPU", line)
    elif len(uuids) != 1:
        file.tally.skip("a process (PID...) without its GPU", line)
    else:
        ((gpu, uuid),) = uuids.items()
        used = file.read(f"PID{pid}", cells[2], _BYTES, line)
        row: Row = {"gpu": gpu, "gpu_uuid": uuid, "pid": pid, "process_type": "compute"}
        return row | {"process_name": executable(cells[0]), "gpu_memory_bytes": used}
    return None


def _values(file: LogFile, said: Mapping[str, str], card: str, line: int) -> dict[str, Row]:
    found: dict[str, Row] = {SAMPLES: {}, DETAILS: {}, GPUS: {}}
    for name, cell in said.items():
        known = next((each for each in _NAMES if each[0].match(name)), None)
        if known is not None:
            _, table, column, convert = known
            value = file.read(f"{card}: {name}", cell, convert, line)
            if value is not None or column not in found[table]:
                found[table][column] = value
        elif plain(cell) is not None and name not in _ELSEWHERE and name != _JUNCTION:
            file.tally.unmapped[name] += 1
    samples = found[SAMPLES]
    if samples.get("power_watts") is None:
        samples["power_watts"] = samples.get("power_instant_watts")
    if samples.get("temperature_celsius") is None and _JUNCTION in said:
        junction = file.read(f"{card}: {_JUNCTION}", said[_JUNCTION], _warm, line)
        samples["temperature_celsius"] = junction
    if link := _PCIE.search(said.get("pcie clock level", "")):
        found[DETAILS] |= {
            "pcie_generation": _SPEEDS.get(float(link["speed"])),
            "pcie_width": int(link["width"][:4]) or None,
        }
    return found


def _facts(said: Mapping[str, str]) -> Row:
    """Columns of `gpus` that need a conversion of their own."""
    row: Row = {}
    numa = said.get("(Topology) Numa Node", "")
    if numa.isdecimal() and int(numa[:10]) < 1 << 15:
        row["numa_node"] = int(numa)
    device = _number(said.get("Device ID")) or _number(said.get("GPU ID"))
    if device in amd_sysfs.MODELS:
        row["model"] = amd_sysfs.MODELS[device]
    return row


def _number(said: str | None) -> int:
    return int(said, 16) if said and _HEX.match(said) and len(said) <= 18 else 0


def _uuid(
    said: Mapping[str, str], pci_bus_id: Value, index: int, node: str, tally: ImportTally
) -> str:
    """UUID as the agent makes it: by the chip's unique id, else by the place."""
    chip = said.get("Unique ID", "").strip()
    if _HEX.match(chip) and _number(chip):
        return amd_sysfs.gpu_uuid(f"{_number(chip):016x}", "", node)
    if not pci_bus_id:
        tally.note(
            "neither unique id nor PCI bus: the card's number and its node stand for its UUID"
        )
        return amd_sysfs.gpu_uuid(None, f"card{index}", node)
    tally.note("no unique id in the file: the GPU's PCI bus id and its node stand for its UUID")
    return amd_sysfs.gpu_uuid(None, str(pci_bus_id), node)
