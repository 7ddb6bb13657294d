"""Checks the collector's own clock against the agents' clocks and against what was stored before.

With a wrong clock the collector would refuse every batch as too old or in the future, and would drop rows that are not
old. While it doubts its clock, batches of agents that disagree with it get 503, and the agents keep them. After each
start, and after the clock was set, nothing is dropped by age until agents or the kernel have confirmed the clock.

An agent names itself, so the holder of one token can invent many agents: those of a token for any node count as
few, and those of a node's token count as one.
"""

import ctypes
import logging
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_collector.auth.senders import is_of_node
from gpuwarden_collector.ingest.own_events import REPEAT_AFTER, event_table, warning
from gpuwarden_collector.storage.retention import (
    WRONG_S,
    clock_offset_s,
    is_wrong_offset,
    shows_as_confirmed,
)

log = logging.getLogger(__name__)

MOST_OF = 3
"""This many agents that agree with each other and not with the collector are right."""
CHECK_INTERVAL_S = 5.0
_SAID_S_MAX = 1e12
"""No clock that shows a date is wrong by more seconds."""
_RECENT_S = 600.0
_SENDERS_MAX = 4_096
_AGENTS_MAX = 256
"""Agents that are remembered of one token for any node."""


@dataclass(frozen=True, slots=True)
class ClockEvidence:
    """What the clock is checked against."""

    offsets_s: Sequence[Sequence[float]]
    """How far the agents of the last minutes are ahead of the collector's clock, grouped by sender."""
    behind_s: float
    """How far the collector's clock is behind the time at which it last stored a batch of an agent; negative: it is ahead."""
    is_synchronised: bool | None
    """Whether the kernel reports the clock as synchronised; None: unknown."""


def doubt(evidence: ClockEvidence) -> str | None:
    """Why the clock cannot be trusted, in a sentence; None: it can."""
    agents = [offset for of_sender in evidence.offsets_s for offset in of_sender]
    middle_s = _median(evidence.offsets_s)

    def is_against(offset: float) -> bool:
        # Agents whose clocks are wrong by different amounts say nothing about the collector's.
        return is_wrong_offset(offset) and not is_wrong_offset(offset - middle_s)

    against = [offset for offset in agents if is_against(offset)]
    hint = (
        ""
        if evidence.is_synchronised is not False
        else "; the kernel says that it is not synchronised"
    )
    if _share(evidence.offsets_s, is_against) > 0.5 and (
        len(against) >= MOST_OF or evidence.is_synchronised is False
    ):
        apart = apart_text(-statistics.median(against))
        return f"the collector's clock is {apart} those of {len(against)} of {len(agents)} agents: set it right{hint}"
    if (
        evidence.behind_s > WRONG_S
        and not _do_agree(evidence)
        and evidence.is_synchronised is not True
    ):
        apart = apart_text(-evidence.behind_s)
        return f"the collector's clock is {apart} the newest time that it has stored: set it right{hint}"
    return None


def is_confirmed(evidence: ClockEvidence) -> bool:
    """Whether the kernel or agents confirm a clock that is not doubted."""
    return evidence.is_synchronised is True or _do_agree(evidence)


def _do_agree(evidence: ClockEvidence) -> bool:
    return any(evidence.offsets_s) and _share(evidence.offsets_s, is_wrong_offset) < 0.5


def _share(offsets_s: Sequence[Sequence[float]], holds: Callable[[float], bool]) -> float:
    """The weighted share of agents for which `holds` is true."""
    weighed = _weighed(offsets_s)
    total = sum(weight for _, weight in weighed)
    return sum(weight for offset, weight in weighed if holds(offset)) / total if weighed else 0.0


def _median(offsets_s: Sequence[Sequence[float]]) -> float:
    """The weighted median of the offsets."""
    weighed = sorted(_weighed(offsets_s))
    half, below = sum(weight for _, weight in weighed) / 2, 0.0
    for offset, weight in weighed:
        below += weight
        if below >= half:
            return offset
    return 0.0


def _weighed(offsets_s: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Each offset with its weight: all agents of one sender weigh MOST_OF at most."""
    return [
        (offset, min(len(offsets), MOST_OF) / len(offsets))
        for offsets in offsets_s
        for offset in offsets
    ]


def apart_text(offset_s: float) -> str:
    """How far apart two clocks are, and which is ahead."""
    return f"{timedelta(seconds=round(min(abs(offset_s), _SAID_S_MAX)))} {'ahead of' if offset_s > 0 else 'behind'}"


class ClockTrust(Enum):
    """Whether the collector's clock can be used to drop rows by age."""

    UNCONFIRMED = "neither agents nor the kernel confirm it"
    TRUSTED = "agents or the kernel confirm it"
    DOUBTED = "it is probably wrong"


class ClockCheck:
    """Collects the evidence. Call it on the event loop only."""

    def __init__(
        self,
        clock: Clock,
        newest: datetime | None,
        is_synchronised: Callable[[], bool | None],
    ) -> None:
        """`newest`: the newest time at which the store has a batch of an agent."""
        self._clock = clock
        self._newest = newest
        self._is_synchronised = is_synchronised
        self._said: OrderedDict[str, OrderedDict[str, tuple[float, float]]] = OrderedDict()
        """By sender and agent, the last seen last: the agent's clock minus our monotonic clock, and when it was read."""
        self.reason: str | None = None
        """Why the clock is doubted; None: it is not."""
        self.confirmed_s: float | None = None
        """The clock minus the monotonic clock when it was last confirmed; None: never, or doubted since."""
        self._logged = ClockTrust.UNCONFIRMED
        """What was last logged; the start logs nothing."""
        self.evaluate()

    @property
    def is_trusted(self) -> bool:
        """Whether rows and entries may be dropped by their age."""
        return shows_as_confirmed(self.confirmed_s, self._clock)

    @property
    def trust(self) -> ClockTrust:
        """Whether the clock is trusted now."""
        if self.reason is not None:
            return ClockTrust.DOUBTED
        return ClockTrust.TRUSTED if self.is_trusted else ClockTrust.UNCONFIRMED

    def log_change(self) -> None:
        """Log whether the clock is trusted, if that has changed."""
        before, self._logged = self._logged, self.trust
        if self._logged is before:
            return
        match self._logged:
            case ClockTrust.DOUBTED:
                log.error("%s", self.reason)
            case ClockTrust.TRUSTED if before is ClockTrust.DOUBTED:
                log.warning("the collector's clock is trusted again")
            case ClockTrust.TRUSTED:
                log.info("the collector's clock is confirmed")
            case ClockTrust.UNCONFIRMED:
                log.warning(
                    "nothing is dropped by age until agents or the kernel confirm the collector's clock: it was set, or"
                    " the agents that contradicted it have gone"
                )

    def note(self, sender: str, agent_id: str, ahead_s: float) -> None:
        """Record how far an agent's clock is ahead; `sender`: the authenticated one (`auth/senders.py`)."""
        of_sender = self._said.setdefault(sender, OrderedDict())
        is_news = agent_id not in of_sender
        of_sender[agent_id] = (clock_offset_s(self._clock) + ahead_s, self._clock.monotonic())
        of_sender.move_to_end(agent_id)
        self._said.move_to_end(sender)
        if len(of_sender) > (1 if is_of_node(sender) else _AGENTS_MAX):
            of_sender.popitem(last=False)
        if len(self._said) > _SENDERS_MAX:
            self._said.popitem(last=False)
        # The first agents count at once; later ones at the next regular evaluation.
        if is_news and len(self._said) + len(of_sender) <= 2 * MOST_OF:
            self.evaluate()

    def evaluate(self) -> None:
        """Check the clock again."""
        least_s = self._clock.monotonic() - _RECENT_S
        for sender, of_sender in list(self._said.items()):
            while of_sender and next(iter(of_sender.values()))[1] < least_s:
                of_sender.popitem(last=False)
            if not of_sender:
                del self._said[sender]
        wall_s = clock_offset_s(self._clock)
        offsets = [
            [theirs_s - wall_s for theirs_s, _ in said.values()] for said in self._said.values()
        ]
        behind = self._newest - self._clock.now() if self._newest else timedelta(0)
        evidence = ClockEvidence(offsets, behind.total_seconds(), self._is_synchronised())
        self.reason = doubt(evidence)
        if self.reason is not None:
            self.confirmed_s = None
        elif is_confirmed(evidence):
            self.confirmed_s = wall_s


def kernel_synchronised() -> bool | None:
    """Whether the kernel's clock is synchronised (adjtimex(2): TIME_ERROR); None: unknown."""
    if sys.platform != "linux":
        return None
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    # `modes` 0 only reads; the structure has 208 bytes on 64-bit Linux.
    state = adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


_TIME_ERROR = 5


APART_S = 60.0
"""Rows of such a node are in the wrong minute. An agent reads its clock before the request, which may take ten
seconds."""
CLOCK_APART = "node_clock_apart"


def is_apart(ahead_s: float) -> bool:
    """Whether a node's clock differs so much from the collector's that its rows have wrong times."""
    return abs(ahead_s) >= APART_S


@dataclass(slots=True)
class ClockGaps:
    """Nodes of one commit whose clocks are wrong. Does not change `event_at`."""

    event_at: Mapping[str, datetime]
    """By node: the time of the last event about its clock."""
    now: datetime
    changed: dict[str, datetime] = field(default_factory=dict)
    batches: int = 0
    """Batches of agents whose clocks are wrong."""
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def note(self, nodes: Iterable[str], ahead_s: float, *, simulated: bool) -> None:
        """Record a batch with rows of these nodes from an agent whose clock is wrong."""
        self.batches += 1
        for node in sorted(nodes):
            last_at = self.changed.get(node) or self.event_at.get(node)
            if last_at is not None and self.now - last_at < REPEAT_AFTER:
                continue
            self.changed[node] = self.now
            message = (
                f"the clock of {node} is {apart_text(ahead_s)} the collector's, which was confirmed: its rows have wrong"
                " times"
            )
            details = {"ahead_s": round(ahead_s, 1)}
            self._rows.append(
                warning(CLOCK_APART, node, message, details, now=self.now, simulated=simulated)
            )

    def events(self) -> Any | None:
        """Rows of `events`; None: there are no events."""
        return event_table(self._rows)


def forgotten(event_at: Mapping[str, datetime], now: datetime) -> list[str]:
    """Nodes about whose clocks another event may be stored."""
    return [node for node, at in event_at.items() if now - at >= REPEAT_AFTER]
