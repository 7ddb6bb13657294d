"""A node's name belongs to one agent at a time: what another sends as the node waits, or is refused."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.wire import BatchId
from gpuwarden_collector.auth.senders import NOBODY, token_sender
from gpuwarden_collector.ingest.commit_plan import (
    Batch,
    CommitPlan,
    Known,
    Outcome,
    Rejected,
    RetryLater,
    Stored,
    apply,
    inventory_table,
    loaded,
    plan,
)
from gpuwarden_collector.ingest.decode import BatchRows, Decoded
from gpuwarden_collector.ingest.node_owners import (
    BOTH_SPEAK_AFTER,
    CLAIMED_TWICE,
    SILENT_AFTER,
    TRY_AGAIN_AFTER_S,
    nodes_of,
)
from gpuwarden_collector.ingest.prices import PriceBook

SECOND = timedelta(seconds=1)
WAITS, REFUSED, STORED = RetryLater, Rejected, Stored


class Name:
    """Agents that send as one node, batch by batch."""

    def __init__(self, wire: Any) -> None:
        self.wire, self.known, self.now, self._sequence = wire, Known(), wire.now, 0
        self.plan: CommitPlan

    def batch(
        self,
        agent: str = "a",
        boot: str = "1",
        *,
        nodes: tuple[str, ...] = ("n1",),
        ago: timedelta = timedelta(0),
        sender: str = NOBODY,
        is_import: bool = False,
        kind: str | None = None,
    ) -> Batch:
        self._sequence += 1
        rows = [self.wire.gpu_row(node=n, gpu_uuid=f"GPU-{n}", ts=self.now - ago) for n in nodes]
        host = [
            {"ts": self.now - ago, "node": n, "simulated": True, "cpu_percent": 1} for n in nodes
        ]
        made = {
            "gpu_samples": self.wire.table("gpu_samples", rows),
            "host_samples": self.wire.table("host_samples", host),
        }
        if kind:
            event = {"severity": "info", "kind": kind, "message": "m", **host[0]}
            made["events"] = self.wire.table(
                "events", [{k: v for k, v in event.items() if k != "cpu_percent"}]
            )
        batch_id = BatchId(agent, boot, self._sequence, is_import=is_import)
        return Batch(batch_id, Decoded.of(made, 9), 0, sender, f"10.0.0.{ord(agent[0]) - 96}")

    def say(self, *batches: Batch) -> list[Outcome]:
        self.plan = plan(self.known, batches, PriceBook(), self.now)
        apply(self.known, self.plan)
        return list(self.plan.outcomes)

    def tell(self, agent: str = "a", boot: str = "1", **more: Any) -> type[Outcome]:
        """The result for a batch."""
        (outcome,) = self.say(self.batch(agent, boot, **more))
        return type(outcome)

    @property
    def told(self) -> list[dict[str, Any]]:
        """Events of the last group about names that two agents claim."""
        events = self.plan.changes.appended.get("events")
        rows = events.to_pylist() if events else []
        return [row for row in rows if row["kind"] == CLAIMED_TWICE]


@pytest.fixture
def name(wire: Any) -> Name:
    return Name(wire)


def test_of_two_agents_that_both_keep_sending_the_second_is_refused_and_both_are_named(
    name: Name,
) -> None:
    stored = told = 0
    outcomes = []
    pause = 8 * SECOND
    for _ in range(1, 149):
        name.now += pause
        assert name.tell("a") is STORED
        stored += name.plan.rows["gpu_samples"]
        outcomes.append(name.tell("b"))
        stored += name.plan.rows.get("gpu_samples", 0)
        told += len(name.told)
        if name.told and told == 1:
            (event,) = name.told
    assert stored == 148, "one row a GPU and time"
    waited = BOTH_SPEAK_AFTER // pause + 1
    assert outcomes == [WAITS] * waited + [REFUSED] * (148 - waited)
    assert told == 2, "an event in ten minutes"
    assert (event["node"], event["severity"], event["simulated"]) == ("n1", "warning", True)
    assert (
        "two agents send as node n1: agent a at 10.0.0.1 (boot 1), which owns the"
        in event["message"]
    )
    assert "and agent b at 10.0.0.2 (boot 1), whose batches are refused" in event["message"]
    assert json.loads(event["details"]) == {
        "batches": 1, "owner_agent": "a", "owner_boot": "1", "owner_address": "10.0.0.1",
        "other_agent": "b", "other_boot": "1", "other_address": "10.0.0.2",
    }  # fmt: skip
    (outcome,) = name.say(name.batch("b"))
    assert isinstance(outcome, Rejected) and outcome.status == 409
    assert outcome.reason.startswith(
        "node n1 belongs to agent a at 10.0.0.1 (boot 1), which keeps sending"
    )


def test_a_restart_in_another_boot_passes_and_so_does_what_was_left_of_the_boot_before(
    name: Name,
) -> None:
    assert name.tell("a", "1") is STORED
    name.now += 40 * SECOND
    left = name.batch("a", "1", ago=41 * SECOND)
    assert name.tell("a", "2") is STORED
    assert [type(o) for o in name.say(left)] == [STORED]
    assert name.tell("a", "2") is STORED
    assert name.tell("a", "3") is STORED
    assert not name.told


def test_a_backlog_of_the_boot_before_does_not_keep_out_the_boot_that_runs(name: Name) -> None:
    """As after a power cut of the whole site: agents and collector come back, and spools are full."""
    name.now += 60 * SECOND
    for _ in range(20):
        name.now += 2 * SECOND
        left = name.batch("a", "1", ago=50 * SECOND + (name.now - name.wire.now))
        outcomes = name.say(name.batch("a", "2"), left)
        assert [type(o) for o in outcomes] == [STORED, STORED]
    assert not name.told


def test_two_machines_of_one_image_do_not_have_the_name_in_turns(name: Name) -> None:
    """The agent's identity was copied too; the boots are two."""
    found: dict[str, list[Any]] = {"1": [], "2": []}
    told = 0
    for _ in range(20):
        for boot, outcomes in found.items():
            name.now += 2 * SECOND
            outcomes.append(name.tell("a", boot))
            told += len(name.told)
    assert set(found["2"]) == {STORED}
    assert found["1"][0] is STORED and set(found["1"][1:]) == {WAITS, REFUSED}
    assert told == 1


@pytest.mark.parametrize("how", ["silent", "stopped"])
def test_a_machine_that_was_installed_again_gets_the_name_once_the_old_agent_is_gone(
    name: Name, how: str
) -> None:
    assert name.tell("old", kind="agent_stopped" if how == "stopped" else None) is STORED
    if how == "silent":
        for _ in range(5):
            name.now += 11 * SECOND
            assert name.tell("new") is WAITS, "its spool keeps it meanwhile"
        name.now += SILENT_AFTER - 55 * SECOND
    assert name.tell("new") is STORED
    name.now += SECOND
    assert name.tell("old", ago=5 * SECOND + SILENT_AFTER) is STORED, "of the time before"
    assert name.tell("old") is WAITS
    assert not name.told


def test_stopping_in_order_gives_the_name_to_no_other_token(name: Name) -> None:
    assert name.tell("a", sender=token_sender("t1"), kind="agent_stopped") is STORED
    assert name.tell("b", sender=token_sender("t2")) is WAITS
    assert [o.retry_after_s for o in name.plan.outcomes] == [TRY_AGAIN_AFTER_S]  # type: ignore[union-attr]
    assert name.tell("a", sender=token_sender("t1")) is STORED
    assert name.tell("b", sender=token_sender("t1")) is WAITS, "it is running again"
    assert name.tell("a", sender=token_sender("t1"), kind="agent_stopped") is STORED
    assert name.tell("b", sender=token_sender("t1")) is STORED


def test_of_a_batch_of_several_nodes_the_rest_is_stored(name: Name) -> None:
    for _ in range(5):
        assert name.tell("a", nodes=("n2",)) is STORED
        found = name.say(name.batch("g", nodes=("n1", "n2", "n3")))[0]
        name.now += 4 * SECOND
    assert isinstance(found, Stored)
    assert name.plan.changes.appended["gpu_samples"]["node"].to_pylist() == ["n1", "n3"]
    assert name.plan.rows["gpu_samples"] == 2
    assert name.told == [] or name.told[0]["node"] == "n2"


def test_history_claims_no_name_and_a_duplicate_stays_one(name: Name) -> None:
    assert name.tell("a") is STORED
    assert name.tell("import", is_import=True) is STORED
    again = name.batch("a", "1")
    assert name.say(again) == [Stored()]
    assert name.tell("a", "2") is STORED
    name.now += SILENT_AFTER / 2
    assert name.say(again) == [Stored(is_duplicate=True)]


def test_the_agent_keeps_the_name_while_the_collector_is_stopped(name: Name) -> None:
    row = {"node": "n1", "agent_id": "a", "boot_id": "1", "simulated": False}
    batch = Batch(BatchId("a", "1", 90), Decoded.of({"nodes": name.wire.table("nodes", [row])}, 9))
    name.say(batch)
    stored = inventory_table("nodes", name.known.items["nodes"]).to_pylist()
    for away, expected in ((timedelta(minutes=5), WAITS), (timedelta(hours=1), STORED)):
        name.now += away
        name.known = loaded([], {"nodes": stored}, [], name.now)
        assert name.tell("b") is expected


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), min_size=1, max_size=25))
def test_no_agent_gets_a_name_while_its_owner_sends_and_a_single_agent_gets_it(
    wire: Any, turns: list[tuple[str, int]]
) -> None:
    name, owner, heard = Name(wire), "", {}
    for agent, pause in turns:
        name.now += pause * SECOND
        outcome = name.tell(agent)
        if outcome is STORED:
            if owner not in ("", agent):
                assert name.now - heard[owner] >= SILENT_AFTER
            owner = agent
            heard[agent] = name.now
        else:
            assert owner not in ("", agent)
            assert name.now - heard[owner] < SILENT_AFTER


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 9)), max_size=8),
)
def test_the_nodes_of_a_batch_are_those_of_its_rows(
    wire: Any, nodes: list[str], spans: list[tuple[int, int]]
) -> None:
    """Also where other batches of the same table are in other groups."""
    whole = wire.table("host_samples", [{"node": n, "simulated": False} for n in nodes])
    batches, end = [], 0
    for gap, rows in spans:
        start = min(end + gap % 4, len(nodes))
        end = min(start + rows, len(nodes))
        batches.append({"host_samples": BatchRows(whole, start, end - start)})
    expected = [
        frozenset(nodes[p["host_samples"].start :][: p["host_samples"].rows]) for p in batches
    ]
    assert nodes_of(batches) == expected
