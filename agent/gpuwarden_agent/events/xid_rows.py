"""Makes rows of `events` from driver messages in the kernel's log, and from NVML's events of Xids.

The kinds are "xid" and "sxid". A GPU that fell off the bus without a code becomes an Xid 79, which
means the same.
"""

import math
import re
from collections.abc import Mapping
from typing import assert_never

from gpuwarden.nvlink5 import decode
from gpuwarden.sxids import sxid_info
from gpuwarden.xids import CRITICAL, RECOVERIES, WARNING, xid_info
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.events.xid_lines import FellOffBus, Found, Sxid, Xid
from gpuwarden_agent.probe import Row

FALLEN_OFF_BUS = 79
RECOVERY_ACTION_CHANGED = 154
TEXT_CHARS_MAX = 2000

_RECOVERY = re.compile(r"\bto 0x(?P<number>[0-9a-fA-F]{1,4}) \((?P<name>[^)\n]{1,60})\)")

SAME_FALL_S = 10.0
"""A driver reports a GPU that fell off the bus with its code, in words, or both, within this time."""

Gpus = Mapping[str, tuple[int, str]]
"""PCI bus id, as column `pci_bus_id` has it, to index and UUID of the GPU."""


class Falls:
    """GPUs that fell off the bus, which a driver may report twice: in words, and with a code."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, bool]] = {}

    def is_repeated(self, found: Found, at_s: float) -> bool:
        """Whether a message repeats an earlier one in the other form."""
        has_code = isinstance(found, Xid) and found.code == FALLEN_OFF_BUS
        if not has_code and not isinstance(found, FellOffBus):
            return False
        told_s, had_code = self._told.get(found.pci_bus_id, (-math.inf, False))
        is_repeated = abs(at_s - told_s) <= SAME_FALL_S and not (has_code and had_code)
        self._told[found.pci_bus_id] = (
            (told_s, had_code or has_code) if is_repeated else (at_s, has_code)
        )
        return is_repeated


def row_of(found: Found, gpus: Gpus, sequence: int) -> Row:
    """The event of a message, without ts, node and simulated; `sequence` is the record's number."""
    match found:
        case Xid():
            return _xid_row(found, gpus, sequence)
        case Sxid():
            return _sxid_row(found, sequence)
        case FellOffBus(pci_bus_id, text):
            return _xid_row(Xid(FALLEN_OFF_BUS, pci_bus_id, text), gpus, sequence)
        case _:
            assert_never(found)


def row_of_event(xid: Xid, gpus: Gpus) -> Row:
    """The event of an Xid that came from NVML alone, so it has no text."""
    return _xid_row(xid, gpus, None)


def _xid_row(xid: Xid, gpus: Gpus, sequence: int | None) -> Row:
    info = xid_info(xid.code)
    meaning, severity, action, remedy = info.meaning, info.severity, info.action, info.remedy
    link = decode(xid.code, xid.text)
    if link is not None:
        where = "" if link.link is None else f" on link {link.link}"
        meaning = f"{meaning}, {link.unit}{where}"
        severity = link.severity
        action = link.action or action
        remedy = link.remedy or remedy
    elif xid.code == RECOVERY_ACTION_CHANGED and (told := _RECOVERY.search(xid.text)):
        meaning = f"{meaning} to {told['name']}"
        if recovery := RECOVERIES.get(int(told["number"], 16)):
            severity, action, remedy = recovery.severity, recovery.action, recovery.remedy
    gpu, gpu_uuid = gpus.get(xid.pci_bus_id, (None, None))
    return event(
        "xid",
        f"Xid {xid.code} on {_place(xid, gpu)}{_culprit(xid)}: {meaning}; {remedy}",
        severity=severity,
        gpu=gpu,
        gpu_uuid=gpu_uuid,
        details=_present(
            xid=xid.code,
            pci_bus_id=xid.pci_bus_id,
            gpu_instance=xid.gpu_instance,
            pid=xid.pid,
            process=xid.process,
            action=action,
            mnemonic=info.mnemonic,
            unit=link.unit if link else None,
            link=link.link if link else None,
            text=xid.text[:TEXT_CHARS_MAX] or None,
            kmsg_sequence=sequence,
            source="nvml" if sequence is None else None,
        ),
    )


def _sxid_row(sxid: Sxid, sequence: int) -> Row:
    info = sxid_info(sxid.code)
    is_fatal = info.is_fatal if sxid.is_fatal is None else sxid.is_fatal
    remedy = info.remedy(is_fatal)
    switch = "an NVSwitch" if sxid.switch is None else f"NVSwitch {sxid.switch}"
    link = "" if sxid.link is None else f", link {sxid.link}"
    return event(
        "sxid",
        f"SXid {sxid.code} on {switch} ({sxid.pci_bus_id}){link}: {info.meaning}; {remedy}",
        severity=CRITICAL if is_fatal else WARNING,
        details=_present(
            sxid=sxid.code,
            pci_bus_id=sxid.pci_bus_id,
            switch=sxid.switch,
            link=sxid.link,
            is_fatal=is_fatal,
            action=None if info.action == "IGNORE" else info.action,
            remedy=remedy,
            mnemonic=info.mnemonic,
            text=sxid.text[:TEXT_CHARS_MAX],
            kmsg_sequence=sequence,
        ),
    )


def _place(xid: Xid, gpu: int | None) -> str:
    instance = "" if xid.gpu_instance is None else f", MIG GPU instance {xid.gpu_instance}"
    if gpu is None:
        return f"the GPU at {xid.pci_bus_id}{instance}"
    return f"GPU {gpu} ({xid.pci_bus_id}{instance})"


def _culprit(xid: Xid) -> str:
    if xid.pid is None:
        return ""
    return f", {xid.process or 'process'} (pid {xid.pid})"


def _present(**details: object) -> dict[str, object]:
    return {name: value for name, value in details.items() if value is not None}
