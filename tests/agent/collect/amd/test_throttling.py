"""Reasons that hold down clocks of AMD GPUs: from bits, and from counted cycles."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.collect.amd.throttling import Throttling, passed, reasons_of_status, shares

WRAP = 2**32


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        ((), 0),
        ((0,), 0x4),  # PPT0
        ((7,), 0x4),  # SPPT_APU
        ((34,), 0x20),  # TEMP_MEM
        ((45,), 0x20),  # VRHOT1
        ((47,), 0x8),  # PROCHOT_GFX
        ((0, 36, 46), 0x2C),
        ((16,), None),  # TDC_GFX: a limit of current
        ((57,), None),  # FIT
        ((1, 22), 0x4),  # EDC_GFX beside PPT1
    ],
)
def test_bits_of_the_driver_become_reasons_and_limits_of_current_null(
    bits: tuple[int, ...], reasons: int | None
) -> None:
    assert reasons_of_status(sum(1 << bit for bit in bits)) == reasons


@settings(max_examples=50)
@given(st.integers(1, 2**64 - 1))
def test_a_limit_in_force_never_reads_as_none(status: int) -> None:
    assert reasons_of_status(status) != 0


@settings(max_examples=50)
@given(st.integers(0, WRAP - 1), st.integers(0, WRAP // 2 - 1))
def test_a_counter_that_wraps_gains_what_it_gained(before: int, gained: int) -> None:
    assert passed(before, (before + gained) % WRAP) == gained


def look(
    cycles: int, power: int = 0, socket: int = 0, hbm: int = 0, hot: int = 0
) -> dict[str, int]:
    return {
        "accumulation_counter": cycles,
        "ppt_residency_acc": power,
        "socket_thm_residency_acc": socket,
        "vr_thm_residency_acc": 0,
        "hbm_thm_residency_acc": hbm,
        "prochot_residency_acc": hot,
    }


def test_counted_cycles_become_seconds_and_reasons() -> None:
    throttling = Throttling()
    assert throttling.columns(look(1000), 10.0) == {
        "power_violation_seconds_total": 0.0,
        "thermal_violation_seconds_total": 0.0,
        "clocks_event_reasons": None,
    }
    assert throttling.columns(look(2000, power=250, socket=100, hbm=400), 12.0) == {
        "power_violation_seconds_total": 0.5,
        # The two held at the same time: the longer one counts.
        "thermal_violation_seconds_total": 0.8,
        "clocks_event_reasons": 0x24,
    }
    assert throttling.columns(look(3000, power=250, socket=100, hbm=400), 13.0) == {
        "power_violation_seconds_total": 0.5,
        "thermal_violation_seconds_total": 0.8,
        "clocks_event_reasons": 0,
    }
    hot = throttling.columns(look(4000, power=250, socket=100, hbm=400, hot=1), 14.0)
    assert hot["clocks_event_reasons"] == 0x8


def test_a_look_at_a_firmware_that_has_not_counted_on_says_nothing_new() -> None:
    throttling = Throttling()
    throttling.columns(look(1000), 10.0)
    throttling.columns(look(2000, power=1000), 11.0)
    row = throttling.columns(look(2000, power=1000), 12.0)
    assert row["power_violation_seconds_total"] == 1.0
    assert row["clocks_event_reasons"] is None


def test_counters_that_began_anew_do_not_count() -> None:
    throttling = Throttling()
    throttling.columns(look(1_000_000, power=500_000), 10.0)
    row = throttling.columns(look(100, power=90), 11.0)
    assert (row["power_violation_seconds_total"], row["clocks_event_reasons"]) == (0.0, None)
    row = throttling.columns(look(200, power=140), 12.0)
    assert (row["power_violation_seconds_total"], row["clocks_event_reasons"]) == (0.5, 0x4)


def test_the_bits_go_before_and_boards_with_neither_say_nothing() -> None:
    assert Throttling().columns({"indep_throttle_status": 1}, 0.0) == {"clocks_event_reasons": 4}
    assert Throttling().columns({}, 0.0) == {}
    assert Throttling().columns({"accumulation_counter": 5}, 0.0) == {}
    assert Throttling().columns({"ppt_residency_acc": 5}, 0.0) == {}


LOOKS = st.lists(
    st.builds(look, *[st.integers(0, WRAP - 1)] * 5),
    min_size=1,
    max_size=20,
)


@settings(max_examples=50)
@given(LOOKS)
def test_seconds_never_fall_and_never_outrun_the_clock(looks: list[dict[str, int]]) -> None:
    throttling = Throttling()
    before: dict[str, float] = {}
    for second, counters in enumerate(looks):
        row = throttling.columns(counters, float(second))
        for column in ("power_violation_seconds_total", "thermal_violation_seconds_total"):
            now = row[column]
            assert isinstance(now, float)
            assert before.get(column, 0.0) <= now <= second
            before[column] = now


@settings(max_examples=50)
@given(LOOKS)
def test_a_share_of_throttling_is_between_0_and_1(looks: list[dict[str, int]]) -> None:
    for before, after in pairwise(looks):
        assert all(0 <= share <= 1 for share in shares(before, after).values())
