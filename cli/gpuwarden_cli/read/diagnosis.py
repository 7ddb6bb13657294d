"""Diagnoses a GPU, a job or a node, at any instant within the retention of samples.

A GPU without samples and a node without GPUs are `Silent`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwarden.diagnosis import Diagnosis
    from gpuwarden.query import Querier
    from gpuwarden_rules.diagnosis.jobs import JobView, Judged

NAMES_MAX = 8
_REPORTS_WITHIN = timedelta(minutes=2)

_FIND = """
SELECT DISTINCT node, gpu_uuid, is_job FROM (
    SELECT node, gpu_uuid, false AS is_job FROM gpus
    WHERE node = $name OR format('{}/{}', node, gpu) = $name OR format('{}:{}', node, gpu) = $name
        OR (length($name) >= 4 AND starts_with(lower(gpu_uuid), lower($name)))
    UNION ALL
    SELECT node, NULL, false FROM nodes WHERE node = $name AND node NOT IN (SELECT node FROM gpus)
    UNION ALL
    SELECT node, gpu_uuid, true FROM process_samples
    WHERE ts > $now::TIMESTAMP - INTERVAL 3 MINUTE AND ts <= $now::TIMESTAMP
        AND $name IN (job, rendezvous, 'job at ' || rendezvous)
)
ORDER BY node, gpu_uuid
"""
_TOGETHER = """
SELECT DISTINCT other.node
FROM process_samples AS other
JOIN process_samples AS mine
    ON other.job = mine.job OR other.rendezvous = mine.rendezvous
WHERE mine.gpu_uuid = $gpu_uuid
    AND mine.ts > $now::TIMESTAMP - INTERVAL 3 MINUTE AND mine.ts <= $now::TIMESTAMP
    AND other.ts > $now::TIMESTAMP - INTERVAL 3 MINUTE AND other.ts <= $now::TIMESTAMP
"""
_KNOWN = """
SELECT node || '/' || gpu AS name FROM gpus WHERE gpu IS NOT NULL ORDER BY last_seen_at DESC NULLS LAST, name
"""
_GPUS_KNOWN = """
WITH sampled AS (
    SELECT gpu_uuid, max(ts) AS ts FROM gpu_samples
    WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY AND ts <= $now::TIMESTAMP AND list_contains($uuids, gpu_uuid)
    GROUP BY gpu_uuid
)
SELECT node, gpu, gpu_uuid, model, pci_bus_id, serial, replaced_by, simulated, sampled.ts AS sampled_at
FROM gpus LEFT JOIN sampled USING (gpu_uuid)
WHERE list_contains($uuids, gpu_uuid)
ORDER BY node, gpu, gpu_uuid
"""
_NODES_KNOWN = """
WITH reported AS (
    SELECT node, max(ts) AS ts FROM host_samples
    WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY AND ts <= $now::TIMESTAMP AND list_contains($nodes, node)
    GROUP BY node
)
SELECT node, os, kernel, cpus, driver_version, agent_version, simulated, reported.ts AS reported_at
FROM nodes LEFT JOIN reported USING (node)
WHERE list_contains($nodes, node)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Diagnoses of the GPUs and jobs that a name stands for."""

    judged: "Sequence[Judged]"
    """GPUs that have samples."""
    verdicts: "Sequence[Diagnosis]"
    """Diagnosis of each."""
    jobs: "Sequence[JobView]"
    """Jobs on these GPUs."""
    job_verdicts: "Sequence[Diagnosis]"
    """Diagnosis of each."""
    silent: "Sequence[Silent]"
    """GPUs and nodes without samples; of several GPUs only those that had samples within the last day."""
    is_job: bool
    """Whether the name is a job's."""

    @property
    def is_well(self) -> bool:
        """Whether all are healthy."""
        from gpuwarden.diagnosis import HEALTHY

        if not self.judged:
            return all(one.is_well for one in self.silent)
        return all(one.bottleneck in HEALTHY for one in self.verdicts) and not self.silent

    def records(self) -> list[dict[str, Any]]:
        """Records for programs: jobs, GPUs, then silent ones."""
        told = (*self.job_verdicts, *self.verdicts) if self.judged else ()
        return [*(_record(one) for one in told), *(one.record() for one in self.silent)]


async def diagnose(querier: "Querier", target: str, now: datetime) -> Measured:
    """Diagnose a GPU, job or node as of an instant. Raises ValueError when the name is unknown."""
    from gpuwarden_rules.diagnosis.observe import observe
    from gpuwarden_rules.diagnosis.sentences import diagnosis_of, diagnosis_of_job
    from gpuwarden_rules.diagnosis.service import judged_of

    found = (await querier.query(_FIND, {"name": target, "now": now})).records()
    if not found:
        raise ValueError(await _unknown_name(querier, target))
    uuids = {row["gpu_uuid"] for row in found if row["gpu_uuid"]}
    nodes = {row["node"] for row in found}
    if len(uuids) == 1:
        # It may be waiting for a rank on another node.
        together = await querier.query(_TOGETHER, {"gpu_uuid": found[0]["gpu_uuid"], "now": now})
        nodes |= {row[0] for row in together.rows}
    judged, jobs = judged_of(await observe(querier, now, nodes=sorted(nodes)))
    mine = [one for one in judged if one.seen.place.gpu_uuid in uuids]
    silent = await _silent(querier, found, {one.seen.place.gpu_uuid for one in mine}, now)
    names = {one.seen.place.work for one in mine}
    views = [view for view in jobs if view.name in names]
    return Measured(
        mine,
        [diagnosis_of(one, now) for one in mine],
        views,
        [diagnosis_of_job(view, now) for view in views],
        [one for one in silent if one.is_lost] if mine else silent,
        any(row["is_job"] for row in found),
    )


@dataclass(frozen=True, slots=True)
class Silent:
    """A GPU without samples, or a node without GPUs."""

    node: str
    gpu: "dict[str, Any] | None"
    """Its row of `gpus`; None: a node without GPUs."""
    facts: "dict[str, Any]"
    """The node's row of `nodes`; empty: there is none."""
    now: datetime

    @property
    def reports(self) -> bool:
        """Whether the node's agent reports."""
        at = self.facts.get("reported_at")
        return at is not None and self.now - at < _REPORTS_WITHIN

    @property
    def is_well(self) -> bool:
        """Whether it is healthy: a node that has no GPU and reports."""
        return self.gpu is None and self.reports

    @property
    def is_lost(self) -> bool:
        """Whether the GPU had samples within the last day and was not replaced."""
        gpu = self.gpu or {}
        return gpu.get("sampled_at") is not None and gpu.get("replaced_by") is None

    @property
    def verdict(self) -> str:
        """State in one or two words."""
        if self.gpu is None:
            return "no gpu" if self.reports else "silent"
        if self.gpu["replaced_by"]:
            return "replaced"
        return "lost" if self.reports else "silent"

    @property
    def name(self) -> str:
        """Heading."""
        if self.gpu is None:
            facts = self.facts
            known = (
                facts.get("os"),
                facts.get("kernel"),
                facts.get("cpus") and f"{facts['cpus']} CPUs",
            )
            said = ", ".join(str(fact) for fact in known if fact)
            return f"Node {self.node}{f' ({said})' if said else ''}{self._simulated(facts)}"
        gpu = self.gpu
        number = gpu["gpu_uuid"] if gpu["gpu"] is None else gpu["gpu"]
        place = f", {gpu['pci_bus_id']}" if gpu["pci_bus_id"] else ""
        model = f" ({gpu['model']})" if gpu["model"] else ""
        return f"GPU {number} of {self.node}{model}{place}{self._simulated(gpu)}"

    @staticmethod
    def _simulated(row: "dict[str, Any]") -> str:
        return ", simulated" if row.get("simulated") else ""

    @property
    def summary(self) -> str:
        """Sentences on the last samples and the agent."""
        reported_at = self.facts.get("reported_at")
        if reported_at is None:
            agent = f"Nothing came from {self.node} in the day before."
        elif self.reports:
            agent = f"The agent of {self.node} reports."
        else:
            agent = f"Nothing has come from {self.node} since {utc_text(reported_at)}."
        if self.gpu is None:
            driver = self.facts.get("driver_version")
            has = f", with driver {driver}" if driver else ", and no driver"
            return f"{agent} No GPU has ever been seen there{has}."
        sampled_at = self.gpu["sampled_at"]
        last = (
            "The GPU has no sample in the day before."
            if sampled_at is None
            else f"The last sample of the GPU is of {utc_text(sampled_at)}."
        )
        if self.gpu["replaced_by"]:
            return f"{last} Another board is in its place: {self.gpu['replaced_by']}."
        return f"{last} {agent}{' The driver does not reach this GPU.' if self.reports else ''}"

    @property
    def advice(self) -> str:
        """The remedy."""
        if self.gpu is not None and self.gpu["replaced_by"]:
            return ""
        if not self.reports:
            return (
                f"See whether {self.node} is up and reachable, then `systemctl status gpuwarden-agent` and"
                " `gpuwarden agent doctor` there. `--at` asks for an earlier instant."
            )
        if self.gpu is not None:
            return (
                f"On {self.node}: `nvidia-smi -L` and `dmesg | grep -i xid`. A GPU that fell off the bus needs a"
                " reboot; if it is lost again, reseat or replace it."
            )
        return (
            f"If {self.node} has GPUs: `gpuwarden agent doctor` there says why they are not seen."
        )

    def record(self) -> "dict[str, Any]":
        """Record for programs."""
        gpu = self.gpu or {}
        at = {
            name: row.get(name) for row, name in ((gpu, "sampled_at"), (self.facts, "reported_at"))
        }
        return {
            "node": self.node,
            "gpu": gpu.get("gpu"),
            "gpu_uuid": gpu.get("gpu_uuid"),
            "bottleneck": None,
            "verdict": self.verdict,
            "summary": self.summary,
            "advice": self.advice,
            **{name: value and value.isoformat() for name, value in at.items()},
            "seen_at": self.now.isoformat(),
        }


def utc_text(at: datetime) -> str:
    """A timestamp for people."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


async def _silent(
    querier: "Querier", found: "Sequence[dict[str, Any]]", measured: "set[str]", now: datetime
) -> "list[Silent]":
    """GPUs and nodes of the name that have no samples."""
    uuids = sorted({row["gpu_uuid"] for row in found if row["gpu_uuid"]} - measured)
    bare = sorted({row["node"] for row in found if row["gpu_uuid"] is None})
    if not uuids and not bare:
        return []
    gpus = (await querier.query(_GPUS_KNOWN, {"uuids": uuids, "now": now})).records()
    nodes = sorted({row["node"] for row in gpus} | {*bare})
    rows = (await querier.query(_NODES_KNOWN, {"nodes": nodes, "now": now})).records()
    facts = {row["node"]: row for row in rows}
    made = [Silent(gpu["node"], gpu, facts.get(gpu["node"], {}), now) for gpu in gpus]
    return made + [Silent(node, None, facts.get(node, {}), now) for node in bare]


async def _unknown_name(querier: "Querier", target: str) -> str:
    known = [row[0] for row in (await querier.query(_KNOWN, row_limit=NAMES_MAX)).rows]
    some = f"; there are {', '.join(known)}" if known else "; no GPU has ever been seen"
    return (
        f"no GPU, node or running job is called {target!r}: name a GPU (node/0 or its UUID), a node, a "
        f"job, or a job's address:port{some}"
    )


def _record(diagnosis: "Diagnosis") -> dict[str, Any]:
    record = asdict(diagnosis)
    for name in ("began_at", "ended_at"):
        del record[name]
    return record | {"seen_at": diagnosis.seen_at.isoformat()}
