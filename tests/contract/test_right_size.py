"""A smaller GPU, a MIG device or spot: cases that advise, and those in which a reading or a price is missing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import model_named
from gpuwarden.right_size import MIG, JobNeed, ModelPrice, right_size, right_sizes

GIB = 2**30
H100, L40S, A100 = "H100-SXM-80GB", "L40S-48GB", "A100-SXM-80GB"
PRICES = {
    H100: ModelPrice(H100, 2.95, 1.25, 8),
    L40S: ModelPrice(L40S, 1.55, 0.50, 4),
    A100: ModelPrice(A100, 1.95, 1.30, 0),
    "V100-SXM-16GB": ModelPrice("V100-SXM-16GB", 0.79, None, 4),
    "MI300X-192GB": ModelPrice("MI300X-192GB", 0.10, None, 4),
    "GH200-96GB": ModelPrice("GH200-96GB", 0.10, None, 4),
}
NEED = JobNeed(
    job="7", username="ada", model=H100, gpus=1, gpu_hours=70.0, shared_hours=0.0, span_hours=70.0, usd_per_hour=2.95,
    memory_p99_bytes=30.0 * GIB, memory_max_bytes=31.0 * GIB, memory_share=1.0, sm_p95_percent=20.0, sm_share=1.0,
    dram_p95_percent=15.0, dram_share=1.0, tensor_p95_percent=10.0, link_p95_bytes_per_second=0.0, busy_minutes=4000,
    checkpoints=0,
)  # fmt: skip


def advised(need: JobNeed, days: float = 7.0) -> dict[str, str]:
    return {one.kind: one.use for one in right_size(need, PRICES, days).advice}


def test_a_job_that_fits_a_smaller_gpu_of_the_fleet() -> None:
    # 36 of 48 GiB; 20 % of 989 = 198 of 362 * 0.8 = 290 TFLOPS; 15 % of 3,352 = 503 of 864 * 0.8 = 691 GB/s.
    found = right_size(NEED, PRICES, 7.0)
    smaller = next(one for one in found.advice if one.kind == "smaller")
    assert smaller.use == "L40S-48GB (in the fleet)"
    assert smaller.usd == pytest.approx(70 * 1.40)
    assert smaller.usd_a_month == pytest.approx(70 * 1.40 / 7 * 30.4375)
    assert "36.0 of 48 GiB memory with margin, 503 of 864 GB/s, 198 of 362 TFLOPS" in smaller.why
    assert "data sheets" in smaller.assumes
    assert found.missing == []


@pytest.mark.parametrize(
    ("changed", "use"),
    [
        # 41 GiB with margin are 49: the A100, which the fleet has not.
        ({"memory_p99_bytes": 41.0 * GIB, "memory_max_bytes": 42.0 * GIB}, "A100-SXM-80GB (not in the fleet)"),
        # 25 % of 3,352 GB/s are 838.
        ({"dram_p95_percent": 25.0}, "A100-SXM-80GB (not in the fleet)"),
        # 30 % of 989 TFLOPS are 297, more than 290 and 250.
        ({"sm_p95_percent": 30.0}, None),
        # A peak that p99 has not.
        ({"memory_max_bytes": 79.0 * GIB}, "A100-SXM-80GB (not in the fleet)"),
        ({"usd_per_hour": 1.6}, None),
        ({"gpus": 4, "link_p95_bytes_per_second": 2e10}, None),
        ({"gpus": 4, "link_p95_bytes_per_second": 1e9}, "L40S-48GB (in the fleet)"),
    ],
)  # fmt: skip
def test_a_smaller_gpu_has_enough_of_all(changed, use) -> None:
    assert advised(replace(NEED, **changed)).get("smaller") == use


@pytest.mark.parametrize(
    ("changed", "profile"),
    [
        # 1g of an H100: 10 GB, 9.7 % of the SMs, 10 % of the bandwidth.
        ({"memory_p99_bytes": 8e9, "sm_p95_percent": 9.0, "dram_p95_percent": 9.0}, "1g.10gb"),
        ({"memory_p99_bytes": 9e9, "sm_p95_percent": 9.0, "dram_p95_percent": 9.0}, "1g.20gb"),
        ({"memory_p99_bytes": 8e9, "sm_p95_percent": 9.0, "dram_p95_percent": 19.0}, "1g.20gb"),
        ({"memory_p99_bytes": 8e9, "sm_p95_percent": 15.0, "dram_p95_percent": 9.0}, "2g.20gb"),
        ({"memory_p99_bytes": 33e9, "sm_p95_percent": 15.0, "dram_p95_percent": 9.0}, "3g.40gb"),
        ({"memory_p99_bytes": 34e9, "sm_p95_percent": 15.0, "dram_p95_percent": 9.0}, None),
        ({"memory_p99_bytes": 8e9, "sm_p95_percent": 39.0, "dram_p95_percent": 9.0}, None),
        ({"memory_p99_bytes": 8e9, "gpus": 2}, None),
    ],
)  # fmt: skip
def test_the_least_mig_device_that_has_enough(changed, profile) -> None:
    need = replace(NEED, **{"memory_max_bytes": 0.0, **changed})
    use = advised(need).get("mig")
    assert use == (profile and f"MIG {profile} of {H100}")


def test_a_mig_device_saves_the_slices_that_it_does_not_have() -> None:
    need = replace(
        NEED, memory_p99_bytes=8e9, memory_max_bytes=8e9, sm_p95_percent=9.0, dram_p95_percent=9.0
    )
    (mig,) = (one for one in right_size(need, PRICES, 7.0).advice if one.kind == "mig")
    assert mig.usd == pytest.approx(70 * 2.95 * 6 / 7)


def test_spot_for_what_is_short_or_saves_its_state() -> None:
    assert "spot" not in advised(NEED)
    assert advised(replace(NEED, checkpoints=2))["spot"] == f"spot {H100}"
    assert "spot" not in advised(replace(NEED, checkpoints=1))
    short = replace(NEED, span_hours=0.9)
    assert advised(short)["spot"] == f"spot {H100}"
    assert "spot" not in advised(replace(short, job=None)), "without a job there is no end"
    assert "spot" not in advised(replace(short, usd_per_hour=1.3))
    found = right_size(replace(NEED, checkpoints=3), PRICES, 7.0)
    assert found.best is not None
    assert found.best.kind == "spot", "it saves most"


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"sm_p95_percent": None, "sm_share": 0.0}, "sm_active_percent was read in 0 % of its minutes"),
        ({"dram_share": 0.5}, "dram_active_percent was read in 50 % of its minutes"),
        ({"memory_p99_bytes": None, "memory_share": 0.0}, "memory_used_bytes was read in 0 % of its minutes"),
        ({"sm_p95_percent": None}, "sm_active_percent is not known of minutes in which a kernel ran"),
        ({"gpus": 2, "link_p95_bytes_per_second": None}, "nvlink_rx_bytes_per_second was not read, and it has several GPUs"),
        ({"busy_minutes": 0, "sm_p95_percent": None, "dram_p95_percent": None}, "no kernel ran in its minutes"),
        ({"usd_per_hour": None}, "its GPUs have no price"),
        ({"model": None}, "the catalogue does not have its model, or not all of its figures"),
        ({"gpu_hours": 0.2}, "it alone held GPUs for 12 minutes, and 30 are needed"),
    ],
)  # fmt: skip
def test_without_what_it_needs_it_says_so_and_advises_nothing(changed, missing) -> None:
    found = right_size(replace(NEED, **changed), PRICES, 7.0)
    assert (list(found.advice), list(found.missing)) == ([], [missing])


def test_spot_needs_no_readings_of_the_gpu() -> None:
    found = right_size(replace(NEED, sm_share=0.0, checkpoints=5), PRICES, 7.0)
    assert [one.kind for one in found.advice] == ["spot"]
    assert found.missing


def test_profiles_are_of_models_of_the_catalogue() -> None:
    for name, profiles in MIG.items():
        memory_gib = model_named(name).memory_gib
        for one in profiles:
            assert one.memory_gb * 8 <= memory_gib * one.memory_slices * 1.08, (name, one)


@given(
    st.floats(0, 141 * GIB), st.floats(0, 100), st.floats(0, 100), st.integers(1, 16),
    st.none() | st.floats(0.01, 9), st.sampled_from([H100, A100, L40S, None, "MI300X-192GB"]),
)  # fmt: skip
def test_what_is_advised_saves_and_has_enough_memory(memory, sm, dram, gpus, usd, model) -> None:
    need = replace(
        NEED, memory_p99_bytes=memory, memory_max_bytes=memory, sm_p95_percent=sm, dram_p95_percent=dram, gpus=gpus,
        usd_per_hour=usd, model=model,
    )  # fmt: skip
    (found,) = right_sizes([need], PRICES, 7.0)
    for one in found.advice:
        assert one.usd > 0
        if one.kind == "smaller":
            assert model_named(one.use.split(" ")[0]).memory_gib * GIB >= memory * 1.2
    assert [one.usd for one in found.advice] == sorted(
        (one.usd for one in found.advice), reverse=True
    )
    assert len(found.record()["advice"]) == len(found.advice)
