"""Reads Slurm's jobs on this node: notes of prolog and epilog, and the use of their control groups.

A job gets a row when its note appears, every ten seconds while it runs, and when its epilog has run.
After a restart the notes are read again, so that no job is lost; a repeated row has the same values.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.files import is_there, read_text
from gpuwarden_agent.collect.processes.cgroup import (
    NO_LIMIT_BYTES,
    V2,
    CgroupFs,
    CgroupMount,
    keyed,
    number,
)
from gpuwarden_agent.collect.processes.owner import user_name
from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames
from gpuwarden_agent.collect.schedulers.slurm import INSTALLED, job_folders, numbers_of
from gpuwarden_agent.collect.schedulers.slurm_controller import SlurmControllerProbe
from gpuwarden_agent.collect.schedulers.slurm_notes import NOTES, JobNote, SlurmNotes
from gpuwarden_agent.probe import HostedProbe, Probe, ProbeError, Reading, Row, Value

TABLE = "slurm_job_samples"
USED_EVERY_MS = 10_000
"""Interval of the rows of a running job."""


def gpus_of(note: JobNote) -> tuple[str, ...]:
    """Names of the job's GPUs on this node: UUIDs of MIG devices, else numbers of device files."""
    visible = (note.text("CUDA_VISIBLE_DEVICES") or "").split(",")
    if all(name.startswith("MIG-") for name in visible):
        return tuple(visible)
    return tuple(numbers_of(note.text("SLURM_JOB_GPUS") or ""))


def cpus_of(note: JobNote) -> int | None:
    """CPUs of the job on this node, if all its nodes have the same number: "8", "8(x2)"; None for "8,4"."""
    return number((note.text("SLURM_JOB_CPUS_PER_NODE") or "").partition("(x")[0])


def used_by(folders: Mapping[str, str]) -> dict[str, Value]:
    """CPU time and memory of a control group; `folders`: by controller, V2 for version 2."""
    if V2 in folders:
        folder = folders[V2]
        micros = keyed(read_text(f"{folder}/cpu.stat"), "usage_usec")
        return {
            "cpu_seconds_total": None if micros is None else micros / 1e6,
            "memory_used_bytes": number(read_text(f"{folder}/memory.current")),
            "memory_peak_bytes": number(read_text(f"{folder}/memory.peak")),
            "memory_limit_bytes": number(read_text(f"{folder}/memory.max")),
        }

    def read(controller: str, name: str) -> int | None:
        folder = folders.get(controller)
        return number(read_text(f"{folder}/{name}")) if folder else None

    nanos = read("cpuacct", "cpuacct.usage")
    limit = read("memory", "memory.limit_in_bytes")
    return {
        "cpu_seconds_total": None if nanos is None else nanos / 1e9,
        "memory_used_bytes": read("memory", "memory.usage_in_bytes"),
        "memory_peak_bytes": read("memory", "memory.max_usage_in_bytes"),
        "memory_limit_bytes": None if limit is None or limit >= NO_LIMIT_BYTES else limit,
    }


def groups_of_jobs(mounts: Mapping[str, CgroupMount]) -> dict[str, dict[str, str]]:
    """Folders of each job's control groups, by controller."""
    found: dict[str, dict[str, str]] = {}
    for name in ("cpuacct", "memory", V2):
        if name in mounts:
            # Version 1 has the same folders in each controller's hierarchy.
            for job in job_folders({V2 if name == V2 else "memory": mounts[name]}):
                found.setdefault(job.job, {})[name] = job.folder
    return found


class SlurmJobProbe(HostedProbe):
    """Reads Slurm's jobs of a node."""

    name = "slurm"

    def __init__(
        self,
        notes: SlurmNotes,
        names: GpuNames,
        *,
        mounts: Mapping[str, CgroupMount] | None = None,
        name_of: Callable[[int], str] = user_name,
    ) -> None:
        self.tables: Mapping[str, int] = {TABLE: 1}
        self.failed = notes.failed
        self._notes = notes
        self._names = names
        self._mounts = CgroupFs().mounts if mounts is None else mounts
        self._name_of = name_of
        self._told: dict[str, tuple[int, int | None]] = {}
        """Start and end of the jobs that had rows."""
        self._used: dict[str, dict[str, Value]] = {}
        """Last known use of each job, because its group is gone at its end."""

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        try:
            notes = self._notes.look()
        except OSError as error:
            raise ProbeError(
                f"Slurm's notes cannot be read: {error.strerror}: {error.filename}"
            ) from error
        is_due = ts_ms % USED_EVERY_MS == 0
        if is_due and notes:
            self._look_at_groups({job for job, note in notes.items() if note.ended_ms is None})
        rows = [
            self._row(note)
            for note in notes.values()
            if self._told.get(note.job) != (note.started_ms, note.ended_ms)
            or (is_due and note.ended_ms is None)
        ]
        self._told = {job: (note.started_ms, note.ended_ms) for job, note in notes.items()}
        self._used = {job: used for job, used in self._used.items() if job in notes}
        return {TABLE: rows}

    def _look_at_groups(self, running: Collection[str]) -> None:
        for job, folders in groups_of_jobs(self._mounts).items():
            if job in running:
                used = {
                    name: value for name, value in used_by(folders).items() if value is not None
                }
                self._used[job] = {**self._used.get(job, {}), **used}

    def _row(self, note: JobNote) -> Row:
        uid = note.number("SLURM_JOB_UID")
        named = gpus_of(note)
        found = [gpu[1] for name in named if (gpu := self._names.find(name)) is not None]
        code = note.number("SLURM_JOB_EXIT_CODE")
        values: dict[str, Value] = {
            "source": "node",
            "job": note.job,
            "array_job_id": note.text("SLURM_ARRAY_JOB_ID"),
            "array_task_id": note.text("SLURM_ARRAY_TASK_ID"),
            "job_name": note.text("SLURM_JOB_NAME"),
            "username": note.text("SLURM_JOB_USER")
            or (None if uid is None else self._name_of(uid)),
            "account": note.text("SLURM_JOB_ACCOUNT"),
            "partition": note.text("SLURM_JOB_PARTITION"),
            "qos": note.text("SLURM_JOB_QOS"),
            "reservation": note.text("SLURM_JOB_RESERVATION"),
            "state": "running" if note.ended_ms is None else "ended",
            "node_list": note.text("SLURM_NODELIST"),
            "cpus": cpus_of(note),
            "gpus": len(named),
            "gpu_uuids": ",".join(found) if found and len(found) == len(named) else None,
            "started_at": note.started_ms,
            "ended_at": note.ended_ms,
            # A wait status: the code in the upper byte, a signal in the lower.
            "exit_code": None if code is None else (code >> 8) or (128 + code if code else 0),
            **self._used.get(note.job, {}),
        }
        return coerce(TABLE, values)


def slurm_probes(
    bus_ids: Mapping[str, tuple[int, str]],
    clock: Clock,
    *,
    controller: bool,
    notes: Path = NOTES,
    installed: Sequence[Path] = INSTALLED,
) -> list[Probe]:
    """The probes of Slurm on this host. `bus_ids`: GPUs by PCI bus id; may grow. `controller`: ask Slurm's
    controller, too.
    """
    probes: list[Probe] = []
    if any(map(is_there, (notes, *installed))):
        probes.append(SlurmJobProbe(SlurmNotes(notes), GpuNames(bus_ids)))
    if controller:
        probes.append(SlurmControllerProbe(clock))
    return probes
