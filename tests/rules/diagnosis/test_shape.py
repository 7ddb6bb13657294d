"""The course of utilization is measured for all GPUs at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.diagnosis.scenes import loop, paused

from gpuwarden_rules.diagnosis.shape import (
    OFFSET,
    gap_mean,
    gap_turnovers,
    gap_write,
    shapes,
    unpacked,
)

WINDOW = 120


def packed(series: list[float]) -> str:
    """As the query packs it, oldest first, one reading a second."""
    ages = range(len(series) - 1, -1, -1)
    return "".join(
        chr(OFFSET + age) + chr(OFFSET + round(v)) for age, v in zip(ages, series, strict=True)
    )


def shape_of(series: list[float]) -> dict[str, float | None]:
    (found,) = shapes(unpacked([packed(series[-WINDOW:])], WINDOW))
    return found.values


@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=WINDOW))
@settings(max_examples=100)
def test_any_series_gives_numbers_or_nothing(series: list[int | None]) -> None:
    text = "".join(
        chr(OFFSET + age) + chr(OFFSET + v) for age, v in enumerate(series) if v is not None
    )
    (found,) = shapes(unpacked([text], WINDOW))
    known = [v for v in series if v is not None]
    for value in found.values.values():
        assert value is None or math.isfinite(value)
    if known:
        assert found.values["duty"] == pytest.approx(sum(known) / len(known) / 100, abs=1e-4)
        assert min(known) <= (found.values["util_p5"] or 0) <= (found.values["util_p95"] or 0)
    else:
        assert "duty" not in found.values and found.values["coverage"] == 0


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    texts = [packed(loop(5, 0.5)[-WINDOW:]), None, "", packed([50.0] * WINDOW)]
    together = [s.values for s in shapes(unpacked(texts, WINDOW))]
    alone = [shapes(unpacked([text], WINDOW))[0].values for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize("step_s", [7, 9, 13])
def test_long_steps_are_periodic(step_s: int) -> None:
    assert (shape_of(loop(step_s, 0.4, jitter=0.0))["autocorrelation"] or 0) > 0.8


def test_short_steps_show_only_their_mean() -> None:
    values = shape_of(loop(0.4, 0.4))
    assert values["duty"] == pytest.approx(0.4, abs=0.03)
    assert values["gaps"] == 0


def test_a_flat_or_slowly_changing_series_has_no_period() -> None:
    assert shape_of([97.0] * WINDOW)["autocorrelation"] == 0
    ramp = [float(100 * (s > 60)) for s in range(WINDOW)]
    assert (shape_of(ramp)["autocorrelation"] or 0) < 0.6


def test_pauses_are_counted_and_measured() -> None:
    series = paused(loop(0.3, 1.0), {40: 12, 90: 4})
    values = shape_of(series)
    assert (values["gaps"], values["gap_longest"]) == (2, 12)
    (found,) = shapes(unpacked([packed(series[-WINDOW:])], WINDOW))
    assert found.pauses == [(88, 100), (46, 50)]
    assert gap_turnovers(found.pauses, [90.0, 40.0, 5.0], 10) == 2


def test_what_was_written_in_a_pause_is_of_all_readings_that_touch_it() -> None:
    pauses = [(88, 100), (46, 50)]
    assert gap_write(pauses, [(85.0, 3e8), (40.0, 9e8)], 10) == 2.5e8
    assert gap_write(pauses, [(85.0, 1.5e8), (95.0, 1.5e8)], 10) == 2.5e8
    assert gap_write([(46, 50)], [(40.0, 9e8)], 10) == 0  # a short pause


@given(st.integers(5, 40), st.integers(0, 40), st.floats(0, 100), st.floats(0, 100))
@settings(max_examples=60)
def test_a_mean_in_pauses_is_found_however_readings_lie(
    length: int, since: int, inside: float, outside: float
) -> None:
    pause = (since, since + length)

    def reading(age: int) -> float:
        seconds = range(age, age + 10)
        return sum(inside if pause[0] <= s < pause[1] else outside for s in seconds) / 10

    readings = [(float(age), reading(age)) for age in range(0, 120, 10)]
    assert gap_mean([pause], readings, 10) == pytest.approx(inside, abs=1e-6)


def test_without_a_pause_or_without_anything_beside_it_there_is_no_mean() -> None:
    assert gap_mean([(10, 14)], [(10.0, 50.0), (30.0, 50.0)], 10) is None
    assert gap_mean([(0, 120)], [(10.0, 50.0), (30.0, 50.0)], 10) is None


def test_few_readings_have_no_shape() -> None:
    text = "".join(chr(OFFSET + age) + chr(OFFSET + 40) for age in range(0, WINDOW, 10))
    (found,) = shapes(unpacked([text], WINDOW))
    assert found.values["coverage"] == 1.0 and found.values["duty"] == pytest.approx(0.4)
    assert "gaps" not in found.values and "autocorrelation" not in found.values


@pytest.mark.parametrize("period_s", [15, 30])
@pytest.mark.parametrize("delay_s", [0, 12, 24])
def test_regular_scrapes_cover_the_window_also_while_the_newest_is_on_its_way(
    period_s: int, delay_s: int
) -> None:
    matrix = np.full((1, 120), np.nan, np.float32)
    matrix[0, 119 - delay_s :: -period_s] = 50.0
    (found,) = shapes(matrix)
    assert (found.values["coverage"] or 0) >= 0.8


def test_readings_that_stopped_or_are_few_do_not_cover_the_window() -> None:
    matrix = np.full((3, 120), np.nan, np.float32)
    matrix[0, :60:15] = 50.0  # nothing in the last minute
    matrix[1, ::100] = 50.0
    matrix[2, :30] = 50.0  # each second, for a quarter
    stopped, few, part = (found.values["coverage"] or 0 for found in shapes(matrix))
    assert (stopped <= 0.6, few <= 0.2, part <= 0.3) == (True, True, True)
