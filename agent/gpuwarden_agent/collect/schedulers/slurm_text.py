"""Parses the output of squeue and sinfo, in formats of our own: pure functions.

The formats work from Slurm 20.11 on: one line a job, or a node and partition; fields separated by
"|", free text last. Times are UTC: the caller sets TZ.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwarden.clock import to_ms

_BEGUN = (
    "RUNNING,SUSPENDED,STOPPED,COMPLETING,COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,"
    "DEADLINE,OUT_OF_MEMORY"
)
_JOB_COLUMNS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "UserName", "Account", "Partition", "QOS", "Reservation", "State",
    "NumNodes", "NumCPUs", "tres-alloc", "tres-per-node", "tres-per-job", "TimeLimit", "SubmitTime",
    "StartTime", "EndTime", "NodeList", "Name",
)  # fmt: skip
SQUEUE = (
    "squeue",
    "--noheader",
    "--all",
    "--array",
    # ":" without a size prints the whole value, and "|" is what follows it (seen with 20.11.4 and 22.05.8);
    # without ":" values are cut at 20 characters. A field that squeue does not know is empty.
    "--Format=" + ",".join(f"{column}:|" for column in _JOB_COLUMNS[:-1]) + f",{_JOB_COLUMNS[-1]}:",
    f"--states={_BEGUN}",
)
"""Jobs that have begun; those that ended stay for MinJobAge (five minutes by default).

`--Format`, as `--format` has no letter for what was allocated.
"""
SINFO = ("sinfo", "--noheader", "--all", "--Node", "--format=%N|%T|%R|%u|%H|%E")

_NODE_FIELDS = 6
_LIVE = frozenset({"running", "suspended", "stopped", "completing", "configuring", "resizing"})
_NOTHING = frozenset({"", "(null)", "N/A", "NONE", "None", "none", "Unknown", "n/a"})
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)")
_GPUS = re.compile(r"(?:^|,)(?:gres[:/])?gpu(:(?!\d+(?:[,(]|$))[^:=,()]+)?(?:[:=](\d+))?(?=[,(]|$)")
_STATE_FLAGS = "*~#!%$@^-+"
"""Marks that sinfo puts behind a state: not responding, powered down, in maintenance..."""


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as the controller has it, in columns of `slurm_job_samples`; None: unknown."""

    job: str
    array_job_id: str | None
    array_task_id: str | None
    job_name: str | None
    username: str | None
    account: str | None
    partition: str | None
    qos: str | None
    reservation: str | None
    state: str
    node_list: str | None
    nodes: int | None
    cpus: int | None
    gpus: int | None
    time_limit_seconds: int | None
    submitted_at: int | None
    started_at: int | None
    ended_at: int | None
    """None: it runs; squeue then prints when its time limit ends."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node as the controller has it, in columns of `slurm_node_samples`; None: unknown."""

    slurm_node: str
    state: str
    partitions: str
    reason: str | None
    reason_username: str | None
    reason_at: int | None


def parse_jobs(text: str) -> tuple[list[JobLine], int]:
    """Jobs of squeue's output, and how many of its lines could not be parsed."""
    made = [_job(line) for line in text.splitlines() if line.strip()]
    jobs = [job for job in made if job is not None]
    return jobs, len(made) - len(jobs)


def _job(line: str) -> JobLine | None:
    fields = line.strip().split("|", len(_JOB_COLUMNS) - 1)
    if len(fields) < len(_JOB_COLUMNS) or not fields[0].isdigit():
        return None
    (job, array, task, user, account, partition, qos, reservation, state) = fields[:9]
    (nodes, cpus, allocated, per_node, per_job, limit) = fields[9:15]
    (submitted, started, ended, node_list, name) = fields[15:]
    state = state.lower()
    is_array = _told(task) is not None
    count = _number(nodes)
    return JobLine(
        job=job,
        array_job_id=array if is_array else None,
        array_task_id=task if is_array else None,
        job_name=_told(name),
        username=_told(user),
        account=_told(account),
        partition=_told(partition),
        qos=_told(qos),
        reservation=_told(reservation),
        state=state,
        node_list=_told(node_list),
        nodes=count,
        cpus=_number(cpus),
        gpus=_gpus(allocated, per_node, per_job, count),
        time_limit_seconds=limit_s(limit),
        submitted_at=instant_ms(submitted),
        started_at=instant_ms(started),
        ended_at=None if state in _LIVE else instant_ms(ended),
    )


def parse_nodes(text: str) -> tuple[list[NodeLine], int]:
    """Nodes of sinfo's output, each once, and how many of its lines could not be parsed."""
    found: dict[str, NodeLine] = {}
    bad = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        fields = line.strip().split("|", _NODE_FIELDS - 1)
        if len(fields) < _NODE_FIELDS or not fields[0]:
            bad += 1
            continue
        node, state, partition, user, at, reason = fields
        partitions = dict.fromkeys(
            [*found[node].partitions.split(","), partition] if node in found else [partition]
        )
        is_told = _told(reason) is not None
        found[node] = NodeLine(
            slurm_node=node,
            state=state.rstrip(_STATE_FLAGS).lower(),
            partitions=",".join(partitions),
            reason=_told(reason),
            reason_username=re.sub(r"\(\d+\)$", "", user) if is_told and _told(user) else None,
            reason_at=instant_ms(at) if is_told else None,
        )
    return list(found.values()), bad


def _gpus(allocated: str, per_node: str, per_job: str, nodes: int | None) -> int | None:
    """What was allocated, where the cluster tracks GPUs (AccountingStorageTRES), else what was asked for."""
    if (gpus := gpus_in(allocated)) is not None:
        return gpus
    if (gpus := gpus_in(per_node)) is not None and nodes is not None:
        return gpus * nodes
    return gpus_in(per_job)


def gpus_in(gres: str) -> int | None:
    """GPUs of "gres:gpu:h100:4", "gres/gpu=2", "gpu:2,shard:1"; None where it names none.

    With "gres/gpu=4,gres/gpu:h100=4" Slurm tells four GPUs twice, all and by type: what has no type counts.
    """
    if _told(gres) is None:
        return None
    found = [(bool(kind), int(count or 1)) for kind, count in _GPUS.findall(gres)]
    whole = [count for is_typed, count in found if not is_typed]
    return sum(whole or [count for _, count in found]) if found else None


def limit_s(text: str) -> int | None:
    """A time limit: "30", "30:00", "1:00:00", "2-00:00:00"; None for UNLIMITED and others."""
    found = _LIMIT.fullmatch(text.strip())
    if found is None:
        return None
    days, *parts = found.groups()
    known = [int(part) for part in parts if part is not None]
    if days is not None or len(known) == 3:
        # Days before hours: what follows the "-" begins with hours.
        hours, minutes, seconds = (known + [0, 0])[:3]
    elif len(known) == 2:
        hours, (minutes, seconds) = 0, known
    else:
        hours, minutes, seconds = 0, known[0], 0
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def instant_ms(text: str) -> int | None:
    """ "2026-11-23T08:50:00" in UTC as milliseconds since the epoch; None for "N/A" and others."""
    if _told(text) is None:
        return None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return to_ms(at.replace(tzinfo=UTC))


def _told(text: str) -> str | None:
    text = text.strip()
    return None if text in _NOTHING else text


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def changed(
    before: Sequence[NodeLine], after: Sequence[NodeLine]
) -> list[tuple[NodeLine | None, NodeLine]]:
    """Nodes whose state or reason changed, each with its earlier line."""
    known = {node.slurm_node: node for node in before}
    return [
        (old, node)
        for node in after
        if (old := known.get(node.slurm_node)) is None
        or (old.state, old.reason) != (node.state, node.reason)
    ]
