"""Scripted events are what the agent would have made of the driver's own words."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import model_named
from gpuwarden.xids import XIDS
from gpuwarden_agent.events.xid_lines import Xid, parse
from gpuwarden_agent.events.xid_rows import row_of
from gpuwarden_simulator import Fault, FaultKind, Placement, SimulatedNode, Workload
from gpuwarden_simulator.faults.events import TEXTS, Culprit, xid_line

H100 = model_named("H100-SXM-80GB")


def xid(begin_s: int, **options: int | str) -> Fault:
    return Fault(FaultKind.XID, 1000 * begin_s, None, 1, options)


@given(
    code=st.one_of(st.sampled_from(sorted(XIDS)), st.integers(1, 999)),
    culprit=st.one_of(
        st.none(), st.builds(Culprit, st.integers(1, 4_000_000), st.just("python3.11"))
    ),
)
def test_the_agent_reads_every_line(code: int, culprit: Culprit | None) -> None:
    found = parse(xid_line("0000:1a:00.0", code, None, culprit))
    assert isinstance(found, Xid)
    assert (found.code, found.pci_bus_id) == (code, "0000:1a:00.0")
    assert (found.pid, found.process) == (tuple(culprit) if culprit else (None, None))
    assert found.text


def test_an_xid_of_a_script_is_the_event_of_the_kernel_s_line(start_ms: int) -> None:
    node = SimulatedNode(
        "n", 2, H100, 1, [Placement((0, 1), Workload.TRAINING)], script=[xid(5, code=94)]
    )
    reading = node.read(start_ms), node.read(start_ms + 7_000)
    (told,) = reading[1]["events"]
    gpu, process = node.describe()["gpus"][1], reading[1]["process_samples"][1]
    line = (
        f"NVRM: Xid (PCI:{str(gpu['pci_bus_id'])[:-2]}): 94, pid={process['pid']},"
        f" name={process['process_name']}, {TEXTS[94]}"
    )
    found = parse(line)
    assert found is not None
    real = row_of(found, {str(gpu["pci_bus_id"]): (1, str(gpu["gpu_uuid"]))}, 4096)
    assert told == {**real, "ts": start_ms + 5_000}


def test_events_come_once_in_order_at_the_first_tick_that_has_reached_them(start_ms: int) -> None:
    script = [xid(30, code=63), xid(10, code=48), xid(20, code=13, times=3, every=15_000)]
    node = SimulatedNode("n", 2, H100, 1, script=script)
    assert node.read(start_ms)["events"] == []
    codes, instants, records = [], [], []
    for second in (9, 21, 22, 100, 101):
        for row in node.read(start_ms + 1000 * second)["events"]:
            details = json.loads(str(row["details"]))
            codes.append(details["xid"])
            records.append(details["kmsg_sequence"])
            instants.append((row["ts"] - start_ms) // 1000)  # type: ignore[operator]
    assert codes == [48, 13, 63, 13, 13]
    assert instants == [10, 20, 30, 35, 50]
    assert records == sorted(set(records))


def test_a_tick_that_does_not_ask_for_events_does_not_lose_them(start_ms: int) -> None:
    node = SimulatedNode("n", 2, H100, 1, script=[xid(5, code=48)])
    assert "events" not in node.read(start_ms + 8_000, {"gpu_samples"})
    node = SimulatedNode("n", 2, H100, 1, script=[xid(5, code=48)])
    node.read(start_ms, {"gpu_samples"})
    node.read(start_ms + 8_000, {"gpu_samples"})
    assert len(node.read(start_ms + 9_000)["events"]) == 1
