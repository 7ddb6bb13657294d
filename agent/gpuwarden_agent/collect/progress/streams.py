"""Keeps the last values of each sender between two readings, within limits, and counts what was refused. Thread-safe.

Users share the limits: who has most senders makes room for a user who has fewer.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwarden_agent.collect.progress.lines import ProgressValue
from gpuwarden_agent.collect.progress.shares import share_of
from gpuwarden_agent.probe import Row

SENDERS_MAX = 1000
NAMES_MAX = 16
LINES_MAX = 20_000
"""Of one user, between two readings."""
REASONS_MAX = 30
FORGET_S = 3600.0
"""A sender that said nothing for this long makes room."""


@dataclass(frozen=True, slots=True)
class ProgressSender:
    """Who reports: a file or a process."""

    source: str
    """file or unix."""
    sender: str
    """Name of the file, pid of the process, or job and rank of the tags."""
    username: str
    job: str | None = None
    """Slurm's id, or namespace/pod."""
    rank: int | None = None


@dataclass(slots=True)
class _Stream:
    sender: ProgressSender
    values: dict[str, float]
    changed: set[str]
    said_s: float


class ProgressStreams:
    """The values of all senders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._shares: Counter[str] = Counter()
        """Number of senders by user."""
        self._lines: Counter[str] = Counter()
        """Lines by user since the last reading."""
        self._refused: Counter[str] = Counter()

    def admits(self, username: str, lines: int) -> bool:
        """Whether the user may send these lines before the next reading; counts them."""
        user = share_of(username)
        with self._lock:
            self._lines[user] += lines
            if self._lines[user] <= LINES_MAX:
                return True
            self._refuse(f"{user}: more than {LINES_MAX:,} lines between two readings", lines)
            return False

    def take(self, sender: ProgressSender, line: ProgressValue, now_s: float) -> None:
        """Take a value."""
        with self._lock:
            stream = self._stream(sender, now_s)
            if stream is None:
                self._refuse(f"{SENDERS_MAX} senders report already")
                return
            if line.name not in stream.values and len(stream.values) >= NAMES_MAX:
                self._refuse(f"a sender has more than {NAMES_MAX} names")
                return
            before = stream.values.get(line.name, 0.0) if line.is_increase else 0.0
            stream.values[line.name] = before + line.value
            stream.changed.add(line.name)
            stream.said_s = now_s

    def refuse(self, reason: str, number: int = 1) -> None:
        """Count lines or files that cannot be taken."""
        with self._lock:
            self._refuse(reason, number)

    def rows(self) -> list[Row]:
        """What changed since the last call."""
        with self._lock:
            rows = []
            self._lines.clear()
            for stream in self._streams.values():
                rows += [
                    _row(stream.sender, name, stream.values[name])
                    for name in sorted(stream.changed)
                ]
                stream.changed.clear()
            return rows

    def refused(self) -> Counter[str]:
        """Lines refused since the last call, by reason."""
        with self._lock:
            found, self._refused = self._refused, Counter()
            return found

    def _stream(self, sender: ProgressSender, now_s: float) -> _Stream | None:
        key = sender.source, sender.sender
        stream = self._streams.get(key)
        if stream is not None and stream.sender == sender:
            return stream
        user = share_of(sender.username)
        if stream is not None:  # another owner: a new file of the name, a new process with the pid
            self._forget(key)
        elif len(self._streams) >= SENDERS_MAX and not self._make_room(user, now_s):
            return None
        self._shares[user] += 1
        stream = self._streams[key] = _Stream(sender, {}, set(), now_s)
        return stream

    def _make_room(self, user: str, now_s: float) -> bool:
        """Forget senders that are silent, else one of the user who has most; False: nobody has more than this user."""
        for old in [k for k, one in self._streams.items() if now_s - one.said_s > FORGET_S]:
            self._forget(old)
        if len(self._streams) < SENDERS_MAX:
            return True
        largest, number = self._shares.most_common(1)[0]
        if number <= self._shares[user] + 1:
            return False
        theirs = (k for k, one in self._streams.items() if share_of(one.sender.username) == largest)
        self._forget(min(theirs, key=lambda k: self._streams[k].said_s))
        self._refuse(f"{largest}: more senders than a share of {SENDERS_MAX}")
        return True

    def _forget(self, key: tuple[str, str]) -> None:
        self._shares[share_of(self._streams.pop(key).sender.username)] -= 1

    def _refuse(self, reason: str, number: int = 1) -> None:
        if reason not in self._refused and len(self._refused) >= REASONS_MAX:
            reason = "others"
        self._refused[reason] += number


def _row(sender: ProgressSender, name: str, value: float) -> Row:
    is_pod = sender.job is not None and "/" in sender.job
    return {
        "source": sender.source,
        "sender": sender.sender,
        "username": sender.username,
        "job": sender.job,
        "pod": sender.job if is_pod else None,
        "rank": sender.rank,
        "name": name,
        "value": value,
    }


def worded(refused: Counter[str], most: int = 3) -> str:
    """The reasons, most frequent first."""
    known: Sequence[tuple[str, int]] = refused.most_common(most)
    said = [f"{reason} ({count} times)" if count > 1 else reason for reason, count in known]
    more = len(refused) - len(known)
    return "; ".join([*said, *([f"{more} other reasons"] if more else [])])
