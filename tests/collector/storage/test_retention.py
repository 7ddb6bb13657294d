"""Days go by age and for room, and some never do."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_collector.storage.retention import (
    WRONG_S,
    Excess,
    LakeDay,
    Reason,
    Tier,
    clock_offset_s,
    drops,
    shows_as_confirmed,
    tier_of,
)

TODAY = date(2026, 3, 31)
KEPT = {Tier.SAMPLES: 14, Tier.QUERIES: 30, Tier.MINUTES: 90, Tier.HOURS: 730, Tier.EVENTS: 365}
TABLES = ("gpu_samples", "host_samples", "query_log", "gpu_1m", "gpu_1h", "events")


def part(table: str, days_ago: int, size: int = 100) -> LakeDay:
    return LakeDay(table, TODAY - timedelta(days=days_ago), rows=10, bytes=size)


def dropped(*parts: LakeDay, today: date | None = TODAY, excess: Excess | None = None) -> list[str]:
    return [
        f"{d.part.table}-{(TODAY - d.part.day).days} {d.reason.value}"
        for d in drops(parts, KEPT, today, excess or Excess())
    ]


def test_each_tier_has_its_age() -> None:
    parts = [
        part(table, days)
        for table in TABLES
        for days in (0, 14, 15, 30, 31, 90, 91, 365, 366, 730, 731)
    ]
    old = set(dropped(*parts))
    assert "gpu_samples-14 age" not in old
    assert {
        "gpu_samples-15 age",
        "query_log-31 age",
        "gpu_1m-91 age",
        "events-366 age",
        "gpu_1h-731 age",
    } <= old
    assert not {"query_log-30 age", "gpu_1m-90 age", "events-365 age", "gpu_1h-730 age"} & old


def test_a_clock_that_runs_ahead_drops_nothing() -> None:
    parts = [part("gpu_samples", days) for days in range(10)]
    assert dropped(*parts, today=TODAY + timedelta(days=365)) == []
    assert dropped(*parts, part("gpu_samples", 30), today=None) == []


def test_for_room_the_oldest_whole_day_of_samples_goes_first() -> None:
    parts = [part(t, d) for t in ("gpu_samples", "host_samples", "gpu_1m") for d in (0, 1, 2)]
    assert dropped(*parts, excess=Excess(budget_bytes=1)) == [
        "gpu_samples-2 room",
        "host_samples-2 room",
    ]
    assert dropped(*parts, excess=Excess(budget_bytes=601)) == [
        *(f"{t}-{d} room" for d in (2, 1, 0) for t in ("gpu_samples", "host_samples")),
        "gpu_1m-2 room",
    ]


def test_a_full_file_system_takes_no_rollups_and_nothing_of_today() -> None:
    parts = [part(t, d) for t in ("gpu_samples", "gpu_1m", "events") for d in (0, 1, 2)]
    excess = Excess(disk_bytes=10**9)
    before_today = ["gpu_samples-2 room", "gpu_samples-1 room"]
    assert dropped(*parts, excess=excess) == before_today
    assert dropped(*parts, today=None, excess=excess) == before_today
    assert dropped(*parts, today=TODAY - timedelta(days=1), excess=excess) == before_today[:1]
    tomorrow = TODAY + timedelta(days=1)
    assert len(dropped(*parts, today=tomorrow, excess=excess)) == 3, "or a full disk stayed full"


@pytest.mark.parametrize(("useful_bytes", "going"), [(200, 2), (201, 0)])
def test_samples_do_not_go_in_vain(useful_bytes: int, going: int) -> None:
    parts = [part("gpu_samples", days) for days in (0, 1, 2)]
    assert len(dropped(*parts, excess=Excess(0, 1_000, useful_bytes))) == going
    # The folder's own limit is kept whatever others do.
    assert len(dropped(*parts, excess=Excess(101, 1_000, useful_bytes))) == 2


def test_a_day_whose_files_stay_on_the_disk_does_not_go_and_none_after_it() -> None:
    parts = [part("gpu_samples", days) for days in (3, 2, 1)]
    pinned = [parts[0], replace(parts[1], pinned_bytes=100), parts[2]]
    assert dropped(*pinned, excess=Excess(budget_bytes=300)) == ["gpu_samples-3 room"]
    # Of this day one byte would come free, so for 102 the next goes, too.
    pinned[1] = replace(parts[1], pinned_bytes=99)
    assert len(dropped(*pinned, excess=Excess(budget_bytes=101))) == 2
    assert len(dropped(*pinned, excess=Excess(budget_bytes=102))) == 3


@pytest.mark.parametrize(
    ("set_by_s", "is_right"), [(0, True), (WRONG_S, True), (WRONG_S + 1, False)]
)
def test_a_clock_that_was_set_since_it_was_confirmed_is_not_trusted(
    set_by_s: float, is_right: bool
) -> None:
    clock = ManualClock(datetime(2026, 3, 31, tzinfo=UTC))
    clock.advance(50)
    confirmed_s = clock_offset_s(clock)
    clock.advance(1000)
    for offset_s in (confirmed_s - set_by_s, confirmed_s + set_by_s):
        assert shows_as_confirmed(offset_s, clock) is is_right
    assert not shows_as_confirmed(None, clock)


parts_strategy = st.lists(
    st.builds(part, st.sampled_from(TABLES), st.integers(0, 800), st.integers(0, 1000)),
    unique_by=lambda p: (p.table, p.day),
    max_size=40,
)


@given(parts_strategy, st.integers(0, 20_000), st.integers(0, 20_000))
def test_only_what_must_goes_and_it_is_enough(
    parts: list[LakeDay], budget_bytes: int, disk_bytes: int
) -> None:
    gone = drops(parts, KEPT, TODAY, Excess(budget_bytes, disk_bytes))
    assert len({(d.part.table, d.part.day) for d in gone}) == len(gone), "each once"
    reference = min(TODAY, max((p.day for p in parts), default=TODAY))
    old = {p for p in parts if (reference - p.day).days > KEPT[tier_of(p.table)]}
    assert {d.part for d in gone if d.reason is Reason.AGE} == old
    for_room = [d.part for d in gone if d.reason is Reason.ROOM]
    kept = [p for p in parts if p not in old and p not in for_room]
    freed = sum(d.part.bytes for d in gone)
    assert freed >= budget_bytes or not kept
    assert freed >= disk_bytes or not [
        p for p in kept if tier_of(p.table) is Tier.SAMPLES and p.day < TODAY
    ]
    order = [(tier_of(p.table), p.day) for p in for_room]
    assert order == sorted(order)
    if order:
        assert all((tier_of(p.table), p.day) > order[-1] for p in kept), "whole days, oldest first"
        last = sum(p.bytes for p in for_room if (tier_of(p.table), p.day) == order[-1])
        is_for_disk = order[-1][0] is Tier.SAMPLES and order[-1][1] < TODAY
        wanted = max(budget_bytes, disk_bytes if is_for_disk else 0)
        assert freed - last < wanted, "one day less would not do"
