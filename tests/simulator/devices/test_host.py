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
from gpuwarden_simulator.jobs.workload import TreeLoad, host_load

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


def test_loads_of_processes_add_up() -> None:
    tree = TreeLoad(main_cpu_percent=50, loader_workers=4, loader_cpu_percent=100)
    blocked = TreeLoad(loader_workers=10, loader_blocked_percent=60, read_bytes_per_second=1e6)
    load = host_load([(tree, 2), (blocked, 1)])
    assert load.cpu_cores == pytest.approx(9)
    assert load.blocked_tasks == pytest.approx(6)
    assert load.read_bytes_per_second == 1e6


def test_load_averages_follow_at_the_kernel_s_pace() -> None:
    busy = QUIET._replace(cpu_cores=100.0)
    state = after(busy, 60, start(SIZE, QUIET, random.Random(0)))
    assert state.load_1m == pytest.approx(63.2, abs=0.5)
    assert state.load_1m > state.load_5m > state.load_15m > 0


def test_blocked_tasks_raise_iowait_and_pressure_and_full_needs_an_otherwise_idle_node() -> None:
    blocked = QUIET._replace(blocked_tasks=10.0)
    alone, crowded = after(blocked, 60), after(blocked._replace(cpu_cores=40.0), 60)
    assert alone.shares.iowait == pytest.approx(100 * 10 / 192, rel=0.02)
    assert alone.stalls_avg10.io_some > 90
    assert alone.stalls_avg10.io_full > 80
    assert crowded.stalls_avg10.io_full < 5
    assert alone.disk_busy_percent > 90
