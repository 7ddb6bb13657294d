"""Power, temperature and clocks obey each other, whatever the length of a step."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import model_named
from gpuwarden_simulator.devices.gpu import (
    CORE_SECONDS,
    IDLE,
    POWER_CAP,
    GpuLoad,
    GpuState,
    start,
    step,
)
from gpuwarden_simulator.devices.hardware import SimulatedGpu, make_device

H100 = make_device(model_named("H100-SXM-80GB"), "s", 0, 8)
BUSY = GpuLoad(util_percent=98, power_share=0.8, has_context=True, nvlink_bytes_per_second=5e10)
NOON_S = 1_763_726_400.0


def settle(device: SimulatedGpu, load: GpuLoad, seconds: int = 600, dt: float = 1.0) -> GpuState:
    rng = random.Random(0)
    state = start(device, load, NOON_S, rng)
    for number in range(int(seconds / dt)):
        state = step(device, state, load, NOON_S + number * dt, dt, rng)
    return state


def test_step_depends_on_nothing_but_its_arguments() -> None:
    state = start(H100, BUSY, NOON_S, random.Random(1))
    one = step(H100, state, BUSY, NOON_S, 1.0, random.Random(2))
    assert one == step(H100, state, BUSY, NOON_S, 1.0, random.Random(2))


def test_temperature_follows_a_load_with_its_time_constant() -> None:
    rng = random.Random(0)
    cold = settle(H100, GpuLoad())
    hot_celsius = settle(H100, BUSY).core_celsius
    warming = step(H100, cold, BUSY, NOON_S, CORE_SECONDS, rng)
    gained = (warming.core_celsius - cold.core_celsius) / (hot_celsius - cold.core_celsius)
    assert gained == pytest.approx(1 - math.exp(-1), abs=0.03)


@given(dt=st.floats(0.05, 3600))
def test_a_step_of_any_length_stays_between_cold_and_hot(dt: float) -> None:
    cold, hot = settle(H100, GpuLoad(), 5), settle(H100, BUSY, 300)
    after = step(H100, cold, BUSY, NOON_S, dt, random.Random(3))
    assert cold.core_celsius <= after.core_celsius <= hot.core_celsius + 2


@given(share=st.floats(0, 1.5), limit=st.floats(0.1, 1.0))
def test_power_never_exceeds_the_limit_and_the_cap_says_so(share: float, limit: float) -> None:
    load = GpuLoad(util_percent=90, power_share=share, has_context=True, power_limit_share=limit)
    rng = random.Random(0)
    state = step(H100, start(H100, load, NOON_S, rng), load, NOON_S, 1.0, rng)
    assert state.power_watts <= state.power_limit_watts
    asked = H100.context_watts + (700 - H100.context_watts) * share
    assert bool(state.reasons & POWER_CAP) == (asked > state.power_limit_watts)
    assert (state.sm_clock_mhz < 1980) == bool(state.reasons & POWER_CAP)


def test_idle_matches_what_real_devices_show() -> None:
    """nvidia-smi on idle H100 and H200: 70 and 78 W, 345 MHz, P0, reason idle, 28 to 41 C."""
    for name, watts in (("H100-SXM", 70), ("H200", 78)):
        state = settle(make_device(model_named(name), "s", 1, 8), GpuLoad())
        assert state.power_watts == pytest.approx(watts, rel=0.08)
        assert (state.sm_clock_mhz, state.pstate, state.reasons) == (345, 0, IDLE)
        assert 22 <= state.core_celsius <= 42


def test_energy_is_the_integral_of_power() -> None:
    rng = random.Random(0)
    state = start(H100, BUSY, NOON_S, rng)
    first, joules = state.energy_joules, 0.0
    for second in range(100):
        state = step(H100, state, BUSY, NOON_S + second, 1.0, rng)
        joules += state.power_watts
    assert state.energy_joules - first == pytest.approx(joules)
