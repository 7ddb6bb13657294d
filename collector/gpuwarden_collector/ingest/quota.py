"""Limits how much each sender may store in a day, so that no sender fills the disk with its rows.

The quota counts the size of rows in memory, and what was used comes back evenly over a day. Batches are stored while
any quota is left; then they are refused with 429, and the agent keeps them. A batch that is not stored for another
reason uses nothing. A node's token has one quota for all its agents; with any other sender each agent has one.
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
"""Time for which a sender is listed after a batch of it was refused; the collector samples itself every minute."""
LOG_INTERVAL_S = 600.0
KEYS_MAX = 100_000
_NAMED_MAX = 10

Key = tuple[str, str]
"""Sender, and agent if the sender may have several."""


@dataclass(frozen=True, slots=True)
class Used:
    """The used part of a quota at a time of the monotonic clock."""

    bytes: float
    at_s: float


def used_at(used: Used | None, bytes_per_day: int, now_s: float) -> float:
    """Bytes that are used now."""
    if used is None:
        return 0.0
    return max(0.0, used.bytes - (now_s - used.at_s) * bytes_per_day / DAY_S)


def charged(used: Used | None, more: int, bytes_per_day: int, now_s: float) -> tuple[Used, float]:
    """The used part after a batch of `more` bytes, and 0.0; or, if nothing was left, the used part before the batch
    and the seconds until quota is left."""
    before = used_at(used, bytes_per_day, now_s)
    if before >= bytes_per_day:
        over_s = (before - bytes_per_day) * DAY_S / bytes_per_day
        return Used(before, now_s), max(over_s, 1e-3)
    return Used(before + more, now_s), 0.0


def given_back(used: Used, fewer: int, bytes_per_day: int, now_s: float) -> Used:
    """The used part after the charge of a batch of `fewer` bytes is taken back."""
    return Used(max(0.0, used_at(used, bytes_per_day, now_s) - fewer), now_s)


def kept(used: dict[Key, Used], bytes_per_day: int, now_s: float) -> dict[Key, Used]:
    """At most half of KEYS_MAX entries: those with the highest use."""
    left = {key: used_at(one, bytes_per_day, now_s) for key, one in used.items()}
    most = sorted((key for key in left if left[key]), key=left.__getitem__, reverse=True)
    return {key: used[key] for key in most[: KEYS_MAX // 2]}


class SenderQuota:
    """The used quota of each sender. Call it on the event loop's thread only."""

    def __init__(self, bytes_per_day: int, clock: Clock) -> None:
        """`bytes_per_day` 0: no limit."""
        self._bytes_per_day = bytes_per_day
        self._clock = clock
        self._used: dict[Key, Used] = {}
        self._waiting: dict[Key, float] = {}
        """Time of the last refusal."""
        self._logged_at: dict[Key, float] = {}

    @property
    def over(self) -> tuple[str, ...]:
        """Senders with refused batches in the last minutes; if there are many, the last item counts the rest."""
        now_s = self._clock.monotonic()
        self._waiting = {k: at for k, at in self._waiting.items() if now_s - at < RECENT_S}
        names = sorted(map(_text, self._waiting))
        more = len(names) - _NAMED_MAX
        return (*names[:_NAMED_MAX], f"{more} more") if more > 0 else tuple(names)

    def take(self, sender: str, agent_id: str, memory_bytes: int) -> tuple[str, int] | None:
        """Charge a batch. Returns why it is refused and when to try again, in seconds; None: it is not refused."""
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
            f"{_text(key)} has sent {self._bytes_per_day / 2**30:.3g} GiB of rows within a day, which is the limit"
            " (agent_bytes_per_day_max): its batches wait; find out why it sends so much, or raise that setting of"
            " the collector"
        )
        if now_s - self._logged_at.get(key, -math.inf) >= LOG_INTERVAL_S:
            self._logged_at = {
                k: at for k, at in self._logged_at.items() if now_s - at < LOG_INTERVAL_S
            }
            self._logged_at[key] = now_s
            log.warning("a sender is over its quota", extra={"reason": reason})
        return reason, max(RETRY_S_MIN, math.ceil(wait_s))

    def give_back(self, sender: str, agent_id: str, memory_bytes: int) -> None:
        """Take back the charge of a batch that is not stored: the agent sends it again, and it is charged again."""
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
