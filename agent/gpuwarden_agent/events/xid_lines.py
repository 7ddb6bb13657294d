"""Parses messages of NVIDIA's drivers about GPUs and NVSwitches in lines of the kernel's log.

The forms, of new and old drivers:

    NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:3b:00 GPU-I:02): 31, pid=..., name=..., Ch 00000008, ...    (MIG)
    NVRM: Xid (0000:03:00): 14, Channel 00000001
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout error
    NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.
    NVRM: The NVIDIA GPU 0000:3b:00.0
    NVRM: (PCI ID: 10de:2330) installed in this system has
    NVRM: fallen off the bus and is not responding to commands.

A line in any other form, also one that was cut short, is ignored.
"""

import re
from dataclasses import dataclass

_BUS_ID = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_PARTS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?", re.ASCII)
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<bus_id>{_BUS_ID})(?: GPU-I:(?P<instance>\d{{1,4}}))?[^)]*\): "
    r"(?P<code>\d{1,5}),\s*(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_PID = re.compile(r"pid='?(?P<pid>\d{1,10}|<unknown>)'?(?:,\s*|$)", re.ASCII)
_NAME = re.compile(r"name=(?P<name>[^\n]*?)(?:,\s+|$)", re.ASCII)
_SXID = re.compile(
    rf"(?:nvidia-nvswitch(?P<switch>\d{{1,4}}): )?SXid \((?:PCI:)?(?P<bus_id>{_BUS_ID})\): "
    r"(?P<code>\d{1,6}), (?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_FATALITY = re.compile(r"(?P<fatality>Non-fatal|Fatal|Correctable)(?:,\s*|$)")
_LINK = re.compile(r"Link (?P<link>\d{1,4})\b\s*", re.ASCII)
_MORE_OF_SXID = re.compile(r"(?:Severity|Data)\b")
_FELL_OFF = re.compile(
    rf"NVRM:\s+GPU (?:at )?(?:PCI:)?(?P<bus_id>{_BUS_ID}): GPU has fallen off the bus", re.ASCII
)
_GPU_NAMED = re.compile(rf"NVRM:\s+The NVIDIA GPU (?:PCI:)?(?P<bus_id>{_BUS_ID})", re.ASCII)
_NOT_RESPONDING = "fallen off the bus and is not responding"
_UNKNOWN = "<unknown>"

NAMED_LINES = 3
"""Number of driver lines in which to look for the end of a sentence about a named GPU."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of a GPU, with its code."""

    code: int
    pci_bus_id: str
    """As `bus_id` makes it."""
    text: str
    """The text after code, pid and name."""
    pid: int | None = None
    """None: the driver did not know."""
    process: str | None = None
    """Name of the process's main thread; None: the driver did not know."""
    gpu_instance: int | None = None
    """MIG GPU instance; None: the whole GPU."""


@dataclass(frozen=True, slots=True)
class Sxid:
    """An error of an NVSwitch, with its code."""

    code: int
    pci_bus_id: str
    text: str
    is_fatal: bool | None = None
    """None: the line does not say."""
    switch: int | None = None
    link: int | None = None


@dataclass(frozen=True, slots=True)
class FellOffBus:
    """The driver lost a GPU and gave no code: the same as Xid 79."""

    pci_bus_id: str
    text: str


Found = Xid | Sxid | FellOffBus


@dataclass(frozen=True, slots=True)
class GpuNamed:
    """A line named a GPU, and its sentence continues in the driver's next lines."""

    pci_bus_id: str
    text: str
    lines_left: int = NAMED_LINES


def bus_id(text: str) -> str | None:
    """A PCI bus id in the form of column `pci_bus_id`, "0000:3b:00.0", from any other form: with
    eight digits of domain, in upper case, without a function. None: it is not a bus id.
    """
    found = _PARTS.fullmatch(text)
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function or 0}"


def parse(text: str) -> Found | None:
    """The message in one record of the kernel's log, which may have several lines; None: there is none."""
    found: Found | None = None
    named: GpuNamed | None = None
    for line in text.split("\n"):
        found, named = step(named, line)
        if found is not None:
            return found
    return None


def step(named: GpuNamed | None, text: str) -> tuple[Found | None, GpuNamed | None]:
    """Parse the next line: the message in it, and `named` for the next call."""
    if (found := _XID.search(text)) is not None:
        return _xid(found), None
    if (found := _SXID.search(text)) is not None:
        return _sxid(found), named
    if (found := _FELL_OFF.search(text)) is not None:
        return FellOffBus(_canonical(found["bus_id"]), text), None
    if (found := _GPU_NAMED.search(text)) is not None:
        named = GpuNamed(_canonical(found["bus_id"]), text)
        if _NOT_RESPONDING in text:
            return FellOffBus(named.pci_bus_id, text), None
        return None, named
    if named is None or "NVRM:" not in text:
        return None, named
    whole = f"{named.text}\n{text}"
    if _NOT_RESPONDING in text:
        return FellOffBus(named.pci_bus_id, whole), None
    if named.lines_left <= 1:
        return None, None
    return None, GpuNamed(named.pci_bus_id, whole, named.lines_left - 1)


def _xid(found: re.Match[str]) -> Xid:
    rest = found["rest"]
    pid = process = None
    if (told := _PID.match(rest)) is not None:
        pid = None if told["pid"] == _UNKNOWN else int(told["pid"])
        rest = rest[told.end() :]
        if (told := _NAME.match(rest)) is not None:
            process = None if told["name"] in ("", _UNKNOWN) else told["name"]
            rest = rest[told.end() :]
    instance = found["instance"]
    return Xid(
        code=int(found["code"]),
        pci_bus_id=_canonical(found["bus_id"]),
        text=rest.strip(),
        pid=pid,
        process=process,
        gpu_instance=None if instance is None else int(instance),
    )


def _sxid(found: re.Match[str]) -> Sxid | None:
    """None for lines of details, which follow an SXid with the same code."""
    rest = found["rest"]
    if _MORE_OF_SXID.match(rest):
        return None
    is_fatal = link = None
    if (told := _FATALITY.match(rest)) is not None:
        is_fatal = told["fatality"] == "Fatal"
        rest = rest[told.end() :]
    if (told := _LINK.match(rest)) is not None:
        link = int(told["link"])
        rest = rest[told.end() :]
    switch = found["switch"]
    return Sxid(
        code=int(found["code"]),
        pci_bus_id=_canonical(found["bus_id"]),
        text=rest.strip(),
        is_fatal=is_fatal,
        switch=None if switch is None else int(switch),
        link=link,
    )


def _canonical(text: str) -> str:
    canonical = bus_id(text)
    assert canonical is not None, "the expressions above match nothing else"
    return canonical
