"""Finds the owner of a GPU process (user, Slurm job, container, Kubernetes pod) and its rank in a
distributed job, from /proc alone.

Of a process's environment it uses only the names of job and pod and the launcher's variables.
"""

import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from gpuwarden_agent.collect.processes.procfs import TICKS_PER_S, Process, ProcFs

_SLURM_JOB = re.compile(r"/[^/\n]*slurm[^/\n]*(?:/[^/\n]+)*?/job_(\d+)(?:/|$)", re.MULTILINE)
_CONTAINER = re.compile(r"[0-9a-f]{64}")
_LXC = re.compile(r"/lxc(?:\.payload\.|/)([A-Za-z0-9_.-]+)")
_ADDRESS = re.compile(r"[A-Za-z0-9.:_\[\]-]{1,253}")
_MPI_JOB = re.compile(r"[A-Za-z0-9._@:-]{1,253}")
_NUMBER = re.compile(r"[0-9]{1,7}")
_NAMESPACE_FILE = "root/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@dataclass(frozen=True, slots=True)
class Launch:
    """Variables that a launcher of distributed jobs sets for a rank; None: not set."""

    rendezvous: str | None = None
    rank: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Facts that do not change while a process lives; None: unknown."""

    process_name: str
    username: str | None
    slurm_job_id: str | None
    container_id: str | None
    pod: str | None
    started_at_ms: int | None
    launch: Launch


UNKNOWN_OWNER = ProcessOwner("", None, None, None, None, None, Launch())


def slurm_job_of(cgroup: str, environ: Mapping[str, str]) -> str | None:
    """The job of a process: its cgroup, which it cannot change, before its environment."""
    found = _SLURM_JOB.search(_paths(cgroup))
    if found:
        return found.group(1)
    job = environ.get("SLURM_JOB_ID", "")
    return job if job.isdigit() else None


def launch_of(environ: Mapping[str, str], node: str) -> Launch:
    """The rank of a process, and where the ranks of its job meet.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are PyTorch's, which torchrun, DeepSpeed and
    Accelerate set as well (https://docs.pytorch.org/docs/stable/distributed.html); the names of
    PMIx and Open MPI are mpirun's. An address that means each node itself gets the node's name.
    """
    rank = _number(environ, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    world_size = _number(environ, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if world_size is None or world_size < 2:
        return Launch(None, rank, world_size)
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if _ADDRESS.fullmatch(address) and _NUMBER.fullmatch(port):
        place = node if is_loopback(address) else address
        return Launch(f"{place}:{port}", rank, world_size)
    mpi = environ.get("PMIX_NAMESPACE", "") or environ.get("OMPI_MCA_ess_base_jobid", "")
    return Launch(f"mpi {mpi}" if _MPI_JOB.fullmatch(mpi) else None, rank, world_size)


def is_loopback(address: str) -> bool:
    """Whether an address or a name means the host itself."""
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address in ("localhost", "localhost.localdomain")


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a number."""
    told = (environ.get(name, "") for name in names)
    return next((int(text) for text in told if _NUMBER.fullmatch(text)), None)


def container_of(cgroup: str) -> str | None:
    """The innermost container of /proc/PID/cgroup: 64 hex digits (docker, containerd, cri-o,
    podman), or the name of an LXC container.
    """
    ids = _CONTAINER.findall(_paths(cgroup))
    if ids:
        return str(ids[-1])
    named = _LXC.search(_paths(cgroup))
    return named.group(1) if named else None


def _paths(cgroup: str) -> str:
    """The paths of /proc/PID/cgroup, one a line, without hierarchy and controllers."""
    return "\n".join(line.split(":", 2)[-1] for line in cgroup.splitlines())


def parse_environ(text: str) -> dict[str, str]:
    """/proc/PID/environ."""
    pairs = (part.partition("=") for part in text.split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def user_name(uid: int) -> str:
    """The account's name; its number if this host does not know it, as for users of a container."""
    try:
        return _account(uid)
    except KeyError:
        return str(uid)


@lru_cache(maxsize=1024)
def _account(uid: int) -> str:
    # The directory service may be slow, or down for a while: only its answers are cached.
    return pwd.getpwuid(uid).pw_name


def owner_of(
    process: Process, proc: ProcFs, name_of: Callable[[int], str] = user_name
) -> ProcessOwner:
    """The owner of a process, from /proc."""
    pid = process.pid
    cgroup = proc.text_or_empty(f"{pid}/cgroup")
    environ = parse_environ(proc.text_or_empty(f"{pid}/environ"))
    uid = real_uid(proc.text_or_empty(f"{pid}/status"))
    boot_s = proc.boot_s()
    return ProcessOwner(
        process_name=proc.executable(pid) or process.name,
        username=None if uid is None else name_of(uid),
        slurm_job_id=slurm_job_of(cgroup, environ),
        container_id=container_of(cgroup),
        pod=_pod(proc, pid, environ) if "kubepods" in cgroup else None,
        started_at_ms=None
        if boot_s is None
        else boot_s * 1000 + process.started_ticks * 1000 // TICKS_PER_S,
        launch=launch_of(environ, os.uname().nodename),
    )


def _pod(proc: ProcFs, pid: int, environ: Mapping[str, str]) -> str | None:
    """Kubernetes gives each container its pod's name as host name and its namespace as a file.

    A pod on the host's network has the node's name there, which is not the pod's.
    """
    name = environ.get("HOSTNAME")
    namespace = proc.text_or_empty(f"{pid}/{_NAMESPACE_FILE}").strip()
    is_pod = name and namespace and name != os.uname().nodename
    return f"{namespace}/{name}" if is_pod else None


def real_uid(status: str) -> int | None:
    """The user in /proc/PID/status; None if it is missing."""
    for line in status.splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def cpus_allowed(pid: int) -> int | None:
    """CPUs that a process may run on; None when it has ended."""
    return cpus_allowed_any([pid])


def cpus_allowed_any(pids: Iterable[int]) -> int | None:
    """CPUs that any of the processes may run on; None when all have ended."""
    cpus: set[int] = set()
    if sys.platform == "linux":
        for pid in pids:
            with suppress(OSError):
                cpus |= os.sched_getaffinity(pid)
    return len(cpus) or None
