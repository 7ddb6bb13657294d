"""Parses timestamps of other tools, in many locales, to milliseconds since the epoch: pure."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from gpuwarden.clock import from_ms, to_ms
from gpuwarden_importing.values import plain

_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,:](?P<part>\d{1,9}))?)?(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?"
_ZONE = r"(?:\s*(?P<zone>Z|[+-]\d{2}:?\d{2}|[A-Z]{2,5}\b))?"
_MONTH = r"(?P<name>[^\W\d_]{3,})\.?"
_DATES = (
    r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})[T ,]+" + _TIME + _ZONE,
    r"(?P<day>\d{1,2})\.\s?(?P<month>\d{1,2})\.\s?(?P<year>\d{4})[T ,]+" + _TIME + _ZONE,
    r"(?P<first>\d{1,2})[/-](?P<then>\d{1,2})[/-](?P<year>\d{4})[T ,]+" + _TIME + _ZONE,
    _MONTH + r"\s+(?P<day>\d{1,2})\.?,?\s+" + _TIME + _ZONE + r"\s+(?P<year>\d{4})",
    _MONTH + r"\s+(?P<day>\d{1,2})\.?,?\s+(?P<year>\d{4})[ ,]+" + _TIME + _ZONE,
    r"(?P<day>\d{1,2})\.?[ -]" + _MONTH + r"[ -](?P<year>\d{4})[ ,]+" + _TIME + _ZONE,
    r"(?P<day>\d{1,2})\.?\s+" + _MONTH + r"\s+" + _TIME + _ZONE + r"\s+(?P<year>\d{4})",
    _MONTH + r"\s+(?P<day>\d{1,2})\s+" + _TIME + _ZONE,
    r"(?P<day>\d{1,2})\.?\s+" + _MONTH + r"\s+" + _TIME + _ZONE,
)
_SHAPES = tuple(re.compile(shape + r"\Z", re.ASCII) for shape in _DATES[:3]) + tuple(
    re.compile(shape + r"\Z") for shape in _DATES[3:]
)
_WEEKDAY = re.compile(r"[^\W\d_]{2,12}\.?,?\s+(?=\d|[^\W\d_]{3,}\.?\s+\d|\d{1,2}\.?\s)")
_EPOCH = re.compile(r"(\d{9,19})(?:\.(\d{1,9}))?\Z", re.ASCII)
_EAST = str.maketrans({"年": "-", "月": "-", "日": " "})
_MORNINGS = (
    ("上午", "AM"),
    ("午前", "AM"),
    ("오전", "AM"),
    ("下午", "PM"),
    ("午後", "PM"),
    ("오후", "PM"),
)

_MONTHS = """
    jan|january|januar|jän|jänner|janv|janvier|ene|enero|gen|gennaio|janeiro|januari
    feb|february|februar|fév|févr|février|febrero|febbraio|fev|fevereiro|februari
    mar|march|märz|mär|mrz|mars|marzo|março|mrt|maart
    apr|april|avr|avril|abr|abril|aprile
    may|mai|mayo|mag|maggio|maio|mei
    jun|june|juni|juin|junio|giu|giugno|junho
    jul|july|juli|juil|juillet|julio|lug|luglio|julho
    aug|august|août|aoû|ago|agosto|augustus
    sep|sept|september|septembre|septiembre|set|settembre|setembro
    oct|october|okt|oktober|octobre|octubre|ott|ottobre|out|outubro
    nov|november|novembre|noviembre|novembro
    dec|december|dez|dezember|déc|décembre|dic|diciembre|dicembre|dezembro
"""
MONTHS = {
    name: number for number, names in enumerate(_MONTHS.split(), 1) for name in names.split("|")
}
_NO_OFFSET = frozenset({"Z", "UTC", "GMT"})
_MEMO_MAX = 100_000


class Instants:
    """Parses the timestamps of one file."""

    def __init__(
        self, zone: tzinfo = UTC, *, now_ms: int | None = None, day_first: bool | None = None
    ) -> None:
        """`zone`: for timestamps without one. `now_ms`: timestamps without a year are at most a day later.
        `day_first`: as in `Origin`.
        """
        self._zone = zone
        self._now_ms = now_ms
        self._day_first = day_first
        self.has_assumed_zone = False
        """Whether a timestamp without a zone was parsed."""
        self.odd_zone: str | None = None
        """An ambiguous name of a zone, which was ignored."""
        self._minutes: dict[str, int] = {}

    def parse(self, text: str) -> int | None:
        """Milliseconds since the epoch; None: absent. Raises ValueError with the reason."""
        # The format of nvidia-smi, 2026/07/14 09:00:44.579: each minute is parsed once.
        if 19 <= len(text) <= 23 and text[13] == ":" and text[4] in "/-" and text[16] == ":":
            base = self._minutes.get(text[:16])
            part = text[17:]
            if base is not None and part.replace(".", "", 1).isdecimal() and part < "60":
                return base + round(float(part) * 1000)
        return self._parse(text)

    def _parse(self, text: str) -> int | None:
        cell = plain(text.strip().removeprefix("[").removesuffix("]"))
        if cell is None:
            return None
        if epoch := _EPOCH.match(cell):
            return _of_epoch(epoch)
        for word, half in _MORNINGS:
            if word in cell:
                cell = cell.replace(word, "") + f" {half}"
        cell = re.sub(r"\s+", " ", cell.translate(_EAST)).replace("- ", "-").strip()
        candidates = (cell, _WEEKDAY.sub("", cell, count=1))
        for candidate in candidates:
            for shape in _SHAPES:
                if found := shape.match(candidate):
                    return self._of(found, text)
        raise ValueError("is not a time")

    def _of(self, found: re.Match[str], text: str) -> int:
        parts = found.groupdict()
        month, day = self._month_and_day(parts)
        hour = int(parts["hour"])
        if parts["half"]:
            hour = hour % 12 + (12 if parts["half"] in "Pp" else 0)
        micros = int((parts["part"] or "0").ljust(6, "0")[:6])
        zone = self._zone_of(parts["zone"])
        clock = (hour, int(parts["minute"]), int(parts["second"] or 0), micros)
        try:
            if parts.get("year"):
                instant = datetime(int(parts["year"]), month, day, *clock, tzinfo=zone)
            else:
                instant = self._in_last_year(month, day, clock, zone)
            ts_ms = to_ms(instant)
        except (ValueError, OverflowError) as error:
            raise ValueError("is not a time") from error
        if ts_ms < 0:
            raise ValueError("is a time before 1970")
        if not parts["zone"] and len(text) >= 19 and text[13:14] == ":" and text[4] in "/-":
            if len(self._minutes) >= _MEMO_MAX:
                self._minutes.clear()
            self._minutes[text[:16]] = ts_ms - clock[2] * 1000 - micros // 1000
        return ts_ms

    def _month_and_day(self, parts: dict[str, str | None]) -> tuple[int, int]:
        if name := parts.get("name"):
            month = MONTHS.get(name.lower())
            if month is None:
                raise ValueError("is not a time")
            return month, int(parts["day"] or 0)
        if parts.get("first") is None:
            return int(parts["month"] or 0), int(parts["day"] or 0)
        first, then = int(parts["first"] or 0), int(parts["then"] or 0)
        is_day_first = self._day_first
        if first == then:
            return then, first
        if first > 12 or then > 12:
            is_day_first = first > 12
        if is_day_first is None:
            raise ValueError(
                "may be day/month or month/day: say which with --day-first or --month-first"
            )
        return (then, first) if is_day_first else (first, then)

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
