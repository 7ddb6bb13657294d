"""Parses the files of the amdgpu driver: pure functions, one for each format.

Formats and units are those of the kernel's own documentation (Documentation/gpu/amdgpu: thermal,
driver-misc, ras; Documentation/ABI/testing/sysfs-bus-pci). A parser returns None if the driver has no
value, and raises ValueError for content in no documented format.
"""

import re
from collections.abc import Mapping

AMD = "0x1002"
"""PCI vendor id."""

MODELS = {
    0x738C: "AMD Instinct MI100",
    0x738E: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74B5: "AMD Instinct MI300X",
}
"""PCI device ids of data-centre boards, which the rules on power and cost know by name. Ids of
consumer boards stand for several models (0x73df: RX 6700, 6700 XT, 6800M) and are left out."""

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_CLOCK_LEVEL = re.compile(r"(?:\d+|S):\s*(\d+)\s*mhz", re.IGNORECASE)
_LINK_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_WIDTH_UNKNOWN = 255
_NO_NAME = frozenset({"", "0", "n/a", "none", "unknown"})
_ERRNO_MAX = 4095
_PWM_MAX = 255
_BAD_PAGE = re.compile(r"0x[0-9a-f]+\s*:\s*0x[0-9a-f]+\s*:\s*([RPF])", re.IGNORECASE)
_RAS = {
    "ue": ("critical", "uncorrected"),
    "de": ("warning", "deferred"),
    "ce": ("info", "corrected"),
}
"""Kind of error to severity and word, the worst first."""


def number(text: str) -> int:
    """A whole number. Raises ValueError, also for an error number that the driver printed.

    Kernels around 6.5 print the (negative) error of a power sensor as an unsigned value, which
    would read as 4294 W.
    """
    value = int(text)
    if 1 << 32 > value >= (1 << 32) - _ERRNO_MAX:
        raise ValueError(f"an error number printed as a value: {value - (1 << 32)}")
    if abs(value) >= 1 << 64:
        raise ValueError(f"no driver counts that far: {text[:40]!r}")
    return value


def positive(text: str) -> int | None:
    """A number that is valid only above zero: a powered GPU draws power, is warm, and has memory."""
    value = number(text)
    return value if value > 0 else None


def millionth(text: str) -> float | None:
    """Watts from microwatts, joules from microjoules; None for 0, which is not measured.

    The second die of an MI250 has 0: the first one measures both.
    """
    value = positive(text)
    return None if value is None else value / 1e6


def celsius(text: str) -> float | None:
    """A temperature from millidegrees; None for 0, of a missing sensor."""
    value = number(text)
    return value / 1000 if value else None


def volts(text: str) -> float | None:
    """A voltage from millivolts; None for 0, which a gated core has."""
    value = positive(text)
    return None if value is None else value / 1000


def mhz(text: str) -> int:
    """A clock from hertz; a gated clock has 0."""
    return number(text) // 1_000_000


def highest_level_mhz(text: str) -> int | None:
    """Highest clock of a pp_dpm_* file ("1: 495Mhz *", "S: 19Mhz *" in deep sleep); None: 0.

    Raises ValueError when it lists no clock.
    """
    levels = [int(found) for found in _CLOCK_LEVEL.findall(text)]
    if not levels:
        raise ValueError(f"no clock levels: {text[:40]!r}")
    return max(levels) or None


def pcie_generation(text: str) -> int | None:
    """Generation of a link speed ("16.0 GT/s PCIe"; "8 GT/s" of older kernels); None: unknown."""
    if text.strip().lower().startswith("unknown"):
        return None
    found = _LINK_SPEED.match(text.strip())
    if not found:
        raise ValueError(f"not a link speed: {text[:40]!r}")
    return _GENERATIONS.get(float(found[1]))


def pcie_width(text: str) -> int | None:
    """Lanes of a link; None: unknown."""
    lanes = number(text)
    return lanes if 0 < lanes < _WIDTH_UNKNOWN else None


def fan_percent(text: str) -> float:
    """Target speed of a fan, from a pwm file (0 to 255)."""
    return 100 * number(text) / _PWM_MAX


def numa_node(text: str) -> int | None:
    """The NUMA node; None if the platform has none (-1)."""
    node = number(text)
    return node if node >= 0 else None


def name(text: str) -> str | None:
    """A name or number; None for the texts that mean "none"."""
    stripped = " ".join(text.replace("\0", " ").split())
    return None if stripped.lower() in _NO_NAME else stripped


def word(text: str) -> str:
    """A label or state."""
    return text.strip().lower()


def unique_id(text: str) -> str | None:
    """Identity of the chip, 16 hex digits; None: it has none (empty, or 0)."""
    if not text.strip():
        return None
    value = int(text, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"not a unique id: {text[:40]!r}")
    return f"{value:016x}" if value else None


def ras_counts(text: str) -> Mapping[str, int] | None:
    """Errors of one block since the driver was loaded, by "ue" (uncorrected), "ce" (corrected) and
    on newer kernels "de" (deferred: found, not used by anyone yet).

    None while the driver cannot ask, as during a reset.
    """
    if text.strip() == "Query currently inaccessible":
        return None
    pairs = (line.partition(":") for line in text.splitlines() if line.strip())
    counts = {kind.strip(): number(count) for kind, _, count in pairs}
    if not counts.keys() >= {"ue", "ce"}:
        raise ValueError(f"no error counts: {text[:40]!r}")
    return {kind: count for kind, count in counts.items() if kind in _RAS}


def bad_pages(data: bytes) -> dict[str, int | bool]:
    """Columns of `gpu_health_samples` from ras/gpu_vram_bad_pages: a line for each page that had an
    uncorrected error, R where it is out of use, P where it waits for that, F where that failed
    because it is in use.
    """
    lines = data.decode(errors="replace").split("\n")
    found = [_BAD_PAGE.fullmatch(line.strip()) for line in lines if line.strip()]
    if not all(found):
        raise ValueError("not a list of bad pages")
    flags = [each[1].upper() for each in found if each]
    return {
        "retired_pages_uncorrected_total": flags.count("R"),
        "retired_pages_pending": "P" in flags or "F" in flags,
    }


def growth(before: Mapping[str, int] | None, now: Mapping[str, int]) -> dict[str, int]:
    """Growth of the counters of one block since the last reading; empty at the first reading.

    A counter that fell was reset with the driver: its whole value is new.
    """
    if before is None:
        return {}
    gained = {
        kind: count - before[kind] if count >= before[kind] else count
        for kind, count in now.items()
        if kind in before
    }
    return {kind: count for kind, count in gained.items() if count > 0}


def ras_verdict(grown: Mapping[str, Mapping[str, int]]) -> tuple[str, str]:
    """Severity and text for new errors, by block and kind.

    Uncorrected errors have destroyed data; deferred ones will when it is used; corrected ones
    matter by their number.
    """
    kinds = {kind for more in grown.values() for kind in more}
    severity = next(severity for kind, (severity, _) in _RAS.items() if kind in kinds)
    words = [
        f"{more[kind]} {word} in {block}"
        for kind, (_, word) in _RAS.items()
        for block, more in grown.items()
        if kind in more
    ]
    return severity, ", ".join(words)


def pci_address(folder_name: str) -> tuple[int, int, int, int] | None:
    """Domain, bus, device, function of a PCI device's folder; None: it is not a PCI device."""
    found = _ADDRESS.fullmatch(folder_name)
    if not found:
        return None
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return domain, bus, device, function


def kfd_place(pci_bus_id: str) -> tuple[int, int, int] | None:
    """Domain, bus and device, by which KFD's topology knows a GPU."""
    address = pci_address(pci_bus_id)
    return address[:3] if address else None


def kfd_node_place(text: str) -> tuple[int, int, int]:
    """Domain, bus and device of a node of KFD's topology, from its `properties`; (0, 0, 0): a CPU.

    `location_id` is bus << 8 | device << 3, and the number of the partition below that or in bits 28
    to 31, as the driver's version has it.
    """
    pairs = (line.partition(" ") for line in text.splitlines())
    values = {name: value for name, _, value in pairs}
    location = number(values.get("location_id", ""))
    return number(values.get("domain", "0")), location >> 8 & 0xFF, location >> 3 & 0x1F


def kfd_node_partition(text: str) -> tuple[tuple[int, int, int], int]:
    """Place of a node of KFD's topology, and the number of its partition there."""
    place = kfd_node_place(text)
    values = {name: value for name, _, value in (line.partition(" ") for line in text.splitlines())}
    location = number(values.get("location_id", ""))
    return place, location >> 28 & 0xF or location & 0x7


def kfd_memory_bytes(text: str) -> int | None:
    """Memory of a node from its first bank; None: it has none of its own."""
    values = {name: value for name, _, value in (line.partition(" ") for line in text.splitlines())}
    return number(values.get("size_in_bytes", "")) or None


def compute_partition(text: str) -> str | None:
    """spx, dpx, tpx, qpx or cpx; None: unknown, as while it changes."""
    mode = text.strip().lower()
    return mode if mode in ("spx", "dpx", "tpx", "qpx", "cpx") else None


def is_off_bus(config: bytes) -> bool:
    """Whether configuration space reads as all ones: no device answers on the bus."""
    return config[:2] == b"\xff\xff"


def model(product_name: str | None, device_id: int | None) -> str:
    """The board's own name, else the data-centre model of the PCI device id, else the id."""
    if product_name:
        return product_name
    if device_id is None:
        return "AMD GPU"
    return MODELS.get(device_id, f"AMD GPU 0x{device_id:04x}")


def gpu_uuid(chip_id: str | None, pci_bus_id: str, node: str) -> str:
    """The identity of a GPU.

    "AMD-" and the unique id burnt into the chip (GFX9 and newer): the same in every machine, slot
    and driver. Chips without one (most consumer boards) get the place instead, "AMD-<PCI bus
    id>@<node>": the same over reboots and driver reloads, another after the board moves to
    another slot, the PCI buses are renumbered, or the node is renamed.
    """
    return f"AMD-{chip_id}" if chip_id else f"AMD-{pci_bus_id}@{node}"
