"""`gpuwarden why GPU|JOB|NODE`: why it is slow, on one screen: verdict, evidence, advice, timeline.

What is shown is measured when it is asked, so that any instant that samples are kept of can be asked for.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from gpuwarden.alert import WORST_FIRST, usd_between
from gpuwarden.clock import SystemClock
from gpuwarden_cli.output import ABSENT, render, terminal_width

if TYPE_CHECKING:
    from gpuwarden.diagnosis import Diagnosis
    from gpuwarden.query import Querier
    from gpuwarden_rules.diagnosis.jobs import JobView, Judged

WIDTH = 100
BINS = 60
TIMELINE = timedelta(minutes=30)
EVIDENCE_MAX = 8
ALERTS_MAX = 5
_REPORTS_WITHIN = timedelta(minutes=2)
NAMES_MAX = 8
_BARS = "▁▂▃▄▅▆▇█"

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
        AND $name IN (slurm_job_id, 'Slurm job ' || slurm_job_id, rendezvous, 'job at ' || rendezvous,
                      pod, 'pod ' || pod)
)
ORDER BY node, gpu_uuid
"""
_TOGETHER = """
SELECT DISTINCT other.node
FROM process_samples AS other
JOIN process_samples AS mine
    ON other.slurm_job_id = mine.slurm_job_id OR other.rendezvous = mine.rendezvous
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
_EVENTS = """
SELECT ts, severity, kind, message FROM events
WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY AND ts <= $now::TIMESTAMP AND severity <> 'info'
    -- Nor is an Xid left out whose GPU nobody knows.
    AND node = $node AND (gpu_uuid = $gpu_uuid OR gpu_uuid IS NULL OR starts_with(gpu_uuid, 'pci-'))
ORDER BY ts DESC LIMIT 5
"""
_SINCE = """
SELECT min(began_at) AS began_at FROM diagnoses
WHERE subject = $subject AND bottleneck = $bottleneck AND ended_at IS NULL
"""
_ALERTS = f"""
SELECT severity, rule, began_at, usd_per_hour, muted,
    CASE WHEN accounted_until <= $now::TIMESTAMP THEN accounted_usd END AS accounted_usd FROM alerts
WHERE (gpu_uuid = $gpu_uuid OR (node = $node AND (gpu_uuid IS NULL OR starts_with(gpu_uuid, 'pci-'))))
    AND fired_at <= $now::TIMESTAMP AND coalesce(resolved_at > $now::TIMESTAMP, true)
ORDER BY {WORST_FIRST}, began_at, rule
"""
_TIMELINE = """
WITH bins AS (
    SELECT floor(date_diff('millisecond', $begin::TIMESTAMP, ts) * $bins / $span_ms) AS bin, util_percent, NULL AS workers
    FROM gpu_samples
    WHERE gpu_uuid = $gpu_uuid AND ts > $begin::TIMESTAMP AND ts <= $now::TIMESTAMP
    UNION ALL
    SELECT floor(date_diff('millisecond', $begin::TIMESTAMP, ts) * $bins / $span_ms), NULL,
           coalesce(loader_cpu_percent, main_cpu_percent)
    FROM process_samples
    WHERE gpu_uuid = $gpu_uuid AND ts > $begin::TIMESTAMP AND ts <= $now::TIMESTAMP
)
SELECT bin, avg(util_percent) AS util, max(workers) AS cpu FROM bins GROUP BY bin ORDER BY bin
"""


def why(args: argparse.Namespace) -> int:
    """Print why; 1 where something holds it up or nobody can say, 0 where it is healthy."""
    from gpuwarden_cli.remote_querier import RemoteQuerier

    now = _instant(args.at)
    return asyncio.run(tell(RemoteQuerier(args.url), args.target, now, args.format))


def _instant(text: str | None) -> datetime:
    if text is None:
        return SystemClock().now()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--at {text} is not a time; write 2026-01-31T12:00:00Z") from None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


async def tell(querier: "Querier", target: str, now: datetime, form: str) -> int:
    """Print why, as of an instant; the exit code. Raises ValueError where there is nothing to tell."""
    found = await find(querier, target, now)
    if form == "json":
        print(json.dumps(found.records(), ensure_ascii=False, indent=2))
    elif not found.judged:
        await _show_silent(querier, found.silent, now)
    elif len(found.judged) == 1:
        await _show_gpu(querier, found.judged[0], found.verdicts[0], now)
    else:
        if found.is_job and found.jobs:
            await _show_job(querier, found.jobs[0], found.job_verdicts[0], now)
        _show_table(found.verdicts)
        for one in found.silent:
            print()
            await _show_one_silent(querier, one, now)
    return 0 if found.is_well else 1


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of all that a name means, and what it says."""

    judged: "Sequence[Judged]"
    """Its GPUs that have samples."""
    verdicts: "Sequence[Diagnosis]"
    """Of each of these."""
    jobs: "Sequence[JobView]"
    """Jobs that have those GPUs."""
    job_verdicts: "Sequence[Diagnosis]"
    """Of each of these."""
    silent: "Sequence[Silent]"
    """What has no samples; of several GPUs those that had some within the last day."""
    is_job: bool
    """Whether it was a job's name."""

    @property
    def is_well(self) -> bool:
        """Whether nothing needs to be done."""
        from gpuwarden.diagnosis import HEALTHY

        if not self.judged:
            return all(one.is_well for one in self.silent)
        return all(one.bottleneck in HEALTHY for one in self.verdicts) and not self.silent

    def records(self) -> list[dict[str, Any]]:
        """For programs: jobs, GPUs, then what is silent."""
        told = (*self.job_verdicts, *self.verdicts) if self.judged else ()
        return [*(_record(one) for one in told), *(one.record() for one in self.silent)]


async def find(querier: "Querier", target: str, now: datetime) -> Measured:
    """What holds up a GPU, job or node, as of an instant. Raises ValueError where none has that name."""
    from gpuwarden_rules.diagnosis.observe import observe
    from gpuwarden_rules.diagnosis.sentences import diagnosis_of, diagnosis_of_job
    from gpuwarden_rules.diagnosis.service import judged_of

    found = (await querier.query(_FIND, {"name": target, "now": now})).records()
    if not found:
        raise ValueError(await _unknown_name(querier, target))
    uuids = {row["gpu_uuid"] for row in found if row["gpu_uuid"]}
    nodes = {row["node"] for row in found}
    if len(uuids) == 1:
        # It may wait for a rank on another node.
        together = await querier.query(_TOGETHER, {"gpu_uuid": found[0]["gpu_uuid"], "now": now})
        nodes |= {row[0] for row in together.rows}
    judged, jobs = judged_of(await observe(querier, now, nodes=sorted(nodes)))
    mine = [one for one in judged if one.seen.place.gpu_uuid in uuids]
    silent = await _silent(querier, found, {one.seen.place.gpu_uuid for one in mine}, now)
    names = {one.seen.place.job for one in mine}
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
    """A GPU without samples, or a node without GPUs, and what is known of it."""

    node: str
    gpu: "dict[str, Any] | None"
    """Its row of `gpus`; None: the node has none."""
    facts: "dict[str, Any]"
    """The node's row of `nodes`, empty where there is none."""
    now: datetime

    @property
    def reports(self) -> bool:
        """Whether the node's agent sends."""
        at = self.facts.get("reported_at")
        return at is not None and self.now - at < _REPORTS_WITHIN

    @property
    def is_well(self) -> bool:
        """Whether nothing needs to be done: a machine that has no GPU, and reports."""
        return self.gpu is None and self.reports

    @property
    def is_lost(self) -> bool:
        """Whether it was there within the last day and is not now, while no other is in its place."""
        gpu = self.gpu or {}
        return gpu.get("sampled_at") is not None and gpu.get("replaced_by") is None

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.gpu is None:
            return "no gpu" if self.reports else "silent"
        if self.gpu["replaced_by"]:
            return "replaced"
        return "lost" if self.reports else "silent"

    @property
    def name(self) -> str:
        """What it is, as a heading."""
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
        """What is known, in sentences."""
        reported_at = self.facts.get("reported_at")
        if reported_at is None:
            agent = f"Nothing came from {self.node} in the day before."
        elif self.reports:
            agent = f"The agent of {self.node} reports."
        else:
            agent = f"Nothing has come from {self.node} since {_utc(reported_at)}."
        if self.gpu is None:
            driver = self.facts.get("driver_version")
            has = f", with driver {driver}" if driver else ", and no driver"
            return f"{agent} No GPU has ever been seen there{has}."
        sampled_at = self.gpu["sampled_at"]
        last = (
            "The GPU has no sample in the day before."
            if sampled_at is None
            else f"The last sample of the GPU is of {_utc(sampled_at)}."
        )
        if self.gpu["replaced_by"]:
            return f"{last} Another board is in its place: {self.gpu['replaced_by']}."
        return f"{last} {agent}{' The driver does not reach this GPU.' if self.reports else ''}"

    @property
    def advice(self) -> str:
        """What to do."""
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
        """For programs."""
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


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


async def _silent(
    querier: "Querier", found: "Sequence[dict[str, Any]]", measured: "set[str]", now: datetime
) -> "list[Silent]":
    """What was asked for and has no samples; parts of GPUs among the rest."""
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


async def _show_silent(querier: "Querier", silent: "Sequence[Silent]", now: datetime) -> None:
    for number, one in enumerate(silent):
        if number:
            print()
        await _show_one_silent(querier, one, now)


async def _show_one_silent(querier: "Querier", one: Silent, now: datetime) -> None:
    gpu_uuid = one.gpu["gpu_uuid"] if one.gpu else ""
    print(f"{one.name}\n\n{one.verdict.upper()}")
    _say(one.summary, "  ")
    params = {"node": one.node, "gpu_uuid": gpu_uuid, "now": now}
    events = (await querier.query(_EVENTS, params)).records()
    if events:
        print("\nEvents of the day before")
    for row in events:
        _say(f"{row['severity']:<8}  {row['ts']:%H:%M:%S} {row['kind']}: {row['message']}", "  ")
    await _show_alerts(querier, one.node, gpu_uuid, now)
    if one.advice:
        print("\nWhat to do")
        _say(one.advice, "  ")


async def _unknown_name(querier: "Querier", target: str) -> str:
    known = [row[0] for row in (await querier.query(_KNOWN, row_limit=NAMES_MAX)).rows]
    some = f"; there are {', '.join(known)}" if known else "; no GPU has ever been seen"
    return (
        f"no GPU, node or running job is called {target!r}: name a GPU (node/0 or its UUID), a node, a "
        f"Slurm job id, a job's address:port, or a pod{some}"
    )


async def _show_gpu(
    querier: "Querier", one: "Judged", diagnosis: "Diagnosis", now: datetime
) -> None:
    place = one.seen.place
    model = f" ({place.model})" if place.model else ""
    simulated = ", simulated" if place.simulated else ""
    print(f"GPU {ABSENT if place.gpu is None else place.gpu} of {place.node}{model}{simulated}")
    if place.job:
        owner = f", {place.owner}" if place.owner and place.owner not in place.job else ""
        process = f": {place.process_name}, pid {place.pid}" if place.process_name else ""
        print(f"{place.job}{owner}{process}")
    print()
    await _show_verdict(querier, diagnosis, now)
    await _show_alerts(querier, place.node, place.gpu_uuid, now)
    await _show_timeline(querier, place.gpu_uuid, bool(one.seen.features.workers), now)


async def _show_job(
    querier: "Querier", view: "JobView", diagnosis: "Diagnosis", now: datetime
) -> None:
    nodes = len({rank.seen.place.node for rank in view.ranks})
    where = f" of {nodes} nodes" if nodes > 1 else f" of {view.ranks[0].seen.place.node}"
    print(f"{view.name}: {len(view.ranks)} GPUs{where}")
    if view.efficiency is not None:
        print(f"Efficiency {100 * view.efficiency:.0f} %")
    print()
    await _show_verdict(querier, diagnosis, now)
    shown = view.causes[0] if view.causes else view.ranks[0]
    workers = bool(shown.seen.features.workers)
    await _show_timeline(querier, shown.seen.place.gpu_uuid, workers, now)
    print()


async def _show_verdict(querier: "Querier", diagnosis: "Diagnosis", now: datetime) -> None:
    confidence = f" (confidence {100 * diagnosis.confidence:.0f} %)"
    is_known = diagnosis.confidence > 0
    print(f"{diagnosis.bottleneck.value.upper()}{confidence if is_known else ''}")
    _say(diagnosis.summary, "  ")
    since = await querier.query(
        _SINCE, {"subject": diagnosis.subject, "bottleneck": diagnosis.bottleneck.value}
    )
    began_at = since.rows[0][0] if since.rows else None
    if began_at is not None and began_at < now - timedelta(minutes=1):
        print(f"  Since {began_at:%Y-%m-%d %H:%M} UTC.")
    if diagnosis.usd_per_hour:
        print(f"  It costs ${diagnosis.usd_per_hour:.2f} an hour.")
    if diagnosis.evidence:
        print("\nEvidence")
        for line in diagnosis.evidence[:EVIDENCE_MAX]:
            print(f"  {line.text}")
    if diagnosis.misses:
        print("\nNearest misses")
        for miss in diagnosis.misses:
            _say(miss, "  ")
    if diagnosis.advice:
        print("\nWhat to do")
        _say(diagnosis.advice, "  ")


async def _show_alerts(querier: "Querier", node: str, gpu_uuid: str, now: datetime) -> None:
    """What fires of the GPU and of its node: it may have begun before the window of the verdict."""
    from gpuwarden_rules.definition.templates import usd

    params = {"gpu_uuid": gpu_uuid, "node": node, "now": now}
    rows = (await querier.query(_ALERTS, params)).records()
    if rows:
        print("\nAlerts")
    for row in rows[:ALERTS_MAX]:
        cost = row["accounted_usd"]
        if cost is None:
            cost = usd_between(row["usd_per_hour"], row["began_at"], now)
        spent = "" if cost is None else f", {usd(cost)} so far"
        muted = f" (muted: {row['muted']})" if row["muted"] else ""
        print(
            f"  {row['severity']:<8}  {row['rule']} since {row['began_at']:%Y-%m-%d %H:%M} UTC{spent}{muted}"
        )
    if len(rows) > ALERTS_MAX:
        print(f"  and {len(rows) - ALERTS_MAX} more: `gpuwarden alerts list`")


async def _show_timeline(
    querier: "Querier", gpu_uuid: str, has_workers: bool, now: datetime
) -> None:
    params = {
        "gpu_uuid": gpu_uuid,
        "begin": now - TIMELINE,
        "now": now,
        "bins": BINS,
        "span_ms": int(TIMELINE.total_seconds() * 1000),
    }
    rows = (await querier.query(_TIMELINE, params)).rows
    util: list[float | None] = [None] * BINS
    cpu: list[float | None] = [None] * BINS
    for at, busy, core in rows:
        place = min(max(int(at), 0), BINS - 1)
        util[place] = busy if busy is not None else util[place]
        cpu[place] = core if core is not None else cpu[place]
    minutes = int(TIMELINE.total_seconds() // 60)
    print(f"\nLast {minutes} minutes, 0 to 100 %")
    print(f"  GPU         {sparkline(util)}")
    if any(value is not None for value in cpu):
        print(f"  {'workers' if has_workers else 'main thread':<11} {sparkline(cpu)}")


def sparkline(values: Sequence[float | None]) -> str:
    """A bar for each value of 0 to 100; a space where there is none."""
    top = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round(min(max(value, 0), 100) / 100 * top)]
        for value in values
    ).rstrip()


def _show_table(told: Sequence["Diagnosis"]) -> None:
    columns = ["node", "gpu", "bottleneck", "busy %", "$ an hour", "summary"]
    rows = [
        [
            d.node,
            d.gpu,
            d.bottleneck.value,
            None if d.stall is None else round(100 * (1 - d.stall)),
            None if d.usd_per_hour is None else round(d.usd_per_hour, 2),
            d.summary,
        ]
        for d in told
    ]
    print(render(columns, rows, "table", width=terminal_width()), end="")


def _record(diagnosis: "Diagnosis") -> dict[str, Any]:
    record = asdict(diagnosis)
    for name in ("began_at", "ended_at"):
        del record[name]
    return record | {"seen_at": diagnosis.seen_at.isoformat()}


def _say(text: str, indent: str) -> None:
    width = (terminal_width() or WIDTH) - len(indent)
    for line in wrap(text, max(width, 40)):
        print(f"{indent}{line}")


def add_flags(made: argparse.ArgumentParser) -> None:
    """What the command takes."""
    made.add_argument(
        "target",
        metavar="GPU|JOB|NODE",
        help="node/0, a GPU's UUID, a node, a Slurm job id, a job's address:port, or a pod",
    )
    made.add_argument("--at", metavar="INSTANT", help="ISO 8601; UTC without a zone (default now)")
    made.add_argument("--format", choices=("table", "json"), default="table", help="default table")
