"""Makes the events of a script: Xids and lost GPUs.

An Xid is formatted as the driver's line and parsed by the agent's code, so that a simulated event equals
a real one. All other events follow from rows.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuwarden.xids import xid_info
from gpuwarden_agent.events.kinds import event, span
from gpuwarden_agent.events.xid_lines import parse
from gpuwarden_agent.events.xid_rows import FALLEN_OFF_BUS, row_of
from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.hardware import SimulatedGpu
from gpuwarden_simulator.devices.vendors import is_nvidia
from gpuwarden_simulator.faults.kinds import Fault, FaultKind

FIRST_RECORD = 4_096
"""Number of the first record of the kernel's log that a script writes."""

XID_AFTER_LOSS_MS = 1_000

TEXTS: Mapping[int, str] = {
    13: "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_0 faulted @ "
    "0x7f2a_4c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000008",
    45: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at "
    "partition 3, subpartition 1.",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row remapping failure",
    74: "NVLink: fatal error detected on link 4(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 "
    "(GSP_RM_CONTROL) (0x20801813 0x4c).",
    120: "GSP task panic: kernel panic @ 0x2f0d5c",
    145: "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000 "
    "0x00000000 0x00000000)",
    149: "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 "
    "0x00000000 0x00000000)",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}
"""The driver's text after code, pid and name; other codes use their meaning."""


class Culprit(NamedTuple):
    """The process in the driver's line."""

    pid: int
    name: str


class Due(NamedTuple):
    """An event to come, in milliseconds since the first tick."""

    at_ms: int
    number: int
    """Position in the script, for the order of events of the same instant."""
    fault: Fault
    kind: str


def schedule(faults: Sequence[Fault], devices: Sequence[SimulatedGpu]) -> list[Due]:
    """All events of a script, the first one first."""
    due: list[Due] = []
    for number, fault in enumerate(faults):
        match fault.kind:
            case FaultKind.XID:
                every_ms, times = int(fault.number("every")), int(fault.number("times"))
                instants = (fault.begin_ms + time * every_ms for time in range(times))
                due += (Due(at_ms, number, fault, "xid") for at_ms in instants)
            case FaultKind.GPU_LOST:
                due.append(Due(fault.begin_ms, number, fault, "gpu_lost"))
                if fault.gpu is not None and is_nvidia(devices[fault.gpu].model):
                    at_ms = fault.begin_ms + XID_AFTER_LOSS_MS
                    due.append(Due(at_ms, number, fault, "xid"))
                if fault.end_ms is not None:
                    due.append(Due(fault.end_ms, number, fault, "probe_recovered"))
            case _:
                pass
    return sorted(due, key=lambda event: (event.at_ms, event.number))


def event_row(
    due: Due, device: SimulatedGpu, culprit: Culprit | None, record: int, ts_ms: int
) -> Row:
    """The row of events. `record`: its number in the kernel's log; `ts_ms`: when it was."""
    index, uuid = device.index, device.uuid
    if due.kind == "gpu_lost":
        message = (
            f"gpu{index}: GPU {index} is lost: it fell off the bus; drain the node and reboot it"
        )
        row = event("gpu_lost", message, gpu=index, gpu_uuid=uuid)
    elif due.kind == "probe_recovered":
        lasted_s = (due.at_ms - due.fault.begin_ms) / 1000
        message = f"gpu{index}: answers again after {span(lasted_s)} (gpu_lost)"
        row = event("probe_recovered", message, gpu=index, gpu_uuid=uuid, duration_seconds=lasted_s)
    else:
        is_loss = due.fault.kind is FaultKind.GPU_LOST
        code = FALLEN_OFF_BUS if is_loss else int(due.fault.number("code"))
        text = None if is_loss else due.fault.word("text")
        found = parse(xid_line(device.pci_bus_id, code, text, culprit))
        assert found is not None, "the driver's line is one that the agent reads"
        row = row_of(found, {device.pci_bus_id: (index, uuid)}, record)
    return {**row, "ts": ts_ms}


def xid_line(pci_bus_id: str, code: int, text: str | None, culprit: Culprit | None) -> str:
    """A line of the kernel's log as NVIDIA's driver writes it."""
    place = pci_bus_id.partition(".")[0]
    who = (
        f"pid={culprit.pid}, name={culprit.name}" if culprit else "pid='<unknown>', name=<unknown>"
    )
    said = text or TEXTS.get(code) or xid_info(code).meaning
    return f"NVRM: Xid (PCI:{place}): {code}, {who}, {said}"
