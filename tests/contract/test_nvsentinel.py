"""The catalogues against those of NVIDIA's NVSentinel: every difference is listed, with its reason.

Facts of NVSentinel (github.com/NVIDIA/NVSentinel, distros/kubernetes/nvsentinel/charts @ 6f8b0fcf):
gpu-health-monitor/xiderrorsmapping.csv and nvswitch-health-monitor/sxiderrorsmapping.csv, here as action and the
codes that have it. In both files the action decides whether an error is fatal, with the exception of Xid 109, which is
NONFATAL in the version of commit e712af97. UNEXPECTED_ERR_REPORT_ISSUE and REPORT_ISSUE are CONTACT_SUPPORT here, "Follow
guidance as it applies to another Xid" is XID_154, and WORKFLOW_NVLINK_POTENTIALY_FATAL_ERR is spelt correctly.
"""

from collections.abc import Iterable

from gpuwarden.sxids import SXID_ACTIONS, SXIDS
from gpuwarden.xids import CRITICAL, WARNING, XIDS

XID_ACTIONS = {
    "CONTACT_SUPPORT": "1-7 9-10 12 15-24 26-30 33-36 42 47 49-53 55-59 61 65 73 81 87 90-91 108 111-118 122-125 138 142",
    "RESTART_APP": "8 11 13 25 31-32 39-41 60 68-72 75-77 80 82-86 88-89 94 96-105 126-135 139",
    "IGNORE": "14 37-38 43-44 63 66-67 92-93 106-107 121 137 141 152-153 157 161",
    "RESET_GPU": "46 62 64 95 109-110 119-120 136 140 143 155-156 158 162",
    "RESTART_BM": "79 160",
    "WORKFLOW_XID_45": "45",
    "WORKFLOW_XID_48": "48",
    "CHECK_MECHANICALS": "54",
    "WORKFLOW_NVLINK_ERR": "74",
    "UPDATE_SWFW": "78",
    "WORKFLOW_NVLINK5_ERR": "144-150",
    "RESTART_VM": "151",
    "XID_154": "154",
    "CHECK_UVM": "159",
}
XID_NOT_FATAL = {"RESTART_APP", "IGNORE", "WORKFLOW_XID_45", "XID_154", "CHECK_UVM"}

XIDS_WITH_ANOTHER_ACTION: dict[int, tuple[str, str | None, str]] = {
    # theirs, ours, why
    108: ("CONTACT_SUPPORT", "IGNORE", "NVIDIA's catalogue says IGNORE; the code was renamed since"),
    160: ("RESTART_BM", "IGNORE", "NVIDIA's catalogue says IGNORE; a warning asks for the reboot at the next pause"),
    162: ("RESET_GPU", None, "named PSHC_REENGAGED since, without an action: power smoothing works again"),
}  # fmt: skip

XIDS_FATAL_THERE_ONLY = {
    "CONTACT_SUPPORT": "NVIDIA's catalogue: an investigation by support; unused since Ampere, apart from 142",
    "UPDATE_SWFW": "a vGPU did not start: no job is lost, and the GPU works",
    "RESTART_VM": "NVIDIA's catalogue: no reset and no reboot is needed",
    "WORKFLOW_NVLINK5_ERR": "the decoded line says whether it is fatal (gpuwarden.nvlink5); NVML tells no line",
}
"""Actions of which we make a warning, besides the codes with another action."""

NOT_IN_NVSENTINEL = {*range(163, 183), 185}
"""Newer than its file."""

SXID_LAST = (
    "10008 11047 12051 13008 14018 15020 16003 17008 18020 19084 20038 21010 22013 23017 24010 25010"
    " 26008 27007 28006 29006 30006"
)
"""The last code of each unit; they begin at 1. Those that no action below names are IGNORE, and not fatal."""

SXID_THEIRS = {
    "RESET_FABRIC": "10003 10006-10008 12020 12028 12032 14017 19084 22003 22011 23001-23008 23010-23016 26001-26007",
    "CHECK_THERMALS": "10004 28001 28003 28005",
    "CHECK_FM_CONFIG": "11004",
    "WORKFLOW_NVLINK_POTENTIALLY_FATAL_ERR": (
        "11001 11007 11009 11013 11017-11020 11028-11030 12001-12002 12022 12024-12027 12030-12031 12035 12037 12039"
        " 12041 12043 12045 12047-12048 14004 14006 14008 14010 14016 15001 15005-15006 15009-15010 15012-15013 15015"
        " 15017 15019 17002-17003 17006-17007 19004-19006 19013-19017 19046-19048 19053-19054 19056 19058 19060-19061"
        " 19063-19064 19066-19067 19069-19070 22012 23009 23017 24004-24006 29002 29004 30002 30004"
    ),
    "CONTACT_SUPPORT": (
        "12004-12005 12007-12008 13001-13008 14011-14013 16002-16003 18011 18016 19027-19032 19074-19076 19079 20011"
        " 20016-20033 21001-21010 28006"
    ),
    "RESET_GPU": "14001-14002 14014 14018 20034 24007-24010",
    "INVESTIGATE_LINK_SI": "18001-18010 18012-18015 18017-18020 19001-19003 19007-19008 19010-19012 19018-19021 20004-20005 25008-25010",
    "RUN_FIELDDIAG": "19036-19037 19080 19083 20006-20007 20036-20038",
    "CHECK_LINK_MECHANICAL_CONNECTIONS": "20009-20010 20012 27001-27007",
}

SXIDS_FATAL_THERE_ONLY = {
    "10004 20012": "the fabric manager guide lists them as not fatal",
    "12037 12045 12048 19074-19076 19079 20009-20011": "the driver prints Non-fatal",
    "28001": "a warning before the limit (28003), as is 10004 for the switch itself",
}
SXIDS_FATAL_HERE_ONLY = {
    "12014 12029 12033-12034 19009 19022-19023 19026 19033 19038-19039 19050-19052 19081 20008 20014 20035 22010"
    " 25007 29005 30005": "the driver prints Fatal",
}
SXIDS_NOT_IN_NVSENTINEL = {
    10009: True,  # the driver gives the switch up
    10010: None,  # the driver prints no word
}


def codes(text: str) -> Iterable[int]:
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def by_code(actions: dict[str, str]) -> dict[int, str]:
    found = [(code, action) for action, text in actions.items() for code in codes(text)]
    assert len(dict(found)) == len(found), "a code has two actions"
    return dict(found)


def test_every_xid_has_nvsentinels_action_or_a_reason() -> None:
    theirs = by_code(XID_ACTIONS)
    assert sorted(theirs) == list(range(1, 163))
    assert set(XIDS) - set(theirs) == NOT_IN_NVSENTINEL
    assert set(theirs) <= set(XIDS)
    differing = {
        code: (action, XIDS[code].action)
        for code, action in theirs.items()
        if XIDS[code].action != action
    }
    assert differing == {code: row[:2] for code, row in XIDS_WITH_ANOTHER_ACTION.items()}


def test_an_xid_is_critical_where_nvsentinel_calls_it_fatal_or_there_is_a_reason() -> None:
    differing = set()
    for code, action in by_code(XID_ACTIONS).items():
        is_fatal = action not in XID_NOT_FATAL
        if is_fatal != (XIDS[code].severity == CRITICAL) and code not in XIDS_WITH_ANOTHER_ACTION:
            assert is_fatal, f"critical here only: {code}"
            assert XIDS[code].severity == WARNING
            differing.add(action)
    assert differing == set(XIDS_FATAL_THERE_ONLY)


def nvsentinels_sxids() -> dict[int, str]:
    known = [
        code
        for last in map(int, SXID_LAST.split())
        for code in range(last // 1000 * 1000 + 1, last + 1)
    ]
    return dict.fromkeys(known, "IGNORE") | by_code(SXID_THEIRS)


def test_every_sxid_has_nvsentinels_action() -> None:
    theirs = nvsentinels_sxids()
    assert len(theirs) == 398
    assert {code: SXIDS[code].action for code in theirs} == theirs
    assert {
        code: row.is_fatal for code, row in SXIDS.items() if code not in theirs
    } == SXIDS_NOT_IN_NVSENTINEL
    assert set(theirs.values()) == set(SXID_ACTIONS)


def test_an_sxid_is_fatal_where_nvsentinel_says_so_or_there_is_a_reason() -> None:
    theirs = {code: action != "IGNORE" for code, action in nvsentinels_sxids().items()}
    only_there = {
        code for code, is_fatal in theirs.items() if is_fatal and not SXIDS[code].is_fatal
    }
    only_here = {code for code, is_fatal in theirs.items() if not is_fatal and SXIDS[code].is_fatal}
    assert only_there == set(codes(" ".join(SXIDS_FATAL_THERE_ONLY)))
    assert only_here == set(codes(" ".join(SXIDS_FATAL_HERE_ONLY)))
