"""Parses a line of progress: `tokens 123456` of a file, `tokens:123456|g|#job:4711,rank:0` of StatsD. Pure."""

import math
import re
from dataclasses import dataclass

from gpuwarden.schema import PROGRESS_COUNTED

LINE_MAX = 200
"""Bytes of a line."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_NUMBER = re.compile(r"-?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_SLURM = re.compile(r"\d{1,18}(?:_\d{1,18})?", re.ASCII)
_POD = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62})/[a-z0-9](?:[a-z0-9.-]{0,252})")
_RANK = re.compile(r"\d{1,6}", re.ASCII)
_FILE = re.compile(r"(?P<job>[A-Za-z0-9_.-]{1,320}?)(?:\.(?P<rank>\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProgressValue:
    """One value."""

    name: str
    value: float
    is_increase: bool = False
    """Of a total, by this much; else the value itself."""
    job: str | None = None
    """Slurm's id, or namespace/pod, as the line says; None: it does not say."""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class JobRank:
    """Whom a file's name or a tag names."""

    job: str
    rank: int | None


class BadLineError(ValueError):
    """A line cannot be taken; the message says why, without the line."""


def parse_line(line: bytes, *, in_file: bool) -> ProgressValue | None:
    """The value of a line; None: it is empty, or a comment (`#`). Raises BadLineError."""
    if len(line) > LINE_MAX:
        raise BadLineError(f"a line has more than {LINE_MAX} bytes")
    try:
        text = line.decode("ascii").strip()
    except UnicodeDecodeError:
        raise BadLineError("a line is not ASCII") from None
    if not text or text.startswith("#"):
        return None
    if ":" in text or "|" in text:
        return _statsd(text, in_file=in_file)
    words = text.split()
    if len(words) != 2:
        raise BadLineError("a line has not a name and a value: write tokens 123456")
    return _checked(words[0], words[1], 1.0)


def _statsd(text: str, *, in_file: bool) -> ProgressValue:
    head, *parts = text.split("|")
    name, colon, value = head.partition(":")
    if not colon or not parts:
        raise BadLineError("a line is not StatsD's: write tokens:123456|g")
    kind, *options = parts
    if kind not in ("g", "c"):
        raise BadLineError("a StatsD line has a type other than g and c")
    if kind == "c" and in_file:
        raise BadLineError("a file has increases (c): write totals")
    rate, tagged = 1.0, JobRank("", None)
    for option in options:
        if option.startswith("@"):
            rate = _number(option[1:], "a sample rate")
            if not 0 < rate <= 1:
                raise BadLineError("a sample rate is not above 0 and at most 1")
        elif option.startswith("#"):
            tagged = _tags(option[1:])
        else:
            raise BadLineError("a StatsD line has an unknown part")
    if rate != 1.0 and kind != "c":
        raise BadLineError("a sample rate is with a type other than c")
    said = _checked(name, value, rate)
    if kind == "c" and said.value < 0:
        raise BadLineError("an increase is below 0")
    return ProgressValue(said.name, said.value, kind == "c", tagged.job or None, tagged.rank)


def _checked(name: str, value: str, rate: float) -> ProgressValue:
    if not _NAME.fullmatch(name):
        raise BadLineError("a name is not lower-case letters, digits and _, at most 40")
    number = _number(value, "a value") / rate
    if not math.isfinite(number):
        raise BadLineError("a value is too large")
    if name in PROGRESS_COUNTED and number < 0:
        raise BadLineError(f"{name} are below 0")
    return ProgressValue(name, number)


def _number(text: str, what: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise BadLineError(f"{what} is not a number")
    number = float(text)
    if not math.isfinite(number):
        raise BadLineError(f"{what} is too large")
    return number


def _tags(text: str) -> JobRank:
    job, rank = "", None
    for tag in text.split(","):
        key, _, value = tag.partition(":")
        if key == "job":
            if not is_job(value):
                raise BadLineError("a tag job is neither Slurm's id nor namespace/pod")
            job = value
        elif key == "rank":
            if not _RANK.fullmatch(value):
                raise BadLineError("a tag rank is not a number")
            rank = int(value)
    return JobRank(job, rank)


def is_job(name: str) -> bool:
    """Whether it is Slurm's id of a job or array task, or namespace/pod."""
    return bool(_SLURM.fullmatch(name) or _POD.fullmatch(name))


def named_by_file(name: str) -> JobRank | None:
    """The job of a file: `4711`, `4711.0` with a rank, `namespace_pod`; None: it is not named so."""
    found = _FILE.fullmatch(name)
    if not found:
        return None
    rank = None if found["rank"] is None else int(found["rank"])
    for job in (found["job"], found["job"].replace("_", "/", 1)):
        if is_job(job):
            return JobRank(job, rank)
    return None
