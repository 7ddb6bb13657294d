"""Collectors of a lake share silences: in the end all have the same, whatever was away meanwhile, and no end is lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.alert import SharedSilence, Silence, matcher_of
from gpuwarden.clock import ManualClock
from gpuwarden.query import QueryError
from gpuwarden_rules.notify.silence_share import SilenceShare, compared, shared_of

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ONE = Silence(
    id="s", matchers=(matcher_of("node=n1"), matcher_of("rule=~gpu_.*")), author="ada", comment="“rack” moves",
    starts_at=NOW, ends_at=NOW + 8 * HOUR,
)  # fmt: skip


class MemoryBoard:
    """As PostgreSQL keeps them; a real one is in tests/cluster."""

    def __init__(self) -> None:
        self.rows: dict[str, SharedSilence] = {}
        self.is_away = False

    async def share_silences(
        self, ours: Sequence[SharedSilence], known: Sequence[str], since_ms: int
    ) -> list[SharedSilence]:
        if self.is_away:
            raise QueryError("the catalogue is away")
        for one in ours:
            old = self.rows.get(one.id)
            if old is None or (one.changes, -one.ends_ms) > (old.changes, -old.ends_ms):
                self.rows[one.id] = one
        return [row for row in self.rows.values() if row.ends_ms > since_ms or row.id in known]


class Here:
    """The silences of a collector."""

    def __init__(self) -> None:
        self.silences: dict[str, Silence] = {}

    async def recent_silences(self, since: datetime) -> list[Silence]:
        return [one for one in self.silences.values() if one.ends_at > since]

    async def take_silences(self, silences: Sequence[Silence]) -> None:
        self.silences |= {one.id: one for one in silences}

    def change(self, one: Silence) -> None:
        known = self.silences.get(one.id)
        self.silences[one.id] = replace(one, changes=known.changes + 1 if known else 0)


def share(board: MemoryBoard, here: Here, now: datetime = NOW) -> None:
    asyncio.run(SilenceShare(board, here, ManualClock(now)).round())


def test_a_silence_and_its_end_reach_the_others_with_all_that_it_says() -> None:
    board, a, b = MemoryBoard(), Here(), Here()
    ack = replace(ONE, id="ack", matchers=(), fingerprint="f1", comment="")
    a.change(ONE)
    a.change(ack)
    share(board, a)
    share(board, b)
    assert b.silences == a.silences == {"s": ONE, "ack": ack}
    b.change(replace(ONE, ends_at=NOW + HOUR))
    share(board, b, NOW + HOUR)
    share(board, a, NOW + HOUR)
    assert a.silences["s"].ends_at == NOW + HOUR and a.silences["s"].changes == 1


def test_of_two_changes_at_the_same_time_the_end_holds() -> None:
    longer = replace(ONE, ends_at=NOW + 20 * HOUR, changes=1)
    ended = replace(ONE, ends_at=NOW, changes=1)
    assert compared([longer], [ended]).to_take == [ended]
    assert compared([ended], [longer]).to_push == [ended]
    assert compared([ended], [ended]) == compared([], [])


def test_a_collector_that_was_away_for_a_month_learns_that_its_silence_was_ended() -> None:
    board, a, b = MemoryBoard(), Here(), Here()
    a.change(replace(ONE, ends_at=NOW + timedelta(days=90)))
    share(board, a)
    share(board, b)
    b.change(replace(ONE, ends_at=NOW))
    share(board, b)
    share(board, a, NOW + timedelta(days=30))
    assert a.silences["s"].ends_at == NOW


def test_what_a_newer_version_wrote_is_left_out_and_the_rest_is_taken() -> None:
    board, here = MemoryBoard(), Here()
    for row in (shared_of(ONE), SharedSilence("x", 0, 2**52, "[]"), SharedSilence("y", 0, 2**52, "{}"), SharedSilence("z", 0, 2**52, "?")):  # fmt: skip
        board.rows[row.id] = row
    share(board, here)
    assert here.silences == {"s": ONE}


def test_a_board_that_is_away_is_said_once_and_tried_again(caplog: Any) -> None:
    board, here, stop = MemoryBoard(), Here(), asyncio.Event()
    here.change(ONE)
    board.is_away = True
    clock = ManualClock(NOW)

    async def run() -> None:
        sharing = SilenceShare(board, here, clock)
        for is_away in (True, True, False):
            board.is_away = is_away
            stop.clear()
            asyncio.get_running_loop().call_soon(stop.set)
            await sharing.run(stop)

    caplog.set_level("INFO")
    asyncio.run(run())
    said = [record.message for record in caplog.records]
    assert said == ["silences are not shared; will retry", "silences are shared again"]
    assert board.rows["s"] == shared_of(ONE)


_STEP = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["make", "end", "extend", "share", "away"]),
    st.integers(0, 3),
)


@settings(max_examples=60)
@given(st.lists(_STEP, max_size=40))
def test_in_the_end_all_have_the_same(steps: list[tuple[int, str, int]]) -> None:
    board, collectors, now = MemoryBoard(), [Here(), Here(), Here()], NOW
    for at, do, number in steps:
        here, name = collectors[at], f"s{number}"
        known = here.silences.get(name)
        if do == "make" and known is None:
            here.change(replace(ONE, id=name, ends_at=now + HOUR))
        elif do == "end" and known is not None:
            here.change(replace(known, ends_at=min(known.ends_at, now)))
        elif do == "extend" and known is not None:
            here.change(replace(known, ends_at=known.ends_at + HOUR))
        elif do == "away":
            board.is_away = not board.is_away
        elif do == "share" and not board.is_away:
            share(board, here, now)
        now += timedelta(minutes=1)
    board.is_away = False
    for _ in range(2):
        for here in collectors:
            share(board, here, now)
    assert collectors[0].silences == collectors[1].silences == collectors[2].silences
    newest = {name: board.rows[name].changes for name in board.rows}
    assert {name: one.changes for name, one in collectors[0].silences.items()} == newest
