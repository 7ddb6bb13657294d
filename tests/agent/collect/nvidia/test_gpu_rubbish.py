"""Whatever a driver answers, a GPU's rows fit their tables or the GPU is at its end."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.nvidia.fake_driver import (
    H100_GPM,
    H100_IDLE,
    H100_IDLE_FIELDS,
    Fails,
    FakeDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
from gpuwarden_agent.probe import ProbeError

T = 1_784_016_758_000
CODES = st.sampled_from(sorted(nvml.CODE_NAMES.keys() - {nvml.SUCCESS}))
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 32, 0xFFFF, 0xFFFF_FFFF, 2**63, 2**64 - 1, -1]),
    st.integers(-(2**63), 2**64),
)


def rubbish(answer: Any) -> st.SearchStrategy[Any]:
    """What a driver could say instead: a return code, or another value of the same type."""
    match answer:
        case bool():
            other: st.SearchStrategy[Any] = st.booleans()
        case int():
            other = NUMBERS
        case float():
            other = st.floats()
        case str():
            other = st.text(max_size=20)
        case tuple():
            other = st.tuples(*[NUMBERS for _ in answer])
        case _:
            other = st.just(answer)
    return st.one_of(CODES.map(Fails), other)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_the_driver_says_rows_fit_or_the_gpu_is_at_its_end(data: st.DataObject) -> None:
    def drawn(answers: Mapping[Any, Any]) -> dict[Any, Any]:
        chosen = data.draw(
            st.lists(st.sampled_from(sorted(answers, key=str)), unique=True, max_size=12)
        )
        return {**answers, **{key: data.draw(rubbish(answers[key])) for key in chosen}}

    clock = ManualClock(datetime(2026, 7, 14, tzinfo=UTC))
    fields = H100_IDLE_FIELDS | data.draw(
        st.dictionaries(st.sampled_from([82, 220, 193]), st.floats())
    )
    device = FakeDevice(drawn(H100_IDLE), drawn(fields), gpm=drawn(H100_GPM))
    probe = GpuProbe(device, clock)
    for ask in (probe.describe, lambda: probe.read(T), lambda: probe.read(T), probe.describe):
        clock.advance(10)
        try:
            reading = ask()
        except ProbeError as error:
            assert "\n" not in str(error)
            continue
        for table, rows in reading.items():
            for row in rows:
                assert coerce(table, row) == row, table
