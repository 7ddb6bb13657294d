"""Decodes Xids 144 to 150, the errors of a unit of the fifth NVLink generation.

The text is `UNIT Fatal|Nonfatal XC<n> i<n> Link <n> (<intrinfo> <error status> ...)`; link -1 means no single
link. A line that ends within the brackets has the severity that it states. Unit, subcode (bits 20 to 25 of
intrinfo), error status, and the unit's number in the low bits of intrinfo (two layouts) select the rule. Drivers
print one part of a unit's name, the first or another: each part identifies the unit. "MSE degraded" is unit
MSE_DEGRADED.

Source: NVIDIA's decode table for Xids 144 to 150 (https://docs.nvidia.com/deploy/xid-errors) as
gpud (leptonai/gpud @ 4a8de33a, Apache-2.0) holds it.
"""

import re
from dataclasses import dataclass

from gpuwarden.xids import ACTIONS, CRITICAL, INFO, WARNING

_REPORT = re.compile(
    r"(?P<unit>MSE [Dd]egraded|[A-Z0-9_]+(?:/[A-Z0-9_]+)*)\s+(?P<fatality>Nonfatal|Fatal)\s+XC(?P<xc>\d)"
    r"\s+i(?P<instance>\d+)\s+Link\s+(?P<link>-?\d{1,3})"
    r"\s+\((?P<words>(?:0x[0-9a-fA-F]{1,8}(?=[\s)])\s*)*)"
)


@dataclass(frozen=True, slots=True)
class Nvlink5Rule:
    """NVIDIA's row for an error of a unit."""

    action: str
    """The immediate action, a key of `gpuwarden.xids.ACTIONS`."""
    investigate: str
    fatality: str
    """"Fatal" for the GPU, "Link Fatal" for the link, or "Non-fatal"."""
    action_if_again: str | None = None
    """NVIDIA's second action; None: there is none."""

    @property
    def severity(self) -> str:
        """From NVIDIA's action, not from the word in the line."""
        if self.action == "IGNORE":
            return INFO if self.investigate == "IGNORE" else WARNING
        return ACTIONS[self.action][0]

    @property
    def remedy(self) -> str:
        """What to do, as the end of a sentence."""
        then = _INVESTIGATE.get(self.investigate)
        if self.action == "IGNORE":
            return f"nothing at once, {then}" if then else "nothing"
        return "; ".join(part for part in (ACTIONS[self.action][1], then) if part)


@dataclass(frozen=True, slots=True)
class LinkError:
    """The text of an Xid 144 to 150, decoded."""

    unit: str
    link: int | None
    """None: the error concerns no single link."""
    is_fatal: bool
    """The word in the line; the rule may differ."""
    subcode: int | None
    """None: the line ends before it, as for `error_status`."""
    error_status: int | None
    rule: Nvlink5Rule | None
    """None: NVIDIA's table has no row for it, or the line is incomplete."""

    @property
    def severity(self) -> str:
        """info, warning or critical."""
        if self.rule is not None:
            return self.rule.severity
        return CRITICAL if self.is_fatal else WARNING

    @property
    def action(self) -> str | None:
        """NVIDIA's immediate action; None: the table has none."""
        return self.rule.action if self.rule else None

    @property
    def remedy(self) -> str | None:
        """What to do; None: the table has no action."""
        return self.rule.remedy if self.rule else None


def decode(xid: int, text: str) -> LinkError | None:
    """Decode the text after the code; None: another text."""
    found = _REPORT.search(text)
    if found is None or not 144 <= xid <= 150:
        return None
    words = [int(word, 16) for word in found["words"].split()]
    intrinfo, error_status = words[:2] if len(words) > 1 else (None, None)
    link = int(found["link"])
    unit = found["unit"].upper().replace(" ", "_")
    return LinkError(
        unit=unit,
        link=link if link >= 0 else None,
        is_fatal=found["fatality"] == "Fatal",
        subcode=None if intrinfo is None else intrinfo >> 20 & 0x3F,
        error_status=error_status,
        rule=_rule(xid, unit, intrinfo, error_status),
    )


def _rule(
    xid: int, name: str, intrinfo: int | None, error_status: int | None
) -> Nvlink5Rule | None:
    if intrinfo is None:
        return None
    parts = set(name.split("/"))
    subcode = intrinfo >> 20 & 0x3F
    for unit in _UNITS:
        if unit.xid == xid and parts & set(unit.name.split("/")) and unit.is_meant_by(intrinfo):
            for subcodes, statuses, rule in unit.rules:
                if subcode in subcodes and error_status in statuses:
                    return rule
    return None


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit and its number in both layouts, in binary, as in the low bits of intrinfo."""

    xid: int
    name: str
    first: str
    second: str
    rules: tuple[tuple[tuple[int, ...], tuple[int, ...], Nvlink5Rule], ...]
    """The rule for all combinations of subcodes and error statuses."""

    def is_meant_by(self, intrinfo: int) -> bool:
        return any(
            intrinfo & (1 << len(bits)) - 1 == int(bits, 2) for bits in (self.first, self.second)
        )


_INVESTIGATE = {
    "CONTACT_SUPPORT": "contact NVIDIA support if it comes again",
    "CHECK_NVLINK_FAILURE_FLOW": "look for other NVLink errors of the node",
    "SYMPATHETIC_REPORT_SOLO": "report it if it comes without another Xid",
    "REPORT_ISSUE (if seen >1 per day)": "report it if it comes more than once a day",
    "INVESTIGATE_LINK_SI": "check the signal of the link",
    "INVESTIGATE_LINK_SI_AND_CABLES": "check the link and its cables",
    "INVESTIGATE_SW_USER": "look for who took the link down",
    "INVESTIGATE_SW_USER_LINK_SI": "look for who took the link down, and check its signal",
    "INVESTIGATE_PEER_DEVICE": "look at the other end of the link, where it began",
    "INVESTIGATE_HOST": "look for what failed on the host",
}

_SUPPORT = "CONTACT_SUPPORT"
_MINOR = Nvlink5Rule("IGNORE", "IGNORE", "Non-fatal")
_ODD = Nvlink5Rule("IGNORE", _SUPPORT, "Non-fatal")
_LOST = Nvlink5Rule("RESET_GPU", _SUPPORT, "Fatal")
_PACKETS = Nvlink5Rule("IGNORE", _SUPPORT, "Non-fatal", "RESET_GPU")
_APP = Nvlink5Rule("XID_154_EVAL", _SUPPORT, "Non-fatal")
_APP_MINOR = Nvlink5Rule("XID_154_EVAL", "IGNORE", "Non-fatal")
_APP_LINK = Nvlink5Rule("XID_154_EVAL", "CHECK_NVLINK_FAILURE_FLOW", "Non-fatal")
_CABLES = Nvlink5Rule("IGNORE", "INVESTIGATE_LINK_SI_AND_CABLES", "Non-fatal")
_SW = 0x8000_0000
"""The error status of an error that software found."""


def _down(investigate: str, action: str = "RESET_GPU", fatality: str = "Link Fatal") -> Nvlink5Rule:
    return Nvlink5Rule(action, investigate, fatality)


_PIPE = (((0,), (1,), _MINOR), ((0,), (2, _SW), _ODD), ((0,), (4,), _LOST))

# fmt: off
_UNITS: tuple[_Unit, ...] = (
    _Unit(144, "SAW_MVB", "0000100001", "0000001", (
        ((0,), (1, 8), _ODD), ((0,), (2, 0x10), _LOST), ((0,), (4, 0x20), _MINOR),
    )),
    _Unit(145, "RLW_CTRL", "0001100010", "0000011", (((0,), (_SW,), _ODD),)),
    _Unit(145, "RLW_REMAP", "0010000010", "0000100", (
        ((0,), (1, 2), _APP), ((0,), (4, 8, 0x10, 0x20), _APP_LINK), ((0,), (0x40, 0x80), _LOST),
        ((0,), (0x100, 0x200), _MINOR), ((0,), (_SW,), _ODD),
    )),
    _Unit(145, "RLW_RSPCOL", "0010100010", "0000101", (
        ((0,), (1,), _MINOR), ((0,), (2,), _LOST), ((0,), (_SW,), _ODD),
    )),
    _Unit(145, "RLW_RXPIPE", "00011000010", "00000110", (((0,), (1, 2, 4), _PACKETS),)),
    _Unit(145, "RLW_RXPIPE", "0011000010", "0000110", (((0,), (8, _SW), _ODD),)),
    _Unit(145, "RLW_SRC_TRACK", "0011100010", "0000111", (
        ((0,), (1, 0x10, 0x20), _LOST), ((0,), (2,), _MINOR), ((0,), (4, 8), _APP_MINOR),
        ((0,), (_SW,), _ODD),
    )),
    _Unit(145, "RLW_TAGSTATE", "0100000010", "0001000", (
        ((0,), (1, 0x10000), _MINOR), ((0,), (2, 0x20000, 0x100000), _LOST), ((0,), (_SW,), _ODD),
    )),
    _Unit(146, "TLW_CTRL", "0100100011", "0001001", _PIPE),
    _Unit(146, "TLW_RX/TLW_RX_PIPE0", "0101000011", "0001010", _PIPE),
    _Unit(146, "TLW_RX/TLW_RX_PIPE1", "0101000011", "0001011", _PIPE),
    _Unit(146, "TLW_TX/TLW_TX_PIPE0", "0101100011", "0001100", _PIPE),
    _Unit(146, "TLW_TX/TLW_TX_PIPE1", "0101100011", "0001101", _PIPE),
    _Unit(147, "TREX", "0110000100", "0001110", (((0,), (1, _SW), _ODD),)),
    _Unit(148, "NVLPW_CTRL/NVLPW", "0000000101", "0001111", (((0,), (_SW,), _ODD),)),
    _Unit(149, "NETIR/NETIR_INT", "0000000110", "0011000", (
        ((0,), (0,), _down("SYMPATHETIC_REPORT_SOLO")),
    )),
    _Unit(149, "NETIR_BER_EVENT", "1000100110", "0010011", (((0,), (0, 1, 2, 3), _CABLES),)),
    _Unit(149, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "0111000110", "0010001", (
        ((0,), (0,), _down("SYMPATHETIC_REPORT_SOLO")),
        ((1,), (0,), _down("REPORT_ISSUE (if seen >1 per day)")),
        ((2, 4, 10), (0,), _down("INVESTIGATE_LINK_SI")),
        ((15, 17, 22), (0,), _down("INVESTIGATE_SW_USER")),
        ((16, 18), (0,), _down("INVESTIGATE_SW_USER_LINK_SI")),
        ((21, 32, 33, 34, 35, 36, 37), (0,), _down("INVESTIGATE_PEER_DEVICE")),
        ((38,), (0,), _down("INVESTIGATE_SW_USER", "IGNORE")),
        ((40,), (0,), _down("INVESTIGATE_HOST", "IGNORE", "Fatal")),
        ((42, 43), (0,), _down("INVESTIGATE_LINK_SI_AND_CABLES")),
    )),
    _Unit(149, "NETIR_MFDE_EVENT", "1001000110", "0010100", (
        ((0,), (1, 4, 5, 7), _LOST), ((0,), (3,), _MINOR),
    )),
    _Unit(150, "MSE_WATCHDOG", "0000000000", "0000000", (((0,), (0,), _LOST),)),
    _Unit(150, "MSE_DEGRADED", "0000000000", "0000000", (((0,), (0, 0xFFFF_FFFF), _LOST),)),
)
# fmt: on
