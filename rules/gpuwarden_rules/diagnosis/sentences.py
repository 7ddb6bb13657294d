"""Makes diagnoses of verdicts: sentence, advice and cost of a GPU or a job."""

from datetime import datetime
from math import floor

from gpuwarden.diagnosis import HEALTHY, MEANINGS, Bottleneck, Diagnosis
from gpuwarden_rules.diagnosis.advice import advise, usd_per_hour
from gpuwarden_rules.diagnosis.features import Features
from gpuwarden_rules.diagnosis.jobs import JobView, Judged

_DETAILS = {
    Bottleneck.LOADER_WORKERS: "{workers:.0f} loader workers at {loader_cpu:.0f} % of a core each, {idle_cores:.0f} cores idle",
    Bottleneck.STORAGE_DISK: "{workers:.0f} loader workers, {loader_blocked:.0f} % of them blocked",
    Bottleneck.STORAGE_NETWORK: "{workers:.0f} loader workers, {loader_blocked:.0f} % of them blocked",
    Bottleneck.LOADER_MAIN: "its main thread at {main_cpu:.0f} % of a core",
    Bottleneck.HOST_BOUND: "its main thread at {main_cpu:.0f} % of a core",
    Bottleneck.CHECKPOINT: "a pause of {gap_longest:.0f} s",
    Bottleneck.EVALUATION: "a pause of {gap_longest:.0f} s",
}


def diagnosis_of(judged: Judged, now: datetime) -> Diagnosis:
    """The diagnosis of one GPU."""
    place, features, verdict = judged.seen.place, judged.seen.features, judged.verdict
    advice = advise(place, verdict.bottleneck, features)
    return Diagnosis(
        subject=place.gpu_uuid,
        kind="gpu",
        bottleneck=verdict.bottleneck,
        confidence=verdict.confidence,
        summary=_sentence(judged),
        advice=advice.text if advice else None,
        evidence=verdict.evidence,
        misses=verdict.misses,
        stall=features.stall,
        usd_per_hour=usd_per_hour(place, verdict.bottleneck, features),
        cause=judged.cause,
        node=place.node,
        gpu=place.gpu,
        job=place.job,
        username=place.username,
        began_at=now,
        seen_at=now,
        simulated=place.simulated,
    )


def diagnosis_of_job(view: JobView, now: datetime) -> Diagnosis:
    """The diagnosis of a job on several GPUs."""
    first = view.ranks[0].seen.place
    nodes = {rank.seen.place.node for rank in view.ranks}
    jobs = {rank.seen.place.job for rank in view.ranks}
    worst = max(view.causes, key=lambda r: r.seen.features.stall or 0) if view.causes else None
    source = worst or next(r for r in view.ranks if r.verdict.bottleneck is view.bottleneck)
    advice = advise(source.seen.place, view.bottleneck, source.seen.features)
    is_one = worst is not None and view.victims > 0
    return Diagnosis(
        subject=view.name,
        kind="job",
        bottleneck=view.bottleneck,
        confidence=view.confidence,
        summary=_sentence_of_job(view, worst if is_one else None, len(nodes)),
        advice=advice.text if advice else None,
        evidence=source.verdict.evidence,
        misses=source.verdict.misses,
        stall=None if view.efficiency is None else 1 - view.efficiency,
        usd_per_hour=None if view.bottleneck in HEALTHY else view.usd_per_hour,
        cause=worst.seen.place.gpu_uuid if worst and is_one else None,
        node=first.node if len(nodes) == 1 else None,
        job=jobs.pop() if len(jobs) == 1 else None,
        username=first.username,
        gpus=len(view.ranks),
        began_at=now,
        seen_at=now,
        simulated=first.simulated,
    )


def _sentence(judged: Judged) -> str:
    verdict, features = judged.verdict, judged.seen.features
    if verdict.bottleneck in (Bottleneck.UNKNOWN, Bottleneck.WAITS_FOR_PEER):
        reason = verdict.reason or "no measurement shows the reason"
        is_unknown = verdict.bottleneck is Bottleneck.UNKNOWN
        return f"Unknown: {reason}." if is_unknown else f"{reason[:1].upper()}{reason[1:]}."
    what = MEANINGS[verdict.bottleneck].rstrip(".")
    if verdict.is_likely_only:
        what = f"Likely: {what[:1].lower()}{what[1:]}"
    rest = [text for text in (_waits(verdict.bottleneck, features), _detail(judged)) if text]
    return f"{what} ({'; '.join(rest)})." if rest else f"{what}."


def _waits(bottleneck: Bottleneck, features: Features) -> str | None:
    if features.stall is None or bottleneck in (Bottleneck.IDLE_FREE, Bottleneck.IDLE_HELD):
        return None
    return f"the GPU is busy {100 * (1 - features.stall):.0f} % of the time"


def _detail(judged: Judged) -> str | None:
    template = _DETAILS.get(judged.verdict.bottleneck)
    if template is None:
        return None
    values = {
        name: value
        for name in Features.__dataclass_fields__
        if (value := getattr(judged.seen.features, name)) is not None
    }
    if "idle_cores" in values:
        values["idle_cores"] = floor(values["idle_cores"])
    try:
        return template.format(**values)
    except KeyError:  # a feature is absent: the sentence has no detail
        return None


def _sentence_of_job(view: JobView, worst: Judged | None, nodes: int) -> str:
    size = f"{len(view.ranks)} GPUs" + (f" of {nodes} nodes" if nodes > 1 else "")
    what = MEANINGS[view.bottleneck].rstrip(".")
    if worst is not None:
        place = worst.seen.place
        others = f"{view.victims} other GPU" + ("s" if view.victims != 1 else "")
        return f"{what}: GPU {place.gpu} of {place.node} holds up {others} of the job ({size})."
    busy = "" if view.efficiency is None else f", busy {100 * view.efficiency:.0f} % on average"
    return f"{what} ({size}{busy})."
