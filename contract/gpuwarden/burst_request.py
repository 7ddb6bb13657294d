"""Decides how a burst is asked for: its limits, its states, and how the agent gets the request.

A collector stores a request and hands it to the node's agent in the answers to its batches; the agent reports by
rows, which may arrive late, twice and in any order. So states are merged, not set: `merged` is commutative,
associative and idempotent. Pure functions; the clock is a parameter.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

HZ_MIN, HZ_MAX = 10, 50
SECONDS_MIN, SECONDS_MAX = 1, 60
AN_HOUR_MAX = 12
"""Bursts of a node that may be asked for in an hour."""
EXPIRES_AFTER = timedelta(minutes=2)
"""Time in which an agent must begin: agents ship every few seconds, and one that is away must not run it later."""
RESULT_WITHIN = timedelta(minutes=3)
"""Time after the end of the burst in which its result must arrive: it waits in the spool while the collector is away."""

REPORT_WITHIN = timedelta(seconds=30)
"""Time after which a burst that began at the last moment is known to run: the report needs a batch."""

BURSTS_HEADER = "Gpuwarden-Bursts"
OFFERED_MAX = 16
"""Requests in one answer: with the lengths below less than 2 KiB; an agent takes heads of 16 KiB."""

_KEYS = ("node", "gpu", "hz", "seconds")
_GPU_MAX = 1024
_NODE_CHARACTERS_MAX = 253
_OFFER = re.compile(
    r"([0-9a-f]{12});gpu=([0-9]{1,4});hz=([0-9]{1,2});seconds=([0-9]{1,2});within=([0-9]{1,3})\Z"
)


class BurstState(StrEnum):
    """States of a burst."""

    ASKED = "asked"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class BurstRequestError(ValueError):
    """The request is not accepted; the message says what to write, or when to ask again."""


@dataclass(frozen=True, slots=True)
class BurstOutcome:
    """How far a burst has come, as one side knows it."""

    state: BurstState = BurstState.ASKED
    began_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    """Why it was refused or failed."""
    is_assumed: bool = False
    """Whether a collector assumes the failure, as nothing came in time; what an agent reports replaces it."""

    @property
    def is_over(self) -> bool:
        """Whether the burst has ended."""
        return self.state not in (BurstState.ASKED, BurstState.RUNNING)


@dataclass(frozen=True, slots=True)
class BurstRequest:
    """A stored request, and how far it has come."""

    id: str
    node: str
    gpu: int
    hz: int
    seconds: int
    asked_by: str | None
    """The token's owner; None: no tokens are required."""
    asked_at: datetime
    outcome: BurstOutcome = BurstOutcome()


@dataclass(frozen=True, slots=True)
class BurstOffer:
    """A request as an answer to a batch carries it."""

    id: str
    gpu: int
    hz: int
    seconds: int
    within_s: int
    """Seconds in which the agent must begin, from the answer on: the agent's wall clock may be wrong."""


def burst_request_of(
    document: Any,
    known: Iterable[BurstRequest],
    *,
    name: str,
    asked_by: str | None,
    now: datetime,
) -> BurstRequest:
    """The request of a request's JSON. `name`: its identity; `known`: the requests that are stored.

    Raises BurstRequestError: one line that says what to write.
    """
    if not isinstance(document, dict):
        raise BurstRequestError('the body must be a JSON object: {"node": "n1", "gpu": 0}')
    if unknown := [key for key in document if key not in _KEYS]:
        raise BurstRequestError(
            f"{ascii(unknown[0][:40])[1:-1]}: there is no such key; there are {', '.join(_KEYS)}"
        )
    node = document.get("node")
    if not isinstance(node, str) or not node.isprintable() or not 0 < len(node) <= _NODE_CHARACTERS_MAX:  # fmt: skip
        raise BurstRequestError("node: give the name of a node")
    gpu = _whole(document, "gpu", None, 0, _GPU_MAX)
    hz = _whole(document, "hz", 20, HZ_MIN, HZ_MAX)
    seconds = _whole(document, "seconds", 30, SECONDS_MIN, SECONDS_MAX)
    of_node = [one for one in known if one.node == node]
    if open_ones := [one for one in of_node if one.gpu == gpu and not one.outcome.is_over]:
        raise BurstRequestError(
            f"burst {open_ones[0].id} of GPU {gpu} of {node} is {open_ones[0].outcome.state}: ask again after it"
        )
    hour = timedelta(hours=1)
    recent = sorted(one.asked_at for one in of_node if one.asked_at > now - hour)
    if len(recent) >= AN_HOUR_MAX:
        free_s = (recent[-AN_HOUR_MAX] + hour - now).total_seconds()
        raise BurstRequestError(
            f"{AN_HOUR_MAX} bursts of {node} were asked for in an hour, which is the limit: ask again"
            f" in {max(1, round(free_s / 60))} min"
        )
    return BurstRequest(name, node, gpu, hz, seconds, asked_by, now)


def _whole(document: Mapping[str, Any], key: str, usual: int | None, least: int, most: int) -> int:
    value = document.get(key, usual)
    if type(value) is not int or not least <= value <= most:
        raise BurstRequestError(f"{key}: it must be a whole number from {least} to {most}")
    return value


def merged(one: BurstOutcome, other: BurstOutcome) -> BurstOutcome:
    """What both say together: the one that has come further.

    A report of an agent comes before an assumption, and a result before a failure: an agent that is killed after
    it sealed the result reports a failure at its next start.
    """
    return max(one, other, key=_rank)


def _rank(outcome: BurstOutcome) -> tuple[Any, ...]:
    if outcome.is_assumed:
        order = 2
    else:
        order = {
            BurstState.ASKED: 0,
            BurstState.RUNNING: 1,
            BurstState.FAILED: 3,
            BurstState.REFUSED: 4,
            BurstState.DONE: 5,
        }[outcome.state]
    # The rest makes the order total, so that the order of arrival does not matter.
    times = [at.timestamp() if at else 0.0 for at in (outcome.began_at, outcome.ended_at)]
    return order, *times, outcome.reason or ""


def after_deadline(request: BurstRequest, now: datetime) -> BurstOutcome:
    """The outcome of a request at `now`: an assumed failure once nothing came in time."""
    outcome = request.outcome
    if outcome.is_over:
        return outcome
    expires_at = request.asked_at + EXPIRES_AFTER
    if outcome.state is BurstState.ASKED:
        overdue = expires_at + REPORT_WITHIN
        reason = f"no agent of {request.node} took it within {EXPIRES_AFTER.seconds // 60} min"
    else:
        # By the collector's clock: `began_at` is of the agent's.
        overdue = expires_at + timedelta(seconds=request.seconds) + RESULT_WITHIN
        reason = "it began, and no result came: the agent or its host ended, or is away"
    if now < overdue:
        return outcome
    failed = BurstOutcome(BurstState.FAILED, outcome.began_at, None, reason, is_assumed=True)
    return merged(outcome, failed)


def offers_of(
    requests: Iterable[BurstRequest], nodes: Collection[str], now: datetime
) -> Sequence[BurstOffer]:
    """What an answer to a batch with rows of `nodes` offers, the oldest first.

    A request is offered until the agent reports: an answer may be lost, and an agent takes an id once.
    """
    waiting = sorted(
        (
            one
            for one in requests
            if one.node in nodes and one.outcome.state is BurstState.ASKED and _left_s(one, now) > 0
        ),
        key=lambda one: (one.asked_at, one.id),
    )
    return [
        BurstOffer(one.id, one.gpu, one.hz, one.seconds, _left_s(one, now))
        for one in waiting[:OFFERED_MAX]
    ]


def _left_s(request: BurstRequest, now: datetime) -> int:
    left_s = int((request.asked_at + EXPIRES_AFTER - now).total_seconds())
    # Where the collector's clock was set back, the time does not become longer.
    return min(left_s, int(EXPIRES_AFTER.total_seconds()))


def header_of(offers: Sequence[BurstOffer]) -> str | None:
    """The value of BURSTS_HEADER; None: send none."""
    return (
        ", ".join(
            f"{one.id};gpu={one.gpu};hz={one.hz};seconds={one.seconds};within={one.within_s}"
            for one in offers[:OFFERED_MAX]
        )
        or None
    )


def offers_in(value: str | None) -> Sequence[BurstOffer]:
    """The offers of a header; what is wrong in it, or outside the limits, is skipped."""
    found = []
    for text in (value or "").split(",")[:OFFERED_MAX]:
        if matched := _OFFER.match(text.strip()):
            gpu, hz, seconds, within_s = map(int, matched.groups()[1:])
            is_within = HZ_MIN <= hz <= HZ_MAX and SECONDS_MIN <= seconds <= SECONDS_MAX
            if is_within and gpu <= _GPU_MAX and 0 < within_s <= EXPIRES_AFTER.total_seconds():
                found.append(BurstOffer(matched[1], gpu, hz, seconds, within_s))
    return found


@dataclass(frozen=True, slots=True)
class TakenBurst:
    """A burst that an agent took, as it remembers it across restarts."""

    id: str
    gpu: int
    taken_at: datetime
    is_over: bool = False


class NotAgain(StrEnum):
    """The id was taken before: say nothing."""

    TAKEN = "taken"


def why_not_taken(
    offer: BurstOffer,
    taken: Collection[TakenBurst],
    gpus: Collection[int],
    now: datetime,
    *,
    is_allowed: bool,
) -> str | NotAgain | None:
    """Why an agent does not run an offer; None: it runs it. A text is reported with state refused.

    The agent has limits of its own, as its collector may be another than the one that it trusts. `gpus`: indices
    of its GPUs; `taken`: of the last hour at least.
    """
    if any(one.id == offer.id for one in taken):
        return NotAgain.TAKEN
    if not is_allowed:
        return "the agent's settings forbid bursts by request"
    if offer.gpu not in gpus:
        return f"there is no GPU {offer.gpu}"
    if any(one.gpu == offer.gpu and not one.is_over for one in taken):
        return f"another burst of GPU {offer.gpu} runs"
    if sum(one.taken_at > now - timedelta(hours=1) for one in taken) >= AN_HOUR_MAX:
        return f"{AN_HOUR_MAX} bursts ran in an hour, which is the limit"
    return None


def after_restart(taken: Iterable[TakenBurst], now: datetime) -> Mapping[str, BurstOutcome]:
    """What an agent reports at its start: bursts that it had taken and not ended have failed. By id."""
    failed = BurstOutcome(
        BurstState.FAILED, None, now, "the agent ended in the middle of the burst"
    )
    return {one.id: failed for one in taken if not one.is_over}
