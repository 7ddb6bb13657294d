"""Lists the checks of whether batches can be stored, for /readyz, the doctor and docs/api.md; pure."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuwarden_collector.stats import Levels

SOON_S = 5
NO_ROOM_RETRY_AFTER_S = 30
CLOCK_RETRY_AFTER_S = 30


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """A condition without which batches are not stored."""

    name: str
    meaning: str
    """The condition, for the docs."""
    reason: Callable[[Levels], str | None]
    """Why the check fails, in a sentence; None: it passes."""
    retry_after_s: int = SOON_S


READY_CHECKS = (
    ReadyCheck(
        "writer",
        "the writer makes progress",
        lambda levels: None if levels.is_alive else "the writer makes no progress",
    ),
    ReadyCheck(
        "decode",
        "threads decode batches",
        lambda levels: (
            None if levels.is_decoding else "batches are not decoded; see the collector's log"
        ),
    ),
    ReadyCheck(
        "commit",
        "no commit has failed lately",
        lambda levels: (
            "the store takes no batches; see the collector's log" if levels.is_failing else None
        ),
    ),
    ReadyCheck(
        "storage",
        "rows move to the lake and are rolled up",
        lambda levels: levels.storage_trouble,
        NO_ROOM_RETRY_AFTER_S,
    ),
    ReadyCheck(
        "clock",
        "the collector does not doubt its clock",
        lambda levels: levels.clock_doubt,
        CLOCK_RETRY_AFTER_S,
    ),
    ReadyCheck(
        "room",
        "there is [room](store.md#room)",
        lambda levels: levels.disk_refusal,
        NO_ROOM_RETRY_AFTER_S,
    ),
)


def not_ready(levels: Levels) -> dict[ReadyCheck, str]:
    """The checks that fail, in order, with the reasons."""
    found = {check: check.reason(levels) for check in READY_CHECKS}
    return {check: reason for check, reason in found.items() if reason is not None}
