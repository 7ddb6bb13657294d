"""Converts cells of other tools' logs to the catalogue's units: pure, a converter per column.

A converter gives None for the tool's words for absent ("N/A", "[Not Supported]", "ERR!"), and raises ValueError for
text that it does not understand.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from gpuwarden_agent.events.xid_lines import bus_id as canonical_bus_id
from gpuwarden_importing.model import Value

Converter = Callable[[str], Value]

_ABSENT = frozenset(
    """n/a|na|-|--|not supported|not available|unknown|unknown error|err!|error|not found|null|nan
    |requested functionality has been deprecated|insufficient permissions|function not found
    |gpu is lost|gpu requires reset|no data|unavailable|redacted|<unknown>|not applicable""".replace(
        "\n    ", ""
    ).split("|")
) | {""}
_NUMBER = re.compile(
    r"([+-]?(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?\Z", re.ASCII
)
_BITS_MAX = 1 << 63

SAMPLES, DETAILS, HEALTH, PROCESSES, GPUS = (
    "gpu_samples",
    "gpu_detail_samples",
    "gpu_health_samples",
    "process_samples",
    "gpus",
)
"""Tables of fields."""
PROCESS_TYPES = {"C": "compute", "C+G": "compute", "G": "graphics", "M": "mps", "M+C": "mps"}
"""Values of the column `process_type`, by nvidia-smi's letters."""

UNITS: Mapping[str, Mapping[str, float]] = {
    "percent": {"%": 1},
    # Drivers before 2014 wrote MB for MiB; nvidia-smi never means 10^6.
    "bytes": {"B": 1, "KiB": 2**10, "MiB": 2**20, "MB": 2**20, "GiB": 2**30, "TiB": 2**40},
    "watts": {"W": 1, "mW": 1e-3, "kW": 1e3},
    "celsius": {"C": 1, "°C": 1},
    "mhz": {"MHz": 1, "Mhz": 1, "GHz": 1e3, "kHz": 1e-3, "Hz": 1e-6},
    "seconds": {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
    "joules": {"J": 1, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3},
    "count": {"": 1, "bank(s)": 1},
    "lanes": {"": 1, "x": 1},
}
"""Factors to the catalogue's unit, by quantity and unit."""

_TRUE = frozenset({"yes", "enabled", "active", "true", "1", "valid", "on", "pending", "supported"})
_FALSE = frozenset({"no", "disabled", "not active", "false", "0", "invalid", "off", "none"})


@dataclass(frozen=True, slots=True)
class LogField:
    """The column of a field."""

    table: str
    column: str
    quantity: str
    """A key of UNITS, or of `_OTHERS`."""
    unit: str = ""
    """The unit of a value without one."""
    rank: int = 0
    """If several fields fill a column, the lowest rank with a value counts."""


def plain(text: str) -> str | None:
    """The text without quotes and surrounding space; None: it means absent."""
    text = text.strip().strip('"').strip()
    if text.startswith("[") and text.endswith("]"):
        return None
    return None if text.lower() in _ABSENT else text


@cache
def converter(quantity: str, unit: str = "") -> Converter:
    """The converter of a quantity; `unit`: of a cell without one."""
    return _OTHERS.get(quantity) or _amount(quantity, unit)


def _amount(quantity: str, unit: str) -> Converter:
    units = UNITS[quantity]
    is_whole = quantity in ("bytes", "count", "lanes", "mhz")

    def convert(text: str) -> Value:
        cell = plain(text)
        if cell is None or cell.lower() == "none":
            return None
        found = _NUMBER.match(cell)
        if found is None:
            raise ValueError("is not a number")
        named = (found[2] or "").strip() or unit
        if named not in units:
            raise ValueError("has an unknown unit")
        value = float(found[1].replace(",", ".")) * units[named]
        if not math.isfinite(value):
            raise ValueError("is not a number")
        if not is_whole:
            return _exact(found[1], units[named], value)
        # Integers above 2^53 stay exact.
        if units[named] == 1 and found[1].lstrip("+-").isdigit():
            value = int(found[1])
        if quantity == "count" and value != int(value):
            raise ValueError("is not a whole number")
        return _in_64_bits(round(value))

    return convert


def _exact(digits: str, factor: float, value: float) -> float:
    """4251825415 us as exactly 4251.825415 s: division rounds once."""
    if 0 < factor < 1:
        return float(digits.replace(",", ".")) / round(1 / factor)
    return value


def _in_64_bits(value: int) -> int:
    if not -_BITS_MAX <= value < _BITS_MAX:
        raise ValueError("is larger than any count")
    return value


def text(cell: str) -> Value:
    """Any text."""
    return plain(cell)


def bits(cell: str) -> Value:
    """A bit mask, hexadecimal with 0x or decimal."""
    found = plain(cell)
    if found is None:
        return None
    try:
        return _in_64_bits(int(found, 16 if found.lower().startswith("0x") else 10))
    except ValueError:
        raise ValueError("is not a bit mask") from None


def flag(cell: str) -> Value:
    """A boolean, in the tools' words for it."""
    found = plain(cell)
    word = None if found is None else found.lower()
    if word is None:
        return None
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("is neither yes nor no")


def pstate(cell: str) -> Value:
    """P0 to P15 as a number; "Unknown" and P32 are absent."""
    found = plain(cell)
    if found is None:
        return None
    number = found[1:] if found[:1] in "Pp" else found
    if not number.isdecimal() or len(number) > 3:
        raise ValueError("is not a performance state")
    return int(number) if int(number) <= 15 else None


def _clock(cell: str) -> Value:
    """rocm-smi's "(300Mhz)"."""
    return _MHZ(cell.strip().strip("()"))


def bus_id(cell: str) -> Value:
    """A PCI bus id in the kernel's form, 0000:3b:00.0."""
    found = plain(cell)
    made = None if found is None else canonical_bus_id(found)
    if found is not None and made is None:
        raise ValueError("is not a PCI bus id")
    return made


def _word(cell: str) -> Value:
    """A state in lower case with underscores: "Not Started" is not_started."""
    found = plain(cell)
    return None if found is None else re.sub(r"[\s-]+", "_", found.lower())


_RECOVERIES = {
    "gpu_reset_required": "gpu_reset",
    "reset": "gpu_reset",
    "reboot": "node_reboot",
    "node_reboot_required": "node_reboot",
    "drain_p2p_traffic": "drain_p2p",
    "drain_and_reset_recommended": "drain_and_reset",
}


def _recovery(cell: str) -> Value:
    word = _word(cell)
    return None if word is None else _RECOVERIES.get(str(word), word)


_COMPUTE_MODES = frozenset({"default", "prohibited", "exclusive_process"})


def _compute_mode(cell: str) -> Value:
    word = str(_word(cell) or "").partition(":")[2].strip("_ ") or _word(cell)
    if word is None or word in _COMPUTE_MODES:
        return word
    if word == "exclusive_thread":
        return None  # deprecated, and not in the catalogue
    raise ValueError("is not a compute mode")


def _architecture(cell: str) -> Value:
    word = _word(cell)
    return None if word is None else str(word).partition("_")[0]


_WINDOWS = re.compile(r"[A-Za-z]:\\|\\\\|\.\.\.[^/]*\\|[^/]*\.exe\b", re.IGNORECASE)
_EXE = re.compile(r"[^\\/]*\.exe\b", re.IGNORECASE)


def executable(cell: str) -> Value:
    """Name of a program, without path and arguments, which may have secrets."""
    found = plain(cell)
    if found is None:
        return None
    if _WINDOWS.match(found):
        # Names often have blanks there, and nvidia-smi prints no arguments.
        named = _EXE.search(found)
        return named[0].strip() if named else found.rpartition("\\")[2].strip() or None
    words = found.split()
    return words[0].rpartition("/")[2] or None if words else None


_MHZ = _amount("mhz", "MHz")
_OTHERS: Mapping[str, Converter] = {
    "text": text,
    "bits": bits,
    "flag": flag,
    "pstate": pstate,
    "clock": _clock,
    "bus_id": bus_id,
    "word": _word,
    "recovery": _recovery,
    "compute_mode": _compute_mode,
    "architecture": _architecture,
    "executable": executable,
}
