"""Finds a smaller GPU, a MIG device or spot instances for jobs that use little of their GPUs.

A job is measured over the minutes in which it alone held whole GPUs. Advice needs readings of memory, SM activity and
memory bandwidth in most of them, and a price; what is missing is named, and nothing is advised. Except for the SQL, all is pure;
docs/money.md explains the rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from gpuwarden.models import MODELS, SIMULATED, GpuModel, Model
from gpuwarden.own import DAYS_A_MONTH
from gpuwarden.query import Querier, query_all
from gpuwarden.rollups import IDLE_BELOW_PERCENT

MEMORY_MARGIN = 1.2
"""A smaller GPU has this much times the memory that 99 % of the minutes did not exceed, and all that was ever used."""
LOAD_MAX = 0.8
"""Share of a smaller GPU's bandwidth and TFLOPS that may be needed."""
MEASURED_MIN = 0.8
"""Share of the minutes that must have a reading."""
HOURS_MIN = 0.5
"""GPU hours of a job from which something is advised."""
CHEAPER_MIN = 0.1
"""Share of the cost that must be saved."""
SHORT_HOURS = 1.0
"""A job that is over in this time loses little when spot takes its GPU away."""
CHECKPOINT_BYTES = 2**30
CHECKPOINTS_MIN = 2
"""So many minutes in which its processes wrote so much are treated as checkpoints."""
LINK_BYTES_PER_SECOND = 10e9
"""From this on a job on several GPUs needs NVLink."""
JOBS_MAX = 500

OLDER = ("V100", "T4", "P100", "RTX-2080")
"""Models without BF16, which nothing is moved to."""
ARM = ("GH200", "GB200")
"""Models whose CPU is Grace: programs for x86 do not run there."""
GB = 1e9


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG device: parts of its board."""

    name: str
    slices: int
    """Compute slices, of 7."""
    memory_slices: int
    """Of 8, with the bandwidth that they have."""
    memory_gb: int


def _profiles(*memory_gb: int) -> Sequence[MigProfile]:
    """1g with one and two memory slices, 2g, 3g, 4g; `memory_gb`: of 1, 2, 4 memory slices."""
    one, two, four = memory_gb
    shapes = ((1, 1, one), (1, 2, two), (2, 2, two), (3, 4, four), (4, 4, four))
    return [MigProfile(f"{g}g.{gb}gb", g, memory, gb) for g, memory, gb in shapes]


MIG: Mapping[str, Sequence[MigProfile]] = {
    "A100-PCIe-40GB": _profiles(5, 10, 20),
    "A100-SXM-40GB": _profiles(5, 10, 20),
    "A100-PCIe-80GB": _profiles(10, 20, 40),
    "A100-SXM-80GB": _profiles(10, 20, 40),
    "H100-PCIe-80GB": _profiles(10, 20, 40),
    "H100-SXM-80GB": _profiles(10, 20, 40),
    "H100-NVL": _profiles(12, 24, 47),
    "GH200-96GB": _profiles(12, 24, 48),
    "H200-SXM-141GB": _profiles(18, 35, 71),
    "B200-SXM-180GB": _profiles(23, 45, 90),
}
"""Profiles by model, of NVIDIA's MIG user guide."""
SM_OF_SLICE = 16 / 132
"""Share of the SMs that one compute slice has at least: 16 of an H100's 132, 14 of an A100's 108."""


@dataclass(frozen=True, slots=True)
class JobNeed:
    """What a job used of GPUs of one model in the window. None: no reading had it."""

    job: str | None
    username: str | None
    model: str | None
    gpus: int
    """Most at once."""
    gpu_hours: float
    """In which it alone held them."""
    shared_hours: float
    """In which others held them too: they are not judged."""
    span_hours: float
    """From its first minute to its last."""
    usd_per_hour: float | None
    """Of one of its GPUs."""
    memory_p99_bytes: float | None
    memory_max_bytes: float | None
    memory_share: float
    """Share of the minutes that have the reading."""
    sm_p95_percent: float | None
    """Of the minutes in which a kernel ran."""
    sm_share: float
    dram_p95_percent: float | None
    dram_share: float
    tensor_p95_percent: float | None
    link_p95_bytes_per_second: float | None
    busy_minutes: int
    checkpoints: int | None
    """Minutes in which it wrote much; None: writes were not read."""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """What a model costs, and whether the fleet has it."""

    model: str
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    in_fleet: int


@dataclass(frozen=True, slots=True)
class CheaperWay:
    """One way that costs less."""

    kind: str
    """smaller, mig or spot."""
    use: str
    usd: float
    """What it would have saved in the window."""
    usd_a_month: float
    """The same, if the job runs as often as in the window."""
    why: str
    assumes: str


@dataclass(frozen=True, slots=True)
class RightSize:
    """A job with what could be done, most saved first, or why nothing can be said."""

    need: JobNeed
    advice: Sequence[CheaperWay]
    missing: Sequence[str]

    @property
    def best(self) -> CheaperWay | None:
        """What saves most; savings of several do not add up."""
        return self.advice[0] if self.advice else None

    def record(self) -> Mapping[str, Any]:
        """For JSON."""
        return {
            **asdict(self.need),
            "advice": [asdict(one) for one in self.advice],
            "missing": list(self.missing),
        }


def right_sizes(
    needs: Iterable[JobNeed], prices: Mapping[str, ModelPrice], days: float
) -> Sequence[RightSize]:
    """Of each job, most saved first. `days`: length of the window."""
    found = [right_size(need, prices, days) for need in needs]
    return sorted(
        found, key=lambda one: (-(one.best.usd_a_month if one.best else 0.0), -one.need.gpu_hours)
    )


def right_size(need: JobNeed, prices: Mapping[str, ModelPrice], days: float) -> RightSize:
    """What could be done for a job."""
    model = _KNOWN.get(need.model or "")
    if model is None:
        return RightSize(
            need, (), ("the catalogue does not have its model, or not all of its figures",)
        )
    if need.usd_per_hour is None:
        return RightSize(need, (), ("its GPUs have no price",))
    if need.gpu_hours < HOURS_MIN:
        short = f"it alone held GPUs for {need.gpu_hours * 60:.0f} minutes, and {HOURS_MIN * 60:.0f} are needed"
        return RightSize(need, (), (short,))
    months = days / DAYS_A_MONTH
    missing = _missing(need, model)
    advice = [_spot(need, prices.get(model.name), months)]
    if not missing:
        advice += [_smaller(need, model, prices, months), _mig(need, model, months)]
    found = [one for one in advice if one is not None]
    return RightSize(need, sorted(found, key=lambda one: -one.usd_a_month), missing)


_KNOWN: Mapping[str, GpuModel] = {model.name: model for model in SIMULATED}
_MODELS: Mapping[str, Model] = {model.name: model for model in MODELS}


def _missing(need: JobNeed, model: GpuModel) -> Sequence[str]:
    """Readings without which no smaller GPU is advised."""
    found = []
    for name, value, share in (
        ("memory_used_bytes", need.memory_p99_bytes, need.memory_share),
        ("sm_active_percent", need.sm_p95_percent, need.sm_share),
        ("dram_active_percent", need.dram_p95_percent, need.dram_share),
    ):
        if share < MEASURED_MIN:
            found.append(f"{name} was read in {100 * share:.0f} % of its minutes")
        elif value is None and need.busy_minutes:
            found.append(f"{name} is not known of minutes in which a kernel ran")
    if need.gpus > 1 and model.nvlinks and need.link_p95_bytes_per_second is None:
        found.append("nvlink_rx_bytes_per_second was not read, and it has several GPUs")
    if not need.busy_minutes and not found:
        found.append("no kernel ran in its minutes")
    return found


def _needed_bytes(need: JobNeed) -> float:
    assert need.memory_p99_bytes is not None
    return max(need.memory_p99_bytes * MEMORY_MARGIN, need.memory_max_bytes or 0.0)


def _smaller(
    need: JobNeed, model: GpuModel, prices: Mapping[str, ModelPrice], months: float
) -> CheaperWay | None:
    """The cheapest model that has enough of all; one of the fleet before one that is not."""
    assert need.usd_per_hour is not None
    assert need.sm_p95_percent is not None
    assert need.dram_p95_percent is not None
    memory = _needed_bytes(need)
    bandwidth = need.dram_p95_percent / 100 * model.bandwidth_gb_s
    tflops = need.sm_p95_percent / 100 * model.tflops
    needs_links = need.gpus > 1 and (need.link_p95_bytes_per_second or 0.0) >= LINK_BYTES_PER_SECOND
    fitting = [
        (price.in_fleet == 0, price.usd_per_hour, other)
        for name, price in prices.items()
        if (other := _MODELS.get(name)) is not None
        and price.usd_per_hour is not None
        and price.usd_per_hour <= need.usd_per_hour * (1 - CHEAPER_MIN)
        and _is_like(model, other)
        and (other.memory_gib or 0) * 2**30 >= memory
        and (other.bandwidth_gb_s or 0) * LOAD_MAX >= bandwidth
        and (other.tflops or 0) * LOAD_MAX >= tflops
        and (not needs_links or _nvlinks(other) >= model.nvlinks)
    ]
    if not fitting:
        return None
    is_new, usd, other = min(fitting, key=lambda one: (one[0], one[1], one[2].name))
    why = (
        f"{memory / 2**30:.1f} of {other.memory_gib} GiB memory with margin, {bandwidth:,.0f} of {other.bandwidth_gb_s:,} GB/s, "
        f"{tflops:,.0f} of {other.tflops:,.0f} TFLOPS; ${usd:,.2f} an hour instead of ${need.usd_per_hour:,.2f}"
    )
    where = f"{other.name} ({'not in the fleet' if is_new else 'in the fleet'})"
    saved = need.gpu_hours * (need.usd_per_hour - usd)
    return CheaperWay("smaller", where, saved, saved / months, why, _ASSUMES_SMALLER)


_ASSUMES_SMALLER = (
    "It takes as many hours there: by the share of SMs that were active, work is scaled with the data sheets' dense "
    "FP16 TFLOPS; its formats (such as FP8) run there too; what it leaves is used by others or no longer paid."
)
_ASSUMES_MIG = "The other slices of the board are used by others; it runs on one GPU, and needs no NVLink and no peer access."


def _nvlinks(model: Model) -> int:
    """NVLinks, as far as they are known."""
    return model.nvlinks if isinstance(model, GpuModel) else 0


def _is_like(model: GpuModel, other: Model) -> bool:
    """Whether what runs on the first runs on the other: same vendor and kind of CPU, with BF16."""
    return (
        other.name != model.name
        and (model.vendor, model.kind) == (other.vendor, other.kind)
        and not other.name.startswith(OLDER)
        and (not other.name.startswith(ARM) or model.name.startswith(ARM))
    )


def _mig(need: JobNeed, model: GpuModel, months: float) -> CheaperWay | None:
    """The least MIG device of the same model that has enough."""
    assert need.usd_per_hour is not None
    assert need.sm_p95_percent is not None
    assert need.dram_p95_percent is not None
    if need.gpus > 1:
        return None
    memory = _needed_bytes(need)
    for profile in MIG.get(model.name, ()):
        sm = profile.slices * SM_OF_SLICE * LOAD_MAX * 100
        dram = profile.memory_slices / 8 * LOAD_MAX * 100
        if (
            profile.memory_gb * GB < memory
            or need.sm_p95_percent > sm
            or need.dram_p95_percent > dram
        ):
            continue
        why = (
            f"{memory / GB:.1f} of {profile.memory_gb} GB memory with margin; 95 % of the minutes had SMs active at most "
            f"{need.sm_p95_percent:.0f} % and bandwidth {need.dram_p95_percent:.0f} %, and {sm:.0f} and {dram:.0f} % are allowed"
        )
        saved = need.gpu_hours * need.usd_per_hour * (1 - profile.slices / 7)
        name = f"MIG {profile.name} of {model.name}"
        return CheaperWay("mig", name, saved, saved / months, why, _ASSUMES_MIG)
    return None


def _spot(need: JobNeed, price: ModelPrice | None, months: float) -> CheaperWay | None:
    """Spot, where a job saves its state or is short."""
    assert need.usd_per_hour is not None
    usd = price.spot_usd_per_hour if price else None
    if usd is None or usd > need.usd_per_hour * (1 - CHEAPER_MIN):
        return None
    if (need.checkpoints or 0) >= CHECKPOINTS_MIN:
        why = f"it wrote 1 GiB or more in {need.checkpoints} of its minutes, as checkpoints do"
        assumes = "Those writes are checkpoints, it resumes from them by itself, and little is lost between two."
    elif need.job is not None and need.span_hours <= SHORT_HOURS:
        why = f"it was over in {need.span_hours * 60:.0f} minutes"
        assumes = "It can be started again when its GPU is taken away."
    else:
        return None
    why += f"; ${usd:,.2f} an hour instead of ${need.usd_per_hour:,.2f}"
    saved = need.gpu_hours * (need.usd_per_hour - usd)
    return CheaperWay("spot", f"spot {need.model}", saved, saved / months, why, assumes)


PRICES_SQL = """
SELECT coalesce(o.catalogue_model, f.catalogue_model) AS model, coalesce(f.usd, o.on_demand_usd_per_hour) AS usd_per_hour,
    o.spot_usd_per_hour, coalesce(f.gpus, 0) AS in_fleet
FROM gpu_offers o FULL JOIN (
    SELECT catalogue_model, avg(usd_per_hour) AS usd, count(*) AS gpus FROM (
        SELECT catalogue_model, usd_per_hour, simulated FROM gpus
        WHERE catalogue_model IS NOT NULL AND parent_gpu_uuid IS NULL AND mig_instance IS NULL AND replaced_by IS NULL
        QUALIFY simulated = bool_and(simulated) OVER ()
    ) GROUP BY catalogue_model
) f USING (catalogue_model)
"""
"""SELECT of rows with the fields of `ModelPrice`."""


def needs_sql(mine: str = "true") -> str:
    """SELECT of rows with the fields of `JobNeed`, of the time from `$since` to `$until`. `mine`: a condition on
    process_1m; then only GPUs that had such processes are read."""
    when = "ts >= $since::TIMESTAMP AND ts < $until::TIMESTAMP"
    theirs = "true" if mine == "true" else (
        f"gpu_uuid IN (SELECT DISTINCT gpu_uuid FROM process_1m WHERE {when} AND {mine})"
    )  # fmt: skip
    working = f"FILTER (g.util_percent_avg >= {IDLE_BELOW_PERCENT:g})"
    return f"""
WITH held AS (
    SELECT ts, gpu_uuid, username, job, bool_or(simulated) AS simulated,
        sum(write_bytes_delta) AS written
    FROM process_1m WHERE {when} AND {theirs} AND process_type IS DISTINCT FROM 'graphics' AND mig_instance IS NULL
    GROUP BY ALL
),
counted AS (SELECT *, count(*) OVER (PARTITION BY ts, gpu_uuid) > 1 AS is_shared FROM held),
asked AS (
    SELECT *, count(*) OVER (PARTITION BY ts, job, username) AS at_once FROM counted WHERE {mine}
    QUALIFY simulated = bool_and(simulated) OVER ()
)
SELECT h.job, h.username, i.catalogue_model AS model, max(h.at_once) AS gpus,
    count(*) FILTER (NOT h.is_shared) / 60 AS gpu_hours, count(*) FILTER (h.is_shared) / 60 AS shared_hours,
    (date_diff('minute', min(h.ts), max(h.ts)) + 1) / 60 AS span_hours, avg(i.usd_per_hour) AS usd_per_hour,
    quantile_cont(g.memory_used_bytes_max, 0.99) AS memory_p99_bytes, max(g.memory_used_bytes_max) AS memory_max_bytes,
    count(g.memory_used_bytes_max) / greatest(count(*) FILTER (NOT h.is_shared), 1) AS memory_share,
    quantile_cont(g.sm_active_percent_avg, 0.95) {working} AS sm_p95_percent,
    count(g.sm_active_percent_avg) / greatest(count(*) FILTER (NOT h.is_shared), 1) AS sm_share,
    quantile_cont(g.dram_active_percent_avg, 0.95) {working} AS dram_p95_percent,
    count(g.dram_active_percent_avg) / greatest(count(*) FILTER (NOT h.is_shared), 1) AS dram_share,
    quantile_cont(g.tensor_active_percent_avg, 0.95) {working} AS tensor_p95_percent,
    quantile_cont(coalesce(g.nvlink_rx_bytes_per_second_avg, g.nvlink_rx_bytes_delta / 60), 0.95) AS link_p95_bytes_per_second,
    count(*) {working} AS busy_minutes,
    if(count(h.written) = 0, NULL, count(*) FILTER (h.written >= {CHECKPOINT_BYTES})) AS checkpoints,
    bool_or(h.simulated) AS simulated
FROM asked h
LEFT JOIN (SELECT * FROM gpu_1m WHERE {when} AND {theirs} AND mig_instance IS NULL) g
    ON g.ts = h.ts AND g.gpu_uuid = h.gpu_uuid AND NOT h.is_shared
LEFT JOIN gpus i ON i.gpu_uuid = h.gpu_uuid
GROUP BY h.job, h.username, i.catalogue_model
ORDER BY count(*) * avg(i.usd_per_hour) DESC NULLS LAST, count(*) DESC, h.job LIMIT {JOBS_MAX}
"""


async def read_right_sizes(
    querier: Querier,
    since: datetime,
    until: datetime,
    mine: str = "true",
    params: Mapping[str, Any] | None = None,
) -> Sequence[RightSize]:
    """Jobs of that time with what could be done; `mine`: see `needs_sql`. Raises QueryError."""
    asked = {"since": since, "until": until, **(params or {})}
    used, priced = await query_all(querier, [(needs_sql(mine), asked), (PRICES_SQL, {})])
    prices = {row["model"]: ModelPrice(**row) for row in priced.records()}
    days = (until - since).total_seconds() / 86_400
    return right_sizes((JobNeed(**row) for row in used.records()), prices, days)
