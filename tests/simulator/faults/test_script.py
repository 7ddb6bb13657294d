"""A script says what goes wrong, and a wrong one is named in a line with its place."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import model_named
from gpuwarden_simulator import Fault, FaultKind, SimulatedNode, fleet_nodes
from gpuwarden_simulator.faults.kinds import SPECS
from gpuwarden_simulator.faults.script import ScriptError, read_script

H100 = model_named("H100-SXM-80GB")
NODES = {"sim-0001": 8, "sim-0002": 8}
PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"


def read(text: str, nodes: dict[str, int] = NODES) -> dict[str, tuple[Fault, ...]]:
    return dict(read_script(text, "s.toml", nodes, H100))


def test_a_fault_has_its_beginning_its_end_its_place_and_its_options() -> None:
    script = """
        [[fault]]
        at = "+120s"
        for = "1.5h"
        node = "sim-0002"
        gpu = 3
        fault = "nvlink_down"
        link = 4
        flap = "30s"
    """
    ((node, (fault,)),) = read(script).items()
    assert node == "sim-0002"
    assert (fault.kind, fault.begin_ms, fault.end_ms, fault.gpu) == (
        FaultKind.NVLINK_DOWN, 120_000, 120_000 + 5_400_000, 3,
    )  # fmt: skip
    assert (fault.number("link"), fault.whole("flap")) == (4, 30_000)


def test_a_fault_without_a_node_is_every_node_s_and_one_with_several_gpus_each_one_s() -> None:
    found = read('[[fault]]\nat = "0s"\ngpu = [2, 0, 2]\nfault = "power_brake"')
    assert set(found) == set(NODES)
    assert [fault.gpu for fault in found["sim-0001"]] == [2, 0]


XID = '[[fault]]\nat = "1s"\ngpu = 1\nfault = "xid"\ncode = 79\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[fault]", "s.toml: not valid TOML"),
        ("x = 1", "s.toml: unknown 'x'; a script is [[fault]] tables"),
        ("fault = 3", "s.toml: fault must be [[fault]] tables"),
        ("[[fault]]\n", "s.toml:1: fault 1: needs fault; known: ecc_corrected, ecc_uncorrected"),
        (XID.replace('"xid"', '"xids"'), "s.toml:4: fault 1: unknown fault 'xids'; known: ecc"),
        (XID.replace('at = "1s"\n', ""), "s.toml:1: fault 1: needs at"),
        (XID.replace('"1s"', "1"), "s.toml:2: fault 1: at = 1 must be a duration"),
        (XID.replace('"1s"', '"soon"'), "at = 'soon' must be a duration such as"),
        (XID.replace('"1s"', '"-1s"'), "at = '-1s' must be a duration such as"),
        (XID.replace("code = 79", ""), "s.toml:1: fault 1: xid needs code"),
        (XID.replace("79", "true"), "s.toml:5: fault 1: code = True must be a whole number"),
        (XID.replace("79", "1e3"), "code = 1000.0 must be a whole number"),
        (XID.replace("79", "0"), "code = 0 must be at least 1"),
        (XID.replace("79", "1000"), "code = 1000 must be at most 999"),
        (XID.replace("gpu = 1", ""), "xid needs gpu, a number or a list of numbers"),
        (XID.replace("gpu = 1", "gpu = []"), "gpu = [] must be a number or a list of numbers"),
        (XID.replace("gpu = 1", "gpu = 8"), "s.toml:3: fault 1: gpu = 8 must be 0 to 7"),
        (XID.replace("gpu = 1", "gpu = -1"), "gpu = -1 must be 0 to 7"),
        (XID + 'for = "1s"', "s.toml:6: fault 1: xid happens in a moment and has no for"),
        (XID + 'node = "n"', "s.toml:6: fault 1: unknown node 'n'; there are sim-0001, sim-0002"),
        (XID + "node = 3", "node = 3 must be the name of a node"),
        (XID + "link = 3", "s.toml:6: fault 1: xid has no 'link'; known: fault, at, for, node, gpu"),
        (XID + XID.replace("79", "-5"), "s.toml:10: fault 2: code = -5 must be at least 1"),
        ('[[fault]]\nat = "1s"\nfault = "reboot"', "fault 1: reboot needs for"),
        ('[[fault]]\nat = "1s"\nfault = "nfs_slow"\nfor = "0s"', "for must be longer than nothing"),
        ('[[fault]]\nat = "1s"\nfault = "nfs_slow"\ngpu = 1', "nfs_slow has no 'gpu'; known: fault, at"),
        ('[[fault]]\nat = "1s"\nfault = "straggler"\ngpu = 1\nclock = nan', "clock = nan must be at least 0.3"),
        ('[[fault]]\nat = "1s"\nfault = "hang"\ngpu = 1\nmain = "x"', "main = 'x' must be one of spin, blocked"),
        ('[[fault]]\nat = "1s"\nfault = "memory_leak"\ngpu = 1\nfull_after = "1s"', "must be at least 10s"),
        ('fault = [{at = "1s", fault = "hang", gpu = 9}]', "s.toml: fault 1: gpu = 9 must be 0 to 7"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(message)) as caught:
        read(text)
    assert "\n" not in str(caught.value)


values = st.one_of(st.integers(-5, 2000), st.text(max_size=8).map(repr), st.sampled_from(['"1s"', '"9h"', "[1]", "true", "nan"]))  # fmt: skip
keys = st.sampled_from(["at", "for", "gpu", "node", "link", "code", "share", "x y"])


@given(
    kind=st.sampled_from([*FaultKind, "none"]),
    pairs=st.dictionaries(keys, values, max_size=5),
)
def test_any_table_is_faults_or_one_line(kind: str, pairs: dict[str, object]) -> None:
    text = f'[[fault]]\nfault = "{kind}"\n' + "".join(f"{k} = {v}\n" for k, v in pairs.items())
    try:
        found = read(text)
    except ScriptError as error:
        assert "\n" not in str(error)
        return
    for faults in found.values():
        SimulatedNode("n", 8, H100, 1, script=faults)


def page_script() -> str:
    (script,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(script)


def test_the_example_of_the_page_runs(start_ms: int) -> None:
    scripts = read(page_script())
    fleet = dict(fleet_nodes([8, 8], H100, 1, scripts))
    last_ms = max(fault.end_ms or fault.begin_ms for faults in scripts.values() for fault in faults)
    events = set()
    for second in range(0, last_ms // 1000 + 30, 15):
        for node in fleet.values():
            reading = node.read(start_ms + 1000 * second)
            events |= {row["kind"] for row in reading.get("events", ())}
    assert {"gpu_lost", "xid"} <= events


def test_every_fault_and_option_is_on_the_page() -> None:
    items = PAGE.read_text().split("\n- ")
    for kind, spec in SPECS.items():
        (item,) = (item for item in items if re.match(rf"`{kind}`[,:]", item))
        options, _, _ = item.partition(": ")
        assert all(f"`{option}`" in options for option in spec.options), kind
