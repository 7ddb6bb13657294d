"""Bounds what each sender may store in a day, so that none takes the room of the whole fleet's history.

A sender uses its quota up by the bytes that its rows take in memory, and gets it back evenly over a day. A batch
is taken while any of it is left; then batches wait (429), and the agent keeps them. One that is not stored for another
reason uses nothing up. A node's token has one quota, whatever agents it names; of any other sender each agent has one.
"""

import logging
import math
from dataclasses import dataclass

from gpuwarden.clock import Clock
from gpuwarden_collector.auth.senders import NOBODY, is_of_node, sender_text

log = logging.getLogger(__name__)

DAY_S = 86_400.0
RETRY_S_MIN = 30
RECENT_S = 120.0
"""How long a sender is named after a batch of its had to wait: a sample of the collector is taken each minute."""
TOLD_EVERY_S = 600.0
KEYS_MAX = 100_000
_NAMED_MAX = 10

Key = tuple[str, str]
"""Sender, and agent where the sender may name several."""


@dataclass(frozen=True, slots=True)
class Used:
    """What of a quota is used up at a moment (monotonic)."""

    bytes: float
    at_s: float


def used_at(used: Used | None, bytes_per_day: int, now_s: float) -> float:
    """Bytes that are still used up."""
    if used is None:
        return 0.0
    return max(0.0, used.bytes - (now_s - used.at_s) * bytes_per_day / DAY_S)


def charged(used: Used | None, more: int, bytes_per_day: int, now_s: float) -> tuple[Used, float]:
    """What is used up after a batch of `more` bytes, and 0.0; or, where nothing is left, what was used up before
    it and the seconds until something is."""
    before = used_at(used, bytes_per_day, now_s)
    if before >= bytes_per_day:
        over_s = (before - bytes_per_day) * DAY_S / bytes_per_day
        return Used(before, now_s), max(over_s, 1e-3)
    return Used(before + more, now_s), 0.0


def given_back(used: Used, fewer: int, bytes_per_day: int, now_s: float) -> Used:
    """What is used up where a batch of `fewer` bytes that was charged is not stored."""
    return Used(max(0.0, used_at(used, bytes_per_day, now_s) - fewer), now_s)


def kept(used: dict[Key, Used], bytes_per_day: int, now_s: float) -> dict[Key, Used]:
    """At most half of KEYS_MAX entries: those that are used up most."""
    left = {key: used_at(one, bytes_per_day, now_s) for key, one in used.items()}
    most = sorted((key for key in left if left[key]), key=left.__getitem__, reverse=True)
    return {key: used[key] for key in most[: KEYS_MAX // 2]}


class SenderQuota:
    """What every sender has used up. For the event loop's thread."""

    def __init__(self, bytes_per_day: int, clock: Clock) -> None:
        """`bytes_per_day` 0: there is no quota."""
        self._bytes_per_day = bytes_per_day
        self._clock = clock
        self._used: dict[Key, Used] = {}
        self._waiting: dict[Key, float] = {}
        """When a batch last had to wait."""
        self._told: dict[Key, float] = {}

    @property
    def over(self) -> tuple[str, ...]:
        """Whose batches had to wait lately; the last says how many more where there are many."""
        now_s = self._clock.monotonic()
        self._waiting = {k: at for k, at in self._waiting.items() if now_s - at < RECENT_S}
        names = sorted(map(_text, self._waiting))
        more = len(names) - _NAMED_MAX
        return (*names[:_NAMED_MAX], f"{more} more") if more > 0 else tuple(names)

    def take(self, sender: str, agent_id: str, memory_bytes: int) -> tuple[str, int] | None:
        """Charge a batch; why it has to wait, and for how many seconds: None, it does not."""
        if not self._bytes_per_day:
            return None
        key = _key(sender, agent_id)
        now_s = self._clock.monotonic()
        self._used[key], wait_s = charged(
            self._used.get(key), memory_bytes, self._bytes_per_day, now_s
        )
        if len(self._used) > KEYS_MAX:
            self._used = kept(self._used, self._bytes_per_day, now_s)
        if not wait_s:
            return None
        self._waiting[key] = now_s
        reason = (
            f"{_text(key)} has sent {self._bytes_per_day / 2**30:.3g} GiB of rows within a day, which is the most"
            " (agent_bytes_per_day_max): its batches wait; see what makes so many, or raise that setting of the collector"
        )
        if now_s - self._told.get(key, -math.inf) >= TOLD_EVERY_S:
            self._told = {k: at for k, at in self._told.items() if now_s - at < TOLD_EVERY_S}
            self._told[key] = now_s
            log.warning("a sender is over its quota", extra={"reason": reason})
        return reason, max(RETRY_S_MIN, math.ceil(wait_s))

    def give_back(self, sender: str, agent_id: str, memory_bytes: int) -> None:
        """Take back the charge of a batch that is not stored: it comes again, and would be charged each time."""
        key = _key(sender, agent_id)
        if (used := self._used.get(key)) is not None:
            now_s = self._clock.monotonic()
            self._used[key] = given_back(used, memory_bytes, self._bytes_per_day, now_s)


def _key(sender: str, agent_id: str) -> Key:
    return sender, "" if is_of_node(sender) else agent_id


def _text(key: Key) -> str:
    sender, agent = key
    named = f"agent {agent[:64]}" if agent else ""
    return ", ".join(
        part for part in (sender_text(sender) if sender != NOBODY else "", named) if part
    )
