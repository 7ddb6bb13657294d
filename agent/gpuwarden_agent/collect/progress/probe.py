"""Reads what jobs report of their progress every ten seconds; off unless a setting names a folder or a socket.

A line that cannot be taken is counted, and an event names why, at most one a minute. It never fails the probe.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.progress.folder import ProgressFolder
from gpuwarden_agent.collect.progress.sockets import ProgressSocket
from gpuwarden_agent.collect.progress.streams import ProgressStreams, worded
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.probe import HostedProbe, ProbeError, Reading, Row
from gpuwarden_agent.settings import AgentSettings

TABLE = "progress_samples"
EVENT_EVERY_S = 60.0


def progress_probes(settings: AgentSettings, clock: Clock) -> "Sequence[ProgressProbe]":
    """The probe of the settings; none if they name no source."""
    streams = ProgressStreams()
    folder = (
        None if settings.progress_dir is None else ProgressFolder(settings.progress_dir, streams)
    )
    path = settings.progress_socket
    progress_socket = None if path is None else ProgressSocket(path, streams, clock)
    if folder is None and progress_socket is None:
        return []
    return [ProgressProbe(streams, clock, folder, progress_socket)]


class ProgressProbe(HostedProbe):
    """Progress of the jobs of this node."""

    name = "progress"
    tables: Mapping[str, int] = {TABLE: 10}

    def __init__(
        self,
        streams: ProgressStreams,
        clock: Clock,
        folder: ProgressFolder | None,
        progress_socket: ProgressSocket | None,
    ) -> None:
        self.failed: Counter[str] = Counter()
        """Lines and files that were refused, by reason."""
        self._streams = streams
        self._clock = clock
        self._folder = folder
        self._socket = progress_socket
        self._unsaid: Counter[str] = Counter()
        self._said_s = float("-inf")

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        if due is not None and TABLE not in due:
            return {}
        problems = self._look()
        rows = [coerce(TABLE, row) for row in self._streams.rows()]
        events = self._events()
        if problems and not rows and not events:
            raise ProbeError("; ".join(problems))
        for problem in problems:
            self.failed[problem] += 1
        reading = {TABLE: rows}
        return {**reading, "events": events} if events else reading

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _look(self) -> list[str]:
        """Read the folder, and open the socket unless it is open; what failed."""
        problems = []
        if self._folder is not None:
            try:
                self._folder.read(self._clock.monotonic())
            except OSError as error:
                problems.append(f"progress_dir {self._folder.path}: {error.strerror}")
        if self._socket is not None:
            try:
                self._socket.open()
            except OSError as error:
                problems.append(f"the socket of progress cannot be opened: {error.strerror}")
        return problems

    def _events(self) -> list[Row]:
        refused = self._streams.refused()
        self.failed.update(refused)
        self._unsaid.update(refused)
        now_s = self._clock.monotonic()
        if not self._unsaid or now_s - self._said_s < EVENT_EVERY_S:
            return []
        count, said = self._unsaid.total(), worded(self._unsaid)
        details = {"reasons": dict(self._unsaid)}
        self._unsaid, self._said_s = Counter(), now_s
        message = f"{count:,} lines or files of progress were refused: {said}"
        return [event("progress_refused", message, details=details)]
