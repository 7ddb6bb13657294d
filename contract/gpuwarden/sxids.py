"""Defines SXids: the meaning of NVSwitch errors, and whether they are fatal.

Source: NVIDIA's fabric manager guide, appendix on SXids, as gpud (leptonai/gpud @ 4a8de33a,
Apache-2.0) has it. If a kernel line states whether the error is fatal, the line takes precedence.
"""

from dataclasses import dataclass

FATAL_REMEDY = "drain the node, then reset its GPUs and switches together, or reboot it"
OTHER_REMEDY = "nothing at once, contact NVIDIA support if it continues"


@dataclass(frozen=True, slots=True)
class SxidInfo:
    """One row of the catalogue."""

    code: int
    meaning: str
    is_fatal: bool | None
    """Jobs that use the switch fail; None: unknown."""


def sxid_info(code: int) -> SxidInfo:
    """The row of a code; for an unknown code a row that says so."""
    return SXIDS.get(code) or SxidInfo(code, "not in the catalogue", None)


# fmt: off
_MEANINGS: tuple[tuple[str, bool, tuple[int, ...]], ...] = (
    # meaning, is it fatal, codes
    ("Host priv error", False, (10001,)),
    ("Host priv timeout", False, (10002,)),
    ("Host unhandled interrupt", False, (10003,)),
    ("Host thermal event start", False, (10004,)),
    ("Host thermal event end", False, (10005,)),
    ("Ingress invalid command", True, (11001,)),
    ("Ingress invalid ACL", True, (11004,)),
    ("Ingress invalid VCSet", True, (11009,)),
    ("Single bit ECC errors", False, (
        11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011,
        19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071, 24001, 24002, 24003,
    )),
    ("Ingress header DBE", True, (11013,)),
    ("Ingress RID DBE", True, (11018,)),
    ("Ingress RLAN DBE", True, (11019,)),
    ("Ingress control parity", True, (11020,)),
    ("Egress crossbar overflow", True, (12001,)),
    ("Egress packet route", True, (12002,)),
    ("Egress sequence ID error", True, (12020,)),
    ("Egress input ECC DBE error", True, (12022,)),
    ("Egress output ECC DBE error", True, (12024,)),
    ("Egress credit overflow", True, (12025,)),
    ("Egress destination request ID error", True, (12026,)),
    ("Egress destination response ID error", True, (12027,)),
    ("Egress nonposted PRIV error", True, (12028,)),
    ("Egress control parity error", False, (12030,)),
    ("Egress credit parity error", True, (12031,)),
    ("Egress flit type mismatch", True, (12032,)),
    ("TS ATO timeout", True, (14017,)),
    ("Route buffer over/underflow", True, (15001,)),
    ("Route transdone over/underflow", True, (15006,)),
    ("Route GLT DBE", True, (15009,)),
    ("Route parity", True, (15010,)),
    ("Route incoming DBE", True, (15012,)),
    ("Route credit parity", True, (15013,)),
    ("NCISOC HDR ECC DBE Error", True, (19047,)),
    ("NCISOC DAT ECC DBE Error", True, (19048,)),
    ("HDR RAM ECC DBE Error", True, (19054,)),
    ("DAT0 RAM ECC DBE Error", True, (19056,)),
    ("DAT1 RAM ECC DBE Error", True, (19058,)),
    ("CREQ RAM HDR ECC DBE Error", True, (19060,)),
    ("CREQ RAM DAT ECC DBE Error", True, (19061,)),
    ("Response RAM HDR ECC DBE Error", True, (19063,)),
    ("Response RAM DAT ECC DBE Error", True, (19064,)),
    ("COM RAM HDR ECC DBE Error", True, (19066,)),
    ("COM RAM DAT ECC DBE Error", True, (19067,)),
    ("RSP1 RAM HDR ECC DBE Error", True, (19069,)),
    ("RSP1 RAM DAT ECC DBE Error", True, (19070,)),
    ("AN1 Heartbeat Timeout Error", True, (19084,)),
    ("TX Replay Error", False, (20001,)),
    ("RX Short Error Rate", False, (20009,)),
    ("Broken/inconsistent connection", False, (20012,)),
    ("LTSSM Fault Up", True, (20034,)),
    ("Minion Halt", True, (22003,)),
    ("Minion exterror", True, (22011,)),
    ("Minion Link DLREQ interrupt", False, (22013,)),
    ("Ingress SRC-VC buffer overflow", True, (23001, 23010)),
    ("Ingress SRC-VC buffer underflow", True, (23002, 23011)),
    ("Egress DST-VC credit overflow", True, (23003, 23012)),
    ("Egress DST-VC credit underflow", True, (23004, 23013)),
    ("Ingress packet burst error", True, (23005, 23014)),
    ("Ingress packet sticky error", True, (23006, 23015)),
    ("Possible bubbles at ingress", True, (23007, 23016)),
    ("Ingress packet invalid dst error", True, (23008,)),
    ("Ingress packet parity error", True, (23009,)),
    ("Ingress credit parity error", True, (23017,)),
    ("Sourcetrack TCEN0 crumbstore DBE", True, (24004,)),
    ("Sourcetrack TCEN0 TD crumbstore DBE", True, (24005,)),
    ("Sourcetrack TCEN1 crumbstore DBE", True, (24006,)),
    ("Sourcetrack timeout error", True, (24007,)),
)
# fmt: on

SXIDS: dict[int, SxidInfo] = {
    code: SxidInfo(code, meaning, is_fatal)
    for meaning, is_fatal, codes in _MEANINGS
    for code in codes
}
"""Code to row."""
