"""Judges the collector's own clock, by what agents say of theirs and by what was stored before.

A wrong clock of the collector would refuse every batch as too old or in the future, and drop rows by a wrong age.
While it is doubtful, batches of agents that do not agree with it get 503, which they wait out. Nothing is dropped by age before
agents or the kernel have confirmed it, after each start and whenever it was set.

Who an agent is it says itself, so that the holder of a token may invent many: those of one token for any node count
as few, and those of a node's token as one.
"""

import ctypes
import json
import logging
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import pyarrow as pa

from gpuwarden.clock import Clock
from gpuwarden.schema import EVENTS
from gpuwarden_collector.auth.senders import is_of_node
from gpuwarden_collector.storage.retention import (
    WRONG_S,
    clock_offset_s,
    is_wrong_offset,
    shows_as_confirmed,
)
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS

log = logging.getLogger(__name__)

MOST_OF = 3
"""So many agents that agree with each other and not with the collector are right."""
LOOK_S = 5.0
_SAID_S_MAX = 1e12
"""More seconds than a clock that shows a date can be wrong by."""
_RECENT_S = 600.0
_SENDERS_MAX = 4_096
_AGENTS_MAX = 256
"""Most agents of a token for any node that are remembered."""


@dataclass(frozen=True, slots=True)
class ClockEvidence:
    """What there is to judge by."""

    offsets_s: Sequence[Sequence[float]]
    """How far agents of the last minutes are ahead of the collector's clock, those of each sender together."""
    behind_s: float
    """How far the collector's clock is behind the newest time at which it heard of an agent; negative: it is not."""
    is_synchronised: bool | None
    """What the kernel says of the clock; None: it does not say."""


def doubt(evidence: ClockEvidence) -> str | None:
    """Why the clock is not to be trusted, in a sentence; None: it is."""
    agents = [offset for of_sender in evidence.offsets_s for offset in of_sender]
    middle_s = _median(evidence.offsets_s)

    def is_against(offset: float) -> bool:
        # Clocks that are each wrong in its own way say nothing of the collector's.
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
    """Whether somebody says that a clock that is not doubted is right."""
    return evidence.is_synchronised is True or _do_agree(evidence)


def _do_agree(evidence: ClockEvidence) -> bool:
    return any(evidence.offsets_s) and _share(evidence.offsets_s, is_wrong_offset) < 0.5


def _share(offsets_s: Sequence[Sequence[float]], holds: Callable[[float], bool]) -> float:
    """The share of agents for which it holds, by weight."""
    weighed = _weighed(offsets_s)
    total = sum(weight for _, weight in weighed)
    return sum(weight for offset, weight in weighed if holds(offset)) / total if weighed else 0.0


def _median(offsets_s: Sequence[Sequence[float]]) -> float:
    """What half of the agents, by weight, are at most ahead."""
    weighed = sorted(_weighed(offsets_s))
    half, below = sum(weight for _, weight in weighed) / 2, 0.0
    for offset, weight in weighed:
        below += weight
        if below >= half:
            return offset
    return 0.0


def _weighed(offsets_s: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Each agent's word with its weight: those of one sender count as MOST_OF at most."""
    return [(offset, min(len(said), MOST_OF) / len(said)) for said in offsets_s for offset in said]


def apart_text(offset_s: float) -> str:
    """How far apart two clocks are, and which is ahead."""
    return f"{timedelta(seconds=round(min(abs(offset_s), _SAID_S_MAX)))} {'ahead of' if offset_s > 0 else 'behind'}"


class ClockWorth(Enum):
    """What the collector's clock is worth."""

    UNCONFIRMED = "nobody says that it is right"
    TRUSTED = "somebody does"
    DOUBTED = "it is taken as wrong"


class ClockCheck:
    """Collects the evidence; for the event loop."""

    def __init__(
        self,
        clock: Clock,
        newest: datetime | None,
        is_synchronised: Callable[[], bool | None],
    ) -> None:
        """`newest`: when the collector last heard of an agent, as it has stored it."""
        self._clock = clock
        self._newest = newest
        self._is_synchronised = is_synchronised
        self._said: OrderedDict[str, OrderedDict[str, tuple[float, float]]] = OrderedDict()
        """Agents' clocks less our monotonic one, and when it was, by sender and agent; the last heard of is last."""
        self.reason: str | None = None
        """Why the clock is doubted; None: it is not."""
        self.confirmed_s: float | None = None
        """The clock less the monotonic one when it was last confirmed; None: it never was, or is doubted since."""
        self._told = ClockWorth.UNCONFIRMED
        """What was last logged; a start says nothing."""
        self.look()

    @property
    def is_trusted(self) -> bool:
        """Whether rows and entries may go by the age that the clock says."""
        return shows_as_confirmed(self.confirmed_s, self._clock)

    @property
    def worth(self) -> ClockWorth:
        """What the clock is worth now."""
        if self.reason is not None:
            return ClockWorth.DOUBTED
        return ClockWorth.TRUSTED if self.is_trusted else ClockWorth.UNCONFIRMED

    def tell(self) -> None:
        """Log what the clock is worth if that is another than was last logged."""
        told, self._told = self._told, self.worth
        if self._told is told:
            return
        match self._told:
            case ClockWorth.DOUBTED:
                log.error("%s", self.reason)
            case ClockWorth.TRUSTED if told is ClockWorth.DOUBTED:
                log.warning("the collector's clock is taken as right again")
            case ClockWorth.TRUSTED:
                log.info("the collector's clock is confirmed")
            case ClockWorth.UNCONFIRMED:
                log.warning(
                    "nothing is dropped by age until agents or the kernel confirm the collector's clock: it was set, or"
                    " agents that contradicted it are gone"
                )

    def note(self, sender: str, agent_id: str, ahead_s: float) -> None:
        """What an agent's request says of its clock; `sender`: who was let in (`deduplicate.py`)."""
        of_sender = self._said.setdefault(sender, OrderedDict())
        is_news = agent_id not in of_sender
        of_sender[agent_id] = (clock_offset_s(self._clock) + ahead_s, self._clock.monotonic())
        of_sender.move_to_end(agent_id)
        self._said.move_to_end(sender)
        if len(of_sender) > (1 if is_of_node(sender) else _AGENTS_MAX):
            of_sender.popitem(last=False)
        if len(self._said) > _SENDERS_MAX:
            self._said.popitem(last=False)
        # The first to come decide at once; later ones change what is looked at every few seconds.
        if is_news and len(self._said) + len(of_sender) <= 2 * MOST_OF:
            self.look()

    def look(self) -> None:
        """Judge anew."""
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
    """Whether the kernel takes its clock as synchronised (adjtimex(2): TIME_ERROR); None: it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    # Zeroes in `modes` change nothing; the structure has 208 bytes on 64-bit Linux.
    state = adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


_TIME_ERROR = 5


APART_S = 60.0
"""Rows are in the wrong minute. A sender reads its clock before the request, which may take ten seconds."""
TOLD_EVERY = timedelta(minutes=10)
CLOCK_APART = "node_clock_apart"


def is_apart(ahead_s: float) -> bool:
    """Whether a clock that is so far ahead of the collector's gives rows wrong times."""
    return abs(ahead_s) >= APART_S


@dataclass(slots=True)
class ClockGaps:
    """What a group of batches says of nodes' clocks; `told` itself stays as it is."""

    told: Mapping[str, datetime]
    """When an event last told of a node."""
    now: datetime
    changed: dict[str, datetime] = field(default_factory=dict)
    batches: int = 0
    """Batches of senders whose clocks are apart."""
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def note(self, nodes: Iterable[str], ahead_s: float, *, simulated: bool) -> None:
        """Take that a batch with rows of these nodes came from a clock that is apart."""
        self.batches += 1
        for node in sorted(nodes):
            told_at = self.changed.get(node) or self.told.get(node)
            if told_at is not None and self.now - told_at < TOLD_EVERY:
                continue
            self.changed[node] = self.now
            message = (
                f"the clock of {node} is {apart_text(ahead_s)} the collector's, which was confirmed: its rows have wrong"
                " times"
            )
            self._rows.append(
                {
                    "ts": self.now.replace(tzinfo=None),
                    "node": node,
                    "simulated": simulated,
                    "kind": CLOCK_APART,
                    "severity": "warning",
                    "message": message,
                    "details": json.dumps({"ahead_s": round(ahead_s, 1)}),
                }
            )

    def events(self) -> Any | None:
        """Rows of `events`; None: there is nothing to tell."""
        if not self._rows:
            return None
        return pa.Table.from_pylist(self._rows, schema=STORED_SCHEMAS[EVENTS.name])


def forgotten(told: Mapping[str, datetime], now: datetime) -> list[str]:
    """Nodes that would be told of again."""
    return [node for node, at in told.items() if now - at >= TOLD_EVERY]
