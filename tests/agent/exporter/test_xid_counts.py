"""Xids are counted by GPU and code, whatever the event's details hold."""

import json
from typing import Any

import pytest

from gpuwarden_agent.events.xid_lines import Xid
from gpuwarden_agent.events.xid_rows import row_of
from gpuwarden_agent.exporter.latest import KINDS_MAX, XidCounts


def event(gpu_uuid: str | None = "GPU-1", **details: Any) -> dict[str, Any]:
    row = {"kind": "xid", "node": "n1", "gpu": 3 if gpu_uuid else None, "gpu_uuid": gpu_uuid}
    return row | {"simulated": False, "details": json.dumps(details)}


def test_an_event_of_the_kernels_log_is_understood() -> None:
    xids = XidCounts()
    found = Xid(79, "0000:1b:00.0", "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
    row = row_of(found, {"0000:1b:00.0": (3, "GPU-1")}, 7)
    xids.take(row | {"node": "n1", "simulated": False})
    assert xids.last["GPU-1"].code == 79 and xids.last["GPU-1"].gpu == 3


@pytest.mark.parametrize(
    "details",
    [None, "", "no JSON", "[]", "7", "{}", '{"xid": "79"}', '{"xid": true}', '{"xid":[]}'],
)
def test_an_event_that_does_not_tell_its_code_is_counted_without(details: str | None) -> None:
    xids = XidCounts()
    assert xids.take(event() | {"details": details})
    ((kind, count),) = xids.by_kind.items()
    assert (kind.code, count, xids.last) == (None, 1, {})


def test_kinds_are_bounded_and_a_known_kind_is_counted_on() -> None:
    xids = XidCounts()
    assert all(xids.take(event(xid=code)) for code in range(KINDS_MAX))
    assert not xids.take(event(xid=KINDS_MAX))
    assert xids.take(event(xid=0))
    assert len(xids.by_kind) == KINDS_MAX
