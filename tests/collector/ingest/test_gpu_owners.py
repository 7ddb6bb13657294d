"""A GPU belongs to one node at a time: rows of another node about it are skipped, counted and reported."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.wire import BatchId
from gpuwarden_collector.auth.senders import NOBODY, node_sender, token_sender
from gpuwarden_collector.ingest import gpu_owners as owners
from gpuwarden_collector.ingest.commit_plan import (
    Batch,
    CommitPlan,
    Known,
    apply,
    forget_gone,
    loaded,
    plan,
)
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.gpu_owners import (
    CLAIMED_TWICE,
    GONE_AFTER,
    GONE_AFTER_WITHOUT_TOKENS,
)
from gpuwarden_collector.ingest.prices import PriceBook

SECOND = timedelta(seconds=1)
GPU = "GPU-1"
ABOUT = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples")
ABOUT += ("process_samples", "allocation_samples", "coverage", "events")
MORE: dict[str, dict[str, Any]] = {
    "link_samples": {"link_type": "nvlink", "link": 0},
    "process_samples": {"pid": 7},
    "allocation_samples": {"scheduler": "slurm", "job": "1"},
    "coverage": {
        "probe": "gpu0", "table_name": "gpu_samples", "expected": 60, "taken": 0,
        "missed": 0, "skipped": 0, "late": 0, "failed": 60,
    },
    "events": {"kind": "xid", "severity": "critical", "message": "Xid 79"},
}  # fmt: skip


class Fleet:
    """What is known of GPUs after nodes have spoken of them, each by its own token if not told else."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.known = Known()
        self.now = wire.now
        self.plan: CommitPlan
        self._sequence = 0

    def batch(
        self,
        node: str,
        *tables: str,
        gpu_uuid: str | None = GPU,
        ago: timedelta = timedelta(0),
        sender: str | None = None,
        agent: str | None = None,
        is_import: bool = False,
        **more: Any,
    ) -> Batch:
        self._sequence += 1
        row = {"ts": self.now - ago, "node": node, "gpu_uuid": gpu_uuid, "simulated": True, **more}
        made = {}
        for name in tables or ("gpu_samples",):
            known = self.wire.table(name, []).schema.names
            values = MORE.get(name, {}) | row
            made[name] = self.wire.table(name, [{k: v for k, v in values.items() if k in known}])
        batch_id = BatchId(agent or f"of {node}", "boot", self._sequence, is_import=is_import)
        who = node_sender(node) if sender is None else sender
        return Batch(batch_id, Decoded.of(made, 100), 0, who)

    def say(self, *batches: Batch) -> Counter[str]:
        """Batches as one group; rows that were stored, by node."""
        self.plan = plan(self.known, batches, PriceBook(), self.now)
        apply(self.known, self.plan)
        stored: Counter[str] = Counter()
        for name, table in self.plan.changes.appended.items():
            said = table.to_pylist()
            stored.update(r["node"] for r in said if name != "events" or r["kind"] != CLAIMED_TWICE)
        return stored

    def tell(self, node: str, *tables: str, **more: Any) -> int:
        """A node reports the GPU; the rows that were stored."""
        return self.say(self.batch(node, *tables, **more))[node]

    @property
    def told(self) -> list[dict[str, Any]]:
        """Events of the last group about GPUs that two nodes name."""
        events = self.plan.changes.appended.get("events")
        rows = events.to_pylist() if events else []
        return [row for row in rows if row["kind"] == CLAIMED_TWICE]


@pytest.fixture
def fleet(wire: Any) -> Fleet:
    return Fleet(wire)


@pytest.mark.parametrize("name", ABOUT)
def test_rows_about_another_nodes_gpu_are_left_out_counted_and_reported(
    fleet: Fleet, name: str
) -> None:
    assert fleet.tell("b", "gpu_samples") == 1
    fleet.now += SECOND
    assert fleet.tell("a", name, "host_samples", gpu=3) == 1, "the rest is stored"
    assert fleet.plan.claims.left_out == {name: 1}
    assert fleet.plan.heard == {"nodes": {"a"}, "gpus": set()}
    (event,) = fleet.told
    assert (event["node"], event["gpu_uuid"], event["severity"]) == ("a", GPU, "warning")
    assert json.loads(event["details"]) == {"node": "a", "owner": "b", "rows": 1}
    assert event["message"].startswith(
        f"node a reports {GPU}, which belongs to node b: 1 rows of a"
    )
    assert event["simulated"] is True
    assert fleet.tell("b", *ABOUT) == len(ABOUT)
    assert not fleet.told


def test_the_row_in_gpus_stays_that_of_the_owner(fleet: Fleet) -> None:
    fleet.tell("b", "gpu_samples", "gpus", serial="right")
    fleet.now += SECOND
    fleet.tell("a", "gpus", serial="wrong", pci_bus_id="0000:01:00.0")
    fleet.tell("a", "gpus", gpu_uuid="MIG-1", parent_gpu_uuid=GPU)
    assert set(fleet.known.items["gpus"]) == {GPU}
    row = fleet.known.items["gpus"][GPU].row
    assert (row["node"], row["serial"]) == ("b", "right")
    assert fleet.plan.claims.left_out == {"gpus": 1}
    assert "gpus" not in fleet.plan.rows and fleet.plan.heard["gpus"] == set()
    assert fleet.tell("b", "gpu_samples", "gpus", gpu_uuid="MIG-2", parent_gpu_uuid=GPU) == 1
    assert set(fleet.known.items["gpus"]) == {GPU, "MIG-2"}


def test_a_gpu_goes_to_another_node_when_its_owner_is_silent_about_it(fleet: Fleet) -> None:
    """A board was moved. The node itself may still speak, of the place or of what the agent does there."""
    fleet.tell("b")
    fleet.now += GONE_AFTER - SECOND
    fleet.tell("b", "coverage", "host_samples")
    assert fleet.tell("a") == 0
    fleet.now += SECOND
    assert fleet.tell("a", "gpu_samples", "gpus") == 1
    assert fleet.known.items["gpus"][GPU].row["node"] == "a"
    fleet.now += SECOND
    assert fleet.tell("b") == 0
    assert json.loads(fleet.told[0]["details"])["owner"] == "a"


def test_reporting_a_gpu_all_the_time_does_not_take_it_over(fleet: Fleet) -> None:
    for _ in range(150):
        fleet.now += 5 * SECOND
        assert fleet.say(fleet.batch("a"), fleet.batch("b")) in ({"a": 1}, {"b": 1})
        assert fleet.known.owners[GPU].node == "a"


def test_backlog_of_the_old_owner_is_stored(fleet: Fleet) -> None:
    fleet.tell("b")
    fleet.now += 2 * GONE_AFTER
    assert fleet.tell("a", ago=30 * SECOND) == 1
    assert fleet.tell("b", *ABOUT, ago=31 * SECOND) == len(ABOUT)
    assert not fleet.told
    assert fleet.known.owners[GPU].node == "a"
    assert fleet.tell("b", ago=30 * SECOND) == 0


def test_a_node_whose_clock_is_ahead_owns_its_gpu_from_now_on(fleet: Fleet) -> None:
    assert fleet.tell("b", ago=-200 * SECOND) == 1
    fleet.now += SECOND
    assert fleet.tell("a") == 0


@pytest.mark.parametrize("by", ["gpu_lost", "another board"])
def test_a_gpu_that_its_owner_has_released_is_free_at_once(fleet: Fleet, by: str) -> None:
    """As when it is handed from one virtual machine to another."""
    place = {"pci_bus_id": "0000:0a:00.0"}
    fleet.tell("b", "gpu_samples", "gpus", **place)
    fleet.now += SECOND
    fleet.tell("a", "events", kind="gpu_lost")
    assert fleet.tell("a") == 0, "it is not a's to release"
    if by == "gpu_lost":
        fleet.tell("b", "events", kind="gpu_lost")
    else:
        fleet.tell("b", "gpu_samples", "gpus", gpu_uuid="GPU-2", **place)
    assert fleet.tell("a") == 1


def test_a_gpu_that_was_lost_and_came_back_keeps_its_owner(fleet: Fleet) -> None:
    fleet.tell("b")
    fleet.tell("b", "events", kind="gpu_lost")
    fleet.tell("b")
    assert fleet.tell("a") == 0


@pytest.mark.parametrize("sender", [NOBODY, token_sender("t1")])
def test_an_agent_with_another_name_keeps_its_gpus(fleet: Fleet, sender: str) -> None:
    fleet.tell("old name", sender=sender, agent="one")
    assert fleet.tell("new name", "gpu_samples", "gpus", sender=sender, agent="one") == 1
    assert fleet.known.items["gpus"][GPU].row["node"] == "new name"
    assert fleet.tell("third", sender=sender, agent="two") == 0


def test_an_agent_id_of_another_sender_proves_nothing(fleet: Fleet) -> None:
    fleet.tell("b", agent="one")
    for sender in (node_sender("a"), token_sender("t1"), NOBODY):
        assert fleet.tell("a", "gpu_samples", "gpus", agent="one", sender=sender) == 0


def test_without_tokens_a_minute_of_silence_is_enough(fleet: Fleet) -> None:
    """A container that is made again has another name and another agent each time."""
    fleet.tell("b", sender=NOBODY)
    fleet.now += GONE_AFTER_WITHOUT_TOKENS - SECOND
    assert fleet.tell("a", sender=NOBODY) == 0
    fleet.now += SECOND
    assert fleet.tell("a", sender=NOBODY) == 1


def test_imported_history_changes_no_owner(fleet: Fleet) -> None:
    fleet.tell("a", is_import=True)
    assert fleet.known.owners == {}
    assert fleet.tell("b") == 1
    fleet.now += SECOND
    assert fleet.tell("a", is_import=True) == 0
    assert fleet.told
    assert fleet.tell("a", is_import=True, ago=timedelta(days=300)) == 1
    assert fleet.tell("b", is_import=True) == 1
    fleet.now += GONE_AFTER
    fleet.tell("a", is_import=True)
    assert fleet.known.owners[GPU].node == "b"


def test_events_and_coverage_alone_change_no_owner(fleet: Fleet) -> None:
    assert fleet.tell("a", "events", "coverage", "gpus") == 2
    assert fleet.tell("b") == 1
    assert fleet.known.owners[GPU].node == "b"


def test_rows_without_a_gpu_are_kept(fleet: Fleet) -> None:
    fleet.tell("b")
    assert fleet.tell("a", "events", "coverage", gpu_uuid=None) == 2
    assert not fleet.plan.claims.left_out


def test_an_event_comes_once_in_ten_minutes_with_the_rows_left_out_since(fleet: Fleet) -> None:
    fleet.tell("b")
    told = []
    for _ in range(241):
        fleet.now += 5 * SECOND
        assert fleet.say(fleet.batch("b"), fleet.batch("a")) == {"b": 1}
        told += [json.loads(row["details"])["rows"] for row in fleet.told]
    assert told == [1, 120, 120]


def test_the_number_of_reported_pairs_is_bounded_and_all_are_counted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "PAIRS_REPORTED_MAX", 10)
    names = [f"GPU-{n}" for n in range(50)]
    fleet.say(*(fleet.batch("b", gpu_uuid=name) for name in names))
    fleet.now += SECOND
    fleet.say(*(fleet.batch("a", gpu_uuid=name) for name in names))
    assert (len(fleet.told), fleet.plan.claims.left_out) == (10, {"gpu_samples": 50})
    fleet.say(*(fleet.batch("a", gpu_uuid=name) for name in names))
    assert (len(fleet.told), len(fleet.known.gpu_reports)) == (0, 10)
    forget_gone(fleet.known, fleet.now + GONE_AFTER)
    assert fleet.known.gpu_reports == {} and fleet.known.owners == {}


def invented(fleet: Fleet, node: str, first: int, until: int, *tables: str) -> list[Batch]:
    return [fleet.batch(node, *tables, gpu_uuid=f"GPU-{node}-{n}") for n in range(first, until)]


def crowd_events(fleet: Fleet) -> list[dict[str, Any]]:
    rows = fleet.plan.changes.appended["events"].to_pylist()
    return [row for row in rows if row["kind"] == owners.TOO_MANY]


def test_a_node_that_invents_gpus_is_stopped_and_reported(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "NODE_GPUS_MAX", 3)
    assert fleet.say(*invented(fleet, "a", 0, 5), fleet.batch("b")) == {"a": 4, "b": 1}, (
        "three of its GPUs, and the event"
    )
    assert fleet.plan.claims.left_out == {"gpu_samples": 2}
    (event,) = crowd_events(fleet)
    assert (event["node"], event["gpu_uuid"], event["severity"]) == ("a", None, "warning")
    assert json.loads(event["details"]) == {"node": "a", "rows": 2}
    assert fleet.known.owned == {"a": 3, "b": 1}
    fleet.now += SECOND
    assert fleet.say(*invented(fleet, "a", 2, 9)) == {"a": 1}, "one that it has; told once"
    fleet.now += GONE_AFTER
    forget_gone(fleet.known, fleet.now)
    assert not fleet.known.owned
    assert fleet.say(*invented(fleet, "a", 9, 12)) == {"a": 3}, "others, once those are gone"


def test_the_rows_of_gpus_of_a_node_are_bounded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "NODE_GPUS_KNOWN_MAX", 3)
    fleet.say(*invented(fleet, "a", 0, 5, "gpus"), fleet.batch("b", "gpus"))
    assert set(fleet.known.items["gpus"]) == {"GPU-a-0", "GPU-a-1", "GPU-a-2", GPU}
    assert fleet.plan.claims.left_out == {"gpus": 2}
    assert len(crowd_events(fleet)) == 1
    fleet.now += SECOND
    fleet.say(*invented(fleet, "a", 5, 9, "gpus"))
    assert {node: len(gpus) for node, gpus in fleet.known.gpus_of.items()} == {"a": 3, "b": 1}
    known = loaded(
        [], {n: [i.row for i in d.values()] for n, d in fleet.known.items.items()}, [], fleet.now
    )
    assert known.gpus_of == fleet.known.gpus_of


def test_the_rows_of_gpus_that_a_node_imports_are_bounded_too(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "NODE_GPUS_KNOWN_MAX", 3)
    history = [fleet.batch("a", "gpus", gpu_uuid=f"GPU-{n}", is_import=True) for n in range(5)]
    fleet.say(*history)
    assert set(fleet.known.items["gpus"]) == {"GPU-0", "GPU-1", "GPU-2"}
    assert fleet.plan.claims.left_out == {"gpus": 2}


def test_owners_are_restored_after_a_restart(fleet: Fleet, wire: Any) -> None:
    fleet.tell("b", "gpu_samples", "gpus")
    naive = fleet.now.replace(tzinfo=None)
    row = {"gpu_uuid": GPU, "node": "b", "first_seen_at": naive, "last_seen_at": naive}
    node = {"node": "b", "agent_id": "one"}
    inventory = {"nodes": [node], "gpus": [row, {"gpu_uuid": "GPU-2", "node": "history"}]}
    fleet.known = loaded([], inventory, [], fleet.now)
    assert set(fleet.known.owners) == {GPU}
    assert fleet.tell("a", agent="one") == 0
    assert fleet.tell("a", agent="one", ago=SECOND) == 1, "of the time before"
    assert fleet.tell("b") == 1
    fleet.known = loaded([], inventory, [], fleet.now)
    assert fleet.tell("a", sender=NOBODY, agent="one") == 1, "another name"
    fleet.known = loaded([], inventory, [], fleet.now)
    fleet.now += GONE_AFTER
    assert fleet.tell("a") == 1


SAID = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["GPU-1", "GPU-2"]),
        st.sampled_from(["gpu_samples", "gpu_health_samples", "events"]),
        st.integers(0, 900),
        st.booleans(),
    ),
    max_size=25,
)


@given(SAID)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_every_row_is_stored_or_counted(wire: Any, said: Any) -> None:
    """And an owner's rows about its own GPU are always stored."""
    fleet = Fleet(wire)
    group: list[Batch] = []
    for number, (node, gpu_uuid, table, wait_s, is_last) in enumerate(said, 1):
        group.append(fleet.batch(node, table, gpu_uuid=gpu_uuid))
        if is_last or number == len(said):
            before = dict(fleet.known.owners)
            stored = fleet.say(*group)
            assert stored.total() + fleet.plan.claims.left_out.total() == len(group)
            denied = {json.loads(row["details"])["node"] for row in fleet.told}
            for batch in group:
                ((name, part),) = batch.decoded.parts.items()
                row = part.data.to_pylist()[0]
                owner, after = before.get(row["gpu_uuid"]), fleet.known.owners.get(row["gpu_uuid"])
                if name != "events" and owner and after and owner.node == after.node == row["node"]:
                    kept = fleet.plan.changes.appended[name].to_pylist()
                    assert any(one["node"] == row["node"] for one in kept)
            assert denied <= {"a", "b", "c"}
            group = []
            fleet.now += wait_s * SECOND


NAMED = st.lists(
    st.tuples(
        st.sampled_from([None, "GPU-1", "GPU-2", "GPU-3"]),
        st.sampled_from([None, "a", "b", "c"]),
        st.integers(0, 5),
    ),
    max_size=12,
)


@given(NAMED)
def test_pairs_are_those_that_rows_name(
    named: list[tuple[str | None, str | None, int]],
) -> None:
    schema = pa.schema(
        [("gpu_uuid", pa.string()), ("node", pa.string()), ("ts", pa.timestamp("ms"))]
    )
    gpus, nodes, times = zip(*named, strict=True) if named else ((), (), ())
    table = pa.table([pa.array(gpus, pa.string()), pa.array(nodes, pa.string()),
                      pa.array(times, pa.timestamp("ms"))], schema=schema)  # fmt: skip
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    for row, (gpu_uuid, node, ts) in enumerate(named):
        if gpu_uuid is not None and node is not None:
            first_row, first_ts = expected.get((gpu_uuid, node), (row, ts))
            expected[gpu_uuid, node] = (first_row, min(first_ts, ts))
    for pairs in (owners._Pairs(table), owners._FewPairs(table)):
        found = [(gpu_uuid, node, *pairs.first(pair)) for gpu_uuid, node, pair in pairs]
        assert sorted(found) == sorted((*pair, *first) for pair, first in expected.items())
