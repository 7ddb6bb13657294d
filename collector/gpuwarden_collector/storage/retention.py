"""Decides which days of the lake are dropped, by age or for room.

The unit is a day of a table. By age, each tier has its own limit. For room, all tables of a tier are dropped
together, the oldest day first: samples, then the query log (so that many queries cost no samples), then
rollups, then events. A day whose files would stay on the disk is not dropped. If other programs fill the disk,
samples are dropped only if that frees enough.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum
from itertools import groupby

from gpuwarden.audit import AUDIT
from gpuwarden.clock import Clock
from gpuwarden.gpu_test import GPU_TESTS
from gpuwarden.query_log import QUERY_LOG
from gpuwarden.wire import AHEAD_S_MAX

ROLLUPS_BY_MINUTE = frozenset({"gpu_1m", "host_1m", "idle_1m", "process_1m"})
ROLLUPS_BY_HOUR = frozenset({"gpu_1h", "waste_1h"})
EVENTS = frozenset({"events", AUDIT.name, GPU_TESTS.name})


class Tier(IntEnum):
    """Kind of a table, in the order in which tables are dropped for room."""

    SAMPLES = 0
    QUERIES = 1
    MINUTES = 2
    HOURS = 3
    EVENTS = 4


def tier_of(table: str) -> Tier:
    """The tier of a table of the lake."""
    if table == QUERY_LOG.name:
        return Tier.QUERIES
    if table in ROLLUPS_BY_MINUTE:
        return Tier.MINUTES
    if table in ROLLUPS_BY_HOUR:
        return Tier.HOURS
    return Tier.EVENTS if table in EVENTS else Tier.SAMPLES


@dataclass(frozen=True, slots=True)
class LakeDay:
    """A day of a table: the files whose newest row is of that day."""

    table: str
    day: date
    rows: int
    bytes: int
    files: int = 1
    small_files: int = 0
    """The number of files that are small enough to merge."""
    pinned_bytes: int = 0
    """The part of `bytes` that stays on the disk when the day is dropped, because of hard links (such as of a backup
    on the same file system). Counted only while the disk is near full."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Bytes above the limits."""

    budget_bytes: int = 0
    """Bytes above the store's own limit: any tier may be dropped for them."""
    disk_bytes: int = 0
    """Bytes missing on the file system. Only samples of days before today are dropped for them, because another
    program may fill the disk."""
    useful_bytes: int = 0
    """The part of `disk_bytes` that must become free to make dropping samples worthwhile: while batches are refused,
    enough to accept them again, else all."""


class Reason(Enum):
    """Why a day is dropped."""

    AGE = "age"
    ROOM = "room"


@dataclass(frozen=True, slots=True)
class DropDay:
    """A day of a table to be dropped."""

    part: LakeDay
    reason: Reason


def drops(
    parts: Iterable[LakeDay], kept_days: Mapping[Tier, int], today: date | None, excess: Excess
) -> list[DropDay]:
    """The days to drop now, in this order.

    `today`: by the collector's clock; None: the clock is not trusted, and nothing is dropped by age. Age counts from
    the newest day with rows, if that is before today, so that a clock that runs ahead drops nothing.
    """
    parts = sorted(parts, key=lambda p: (tier_of(p.table), p.day, p.table))
    by_age = []
    if parts and today is not None:
        reference = min(today, max(part.day for part in parts))
        by_age = [p for p in parts if (reference - p.day).days > kept_days[tier_of(p.table)]]
    aged = set(by_age)
    left = [part for part in parts if part not in aged]
    freed_bytes = sum(part.bytes for part in by_age)
    for_room = _for_room(_days(left), today, freed_bytes, excess)
    return [*(DropDay(p, Reason.AGE) for p in by_age), *(DropDay(p, Reason.ROOM) for p in for_room)]


@dataclass(frozen=True, slots=True)
class _Day:
    """All tables of a tier on a day."""

    tier: Tier
    day: date
    parts: tuple[LakeDay, ...]
    gain_bytes: int


def _days(parts: Iterable[LakeDay]) -> list[_Day]:
    """Days that may be dropped, in order, up to the first that would free nothing."""
    days = []
    for (tier, day), group in groupby(parts, key=lambda p: (tier_of(p.table), p.day)):
        tables = tuple(group)
        pinned = sum(part.pinned_bytes for part in tables)
        gain = sum(part.bytes for part in tables) - pinned
        if pinned and gain <= 0:
            break
        days.append(_Day(tier, day, tables, gain))
    return days


def _for_room(
    days: list[_Day], today: date | None, freed_bytes: int, excess: Excess
) -> list[LakeDay]:
    samples = [one for one in days if one.tier is Tier.SAMPLES]
    if today is None:
        today = max((one.day for one in samples), default=None)
    before_today = [one for one in samples if today is not None and one.day < today]
    is_useful = freed_bytes + sum(d.gain_bytes for d in before_today) >= excess.useful_bytes
    going: list[LakeDay] = []
    for one in days:
        wanted = excess.budget_bytes
        if is_useful and one in before_today:
            wanted = max(wanted, excess.disk_bytes)
        if freed_bytes < wanted:
            going += one.parts
            freed_bytes += one.gain_bytes
    return going


def oldest_days(parts: Iterable[LakeDay]) -> dict[str, date]:
    """The oldest day of each table."""
    oldest: dict[str, date] = {}
    for part in parts:
        oldest[part.table] = min(part.day, oldest.get(part.table, part.day))
    return oldest


WRONG_S = float(AHEAD_S_MAX)
"""Difference from which one of two clocks is wrong."""


def shows_as_confirmed(confirmed_s: float | None, clock: Clock) -> bool:
    """Whether a clock still agrees with its confirmation; `confirmed_s`: `clock_offset_s` at that time."""
    return confirmed_s is not None and not is_wrong_offset(clock_offset_s(clock) - confirmed_s)


def clock_offset_s(clock: Clock) -> float:
    """The clock minus the monotonic clock, which changes when the clock is set."""
    return clock.now().timestamp() - clock.monotonic()


def is_wrong_offset(offset_s: float) -> bool:
    """Whether clocks with this difference cannot both be right."""
    return abs(offset_s) > WRONG_S
