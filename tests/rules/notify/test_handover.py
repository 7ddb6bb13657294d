"""Nodes that move between collectors: each node is of one of them in the end, and what goes along is whole."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.rules.notify.alerts import START, make_alert
from tests.rules.notify.test_notifier import Scripted, World
from tests.rules.notify.test_planner import ONE, Run, told

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import from_ms, to_ms
from gpuwarden.cluster import ClusterAnswer, ClusterAsk, MovingState, NodeClaim
from gpuwarden_rules.notify.handover import (
    OVERLAP_MS,
    HandoverState,
    answered,
    claims,
    published,
    taken,
    turned,
)
from gpuwarden_rules.notify.planner import plan

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def owner(node: str, at: datetime, *, is_own: bool) -> NodeClaim:
    return NodeClaim(node, is_own, to_ms(at))


def test_a_collector_claims_what_it_heard_after_the_other_did() -> None:
    state = HandoverState({
        "own": owner("own", NOW, is_own=True),
        "left": owner("left", NOW, is_own=False),
        "back": owner("back", NOW - 10 * SECOND, is_own=False),
    })  # fmt: skip
    heard = dict.fromkeys(("own", "left", "back", "new"), NOW - SECOND)
    assert claims(state, heard) == ["back", "new"]
    assert state.elsewhere == {"left", "back"}
    # What is new to all is claimed, and there is nothing to take over.
    assert turned(state, (), ["back", "new"]).take == ["back"]


def test_only_changes_are_told_and_what_is_over_is_deleted() -> None:
    one, other = MovingState("alert", "f1", "n1", "{}"), MovingState("notice", "k", "", "{}")
    first = turned(HandoverState(), [one, other], [])
    assert (first.put, first.gone) == ([one, other], [])
    state = answered(HandoverState(), [one, other], ClusterAnswer([], []))
    assert turned(state, [one, other], []) == ClusterAsk((), (), (), 0, ())._replace(
        heard=[], put=[], gone=[], take=[]
    )
    changed = one._replace(body="[]")
    later = turned(state, [changed], [])
    assert (later.put, later.gone) == ([changed], [("notice", "k")])


def test_claims_are_read_again_with_an_overlap() -> None:
    state = answered(HandoverState(), (), ClusterAnswer([owner("n1", NOW, is_own=False)], []))
    assert state.since_ms == to_ms(NOW) - OVERLAP_MS
    assert answered(state, (), ClusterAnswer([], [])).since_ms == state.since_ms


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=60))
def test_each_node_ends_at_the_collector_that_heard_it_last(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Each step: a collector hears a node, and tells or does not yet. The board is as PostgreSQL keeps it."""
    board: dict[str, tuple[int, int]] = {}
    states = [HandoverState() for _ in range(3)]
    heard: list[dict[str, datetime]] = [{} for _ in range(3)]
    last: dict[str, int] = {}

    def tells(at: int, now: datetime) -> None:
        for _ in range(2):  # the first round may learn that another has it
            claimed = claims(states[at], heard[at])
            for node in claimed:
                if board.get(node, (-1, 0))[0] != at:
                    board[node] = (at, to_ms(now))
            owners = [NodeClaim(n, of == at, ms) for n, (of, ms) in board.items()]
            states[at] = answered(states[at], (), ClusterAnswer(owners, []))

    now = NOW
    for at, number, is_told in steps:
        now += SECOND
        heard[at][f"n{number}"], last[f"n{number}"] = now, at
        if is_told:
            tells(at, now + SECOND / 2)
    for _ in range(3):
        for at in range(3):
            for node, of in last.items():  # they keep sending there
                now += SECOND
                heard[of][node] = now
            tells(at, now)
    assert {node: of for node, (of, _) in board.items()} == last
    for at, state in enumerate(states):
        assert state.elsewhere == {node for node, of in last.items() if of != at}


def test_firing_alerts_of_own_nodes_and_open_notices_go_along_whole() -> None:
    run = Run()
    mine, other = make_alert(node="n1"), make_alert(node="n2")
    fleet = replace(make_alert(), labels={})
    pending = replace(make_alert(node="n3"), state=AlertState.PENDING)
    run([mine], START)
    rows = published([mine, other, fleet, pending], run.state, {"n2"})
    assert [(row.kind, row.node) for row in rows] == [("alert", "n1"), ("notice", "")]
    alerts, notices = taken(rows)
    assert [(a.fingerprint, a.active_at, a.fired_at, a.began_at) for a in alerts] == [
        (mine.fingerprint, mine.active_at, mine.fired_at, mine.began_at)
    ]
    assert notices == run.state
    # What changes at each evaluation is not written again.
    seen = replace(mine, seen_at=START + timedelta(hours=1), value=9.0, muted="silenced by ada")
    assert published([seen], {}, ()) == rows[:1]


def test_what_a_newer_version_wrote_is_left_out() -> None:
    wrong = [MovingState("alert", "f", "n", "{}"), MovingState("notice", "k", "", "?"), MovingState("plan", "p", "", "{}")]  # fmt: skip
    assert taken(wrong) == ([], {})


def test_no_end_is_sent_of_an_incident_that_goes_on_elsewhere_and_one_of_two_nodes_ends_here() -> (
    None
):
    run = Run()
    run([make_alert(node="n1")], START)
    view = run.incidents.view([], START + timedelta(hours=1))
    moved = plan(run.state, view, ONE, START + timedelta(hours=1), {"n1"})
    assert (moved.messages, moved.state) == ([], {})
    assert told(plan(run.state, view, ONE, START + timedelta(hours=1), {"n2"}).messages) == [("resolved", 0, 1)]  # fmt: skip


async def test_what_another_collector_sent_is_not_sent_again_and_its_end_is_sent_here(
    tmp_path: Any,
) -> None:
    here, there = Scripted(), Scripted()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = World(tmp_path / "a", {"good": here})
    first.alerts = [make_alert(node="n1", at=START - timedelta(hours=1))]
    async with first.running():
        await first.until(lambda: len(here.got) == 1)
        _, notices = taken(published([], first.notifier.notices, ()))
    second = World(tmp_path / "b", {"good": there})
    second.notifier.offer(notices)
    second.alerts = first.alerts
    async with second.running():
        await second.until(lambda: second.notifier.notices == notices)
        assert there.got == []
        second.clock.advance(3600)
        second.alerts = []
        await second.until(lambda: len(there.got) == 1)
    assert [str(message.reason) for message in there.got] == ["resolved"]


def test_an_instant_of_an_alert_survives_the_way() -> None:
    [row] = published([make_alert(node="n1", at=from_ms(1_772_000_000_123))], {}, ())
    ([alert], _) = taken([row])
    assert isinstance(alert, Alert) and alert.fired_at == from_ms(1_772_000_000_123)
