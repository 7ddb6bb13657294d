"""Reads the life of a job: its phases, what it waited for, its incidents, its verdict, and other runs of its owner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from gpuwarden.diagnosis import HEALTHY, INPUT_BOUND, Bottleneck
from gpuwarden.job_phases import JobPhase, Phase, missing_readings, phases_of, shares
from gpuwarden.job_readings import JobReadings, read_job_readings
from gpuwarden.query import Querier, Record, both, query_all
from gpuwarden.waste import CATEGORIES, NO_WASTE
from gpuwarden_dashboards.read.place import PlaceVerdict
from gpuwarden_dashboards.read.processes import PROCESSES, ProcessLine, process_lines
from gpuwarden_dashboards.read.subject import Subject, of_users, read_subject

RUNS_MAX = 12
RUNS_WITHIN = timedelta(days=30)
_LATEST = timedelta(minutes=5)
"""The newest readings of a running job may arrive that late."""
_STORAGE = {Bottleneck.STORAGE_DISK, Bottleneck.STORAGE_NETWORK}
WAITS: Mapping[str, frozenset[Bottleneck]] = {
    "data loader": frozenset(INPUT_BOUND - _STORAGE),
    "disk": frozenset({Bottleneck.STORAGE_DISK}),
    "storage on the network": frozenset({Bottleneck.STORAGE_NETWORK}),
    "other GPUs of the job": frozenset({Bottleneck.WAITS_FOR_PEER, Bottleneck.STRAGGLER}),
    "exchange between GPUs": frozenset({Bottleneck.COMM_BOUND}),
    "main thread": frozenset({Bottleneck.HOST_BOUND, Bottleneck.MAIN_THREAD}),
    "checkpoints": frozenset({Bottleneck.CHECKPOINT}),
    "evaluation": frozenset({Bottleneck.EVALUATION}),
    "heat or power supply": frozenset({Bottleneck.THROTTLED}),
    "nothing: it stood still": frozenset({Bottleneck.HUNG_BLOCKED, Bottleneck.HUNG_SPIN}),
}
"""What GPUs of a job wait for, by the classes of the diagnosis."""
_PROLOG = timedelta(hours=1)
"""Longest time between Slurm's start of a job and its first process, and between its last one and its end."""
_MUCH = 0.2
"""Share of the GPU hours from which waste of one kind is a job's verdict."""

_LITTLE = 0.02
"""Share of its cost below which a loss is not a job's verdict."""

_SLURM = "SELECT * FROM slurm_jobs WHERE job = $job"
_WAITED = """
SELECT bottleneck, sum(hours) AS hours, sum(hours * stall) AS stalled, sum(usd_per_hour * hours) AS usd FROM (
    SELECT bottleneck, stall, usd_per_hour,
        date_diff('ms', greatest(began_at, $begin), least(coalesce(ended_at, $end), $end)) / 3.6e6 AS hours
    FROM diagnoses WHERE kind = 'gpu' AND job = $job AND began_at < $end
        AND coalesce(ended_at, $end) >= $begin
) GROUP BY bottleneck
"""
_INCIDENTS = f"""
SELECT i.id, i.state, i.severity, i.summary, i.began_at, i.resolved_at, c.usd_so_far
FROM incidents i LEFT JOIN incident_costs c ON c.incident = i.id
WHERE i.state <> 'merged' AND i.began_at < $end AND coalesce(i.resolved_at, $end) >= $begin AND i.id IN (
    SELECT m.incident FROM incident_alerts m JOIN alerts a USING (fingerprint, active_at)
    WHERE (a.gpu_uuid IN (SELECT unnest($gpus)) OR a.gpu_uuid IS NULL AND a.node IN (SELECT unnest($nodes)))
        AND {of_users("a.owner")} AND a.began_at < $end AND coalesce(a.resolved_at, $end) >= $begin)
ORDER BY i.began_at DESC LIMIT 30
"""
_RUNS = f"""
SELECT job, min(ts) AS first_at, max(ts) + INTERVAL 1 HOUR AS last_at, count(DISTINCT gpu_uuid) AS gpus,
    sum(gpu_hours) AS gpu_hours, sum(usd) AS usd,
    coalesce(sum(gpu_hours) FILTER (NOT is_waste AND category <> 'unknown'), 0) AS used_hours,
    sum(usd) FILTER (is_waste) AS wasted_usd
FROM waste WHERE username IN (SELECT unnest($users)) AND job IS NOT NULL AND ts >= $since AND ts < $until
GROUP BY job ORDER BY job = $job DESC, last_at DESC, job LIMIT {8 * RUNS_MAX}
"""
_NAMES = """
SELECT job, job_name, started_at, ended_at FROM slurm_jobs
WHERE job IN (SELECT unnest($jobs))
"""


@dataclass(frozen=True, slots=True)
class JobWait:
    """What GPUs of the job waited for, and for how long."""

    words: str
    gpu_hours: float
    """In which the diagnosis said so."""
    stalled_hours: float | None
    """Of them, in which no kernel ran; None: not measured."""
    usd: float | None
    """Lost; None: no price, or no loss."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """This job or another one, to compare."""

    job: str
    name: str | None
    began_at: datetime
    seconds: float
    is_exact: bool
    """Whether begin and length are Slurm's; else they are whole hours."""
    gpus: int
    gpu_hours: float
    used_share: float
    """Share of the hours that were not wasted."""
    usd: float | None
    wasted_usd: float | None

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """What an hour of a GPU cost."""
        return self.usd / self.gpu_hours if self.usd is not None and self.gpu_hours else None


@dataclass(frozen=True, slots=True)
class JobLife:
    """A job over its time, or over a part of it."""

    subject: Subject
    begin: datetime
    end: datetime
    slurm: Record | None
    """Its row of `slurm_jobs`."""
    phases: Sequence[JobPhase]
    readings: JobReadings
    waits: Sequence[JobWait]
    incidents: Sequence[Record]
    runs: Sequence[JobRun]
    """This job first, then others, newest first."""
    processes: Sequence[Record] = ()
    """Its processes now, on at most 64 GPUs."""

    @property
    def process_lines(self) -> Sequence[ProcessLine]:
        """Its processes below what started them."""
        return process_lines(self.processes)

    @property
    def missing(self) -> Sequence[str]:
        """Readings that phases need, and no reading had."""
        return missing_readings(self.readings.readings)

    @property
    def shares(self) -> Mapping[Phase, float]:
        """Seconds by phase."""
        return shares(self.phases)

    @property
    def queue_s(self) -> float | None:
        """How long it waited for its GPUs; None: unknown."""
        if not self.slurm or not self.slurm["submitted_at"] or not self.slurm["started_at"]:
            return None
        waited: timedelta = self.slurm["started_at"] - self.slurm["submitted_at"]
        return max(0.0, waited.total_seconds())

    @property
    def name(self) -> str | None:
        """The name that its owner gave it."""
        return self.slurm["job_name"] if self.slurm else None

    @property
    def others(self) -> Sequence[JobRun]:
        """Runs to compare with."""
        return [run for run in self.runs if run.job != self.subject.name]

    @property
    def are_of_name(self) -> bool:
        """Whether the others have the name of this one."""
        return bool(self.others) and self.name is not None and self.others[0].name == self.name

    @property
    def typical(self) -> JobRun | None:
        """Medians of the other runs; None: there are fewer than two."""
        others = self.others
        if len(others) < 2:
            return None
        usd = [run.usd for run in others if run.usd is not None]
        wasted = [run.wasted_usd or 0.0 for run in others if run.usd is not None]
        return JobRun(
            f"median of {len(others)}", None, others[0].began_at, median(run.seconds for run in others), False,
            round(median(run.gpus for run in others)), median(run.gpu_hours for run in others),
            median(run.used_share for run in others), median(usd) if usd else None, median(wasted) if wasted else None,
        )  # fmt: skip

    @property
    def verdict(self) -> PlaceVerdict:
        """The worst that is known: an alert, that it hangs, what cost most, waste; else what the diagnosis found."""
        subject = self.subject
        if subject.alerts:
            worst = subject.alerts[0]
            more = f" {len(subject.alerts) - 1} more below." if len(subject.alerts) > 1 else ""
            return PlaceVerdict(
                worst["severity"], worst["severity"].capitalize(), worst["summary"] + more, worst["remedy"] or "",
                worst["began_at"], worst["usd_per_hour"], f"/alerts/{worst['fingerprint']}",
            )  # fmt: skip
        last = self.phases[-1] if self.phases else None
        if subject.is_running and last is not None and last.phase is Phase.HUNG:
            said = f"It has stood still since it last worked: {last.evidence}."
            action = "Look at its log and at `py-spy dump` of its processes; end it if it does not recover."
            return PlaceVerdict("critical", "Hung", said, action, last.begin)
        for change in subject.changes[:1]:
            if not self._is_material(change):
                break
            word = "Could be faster" if subject.is_running else "Lost time"
            said = f"{change['summary']} So it was for {change['hours']:,.1f} GPU hours."
            return PlaceVerdict("info", word, said, change["advice"])
        return self._of_waste() or self._of_diagnosis()

    def _is_material(self, change: Record) -> bool:
        """Whether what it lost is more than a trifle of the job; unknown shares are."""
        usage = self.subject.usage
        if usage is None or not usage.gpu_hours:
            return True
        if change["usd"] is not None and usage.usd:
            return bool(change["usd"] >= _LITTLE * usage.usd)
        return bool(change["hours"] >= _LITTLE * usage.gpu_hours)

    def _of_waste(self) -> PlaceVerdict | None:
        usage = self.subject.usage
        if usage is None or not usage.gpu_hours:
            return None
        wasted = {
            category: hours
            for category, (hours, _) in usage.categories.items()
            if category not in NO_WASTE
        }
        most = max(wasted, key=lambda category: wasted[category], default=None)
        if most is None or wasted[most] < _MUCH * usage.gpu_hours:
            return None
        share = 100 * wasted[most] / usage.gpu_hours
        return PlaceVerdict(
            "warning",
            "Wasted",
            f"{wasted[most]:,.1f} of {usage.gpu_hours:,.1f} GPU hours ({share:.0f} %) were {most.replace('_', ' ')}: "
            f"{CATEGORIES[most][0].lower()}{CATEGORIES[most][1:]}",
        )

    def _of_diagnosis(self) -> PlaceVerdict:
        found = [one for one in self.subject.verdicts if one["bottleneck"] in HEALTHY]
        if found:
            return PlaceVerdict("good", "Well", found[0]["summary"])
        return PlaceVerdict(
            "", "Not judged", "The diagnosis found nothing that holds it up, and did not call it healthy."
        )  # fmt: skip


async def read_job(
    querier: Querier,
    name: str,
    begin: datetime,
    end: datetime,
    own: tuple[datetime, datetime] | None,
    now: datetime,
) -> JobLife | None:
    """A job from `begin` to `end`; `own`: its own time, where known. None: no data in that time. Raises QueryError."""
    early: list[tuple[str, Mapping[str, object]]] = [
        (_WAITED, {"job": name, "begin": begin, "end": end})
    ]
    if "/" not in name:
        early.append((_SLURM, {"job": name}))
    subject, (waited, *told) = await both(
        read_subject(querier, "job", name, begin, end), query_all(querier, early)
    )
    if subject is None:
        return None
    slurm = next(iter(told[0].records()), None) if told else None
    since, until = _shown(begin, end, own or subject.held, slurm, is_running=subject.is_running)
    gpus = [gpu["gpu_uuid"] for gpu in subject.gpus]
    late: list[tuple[str, Mapping[str, object]]] = [
        (
            _INCIDENTS,
            {
                "begin": since,
                "end": until,
                "gpus": gpus,
                "nodes": list(subject.nodes),
                "users": list(subject.users),
            },
        )
    ]
    if subject.users:
        asked = {
            "job": name,
            "users": list(subject.users),
            "since": end - RUNS_WITHIN,
            "until": end,
        }
        late.append((_RUNS, asked))
    if subject.is_running:
        late.append((PROCESSES.format(where="job = $job"), {"job": name}))
    readings, (incidents, *ran) = await both(
        read_job_readings(querier, name, gpus, since, until), query_all(querier, late)
    )
    return JobLife(
        subject,
        since,
        until,
        slurm,
        _phases(readings, since, until, own, slurm, now, is_running=subject.is_running),
        readings,
        _waits(waited.records()),
        incidents.records(),
        await _runs(querier, ran[0].records() if subject.users else (), name, slurm),
        ran[-1].records() if subject.is_running else (),
    )


def _shown(
    begin: datetime,
    end: datetime,
    own: tuple[datetime, datetime],
    slurm: Record | None,
    *,
    is_running: bool,
) -> tuple[datetime, datetime]:
    """Begin and end of the job's life within the range: Slurm gave it GPUs before processes used them."""
    since, until = max(begin, own[0]), min(end, own[1])
    if slurm is None:
        return since, until
    started, ended = slurm["started_at"], slurm["ended_at"]
    if begin <= own[0] and started and timedelta() < own[0] - started < _PROLOG:
        since = started
    if not is_running and end >= own[1] and ended and timedelta() < ended - own[1] < _PROLOG:
        until = ended
    return since, until


def _phases(
    read: JobReadings,
    begin: datetime,
    end: datetime,
    own: tuple[datetime, datetime] | None,
    slurm: Record | None,
    now: datetime,
    *,
    is_running: bool,
) -> Sequence[JobPhase]:
    newest = max(
        (one.begin + timedelta(seconds=one.seconds) for one in read.readings), default=None
    )
    if is_running and newest is not None and newest < end and now - newest < _LATEST:
        end = newest
    return phases_of(
        read.readings,
        begin,
        end,
        submitted=slurm["submitted_at"] if slurm else None,
        is_from_start=own is None or begin <= own[0],
        is_over=not is_running and (own is None or end >= own[1]),
    )


def _waits(rows: Sequence[Record]) -> Sequence[JobWait]:
    made = []
    for words, classes in WAITS.items():
        of = [row for row in rows if row["bottleneck"] in classes]
        hours = sum(row["hours"] for row in of)
        if hours <= 0:
            continue
        stalled = [row["stalled"] for row in of if row["stalled"] is not None]
        usd = [row["usd"] for row in of if row["usd"] is not None]
        made.append(
            JobWait(words, hours, sum(stalled) if stalled else None, sum(usd) if usd else None)
        )
    return sorted(made, key=lambda one: (-(one.usd or 0.0), -one.gpu_hours))


async def _runs(
    querier: Querier, rows: Sequence[Record], name: str, slurm: Record | None
) -> Sequence[JobRun]:
    """Runs with the name of the job, if there are any others; else those of its owner."""
    jobs = [row["job"] for row in rows if "/" not in row["job"]]
    known = {}
    if jobs and slurm is not None:
        found = await querier.query(_NAMES, {"jobs": jobs})
        known = {row["job"]: row for row in found.records()}
    runs = [_run(row, known.get(row["job"])) for row in rows]
    own = slurm["job_name"] if slurm else None
    named = [run for run in runs if run.job == name or run.name == own]
    chosen = named if own is not None and len(named) > 1 else runs
    return chosen[: RUNS_MAX + 1]


def _run(row: Record, slurm: Record | None) -> JobRun:
    began, ended, is_exact = row["first_at"], row["last_at"], False
    if slurm is not None and slurm["started_at"] and slurm["ended_at"]:
        began, ended, is_exact = slurm["started_at"], slurm["ended_at"], True
    return JobRun(
        row["job"], slurm["job_name"] if slurm else None, began, (ended - began).total_seconds(), is_exact,
        row["gpus"], row["gpu_hours"], row["used_hours"] / row["gpu_hours"] if row["gpu_hours"] else 0.0, row["usd"],
        row["wasted_usd"] if row["wasted_usd"] is not None or row["usd"] is None else 0.0,
    )  # fmt: skip
