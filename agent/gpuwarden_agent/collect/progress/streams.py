"""Keeps the last values of each sender between two readings, within limits, and counts what was refused. Thread-safe."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwarden_agent.collect.progress.lines import ProgressValue
from gpuwarden_agent.probe import Row

SENDERS_MAX = 1000
NAMES_MAX = 16
REASONS_MAX = 30
FORGET_S = 3600.0
"""A sender that said nothing for this long makes room."""


@dataclass(frozen=True, slots=True)
class ProgressSender:
    """Who reports: a file or a process."""

    source: str
    """file, unix or udp."""
    sender: str
    """Name of the file, pid of the process, or job and rank of the tags."""
    username: str | None = None
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
        self._refused: Counter[str] = Counter()

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

    def refuse(self, reason: str) -> None:
        """Count a line or a file that cannot be taken."""
        with self._lock:
            self._refuse(reason)

    def rows(self) -> list[Row]:
        """What changed since the last call."""
        with self._lock:
            rows = []
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
        if stream is None and len(self._streams) >= SENDERS_MAX:
            for old in [k for k, one in self._streams.items() if now_s - one.said_s > FORGET_S]:
                del self._streams[old]
            if len(self._streams) >= SENDERS_MAX:
                return None
        # Another owner: a new file of the name, a new process with the pid.
        stream = self._streams[key] = _Stream(sender, {}, set(), now_s)
        return stream

    def _refuse(self, reason: str) -> None:
        if reason not in self._refused and len(self._refused) >= REASONS_MAX:
            reason = "others"
        self._refused[reason] += 1


def _row(sender: ProgressSender, name: str, value: float) -> Row:
    is_pod = sender.job is not None and "/" in sender.job
    return {
        "source": sender.source,
        "sender": sender.sender,
        "username": sender.username,
        "slurm_job_id": None if is_pod else sender.job,
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
