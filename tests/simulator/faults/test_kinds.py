"""A fault knows when it holds, and a node cannot have what its hardware has not got."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import SIMULATED, model_named
from gpuwarden_simulator import Fault, FaultKind
from gpuwarden_simulator.faults.kinds import SPECS, misfit

ends = st.one_of(st.none(), st.integers(0, 1000))


@given(
    begin_ms=st.integers(0, 1000),
    end_ms=ends,
    from_ms=st.integers(0, 999),
    to_ms=st.integers(0, 1000),
)
def test_the_time_that_a_fault_held_is_the_sum_of_its_instants(
    begin_ms: int, end_ms: int | None, from_ms: int, to_ms: int
) -> None:
    fault = Fault(FaultKind.POWER_BRAKE, begin_ms, end_ms, 0)
    instants = sum(fault.is_active(ms) for ms in range(from_ms, to_ms))
    assert fault.active_ms(from_ms, to_ms) == instants


def test_options_that_are_not_given_have_their_default() -> None:
    fault = Fault(FaultKind.XID, 0, None, 0, {"code": 79})
    assert (fault.number("code"), fault.number("times"), fault.word("text")) == (79, 1, None)


def test_every_kind_has_a_specification() -> None:
    assert set(SPECS) == set(FaultKind)


@pytest.mark.parametrize(
    ("kind", "options", "model", "problem"),
    [
        (FaultKind.ECC_CORRECTED, {}, "RTX-4090", "has no ECC"),
        (FaultKind.ROW_REMAP, {}, "V100-SXM-32GB", "does not remap rows"),
        (FaultKind.XID, {"code": 79}, "MI300X", "has no Xids"),
        (FaultKind.NVLINK_DOWN, {"link": 0}, "L40S", "has no NVLinks"),
        (FaultKind.NVLINK_DOWN, {"link": 12}, "A100-SXM-80GB", "link = 12 must be 0 to 11"),
        (FaultKind.INFINIBAND_DOWN, {"adapter": 0}, "L4-24GB", "have no InfiniBand"),
        (FaultKind.INFINIBAND_DOWN, {"adapter": 8}, "H200", "adapter = 8 must be 0 to 7"),
    ],
)
def test_hardware_that_is_not_there_cannot_fail(
    kind: FaultKind, options: dict[str, int], model: str, problem: str
) -> None:
    gpu = 0 if SPECS[kind].is_of_gpu else None
    found = misfit(Fault(kind, 0, None, gpu, options), model_named(model), 8)
    assert found is not None
    assert problem in found


def test_a_gpu_that_is_not_there_cannot_fail() -> None:
    assert misfit(Fault(FaultKind.HANG, 0, None, 8), SIMULATED[0], 8) == "gpu = 8 must be 0 to 7"


def test_an_h100_can_have_them_all() -> None:
    options = {"code": 79, "link": 17, "adapter": 7}
    other_boards = {FaultKind.FAN_STUCK, FaultKind.PAGES_RETIRED}
    for kind, spec in SPECS.items():
        if kind in other_boards:
            continue
        given_options = {name: options[name] for name in spec.options if name in options}
        fault = Fault(kind, 0, None, 0 if spec.is_of_gpu else None, given_options)
        assert misfit(fault, model_named("H100-SXM"), 8) is None
