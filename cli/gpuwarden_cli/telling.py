"""Notification as part of the collector's process: from its settings to a running notifier."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import Clock
from gpuwarden.life import StartError

if TYPE_CHECKING:
    from gpuwarden.alert import Alert
    from gpuwarden.query import Querier
    from gpuwarden_collector.settings import CollectorSettings
    from gpuwarden_rules.engine import Engine
    from gpuwarden_rules.notify.notifier import Notifier
    from gpuwarden_rules.notify.settings import Notify


class Telling:
    """Tells of an engine's alerts, or nothing where nobody is to be told."""

    def __init__(self, notify: "Notify | None", data_dir: Path, clock: Clock) -> None:
        self._notify = notify
        self._data_dir = data_dir
        self._clock = clock
        self._notifier: Notifier | None = None

    def wake(self, alert: "Alert") -> None:
        """An alert changed."""
        if self._notifier:
            self._notifier.wake(alert)

    def figures(self) -> str:
        """Prometheus text for /metrics."""
        if self._notifier is None:
            return ""
        from gpuwarden_rules.notify.exposition import exposition

        return exposition(self._notifier)

    async def run(self, engine: "Engine", querier: "Querier", stop: asyncio.Event) -> None:
        """Tell until asked to stop. Raises StartError."""
        if self._notify is None:
            return
        from gpuwarden_rules.notify.notifier import Notifier
        from gpuwarden_rules.notify.outbox import FILE_NAME, Outbox
        from gpuwarden_rules.notify.receivers import receiver_of

        style = self._notify.style
        self._notifier = Notifier(
            self._notify,
            {plan.name: receiver_of(plan, style, self._clock) for plan in self._notify.receivers},
            Outbox(self._data_dir / FILE_NAME, self._clock),
            lambda: engine.alerts if engine.is_running else None,
            querier,
            self._clock,
        )
        await self._notifier.run(stop)


def telling_of(settings: "CollectorSettings", clock: Clock) -> Telling:
    """What the settings ask for. Raises StartError."""
    path = settings.notify_file
    return Telling(notify_of(path) if path else None, settings.data_dir, clock)


def notify_of(path: Path) -> "Notify":
    """The file of receivers and routes. Raises StartError with its first problem."""
    from gpuwarden_rules.marks import RuleFileError
    from gpuwarden_rules.notify.settings import load

    try:
        return load(path)
    except RuleFileError as error:
        more = len(error.problems) - 1
        rest = f" (and {more} more: `gpuwarden notify check {path}`)" if more else ""
        raise StartError(f"{error.problems[0]}{rest}") from error
