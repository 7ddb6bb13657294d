"""A verdict rests on what was measured, says so, and a GPU that keeps up is never called starved."""

import random
import re
from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.diagnosis import INPUT_BOUND, MEANINGS, Bottleneck
from gpuwarden_rules.diagnosis.classify import classify
from gpuwarden_rules.diagnosis.features import NAMES, UNITS, Features, GpuInfo
from gpuwarden_rules.diagnosis.procedure import ALL
from gpuwarden_rules.diagnosis.thresholds import Thresholds

PLACE = GpuInfo(gpu_uuid="GPU-1", node="n1", gpu=0, has_process_data=True)
CANDIDATES = {candidate.bottleneck: candidate for candidate in ALL}
RANGES = {
    "share": (0.0, 1.0),
    "percent": (0.0, 100.0),
    "ratio": (-1.0, 2.0),
    "bytes_per_second": (0.0, 1e9),
    "bytes": (0.0, 8e10),
    "seconds": (0.0, 3600.0),
    "count": (0.0, 16.0),
    "cores": (0.0, 64.0),
    "boolean": (0.0, 1.0),
}


def any_features(seed: int) -> Features:
    """Any measurements, absent ones and the ends of their ranges among them."""
    rng = random.Random(seed)

    def value(name: str) -> float | None:
        low, high = RANGES[UNITS[name]]
        return rng.choice([None, low, high, rng.uniform(low, high), rng.uniform(low, high)])

    values = {name: value(name) for name in NAMES}
    values |= {"coverage": 1.0, "age": rng.choice([None, 7200.0]), "owners": 1.0}
    values["stall"] = None if values["duty"] is None else 1 - values["duty"]
    return Features(**values)


SEEDS = st.integers(0, 2**32)


@given(SEEDS)
@settings(max_examples=150)
def test_a_verdict_needs_only_what_was_measured(seed: int) -> None:
    features = any_features(seed)
    verdict = classify(PLACE, features)
    if verdict.bottleneck is Bottleneck.UNKNOWN:
        assert verdict.reason and not verdict.evidence
        return
    assert CANDIDATES[verdict.bottleneck].needs.holds(features) is True
    assert verdict.evidence and 0 < verdict.confidence <= 1
    for line in verdict.evidence:
        measured_value = getattr(features, line.feature)
        assert measured_value is not None
        assert (measured_value >= line.threshold) is (line.comparison == ">=")


@given(SEEDS, st.floats(0.81, 1.0))
@settings(max_examples=150)
def test_a_loop_that_keeps_up_is_never_input_bound(seed: int, duty: float) -> None:
    healthy = replace(any_features(seed), duty=duty, stall=1 - duty)
    assert classify(PLACE, healthy).bottleneck not in INPUT_BOUND


@given(SEEDS)
@settings(max_examples=100)
def test_nothing_measured_of_processes_says_nothing_about_them(seed: int) -> None:
    of_process = {
        name
        for name in NAMES
        if name.startswith("loader_")
        or name
        in ("workers", "tree_cpu", "main_cpu", "pin_cpu", "server", "processes", "unreported")
    }
    blind = replace(any_features(seed), **dict.fromkeys(of_process), gap_turnovers=None)
    # The link alone can tell that copying is the limit.
    found = classify(PLACE, blind).bottleneck
    assert found not in INPUT_BOUND - {Bottleneck.PIN_COPY}
    assert found not in (Bottleneck.HOST_BOUND, Bottleneck.SMALL_BATCH, Bottleneck.IDLE_HELD)


def test_every_class_is_decided_and_has_a_meaning() -> None:
    of_jobs = {Bottleneck.STRAGGLER, Bottleneck.WAITS_FOR_PEER, Bottleneck.UNKNOWN}
    assert set(CANDIDATES) == set(Bottleneck) - of_jobs
    assert set(MEANINGS) == set(Bottleneck)
    assert len(ALL) == len(CANDIDATES)


def test_every_threshold_and_every_named_feature_is_there() -> None:
    source = repr(ALL)
    assert set(re.findall(r"feature='(\w+)'", source)) <= set(NAMES)
    unused = [f.name for f in fields(Thresholds) if f"threshold='{f.name}'" not in source]
    assert unused == ["coverage_min", "warm_up"]  # the gate's


def test_what_is_unknown_says_why_and_what_it_nearly_was() -> None:
    features = Features(
        coverage=1.0, duty=0.4, stall=0.6, util_p95=60.0, workers=4.0, loader_saturated=50.0,
        loader_cpu=60.0, loader_blocked=0.0, idle_cores=9.0, processes=1.0, main_cpu=30.0,
        server=0.0,
    )  # fmt: skip
    verdict = classify(PLACE, features)
    assert verdict.bottleneck is Bottleneck.UNKNOWN
    assert verdict.reason == "the GPU waits 60 % of the time, and no measurement shows for what"
    assert any(
        miss.startswith("loader_workers (too few data-loader workers") and "50 % (not from 60 %)" in miss
        for miss in verdict.misses
    )  # fmt: skip


def test_a_mig_device_without_metrics_and_a_gap_in_the_readings_say_so() -> None:
    mig = replace(PLACE, is_mig=True)
    assert "MIG" in (classify(mig, Features()).reason or "")
    found = classify(PLACE, Features(duty=0.5, stall=0.5, coverage=0.3))
    assert found.reason == "only 30 % of the window has readings"


HUNG = Features(
    coverage=1.0, duty=1.0, stall=0.0, util_p5=100.0, util_p95=100.0, spinning=600.0,
    power_share=0.03, main_cpu=100.0, tree_cpu=100.0, chars_rate=0.0, write_rate=0.0,
    loader_cpu=0.0, workers=8.0, peers=2.0, peers_spinning=1.0, peers_quiet=0.0, processes=1.0,
)  # fmt: skip


def test_a_hang_needs_all_ranks_and_time() -> None:
    assert classify(PLACE, HUNG).bottleneck is Bottleneck.HUNG_SPIN
    for change in (
        {"peers_spinning": 0.5},
        {"spinning": 60.0},
        {"peers": 1.0},
        {"chars_rate": 1e6},
        {"nvlink_share": 0.4},
    ):
        assert classify(PLACE, replace(HUNG, **change)).bottleneck is not Bottleneck.HUNG_SPIN


def test_a_job_that_stands_still_after_work_is_hung_and_a_notebook_is_idle() -> None:
    still = replace(
        HUNG, duty=0.0, stall=1.0, util_p5=0.0, util_p95=0.0, quiet=1200.0, productive=98.0,
        main_cpu=0.5, tree_cpu=1.0, peers_spinning=0.0, peers_quiet=1.0,
    )  # fmt: skip
    assert classify(PLACE, still).bottleneck is Bottleneck.HUNG_BLOCKED
    notebook = replace(still, peers=1.0)
    assert classify(PLACE, notebook).bottleneck is Bottleneck.IDLE_HELD
    assert classify(PLACE, replace(still, productive=0.0)).bottleneck is Bottleneck.IDLE_HELD


def test_little_evidence_is_only_likely() -> None:
    verdict = classify(PLACE, Features(coverage=1.0, duty=0.95, stall=0.05, power_share=0.4, sm_active=30.0))  # fmt: skip
    assert verdict.bottleneck is Bottleneck.BUSY and verdict.is_likely_only
