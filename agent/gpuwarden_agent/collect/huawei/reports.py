"""Evaluates what `npu-smi` prints: the table of `npu-smi info`, and pages of "name : value" lines.

Sources of the formats: Huawei's "npu-smi Command Reference" for Atlas A2 and A3 (info, -t board,
-t ecc), and tables of npu-smi 23 to 26 in issues of vllm-project/vllm-ascend. A chip is a device: an
NPU of the 910C is a module of two.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuwarden_agent.probe import Value

MIB = 1 << 20
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_PAIR = re.compile(r"(\d{1,12})\s*/\s*(\d{1,12})", re.ASCII)
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_NONE = {"", "-", "NA", "N/A", "UNKNOWN"}


@dataclass(frozen=True, slots=True)
class NpuChip:
    """One chip in the table of `npu-smi info`."""

    npu: int
    """Number of the card or module."""
    chip: int
    """Number of the chip on it."""
    name: str
    """As the table has it: 910B3, or Ascend910 of an A3."""
    bus: str | None
    sample: Mapping[str, Value]
    """Columns of `gpu_samples`."""
    processes: tuple[tuple[int, int | None], ...] = ()


@dataclass(slots=True)
class _Table:
    """What was read of a table until now."""

    names: str = ""
    """Heading of the chips' lines."""
    module: tuple[int, str, float | None, float | None] | None = None
    """Number, name, power and temperature of the line before a chip's."""
    chips: list[NpuChip] = field(default_factory=list)
    in_processes: bool = False
    by_chip: dict[tuple[int, int], dict[int, int | None]] = field(default_factory=dict)


def parse_table(text: str) -> list[NpuChip]:
    """Chips of `npu-smi info`, with their processes. Raises ValueError."""
    table = _Table()
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("|"):
            _take(table, [cell.strip() for cell in stripped.strip("|").split("|")])
    if not table.chips:
        words = text.strip().splitlines()
        raise ValueError(f"it has no chip: {words[0][:80]}" if words else "it has no chip")
    if table.module is not None:
        raise ValueError("it ends within a chip")
    if not table.in_processes:
        raise ValueError("it ends before the processes")
    return _powers_shared([_with_processes(chip, table.by_chip) for chip in table.chips])


def fields_by_chip(text: str) -> dict[int, dict[str, str]]:
    """Fields of a page such as `npu-smi info -t ecc -i 0`, by chip, of which "Chip ID" is the last line.

    Without that line the page has one chip: 0.
    """
    by_chip: dict[int, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not colon:
            continue
        if name == "Chip ID" and _COUNT.fullmatch(value):
            by_chip[int(value)] = fields
            fields = {}
        elif name not in {"NPU ID", "Chip Count"}:
            fields[name] = value
    if fields and not by_chip:
        by_chip[0] = fields
    return by_chip


def fields_of(text: str) -> dict[str, str]:
    """All fields of a page of one chip or card, the first of each name."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and _word(value) is not None:
            fields.setdefault(name.strip(), value.strip())
    return fields


def die_of(fields: Mapping[str, str]) -> str | None:
    """Number of the chip's die, which no other chip has: five hexadecimal words; None: not told."""
    for name in ("VDie ID", "DDie ID", "Die ID"):
        words = fields.get(name, "").split()
        if words and all(re.fullmatch(r"[0-9A-Fa-f]{8}", word) for word in words):
            die = "-".join(words).lower()
            return die if set(die) - {"0", "-"} else None
    return None


def health(fields: Mapping[str, str]) -> dict[str, Value]:
    """Columns of `gpu_health_samples` in the fields of `-t ecc`."""

    def count(name: str) -> int | None:
        value = fields.get(name, "")
        return int(value) if _COUNT.fullmatch(value) else None

    corrected = count("HBM Single Bit Error Count")
    uncorrected = count("HBM Double Bit Error Count")
    ever_corrected = count("HBM Single Bit Aggregate Total Err Cnt")
    ever_uncorrected = count("HBM Double Bit Aggregate Total Err Cnt")
    waiting = [
        number
        for name in ("Single", "Double")
        if (number := count(f"HBM {name} Bit Next-Isolated Pages Count")) is not None
    ]
    return {
        "ecc_corrected_volatile_total": corrected,
        "ecc_uncorrected_volatile_total": uncorrected,
        "dram_corrected_volatile_total": corrected,
        "dram_uncorrected_volatile_total": uncorrected,
        "ecc_corrected_aggregate_total": ever_corrected,
        "ecc_uncorrected_aggregate_total": ever_uncorrected,
        "dram_corrected_aggregate_total": ever_corrected,
        "dram_uncorrected_aggregate_total": ever_uncorrected,
        "retired_pages_corrected_total": count("HBM Single Bit Isolated Pages Count"),
        "retired_pages_uncorrected_total": count("HBM Double Bit Isolated Pages Count"),
        "retired_pages_pending": any(waiting) if waiting else None,
    }


def model_of(table_name: str, fields: Mapping[str, str]) -> str:
    """The chip's name: "Ascend 910B3". The table says "Ascend910" of each A3; `-t board` knows more."""
    npu = _word(fields.get("NPU Name", ""))
    chip = _word(fields.get("Chip Name", "")) or table_name
    name = f"{chip}_{npu}" if npu and npu not in chip else chip
    return f"Ascend {name.removeprefix('Ascend').strip()}"


def _take(table: _Table, cells: Sequence[str]) -> None:
    """One line between bars."""
    if len(cells) > 1 and cells[1] == "Process id":
        table.in_processes = True
        return
    if table.in_processes:
        _take_process(table, cells)
        return
    if len(cells) != 3:
        return
    if cells[0].split()[:1] == ["Chip"]:
        table.names = cells[2]
    elif table.names:
        _take_chip(table, cells)


def _take_chip(table: _Table, cells: Sequence[str]) -> None:
    words = cells[0].split()
    if not words or not _COUNT.fullmatch(words[0]):
        raise ValueError(f"{cells[0][:40]!r} does not begin with a number")
    if table.module is None:
        if len(words) < 2:
            raise ValueError(f"NPU {words[0]} has no name")
        values = [*cells[2].split(), "", ""]
        name = " ".join(words[1:])
        table.module = int(words[0]), name, _number(values[0]), _number(values[1])
        return
    npu, name, power, temperature = table.module
    table.module = None
    used, total = _memory(table.names, cells[2])
    chip = NpuChip(
        npu,
        int(words[0]),
        name,
        cells[1].lower() if _BUS.fullmatch(cells[1]) else None,
        {
            "util_percent": _number((cells[2].split() or [""])[0]),
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "power_watts": power,
            "temperature_celsius": temperature,
        },
    )
    if any((one.npu, one.chip) == (chip.npu, chip.chip) for one in table.chips):
        raise ValueError(f"it has chip {chip.chip} of NPU {chip.npu} twice")
    table.chips.append(chip)


def _memory(names: str, values: str) -> tuple[int | None, int | None]:
    """Bytes used and in all: of the HBM where the chip has it, else of its DDR."""
    pairs = [(int(used), int(total)) for used, total in _PAIR.findall(values)]
    if len(pairs) != names.count("(MB)"):
        return None, None
    for used, total in reversed(pairs):
        if total > 0:
            return used * MIB, total * MIB
    return None, None


def _take_process(table: _Table, cells: Sequence[str]) -> None:
    if len(cells) < 4:
        return  # "No running processes found in NPU 0"
    numbers = cells[0].split()
    if len(numbers) != 2 or not all(_COUNT.fullmatch(word) for word in (*numbers, cells[1])):
        return
    npu, chip = map(int, numbers)
    mib = _number(cells[3])
    memory = None if mib is None else int(mib) * MIB
    table.by_chip.setdefault((npu, chip), {})[int(cells[1])] = memory


def _with_processes(
    chip: NpuChip, by_chip: Mapping[tuple[int, int], Mapping[int, int | None]]
) -> NpuChip:
    return replace(chip, processes=tuple(sorted(by_chip.get((chip.npu, chip.chip), {}).items())))


def _powers_shared(chips: Sequence[NpuChip]) -> list[NpuChip]:
    """Power of a module, which the table has at its first chip only, in equal shares."""
    shared = []
    for chip in chips:
        powers = [one.sample["power_watts"] for one in chips if one.npu == chip.npu]
        told = [power for power in powers if isinstance(power, float)]
        if len(powers) > 1 and len(told) == 1:
            sample = {**chip.sample, "power_watts": told[0] / len(powers)}
            shared.append(replace(chip, sample=sample))
        else:
            shared.append(chip)
    return shared


def _number(word: str) -> float | None:
    return float(word) if _NUMBER.fullmatch(word) else None


def _word(text: str) -> str | None:
    text = text.strip()
    return None if text.upper() in _NONE else text
