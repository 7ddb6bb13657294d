"""Decides whether the collector does its work, for /readyz, the doctor and docs/api.md; pure.

A part is down when a person would call it down: batches are not stored, queries are not answered, rules are not
evaluated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpuwarden_collector.stats import Levels, QueryHealth
from gpuwarden_collector.storage.disk import NO_ROOM_RETRY_AFTER_S

SOON_S = 5
CLOCK_RETRY_AFTER_S = 30
ANSWER_AGE_S = 120.0
"""Age from which an answer says nothing about queries now: longer than an idle query process lives."""
ASK_AGAIN_S = 5.0
"""Shortest time between two queries that only readiness needs."""
LATE_INTERVALS = 3
LATE_AFTER = timedelta(minutes=2)
"""Rules are late when none was evaluated for this time, and for LATE_INTERVALS of the shortest interval."""


class ReadyPart(StrEnum):
    """What the collector does for people."""

    INGEST = "ingest"
    QUERIES = "queries"
    RULES = "rules"


DOES = {
    ReadyPart.INGEST: "batches are stored",
    ReadyPart.QUERIES: "queries are answered",
    ReadyPart.RULES: "rules are evaluated",
}


@dataclass(frozen=True, slots=True)
class RulesProgress:
    """How far the rules are."""

    begun_at: datetime
    evaluated_at: datetime | None
    """End of the newest evaluation of any rule that succeeded; None: there is none yet."""
    interval_s: float
    """The shortest interval of a rule."""


@dataclass(frozen=True, slots=True)
class ReadyState:
    """What readiness is decided from."""

    levels: Levels
    queries: QueryHealth
    rules: RulesProgress | None
    """None: the process evaluates no rules."""
    now: datetime


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """A condition without which a part does not work."""

    name: str
    part: ReadyPart
    meaning: str
    """The condition, for the docs."""
    reason: Callable[[ReadyState], str | None]
    """Why the check fails, in a sentence; None: it passes."""
    retry_after_s: int = SOON_S


def must_ask(queries: QueryHealth, now_s: float) -> bool:
    """Whether readiness must run a query to know whether queries are answered."""
    if queries.answered_s is None or queries.is_doubtful or queries.problem is not None:
        return queries.asked_s is None or now_s - queries.asked_s >= ASK_AGAIN_S
    return now_s - queries.answered_s > ANSWER_AGE_S


def _late_rules(state: ReadyState) -> str | None:
    rules = state.rules
    if rules is None:
        return None
    last = rules.evaluated_at or rules.begun_at
    if state.now - last <= max(LATE_AFTER, timedelta(seconds=LATE_INTERVALS * rules.interval_s)):
        return None
    since = f"since {last:%Y-%m-%d %H:%M:%S} UTC"
    return f"no rule has been evaluated {since}; see `gpuwarden rules list` and the collector's log"


def _unanswered(state: ReadyState) -> str | None:
    problem = state.queries.problem
    return None if problem is None else f"queries are not answered: {problem}"


_INGEST, _QUERIES, _RULES = ReadyPart
READY_CHECKS = (
    ReadyCheck(
        "writer",
        _INGEST,
        "the writer makes progress",
        lambda state: None if state.levels.is_alive else "the writer makes no progress",
    ),
    ReadyCheck(
        "decode",
        _INGEST,
        "threads decode batches",
        lambda state: (
            None if state.levels.is_decoding else "batches are not decoded; see the collector's log"
        ),
    ),
    ReadyCheck(
        "commit",
        _INGEST,
        "no commit has failed lately",
        lambda state: (
            "the store takes no batches; see the collector's log"
            if state.levels.is_failing
            else None
        ),
    ),
    ReadyCheck(
        "storage",
        _INGEST,
        "rows move to the lake and are rolled up",
        lambda state: state.levels.storage_trouble,
        NO_ROOM_RETRY_AFTER_S,
    ),
    ReadyCheck(
        "clock",
        _INGEST,
        "the collector does not doubt its clock",
        lambda state: state.levels.clock_doubt,
        CLOCK_RETRY_AFTER_S,
    ),
    ReadyCheck(
        "room",
        _INGEST,
        "there is [room](store.md#room)",
        lambda state: state.levels.disk_refusal,
        NO_ROOM_RETRY_AFTER_S,
    ),
    ReadyCheck("queries", _QUERIES, "the newest query was answered", _unanswered),
    ReadyCheck("rules", _RULES, "a rule was evaluated lately", _late_rules),
)


def not_ready(state: ReadyState, part: ReadyPart | None = None) -> dict[ReadyCheck, str]:
    """The checks that fail, in order, with the reasons. `part`: of this part alone."""
    checks = [check for check in READY_CHECKS if part in (None, check.part)]
    reasons = {check: check.reason(state) for check in checks}
    return {check: reason for check, reason in reasons.items() if reason is not None}


def part_lines(state: ReadyState, part: ReadyPart | None = None) -> Mapping[str, str]:
    """One line for each part of this process, or for `part` alone: that it works, or why not."""
    failed = not_ready(state)
    parts = [one for one in ReadyPart if one is not _RULES or state.rules is not None]
    return {
        one: next((reason for check, reason in failed.items() if check.part is one), DOES[one])
        for one in parts
        if part in (None, one)
    }
