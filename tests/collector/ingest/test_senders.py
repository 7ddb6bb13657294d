"""One sender decides nothing about another's batches, nor fills their ledger."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.wire import BatchId
from gpuwarden_collector.auth.senders import NOBODY, node_sender, token_sender
from gpuwarden_collector.ingest import deduplicate as ledger
from gpuwarden_collector.ingest.commit_plan import (
    Batch,
    Known,
    Outcome,
    RetryLater,
    Stored,
    apply,
    plan,
)
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.deduplicate import (
    FORGET_AFTER,
    NODE_KEYS_MAX,
    TOKEN_KEYS_MAX,
    BatchLedger,
    LedgerEntry,
    StoredSequences,
)
from gpuwarden_collector.ingest.prices import PriceBook
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database

A, B = node_sender("a"), node_sender("b")
FLEET = token_sender("t1")
MINUTE = timedelta(minutes=1)


class Collected:
    """What is known after groups of batches; each batch is its sender, agent, boot and sequence."""

    def __init__(self, wire: Any, known: Known | None = None) -> None:
        self.known = known or Known()
        self.now: datetime = wire.now
        # Without rows, as a node's name is one agent's.
        self._tables = {"gpu_samples": wire.table("gpu_samples", [])}

    def send(self, *batches: tuple[str, str, str, int], oldest: int = 0) -> list[Outcome]:
        """The batches as one group."""
        group = [
            Batch(BatchId(agent, boot, n, oldest), Decoded.of(self._tables, 100), 0, sender)
            for sender, agent, boot, n in batches
        ]
        planned = plan(self.known, group, PriceBook(), self.now)
        apply(self.known, planned)
        return list(planned.outcomes)


@pytest.fixture
def collected(wire: Any) -> Collected:
    return Collected(wire)


def test_batches_stored_without_a_sender_are_stored_for_each_sender(
    collected: Collected,
) -> None:
    """An upgrade, or tokens that are asked for from now on: what is on its way comes again."""
    collected.send((NOBODY, "agent", "boot", 5), oldest=5)
    again = Stored(is_duplicate=True)
    assert collected.send((B, "agent", "boot", 5), (B, "agent", "boot", 6)) == [again, Stored()]
    assert collected.send((FLEET, "agent", "boot", 6)) == [Stored()]
    assert collected.send((B, "agent", "boot", 5), (B, "agent", "boot", 6)) == [again, again]


def test_invented_agents_and_boots_of_a_node_take_up_its_own_share_alone(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "LEDGER_KEYS_MAX", 2 * NODE_KEYS_MAX)
    for number in range(4 * NODE_KEYS_MAX):
        (outcome,) = collected.send((A, f"agent{number}", "boot", 1))
        assert isinstance(outcome, Stored if number < NODE_KEYS_MAX else RetryLater)
    assert isinstance(outcome, RetryLater)
    assert (
        f"{NODE_KEYS_MAX} agents and boots of node a are known, which is the limit"
        in outcome.reason
    )
    assert outcome.retry_after_s > 0
    assert collected.send((B, "agent", "boot", 1)) == [Stored()]
    assert collected.send((A, "agent0", "boot", 2)) == [Stored()]


def test_a_token_for_any_node_leaves_half_of_the_ledger(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TOKEN_KEYS_MAX == ledger.LEDGER_KEYS_MAX // 2
    monkeypatch.setattr(ledger, "TOKEN_KEYS_MAX", 10)
    monkeypatch.setattr(ledger, "LEDGER_KEYS_MAX", 20)
    collected = Collected(wire)
    outcomes = collected.send(*((FLEET, f"agent{n}", "boot", 1) for n in range(50)))
    assert outcomes.count(Stored()) == 10
    assert isinstance(outcomes[-1], RetryLater) and "of token t1 are known" in outcomes[-1].reason
    assert collected.send((B, "agent", "boot", 1)) == [Stored()]
    # Without tokens there is no other sender to leave room for.
    everyone = Collected(wire).send(*((NOBODY, f"agent{n}", "boot", 1) for n in range(50)))
    assert everyone.count(Stored()) == 20
    assert isinstance(everyone[-1], RetryLater)
    assert everyone[-1].reason.startswith("20 agents and boots are known")


def test_a_node_that_reboots_often_is_never_locked_out(collected: Collected) -> None:
    """The boot that was silent for longest is forgotten, and no other."""
    for number in range(1, 5 * NODE_KEYS_MAX):
        collected.now += 3 * MINUTE
        assert collected.send((A, "agent", f"boot{number}", number)) == [Stored()]
        before = max(1, number - 10)
        again = (A, "agent", f"boot{before}", before)
        assert collected.send(again) == [Stored(is_duplicate=True)]
    assert collected.known.ledger.count(A) == NODE_KEYS_MAX


def test_entries_seen_within_the_hour_are_not_forgotten(collected: Collected) -> None:
    for number in range(NODE_KEYS_MAX):
        collected.send((A, "agent", f"boot{number}", 1))
    collected.now += FORGET_AFTER - timedelta(seconds=1)
    assert isinstance(collected.send((A, "agent", "new", 1))[0], RetryLater)
    collected.send((A, "agent", "boot0", 2))
    collected.now += timedelta(seconds=1)
    assert collected.send((A, "agent", "new", 1)) == [Stored()]
    assert collected.known.ledger.get((A, "agent", "boot0")) is not None
    assert collected.known.ledger.get((A, "agent", "boot1")) is None


def test_a_boot_that_comes_in_the_same_group_is_not_forgotten_for_another(
    collected: Collected,
) -> None:
    collected.send(*((A, "agent", f"boot{n}", 1) for n in range(NODE_KEYS_MAX)))
    collected.now += 2 * FORGET_AFTER
    assert collected.send((A, "agent", "new", 1), (A, "agent", "boot0", 1)) == [
        Stored(),
        Stored(is_duplicate=True),
    ]


def test_a_group_of_new_boots_forgets_as_many_as_come(collected: Collected) -> None:
    collected.send(*((A, "agent", f"boot{n}", 1) for n in range(NODE_KEYS_MAX)))
    collected.now += 2 * FORGET_AFTER
    assert collected.send(*((A, "agent", f"new{n}", 1) for n in range(9))) == [Stored()] * 9
    assert collected.known.ledger.count(A) == len(collected.known.ledger) == NODE_KEYS_MAX


def test_batches_of_known_boots_take_no_more_room(collected: Collected) -> None:
    known = [(A, "agent", f"boot{n}") for n in range(NODE_KEYS_MAX - 2)]
    collected.send(*((*boot, 1) for boot in known))
    new = [(A, "agent", "new1"), (A, "agent", "new1"), (A, "agent", "new2"), (A, "agent", "new3")]
    *stored, refused = collected.send(*((*boot, n) for n, boot in enumerate([*known, *new], 2)))
    assert stored == [Stored()] * (NODE_KEYS_MAX + 1)
    assert isinstance(refused, RetryLater)


def test_a_full_ledger_forgets_for_a_group_as_many_as_come(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "LEDGER_KEYS_MAX", 4)
    old = {(NOBODY, "x", f"boot{n}"): LedgerEntry(StoredSequences(), wire.now) for n in range(4)}
    collected = Collected(wire, Known(ledger=BatchLedger(old)))
    collected.now += FORGET_AFTER
    assert collected.send(*((B, "agent", f"boot{n}", 1) for n in range(3))) == [Stored()] * 3
    assert len(collected.known.ledger) == 4
    (refused,) = collected.send((A, "agent", "boot", 1), (A, "agent", "boot2", 1))[1:]
    assert isinstance(refused, RetryLater)
    assert refused.reason.startswith("4 agents and boots are known, which is the limit")


def test_a_full_ledger_makes_room_of_what_the_sender_itself_has_not_named_for_long(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "LEDGER_KEYS_MAX", 2)
    collected = Collected(wire)
    assert collected.send((A, "agent", "boot.1", 1), (B, "agent", "boot.1", 1)) == [Stored()] * 2
    assert isinstance(collected.send((A, "agent", "boot.2", 1))[0], RetryLater)
    collected.now += FORGET_AFTER
    assert collected.send((A, "agent", "boot.2", 1)) == [Stored()]
    assert collected.send((B, "agent", "boot.1", 1)) == [Stored(is_duplicate=True)]


SENT = st.lists(
    st.tuples(
        st.sampled_from([A, B, FLEET]),
        st.sampled_from(["x", "y"]),
        st.integers(1, 6),
        st.integers(0, 6),
    ),
    max_size=40,
)


@given(SENT, st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_senders_side_by_side_get_the_answers_of_each_alone(
    wire: Any, sent: list[tuple[str, str, int, int]], at_once: int
) -> None:
    """Whatever ids, sequences and floors they say, and however they are grouped."""

    def outcomes_of(senders: set[str]) -> list[tuple[str, Outcome]]:
        known, found = Known(), []
        mine = [one for one in sent if one[0] in senders]
        tables = {"gpu_samples": wire.table("gpu_samples", [])}
        for first in range(0, len(mine), at_once):
            group = [
                Batch(BatchId(agent, "b", n, min(n, floor)), Decoded.of(tables, 100), 0, sender)
                for sender, agent, n, floor in mine[first : first + at_once]
            ]
            planned = plan(known, group, PriceBook(), wire.now)
            apply(known, planned)
            found += list(zip([b.sender for b in group], planned.outcomes, strict=True))
        return found

    together = outcomes_of({A, B, FLEET})
    for sender in (A, B, FLEET):
        assert [one for one in together if one[0] == sender] == outcomes_of({sender})


async def test_what_is_forgotten_is_forgotten_on_disk(
    database: Database, wire: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "LEDGER_KEYS_MAX", 2)
    known = load_known(database, clock.now())
    writer = Writer(database, known, Stats(), clock, commit_interval_s=0.001)
    writer.start()

    async def stored(boot: str) -> Outcome:
        tables = {"gpu_samples": wire.table("gpu_samples", [wire.gpu_row()])}
        return await writer.store(Batch(BatchId("agent", boot, 1), Decoded.of(tables, 100)))

    for boot in ("b1", "b2"):
        assert await stored(boot) == Stored()
    assert isinstance(await stored("b3"), RetryLater)
    for _ in range(2):
        await writer.freeze()
        await writer.save()
        clock.advance(3_601)
        assert isinstance(await stored("b3"), Stored)
    await writer.stop()
    assert sorted(row["boot_id"] for row in database.state.rows("ledger")) == ["b2", "b3"]
