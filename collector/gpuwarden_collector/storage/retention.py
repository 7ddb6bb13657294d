"""Decides what the lake lets go of: what is older than it is kept, and what there is no room for.

The unit is a day of a table. By age each tier has its own time. For room whole days go, all tables
of a tier together: samples first, oldest first; the query log after the last sample, so that who asks
much takes nobody's history; then rollups; events last. None goes whose files
would stay on the disk all the same, and for what others have taken of the disk none goes in vain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum
from itertools import groupby

from gpuwarden.clock import Clock
from gpuwarden.query_log import QUERY_LOG
from gpuwarden.wire import AHEAD_S_MAX

ROLLUPS_BY_MINUTE = frozenset({"gpu_1m", "host_1m", "process_1m"})
ROLLUPS_BY_HOUR = frozenset({"gpu_1h", "waste_1h"})
EVENTS = frozenset({"events"})


class Tier(IntEnum):
    """What a table is, in the order in which it goes when there is no room."""

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
    """A day of a table in the lake: the files whose newest row is of that day."""

    table: str
    day: date
    rows: int
    bytes: int
    files: int = 1
    small_files: int = 0
    """Of them, those so small that merging them pays."""
    pinned_bytes: int = 0
    """Of `bytes`, those that stay on the disk when the day is dropped: other names hold the files (hard links, as of
    a backup on the same file system). Counted only while room is short."""


@dataclass(frozen=True, slots=True)
class Excess:
    """How many bytes too many there are."""

    budget_bytes: int = 0
    """Above what the store may have: any tier may go for it."""
    disk_bytes: int = 0
    """Above what leaves the file system enough room: for it only samples of days before today go, as the room may
    have been taken by somebody else."""
    useful_bytes: int = 0
    """Of `disk_bytes`, what must come free to be worth any sample: where no batch is taken what has them taken
    again, else all."""


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
    """What to drop now, in this order.

    `today`: the collector's; None: it cannot be trusted, so nothing is old. A clock that runs ahead
    drops nothing either: age counts back from the newest day that has rows, if that is earlier.
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
    """Days that may go, in their order, up to the first that would only be lost: later ones would go before it."""
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
"""So far apart, one of two clocks is wrong."""


def shows_as_confirmed(confirmed_s: float | None, clock: Clock) -> bool:
    """Whether a clock has gone on from where it was confirmed; `confirmed_s`: it less the monotonic one then."""
    return confirmed_s is not None and not is_wrong_offset(clock_offset_s(clock) - confirmed_s)


def clock_offset_s(clock: Clock) -> float:
    """The clock less the monotonic one: what changes when it is set."""
    return clock.now().timestamp() - clock.monotonic()


def is_wrong_offset(offset_s: float) -> bool:
    """Whether clocks so far apart cannot both be right."""
    return abs(offset_s) > WRONG_S
