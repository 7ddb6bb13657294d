"""The node's CPU, pressure and disks follow what its jobs ask for."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_simulator.devices.host import (
    HostLoad,
    HostState,
    host_row,
    make_node_size,
    start,
    step,
)

SIZE = make_node_size(8)
QUIET = HostLoad(0, 0, 0, 0, 0, 0)

loads = st.builds(
    HostLoad,
    cpu_cores=st.floats(0, 1000),
    blocked_tasks=st.floats(0, 500),
    read_bytes_per_second=st.floats(0, 1e11),
    write_bytes_per_second=st.floats(0, 1e11),
    network_bytes_per_second=st.floats(0, 1e11),
    memory_bytes=st.floats(0, 1e14),
)


def after(load: HostLoad, seconds: float, state: HostState | None = None) -> HostState:
    rng = random.Random(0)
    return step(SIZE, state or start(SIZE, load, rng), load, seconds, rng)


@given(load=loads, dt=st.floats(0.01, 10_000))
def test_cpu_states_add_up_and_nothing_is_out_of_range_under_any_load(
    load: HostLoad, dt: float
) -> None:
    state = after(load, dt)
    assert sum(state.shares) == pytest.approx(100)
    assert min(state.shares) >= 0
    row = host_row(SIZE, state)
    assert all(0 <= row[name] <= 100 for name in row if name.endswith("_percent"))  # type: ignore[operator]
    used, available, cached = (
        row[f"memory_{part}_bytes"] for part in ("used", "available", "cached")
    )
    assert min(used, available, cached) >= 0  # type: ignore[type-var]
    assert used + available <= SIZE.memory_total_bytes  # type: ignore[operator]


def test_blocked_tasks_raise_iowait_and_pressure_and_full_needs_an_otherwise_idle_node() -> None:
    blocked = QUIET._replace(blocked_tasks=10.0)
    alone, crowded = after(blocked, 60), after(blocked._replace(cpu_cores=40.0), 60)
    assert alone.shares.iowait == pytest.approx(100 * 10 / 192, rel=0.02)
    assert alone.stalls_avg10.io_some > 90
    assert alone.stalls_avg10.io_full > 80
    assert crowded.stalls_avg10.io_full < 5
    assert alone.disk_busy_percent > 90
