"""Parses timestamps, ISO 8601 and those of the C locale, to milliseconds since the epoch: pure."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from gpuwarden.clock import from_ms, to_ms
from gpuwarden_importing.values import plain

_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<part>\d{1,9}))?)?"
_ZONE = r"(?:\s*(?P<zone>Z|[+-]\d{2}:?\d{2}|[A-Z]{2,5}\b))?"
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
_MONTH_DAY = _WEEKDAY + r"(?P<name>[A-Z][a-z]{2}) (?P<day>\d{1,2}) "
_SHAPES = tuple(
    re.compile(shape + r"\Z", re.ASCII)
    for shape in (
        # ISO 8601, with nvidia-smi's slashes
        _WEEKDAY + r"(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})[T ]" + _TIME + _ZONE,
        _MONTH_DAY + _TIME + _ZONE + r" (?P<year>\d{4})",  # ctime and date
        _MONTH_DAY + r"(?P<year>\d{4}) " + _TIME + _ZONE,  # fabric manager
        _MONTH_DAY + _TIME + _ZONE,  # syslog
    )
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = re.compile(r"(\d{9,19})(?:\.(\d{1,9}))?\Z", re.ASCII)
_NO_OFFSET = frozenset({"Z", "UTC", "GMT"})
_MEMO_MAX = 100_000
_JITTER_MS = 60_000
"""How far a line may be before the one above, in a log in order."""


class Instants:
    """Parses the timestamps of one file."""

    def __init__(self, zone: tzinfo = UTC, *, now_ms: int | None = None) -> None:
        """`zone`: for timestamps without one. `now_ms`: timestamps without a year are at most a day later."""
        self._zone = zone
        self._now_ms = now_ms
        self.has_assumed_zone = False
        """Whether a timestamp without a zone was parsed."""
        self.odd_zone: str | None = None
        """An ambiguous name of a zone, which was ignored."""
        self._minutes: dict[str, int] = {}
        self._last_ms = 0

    def parse(self, text: str) -> int | None:
        """Milliseconds since the epoch; None: absent. Raises ValueError with the reason."""
        # The format of nvidia-smi, 2026/07/14 09:00:44.579: each minute is parsed once.
        if 19 <= len(text) <= 23 and text[13] == ":" and text[4] in "/-" and text[16] == ":":
            base = self._minutes.get(text[:16])
            part = text[17:]
            if base is not None and part.replace(".", "", 1).isdecimal() and part < "60":
                self._last_ms = base + round(float(part) * 1000)
                return self._last_ms
        return self._parse(text)

    def _parse(self, text: str) -> int | None:
        cell = plain(text.strip().removeprefix("[").removesuffix("]"))
        if cell is None:
            return None
        if epoch := _EPOCH.match(cell):
            return _of_epoch(epoch)
        cell = re.sub(r"\s+", " ", cell)
        for shape in _SHAPES:
            if match := shape.match(cell):
                return self._of(match, text)
        raise ValueError("is not a time")

    def _of(self, match: re.Match[str], text: str) -> int:
        parts = match.groupdict()
        if name := parts.get("name"):
            if name not in _MONTHS:
                raise ValueError("is not a time")
            month = _MONTHS.index(name) + 1
        else:
            month = int(parts["month"])
        day, hour = int(parts["day"]), int(parts["hour"])
        micros = int((parts["part"] or "0").ljust(6, "0")[:6])
        zone = self._zone_of(parts["zone"])
        clock = (hour, int(parts["minute"]), int(parts["second"] or 0), micros)
        try:
            if parts.get("year"):
                instant = datetime(int(parts["year"]), month, day, *clock, tzinfo=zone)
            else:
                instant = self._in_last_year(month, day, clock, zone)
            ts_ms, is_twice = self._placed(instant)
        except (ValueError, OverflowError) as error:
            raise ValueError("is not a time") from error
        if ts_ms < 0:
            raise ValueError("is a time before 1970")
        if from_ms(ts_ms).astimezone(zone).replace(tzinfo=None) != _of_clock(instant):
            raise ValueError(f"does not exist in {zone}, where clocks went forward")
        self._last_ms = ts_ms
        if (
            not is_twice
            and not parts["zone"]
            and len(text) >= 19
            and text[13:14] == ":"
            and text[4] in "/-"
        ):
            if len(self._minutes) >= _MEMO_MAX:
                self._minutes.clear()
            self._minutes[text[:16]] = ts_ms - clock[2] * 1000 - micros // 1000
        return ts_ms

    def _placed(self, instant: datetime) -> tuple[int, bool]:
        """Milliseconds, and whether clocks show this time twice: the second is meant after a later first."""
        first, second = (to_ms(instant.replace(fold=fold)) for fold in (0, 1))
        is_second = second > first and self._last_ms > first + _JITTER_MS
        return second if is_second else first, second > first

    def _zone_of(self, named: str | None) -> tzinfo:
        if named in _NO_OFFSET:
            return UTC
        if named and named[0] in "+-":
            minutes = int(named[1:3]) * 60 + int(named[-2:])
            if minutes >= 24 * 60:
                raise ValueError("is not a time")
            return timezone(timedelta(minutes=-minutes if named[0] == "-" else minutes))
        self.has_assumed_zone = True
        if named:
            self.odd_zone = named
        return self._zone

    def _in_last_year(
        self, month: int, day: int, clock: tuple[int, int, int, int], zone: tzinfo
    ) -> datetime:
        """The last such date before `now_ms`, or within a day after it. Raises ValueError."""
        if self._now_ms is None:
            raise ValueError("has no year")
        now = from_ms(self._now_ms)
        for year in range(now.year + 1, now.year - 8, -1):
            try:
                instant = datetime(year, month, day, *clock, tzinfo=zone)
            except ValueError:
                continue  # 29 February
            if instant <= now + timedelta(days=1):
                return instant
        raise ValueError("is not a time")


def _of_clock(instant: datetime) -> datetime:
    """The time on the clock, in whole milliseconds."""
    return instant.replace(tzinfo=None, microsecond=instant.microsecond // 1000 * 1000)


def _of_epoch(found: re.Match[str]) -> int:
    """Milliseconds from seconds, ms, us or ns since the epoch, by the number of digits: 2001 to 2286."""
    digits, part = found[1], found[2]
    whole = int(digits)
    if len(digits) <= 10:
        return whole * 1000 + int((part or "0").ljust(3, "0")[:3])
    for length, over in ((13, 1), (16, 1_000), (19, 1_000_000)):
        if len(digits) == length:
            return whole // over
    raise ValueError("is not a time")
