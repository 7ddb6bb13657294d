"""Asks Slurm's controller for jobs and nodes, from one agent of the cluster (setting `slurm_controller`).

squeue and sinfo run on a thread of their own, one at a time, each with a deadline. The pause between
two rounds grows with the time that a round takes, so that a busy controller is asked less often.
"""

import logging
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.schedulers.slurm_text import (
    SINFO,
    SQUEUE,
    JobLine,
    NodeLine,
    changed,
    parse_jobs,
    parse_nodes,
)
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.probe import HostedProbe, ProbeError, Reading, Row

log = logging.getLogger(__name__)

JOBS, NODES = "slurm_job_samples", "slurm_node_samples"
DEADLINE_S = 20.0
"""For one command."""
EVERY_S = 5.0
REST_FACTOR = 20.0
"""Pause after a round, as a multiple of its duration: we take less than a twentieth of slurmctld's time."""
AGAIN_S = 3600.0
"""After this time a job or node that did not change is sent again: old rows are deleted some day."""
OUT = frozenset({"drained", "draining", "drain", "down", "fail", "failing", "failed", "error"})
"""States in which a node takes no job because a person or a check took it out."""

Run = Callable[[Sequence[str], float], str]
"""Runs a command with a deadline; its output. Raises AskError."""


class AskError(Exception):
    """The controller gave no answer; the message says why."""


def run_command(argv: Sequence[str], deadline_s: float) -> str:
    """Run one of Slurm's commands, in UTC and plain English."""
    path = shutil.which(argv[0])
    if path is None:
        raise AskError(
            f"{argv[0]} is not installed here: slurm_controller is for a host with Slurm's commands"
        )
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SQUEUE_", "SINFO_"))
    }
    env |= {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            [path, *argv[1:]], capture_output=True, text=True, errors="replace", env=env,
            timeout=deadline_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise AskError(f"{argv[0]} did not answer within {deadline_s:g} s") from None
    except OSError as error:
        raise AskError(f"{argv[0]}: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise AskError(f"{argv[0]}: {lines[-1].strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class ControllerAnswer:
    """The result of one round."""

    jobs: Sequence[JobLine] = ()
    nodes: Sequence[NodeLine] = ()
    not_parsed: int = 0
    error: str | None = None


def ask_all(run: Run) -> ControllerAnswer:
    """One round."""
    try:
        jobs, bad_jobs = parse_jobs(run(SQUEUE, DEADLINE_S))
        nodes, bad_nodes = parse_nodes(run(SINFO, DEADLINE_S))
    except AskError as error:
        return ControllerAnswer(error=str(error))
    return ControllerAnswer(jobs, nodes, bad_jobs + bad_nodes)


class SlurmControllerProbe(HostedProbe):
    """Jobs and nodes of a cluster."""

    name = "slurm-controller"

    def __init__(self, clock: Clock, run: Run = run_command) -> None:
        self.tables: Mapping[str, int] = {JOBS: 1, NODES: 1}
        self.failed: Counter[str] = Counter()
        """Lines that could not be parsed."""
        self._clock = clock
        self._run = run
        self._answer: ControllerAnswer | None = None
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._asked_s = 0.0
        self._jobs: dict[str, tuple[JobLine, float]] = {}
        """Jobs as they were last sent, and when, in monotonic seconds."""
        self._nodes: tuple[NodeLine, ...] = ()
        self._nodes_sent_s = float("-inf")

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        now_s = self._clock.monotonic()
        answer, self._answer = self._answer, None
        if self._thread is None and now_s >= self._next_s:
            self._begin(now_s)
        if answer is None:
            return {JOBS: [], NODES: []}
        if answer.error is not None:
            raise ProbeError(f"Slurm's controller: {answer.error}")
        if answer.not_parsed:
            self.failed["a line of squeue or sinfo"] += answer.not_parsed
        events = self._events(answer.nodes)
        reading = {
            JOBS: self._job_rows(answer.jobs, now_s),
            NODES: self._node_rows(answer.nodes, now_s),
        }
        return {**reading, "events": events} if events else reading

    def _begin(self, now_s: float) -> None:
        def ask() -> None:
            self._answer = ask_all(self._run)
            took_s = self._clock.monotonic() - now_s
            self._next_s = now_s + took_s + max(EVERY_S - took_s, REST_FACTOR * took_s)
            self._thread = None

        self._thread = threading.Thread(target=ask, name="slurm-controller", daemon=True)
        self._thread.start()

    def _job_rows(self, jobs: Sequence[JobLine], now_s: float) -> list[Row]:
        rows = []
        told: dict[str, tuple[JobLine, float]] = {}
        for job in jobs:
            before = self._jobs.get(job.job)
            if before is not None and before[0] == job and now_s - before[1] < AGAIN_S:
                told[job.job] = before
                continue
            told[job.job] = (job, now_s)
            rows.append(coerce(JOBS, {"source": "controller", **asdict(job)}))
        self._jobs = told
        return rows

    def _node_rows(self, nodes: Sequence[NodeLine], now_s: float) -> list[Row]:
        if now_s - self._nodes_sent_s >= AGAIN_S:
            self._nodes_sent_s = now_s
            told = list(nodes)
        else:
            told = [after for _, after in changed(self._nodes, nodes)]
        self._nodes = tuple(nodes)
        return [coerce(NODES, asdict(node)) for node in told]

    def _events(self, nodes: Sequence[NodeLine]) -> list[Row]:
        """Events of nodes since the last answer; the first answer makes none."""
        if not self._nodes:
            return []
        return [
            row for pair in changed(self._nodes, nodes) if (row := _node_event(*pair)) is not None
        ]


def _node_event(before: NodeLine | None, after: NodeLine) -> Row | None:
    was_out, is_out = before is not None and before.state in OUT, after.state in OUT
    details = {
        "slurm_node": after.slurm_node,
        "state": after.state,
        "reason": after.reason,
        "by": after.reason_username,
    }
    if is_out and not was_out:
        why = f": {after.reason}" if after.reason else ""
        by = f" (by {after.reason_username})" if after.reason_username else ""
        return event(
            "slurm_node_out",
            f"Slurm gives {after.slurm_node} no jobs, it is {after.state}{why}{by}",
            details=details,
        )
    if was_out and not is_out and before is not None:
        text = f"Slurm gives {after.slurm_node} jobs again, it was {before.state}"
        return event("slurm_node_back", text, details=details)
    return None
