"""Runs the actor: one act after another, each begun at most once in its life."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_cli.actor.acts import Act, ActError, Scheduler
from gpuwarden_cli.actor.journal import Journal

log = logging.getLogger(__name__)

CHECK_S = 60.0
"""Longest time until an act must show its effect."""
CHECK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Allowed:
    """What this actor may do, whatever a collector asks for."""

    kinds: frozenset[str]
    an_hour: int
    stop_file: Path
    """While this file is there nothing is done."""


@dataclass(frozen=True, slots=True)
class Report:
    """How an act ended."""

    act: str
    is_done: bool
    note: str


class Actor:
    """Does acts. Not for several threads."""

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        journal: Journal,
        allowed: Allowed,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._schedulers = schedulers
        self._journal = journal
        self._allowed = allowed
        self._clock = clock
        self._sleep = sleep

    def work(self, acts: Iterable[Act]) -> list[Report]:
        """Do what may be done now; the reports of all that have ended, also earlier. Raises JournalError."""
        found = []
        for act in acts:
            report = self._worked(act)
            if report is not None:
                found.append(report)
        return found

    def _worked(self, act: Act) -> Report | None:
        entry, now = self._journal.entries.get(act.id), self._clock.now()
        if entry is not None and entry.is_done is not None:
            return Report(act.id, entry.is_done, entry.note)
        if entry is not None:
            return self._ended(act, *self._resumed(act))
        if self._allowed.stop_file.exists():
            log.warning(
                "nothing is done: the stop file is there",
                extra={"file": str(self._allowed.stop_file)},
            )
            return None
        scheduler = self._scheduler(act)
        if scheduler is None:
            return Report(act.id, False, f"this actor may not do {act.kind}: --allow {act.kind}")
        if act.by <= now:
            return None
        if not self._journal.may_begin(self._allowed.an_hour, now):
            log.warning(
                "an act waits: the limit of this actor is reached",
                extra={"act": act.id, "an_hour": self._allowed.an_hour},
            )
            return None
        try:
            there = scheduler.look(act)
        except ActError as error:
            return Report(act.id, False, str(error))
        if there is not None:
            return Report(act.id, True, there)
        self._journal.begin(act.id, now)
        log.warning(
            "act",
            extra={
                "act": act.kind,
                "job": act.job,
                "node": act.node,
                "username": act.username,
                "case": act.id,
            },
        )
        try:
            scheduler.do(act)
        except ActError as error:
            return self._ended(act, False, str(error))
        return self._ended(act, *self._checked(scheduler, act))

    def _scheduler(self, act: Act) -> Scheduler | None:
        if act.kind not in self._allowed.kinds:
            return None
        return next((one for one in self._schedulers if act.kind in one.kinds), None)

    def _resumed(self, act: Act) -> tuple[bool, str]:
        """How an act ended that an earlier run began: it is checked, and not done again."""
        scheduler = self._scheduler(act)
        try:
            if scheduler is not None and scheduler.is_done(act):
                return True, "done before the actor was interrupted"
        except ActError as error:
            return False, f"interrupted, and not known whether it was done: {error}"
        return False, "interrupted, and not done: it is not repeated"

    def _checked(self, scheduler: Scheduler, act: Act) -> tuple[bool, str]:
        """Whether an act shows its effect in time."""
        until = self._clock.monotonic() + CHECK_S
        while True:
            try:
                if scheduler.is_done(act):
                    return True, "done, and checked"
                said = f"no effect after {CHECK_S:g} s"
            except ActError as error:
                said = str(error)
            if self._clock.monotonic() >= until:
                return False, f"asked for, but {said}"
            self._sleep(CHECK_EVERY_S)

    def _ended(self, act: Act, is_done: bool, note: str) -> Report:
        self._journal.end(act.id, is_done=is_done, note=note)
        log.warning("act ended", extra={"case": act.id, "is_done": is_done, "note": note})
        return Report(act.id, is_done, note)


def acts_of(document: object) -> list[Act]:
    """The acts of an answer of `/v1/acts`; those that cannot be read are logged and left out."""
    listed = document.get("acts") if isinstance(document, dict) else None
    found = []
    for one in listed if isinstance(listed, list) else ():
        try:
            found.append(Act.of(one))
        except ActError as error:
            log.error("an act is left out", extra={"reason": str(error)})
    return found
