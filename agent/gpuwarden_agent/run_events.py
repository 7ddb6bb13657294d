"""Records what happens to the agent itself as events: start, stop, gap, refused batches, new GPUs."""

from collections.abc import Sequence

from gpuwarden import __version__
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.kinds import span
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.probe import Probe
from gpuwarden_agent.queue.inventory import backend_of
from gpuwarden_agent.queue.spool import LastRun, Spool
from gpuwarden_agent.settings import AgentSettings

REFUSED_REPORTED_EVERY_S = 60.0


class RunEvents:
    """Events of one run of the agent."""

    def __init__(
        self,
        settings: AgentSettings,
        probes: Sequence[Probe],
        spool: Spool,
        recorder: EventRecorder,
        counters: Counters,
    ) -> None:
        """`probes`: those of the agent; more may come."""
        self._settings = settings
        self._probes = probes
        self._last_run = spool.last_run
        self._set_aside = spool.set_aside
        self._recorder = recorder
        self._counters = counters

    def started(self) -> None:
        """Record the start, and a spool file that could not be read."""
        names = ", ".join(probe.name for probe in self._probes) or "none"
        self._recorder.record(
            "agent_started",
            f"the agent {__version__} started; probes: {names}",
            details={
                "backend": backend_of(self._probes),
                "interval_s": self._settings.interval_s,
                "probes": [probe.name for probe in self._probes],
                "version": __version__,
            },
        )
        if self._set_aside is not None:
            self._recorder.record(
                "spool_set_aside",
                f"the spool could not be read; it is kept as {self._set_aside.name} and a new one"
                " was begun: batches in it were not sent",
            )

    def first_tick(self, ts_ms: int) -> None:
        """Record the gap between the last tick of the run before and the first of this one."""
        last_ts_ms, interval_ms = self._last_run.last_ts_ms, self._settings.interval_ms
        if last_ts_ms is None or ts_ms - last_ts_ms <= 2 * interval_ms:
            return
        seconds = (ts_ms - last_ts_ms) / 1000
        severity, why = _gap_reason(self._last_run)
        self._recorder.record(
            "agent_gap",
            f"no samples for {span(seconds)}: the agent was not running ({why})",
            severity=severity,
            duration_seconds=seconds,
            details={
                "last_ts_ms": last_ts_ms,
                "first_ts_ms": ts_ms,
                "rebooted": not self._last_run.same_boot,
            },
        )

    def batch_refused(self, reason: str) -> None:
        """Record that the collector refused a batch: at most one event a minute."""

        def write(number: int) -> None:
            self._recorder.record(
                "batches_refused",
                f"the collector refused {number} batches, the last one with {reason};"
                " `gpuwarden agent refused` lists them and sends them again",
                details={"batches": number, "deleted": self._counters.refused_dropped},
            )

        self._recorder.count("refused", 1, every_s=REFUSED_REPORTED_EVERY_S, write=write)

    def probe_added(self, probe: Probe) -> None:
        """Record a GPU that came while the agent runs."""
        if "gpu_samples" in probe.tables:
            self._recorder.record(
                "gpu_appeared",
                f"{probe.name} is there now and is watched",
                gpu_uuid=probe.gpu_uuid,
            )

    def stopped(self, ran_s: float) -> None:
        """Record the stop, after all counts that are still to be reported."""
        self._recorder.flush(is_last=True)
        self._recorder.record(
            "agent_stopped", f"the agent stopped after {span(ran_s)}", duration_seconds=ran_s
        )


def _gap_reason(last_run: LastRun) -> tuple[str, str]:
    if last_run.stopped_cleanly:
        return "info", "it had been stopped"
    if not last_run.same_boot:
        return "warning", "the machine restarted without stopping it"
    return "warning", "it was killed or crashed"
