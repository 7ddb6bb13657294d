"""Does acts with Slurm's commands, whose arguments are checked; no shell. https://slurm.schedmd.com/man_index.html

The user that runs it needs AdminLevel operator for jobs of others, and admin for the state of nodes
(`sacctmgr modify user gpuwarden-actor set adminlevel=admin`).
"""

import logging
import re

from gpuwarden.untrusted_text import printable
from gpuwarden_cli.actor.acts import Act, ActError, run_program

log = logging.getLogger(__name__)

COMMANDS = ("squeue", "sinfo", "scancel", "scontrol")
TIMEOUT_S = 30.0
REASON = "gpuwarden"
REBOOT_REASON = f"{REASON} reboots"
COMMENT_CHARACTERS_MAX = 300
_JOB = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_OVER = frozenset({
    "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "COMPLETING", "REVOKED",
})  # fmt: skip
_UNUSABLE = ("drain", "down", "fail", "maint", "not_resp", "unknown")
_NO_JOB = "Invalid job id"


class Slurm:
    """Slurm, by the commands on PATH or in a folder."""

    kinds = frozenset({"cancel_job", "requeue_job", "drain_node", "reboot_node", "resume_node"})

    def __init__(self, folder: str = "") -> None:
        self._folder = f"{folder.rstrip('/')}/" if folder else ""

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`."""
        if act.kind == "resume_node":
            return self._look_at_drained(act)
        if act.kind in ("drain_node", "reboot_node"):
            return self._look_at_node(act)
        found = self._job(act)
        if found is None or found[1] in _OVER:
            return "the job had ended"
        username, state = found
        if act.username and username != act.username:
            raise ActError(f"job {act.job} is of {username}, not of {act.username}: not done")
        if act.kind == "requeue_job" and state == "PENDING":
            return "the job waits already"
        return None

    def _look_at_node(self, act: Act) -> str | None:
        states = self._partitions()
        own = {partition: nodes for partition, nodes in states.items() if act.node in nodes}
        if not own:
            raise ActError(f"Slurm has no node {act.node}: not done")
        if act.kind == "drain_node" and all("drain" in nodes[act.node] for nodes in own.values()):
            return "the node was drained already"
        if act.kind == "reboot_node":
            if any(_reboots(nodes[act.node]) for nodes in own.values()):
                return "the node reboots already"
            if any("drain" in nodes[act.node] for nodes in own.values()):
                self._refuse_others_drain(act)
        for partition, nodes in own.items():
            usable = [n for n, state in nodes.items() if n != act.node and not _is_unusable(state)]
            if not usable:
                raise ActError(
                    f"{act.node} is the last node of partition {partition} that takes jobs: not done"
                )
        return None

    def _look_at_drained(self, act: Act) -> str | None:
        own = self._states(act)
        if not own:
            raise ActError(f"Slurm has no node {act.node}: not done")
        if not any("drain" in state or "down" in state for state in own):
            return "the node is not drained"
        if any(_reboots(state) for state in own):
            raise ActError(f"{act.node} has not been rebooted yet: not done")
        self._refuse_others_drain(act)
        return None

    def _refuse_others_drain(self, act: Act) -> None:
        """Raise ActError where somebody else drained the node: it stays as it is."""
        reason = self._reason(act)
        if not reason.startswith(REASON):
            raise ActError(f"{act.node} was drained for another reason, {reason[:100]!r}: not done")

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        match act.kind:
            case "cancel_job":
                self._comment(act)
                self._run("scancel", _checked(_JOB, act.job))
            case "requeue_job":
                self._comment(act)
                self._run("scontrol", "requeue", _checked(_JOB, act.job))
            case "drain_node":
                self._drain(act)
            case "reboot_node":
                # `reboot ASAP` would clear the drain after the boot, and with ReturnToService=2 `nextstate=DOWN` is void.
                self._drain(act)
                node = _checked(_NODE, act.node)
                self._run("scontrol", "reboot", f"reason={REBOOT_REASON} {act.id}", node)
            case "resume_node":
                self._run(
                    "scontrol", "update", f"NodeName={_checked(_NODE, act.node)}", "State=RESUME"
                )
            case _:
                raise ActError(f"Slurm cannot do {act.kind}")

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`."""
        if act.kind in ("drain_node", "resume_node"):
            own = self._states(act)
            wanted = act.kind == "drain_node"
            is_closed = [("drain" in state or "down" in state) for state in own]
            return bool(own) and all(one is wanted for one in is_closed)
        if act.kind == "reboot_node":
            # A drained node alone may be one whose reboot was not asked for.
            return self._reason(act).startswith(f"{REBOOT_REASON} {act.id}")
        found = self._job(act)
        if act.kind == "requeue_job":
            return found is not None and found[1] == "PENDING"
        return found is None or found[1] in _OVER

    def _drain(self, act: Act) -> None:
        node, reason = _checked(_NODE, act.node), f"Reason={REASON} {act.id}"
        self._run("scontrol", "update", f"NodeName={node}", "State=DRAIN", reason)

    def _comment(self, act: Act) -> None:
        """Write into the job's AdminComment why it ends: `sacct --format=jobid,admincomment` has it."""
        said = printable(f"{REASON} {act.policy}: {act.summary}")[:COMMENT_CHARACTERS_MAX]
        job = _checked(_JOB, act.job)
        try:
            self._run("scontrol", "update", f"JobId={job}", f"AdminComment={said}")
        except ActError as error:
            log.warning("the job has no comment", extra={"job": job, "reason": str(error)})

    def _job(self, act: Act) -> tuple[str, str] | None:
        """User and state of a job; None: Slurm does not know it any more."""
        job = _checked(_JOB, act.job)
        try:
            text = self._run(
                "squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%u|%T"
            )
        except ActError as error:
            if _NO_JOB in str(error):
                return None
            raise
        lines = [line.strip().split("|") for line in text.splitlines() if "|" in line]
        return (lines[0][0], lines[0][1]) if lines else None

    def _states(self, act: Act) -> list[str]:
        """The states of the node, by partition; none: Slurm has no such node."""
        return [nodes[act.node] for nodes in self._partitions().values() if act.node in nodes]

    def _reason(self, act: Act) -> str:
        """Why the node is drained."""
        node = f"--nodes={_checked(_NODE, act.node)}"
        said = self._run("sinfo", "--noheader", node, "--format=%E")
        return said.strip().partition("\n")[0]

    def _partitions(self) -> dict[str, dict[str, str]]:
        """State of each node, by partition."""
        found: dict[str, dict[str, str]] = {}
        for line in self._run("sinfo", "--noheader", "--Node", "--format=%R|%N|%T").splitlines():
            partition, _, rest = line.strip().partition("|")
            node, _, state = rest.partition("|")
            found.setdefault(partition, {})[node] = state.lower()
        return found

    def _run(self, command: str, *arguments: str) -> str:
        return run_program(
            [f"{self._folder}{command}", *arguments],
            " ".join((command, *arguments)),
            timeout_s=TIMEOUT_S,
            remedy=": install Slurm's commands here",
        )


def _checked(pattern: re.Pattern[str], text: str) -> str:
    """A name that can be an argument. Raises ActError."""
    if pattern.fullmatch(text) is None:
        raise ActError(f"{text[:50]!r} is not a name that Slurm has: not done")
    return text


def _is_unusable(state: str) -> bool:
    return state.endswith("*") or any(word in state for word in _UNUSABLE)


def _reboots(state: str) -> bool:
    """Whether a reboot is asked for (`@`) or under way (`^`), as sinfo writes it."""
    return state.endswith(("@", "^")) or "boot" in state
