"""A fault knows when it holds, and a node cannot have what its hardware has not got."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import model_named
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
