"""The outbox keeps what it took, in order, once, after faults of disk and process."""

import logging
import resource
import sqlite3
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.rules.notify.alerts import START, Incidents, make_alert, message_of

from gpuwarden.clock import ManualClock
from gpuwarden.lifecycle import StartError
from gpuwarden_rules.notify.message import MessageReason, Notification
from gpuwarden_rules.notify.outbox import Outbox, OutboxError
from gpuwarden_rules.notify.planner import IncidentNotice, plan
from gpuwarden_rules.notify.routing import Recipient, Route, RoutingPolicy


def message(
    number: int, *, receiver: str = "chat", group: str = "g", repeat: bool = False
) -> Notification:
    return replace(
        message_of(make_alert()),
        id=f"id{number}",
        receiver=receiver,
        group=group,
        made_at=START + timedelta(seconds=number),
        reason=MessageReason.REPEATED if repeat else MessageReason.OPENED,
    )


def notice() -> IncidentNotice:
    """What the planner remembers of a message."""
    found = Incidents().view([make_alert()], START)
    policy = RoutingPolicy({"chat": Recipient()}, [Route(receivers=("chat",))])
    (made,) = plan({}, found, policy, START).state.values()
    return made


def drained(box: Outbox, receiver: str = "chat") -> list[str]:
    """Ids of what waits, taken out in the order in which it would be sent."""
    found = []
    while queued := box.head(receiver):
        found.append(queued.message.id)
        box.remove(receiver, queued.sequence)
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def box(tmp_path, clock):
    box = Outbox(tmp_path / "o", clock)
    yield box
    box.close()


def test_messages_and_state_are_there_after_a_restart(tmp_path, clock) -> None:
    group = notice()
    box = Outbox(tmp_path / "o", clock)
    box.commit({}, {"k": group}, [message(1), message(2)], digests={"08:00": 5})
    box.close()
    box = Outbox(tmp_path / "o", clock)
    assert box.state() == {"k": group}
    assert box.digests() == {"08:00": 5}
    assert box.waiting == {"chat": 2}
    assert drained(box) == ["id1", "id2"]
    box.commit({"k": group}, {}, [])
    assert box.state() == {}
    box.close()


def test_the_same_message_is_stored_once(box) -> None:
    box.commit({}, {}, [message(1)])
    box.commit({}, {}, [message(1)])
    assert box.waiting == {"chat": 1}
    assert drained(box) == ["id1"]


def test_a_message_that_fails_holds_up_its_group_and_no_other(box) -> None:
    box.commit({}, {}, [message(1, group="a"), message(2, group="a"), message(3, group="b")])
    first = box.head("chat")
    box.put_back(first.sequence)
    second = box.head("chat")
    assert (first.message.id, second.message.id) == ("id1", "id3")
    box.remove("chat", second.sequence)
    assert drained(box) == ["id1", "id2"]


def test_a_later_message_of_a_group_knows_what_the_receiver_calls_the_first(
    tmp_path, clock
) -> None:
    box = Outbox(tmp_path / "o", clock)
    box.commit({}, {}, [message(1), message(2), message(3, group="other")])
    assert box.head("chat").message.handle is None
    box.remove("chat", box.head("chat").sequence, "C1/7.5")
    box.close()
    box = Outbox(tmp_path / "o", clock)
    handles = {}
    while queued := box.head("chat"):
        handles[queued.message.id] = queued.message.handle
        box.remove("chat", queued.sequence)
    assert handles == {"id2": "C1/7.5", "id3": None}
    box.close()


def test_receivers_have_queues_of_their_own(box) -> None:
    box.commit({}, {}, [message(1, receiver="a"), message(2, receiver="b")])
    assert drained(box, "b") == ["id2"]
    assert drained(box, "a") == ["id1"]


def test_parts_of_one_repeat_leave_each_other_alone(box) -> None:
    part = message(2, repeat=True)
    box.commit({}, {}, [part, replace(part, id="other part")])
    assert drained(box) == ["id2", "other part"]


def test_the_oldest_goes_when_too_many_wait_and_is_counted(tmp_path, clock, caplog) -> None:
    box = Outbox(tmp_path / "o", clock, messages_max=3)
    box.commit({}, {}, [message(number, group=str(number)) for number in range(5)])
    assert box.dropped == {"chat": 2}
    assert box.waiting == {"chat": 3}
    assert caplog.records[-1].levelno == logging.ERROR
    assert drained(box) == ["id2", "id3", "id4"]
    box.close()


def test_a_file_of_junk_is_set_aside(tmp_path, clock) -> None:
    (tmp_path / "o").write_bytes(b"junk" * 5000)
    box = Outbox(tmp_path / "o", clock)
    box.commit({}, {}, [message(1)])
    box.close()
    (aside,) = tmp_path.glob("o.corrupt-*")
    assert aside.read_bytes().startswith(b"junk")


def test_a_newer_file_is_left_alone(tmp_path, clock) -> None:
    with sqlite3.connect(tmp_path / "o") as db:
        db.execute("PRAGMA user_version = 9")
    with pytest.raises(StartError, match="written by a newer gpuwarden"):
        Outbox(tmp_path / "o", clock)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, clock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="messages cannot be stored"):
        Outbox(tmp_path / "file" / "o", clock)


def test_a_group_or_message_that_cannot_be_read_stops_nothing(tmp_path, clock, caplog) -> None:
    box = Outbox(tmp_path / "o", clock)
    group = notice()
    box.commit({}, {"a": group, "b": group}, [message(1), message(2)])
    box.close()
    with sqlite3.connect(tmp_path / "o") as db:
        db.execute("UPDATE notices SET body = '{}' WHERE key = 'a'")
        db.execute("UPDATE messages SET body = 'x' WHERE id = 'id1'")
    box = Outbox(tmp_path / "o", clock)
    assert box.state() == {"b": group}
    assert drained(box) == ["id2"]
    assert box.dropped == {"chat": 1}
    box.close()


@contextmanager
def full_disk(bytes_max: int):
    """No file of this process may grow beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_has_room_for_messages(tmp_path, clock) -> None:
    box = Outbox(tmp_path / "o", clock)
    size = max(path.stat().st_size for path in tmp_path.iterdir())
    with full_disk(size):
        for number in range(200):
            box.commit({}, {}, [message(number, group=str(number))])
        assert len(drained(box)) == 200
    box.close()


def test_what_could_not_be_deleted_is_not_given_again(tmp_path, clock) -> None:
    box = Outbox(tmp_path / "o", clock)
    box.commit({}, {}, [message(1), message(2)])
    other = sqlite3.connect(tmp_path / "o")
    other.execute("BEGIN IMMEDIATE")
    box._db.execute("PRAGMA busy_timeout = 1")
    first = box.head("chat")
    with pytest.raises(OutboxError, match="locked"):
        box.remove("chat", first.sequence)
    other.rollback()
    other.close()
    assert drained(box) == ["id2"]
    box.close()


class Model(RuleBasedStateMachine):
    """Random puts, failures, departures and restarts against a list."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "o"
        self.box = Outbox(self.path, ManualClock(START))
        self.kept: list[Notification] = []
        self.number = 0

    @rule(group=st.sampled_from("ab"), repeat=st.booleans())
    def put(self, group, repeat) -> None:
        self.number += 1
        made = message(self.number, group=group, repeat=repeat)
        if repeat:
            self.kept = [m for m in self.kept if not (m.is_replaceable and m.group == group)]
        self.kept.append(made)
        self.box.commit({}, {}, [made])

    @precondition(lambda self: self.kept)
    @rule(fails=st.booleans())
    def send(self, fails) -> None:
        queued = self.box.head("chat")
        older = next(m for m in self.kept if m.group == queued.message.group)
        assert queued.message == older
        if fails:
            self.box.put_back(queued.sequence)
        else:
            self.kept.remove(older)
            self.box.remove("chat", queued.sequence)

    @rule()
    def restart(self) -> None:
        self.box.close()
        self.box = Outbox(self.path, ManualClock(START))

    def teardown(self) -> None:
        assert self.box.waiting["chat"] == len(self.kept)
        assert sorted(drained(self.box)) == sorted(m.id for m in self.kept)
        self.box.close()
        self.folder.cleanup()


Model.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestModel = Model.TestCase
