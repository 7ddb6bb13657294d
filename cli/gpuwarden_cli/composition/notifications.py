"""Runs the notifier of a collector, and starts it again with a new file of receivers."""

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import Clock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.settings import notify_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwarden.query import Querier
    from gpuwarden_rules.incidents.service import IncidentService
    from gpuwarden_rules.notify.notifier import Notifier
    from gpuwarden_rules.notify.planner import IncidentNotice
    from gpuwarden_rules.notify.receivers.receiver import Receiver
    from gpuwarden_rules.notify.reports import Claim
    from gpuwarden_rules.notify.settings import Notify
    from gpuwarden_rules.policies.service import OwnerWords

log = logging.getLogger(__name__)


class Notifications:
    """The notifier of a collector; without a file of receivers it does nothing."""

    def __init__(self, path: Path | None, data_dir: Path, clock: Clock) -> None:
        """`path`: the file of receivers and routes. Raises StartError."""
        self._path = path
        self._data_dir = data_dir
        self._clock = clock
        self._asked = self._read(path) if path else None
        self._ending = asyncio.Event()
        self._notifier: Notifier | None = None
        self._elsewhere: frozenset[str] = frozenset()
        self._offered: dict[str, IncidentNotice] = {}

    def wake(self) -> None:
        """Look at the incidents now."""
        if self._notifier:
            self._notifier.wake()

    def figures(self) -> str:
        """Prometheus text for /metrics."""
        if self._notifier is None:
            return ""
        from gpuwarden_rules.exposition import notifier_exposition

        return notifier_exposition(self._notifier)

    def failing(self) -> tuple[str, ...]:
        """Receivers whose last message failed."""
        stats = self._notifier.stats if self._notifier else {}
        return tuple(name for name, figures in stats.items() if figures.failing)

    def waiting(self) -> int | None:
        """Number of waiting messages; None without a file of receivers."""
        return None if self._notifier is None else self._notifier.outbox.waiting.total()

    async def reload(self) -> str | None:
        """Read the file again and keep the outbox; the problem, if the file has one: then the previous file stays in
        force.
        """
        if self._path is None:
            return None
        try:
            self._asked = await asyncio.to_thread(self._read, self._path)
        except StartError as error:
            log.error(
                "notify_file not reloaded; the previous file stays in force",
                extra={"problem": str(error)},
            )
            return str(error)
        self._ending.set()
        log.info("notify_file reloaded", extra={"receivers": len(self._asked[1])})
        return None

    async def run(
        self,
        incidents: "IncidentService",
        querier: "Querier",
        stop: asyncio.Event,
        claim: "Claim",
    ) -> None:
        """Notify until `stop`. `claim`: decides which collector of a lake reports."""
        if self._asked is None:
            return
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(self._end_with(stop), name="notify stop")
            while not stop.is_set():
                self._ending = asyncio.Event()
                before = self._notifier
                self._notifier = self._notifier_of(incidents, querier, claim)
                self._notifier.leave(self._elsewhere)
                self._notifier.offer(self._offered)
                if before:
                    self._notifier.continue_stats(before)
                await self._notifier.run(self._ending)
            await ending

    async def _end_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._ending.set()

    def _notifier_of(
        self,
        incidents: "IncidentService",
        querier: "Querier",
        claim: "Claim",
    ) -> "Notifier":
        from gpuwarden_cli.money_report import mailed
        from gpuwarden_rules.notify.notifier import Notifier
        from gpuwarden_rules.notify.outbox import FILE_NAME, Outbox
        from gpuwarden_rules.notify.reports import ScheduledReports

        assert self._asked is not None
        notify, receivers = self._asked
        return Notifier(
            notify,
            receivers,
            Outbox(self._data_dir / FILE_NAME, self._clock),
            lambda: incidents.view,
            querier,
            self._clock,
            ScheduledReports(notify.reports, partial(mailed, querier, notify.style.link), claim),
        )

    @property
    def link(self) -> str | None:
        """The collector's address for people, by the file."""
        return self._asked[0].style.link if self._asked else None

    def reaches(self, user: str) -> bool:
        """As of `Mailbox`."""
        return self._notifier is not None and self._notifier.reaches(user)

    @property
    def notices(self) -> "Mapping[str, IncidentNotice]":
        """As of `MovingNotices`."""
        return self._notifier.notices if self._notifier else {}

    def leave(self, nodes: frozenset[str]) -> None:
        """As of `MovingNotices`. Also before there is a notifier: its first plan must know it."""
        self._elsewhere = nodes
        if self._notifier:
            self._notifier.leave(nodes)

    def offer(self, notices: "Mapping[str, IncidentNotice]") -> None:
        """As of `MovingNotices`."""
        self._offered |= notices
        if self._notifier:
            self._notifier.offer(notices)

    async def say(self, words: "OwnerWords") -> None:
        """As of `Mailbox`."""
        from gpuwarden_rules.notify.message import PolicyText
        from gpuwarden_rules.notify.outbox import OutboxError

        if self._notifier is None:
            raise OSError("messages are not sent yet")
        try:
            await self._notifier.say(
                words.id, words.username, PolicyText(title=words.title, paragraphs=words.paragraphs)
            )
        except OutboxError as error:
            raise OSError(str(error)) from error

    def _read(self, path: Path) -> "tuple[Notify, dict[str, Receiver]]":
        """The file and its receivers. Raises StartError."""
        from gpuwarden_rules.notify.receivers.factory import receiver_of

        notify = notify_of(path)
        try:
            return notify, {
                plan.name: receiver_of(plan, notify.style, self._clock) for plan in notify.receivers
            }
        except ValueError as error:
            raise StartError(f"{path}: {error}") from error
