"""Graphs: what is drawn of values at any size, where panels are, and what is kept to draw."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_cli.output import text_width
from gpuwarden_cli.top.braille import graph, resampled
from gpuwarden_cli.top.history import CounterRates, ReadingHistory
from gpuwarden_cli.top.panels import Panel, grid_of, lines_of, panel_at
from gpuwarden_cli.top.text import ascii_only

VALUES = st.lists(st.none() | st.floats(0, 1e15), max_size=60)


@given(VALUES, st.integers(0, 120), st.integers(1, 8), st.none() | st.floats(1, 1e9))
def test_a_graph_has_its_size_and_each_value_is_as_high_as_its_share(
    values: list[float | None], width: int, height: int, top: float | None
) -> None:
    lines = graph(values, width, height, top)
    assert [text_width(line) for line in lines] == [width] * height
    assert ascii_only("".join(lines)).isascii()
    assert len(ascii_only("".join(lines))) == width * height
    for at, value in enumerate(resampled(values, 2 * width)):
        bits = (0x40, 0x04, 0x02, 0x01) if at % 2 == 0 else (0x80, 0x20, 0x10, 0x08)
        dots = [ord(line[at // 2]) & bit for line in reversed(lines) for bit in bits]
        filled = sum(dot > 0 for dot in dots)
        assert all(dots[:filled]), "a column has no gap"
        assert (filled == 0) == (value is None)
        if value is not None and top is not None and value <= top:
            assert abs(filled - 4 * height * value / top) <= 1


@given(VALUES, st.integers(1, 200))
def test_resampling_keeps_the_time_and_invents_no_value(
    values: list[float | None], count: int
) -> None:
    found = resampled(values, count)
    assert len(found) == count
    known = [value for value in values if value is not None]
    for value in found:
        assert value is None or min(known) * 0.999 <= value <= max(known) * 1.001
    if values and len(values) <= count:
        assert (found[0], found[-1]) == (values[0], values[-1])


@settings(max_examples=20)
@given(st.lists(st.integers(1, 130), max_size=2), st.integers(1, 250), st.integers(1, 80))
def test_panels_fit_the_width_and_each_is_found_where_it_is_drawn(
    counts: list[int], width: int, room: int
) -> None:
    groups = [
        [Panel(f"{group}-{n}", "util_percent", [1.0], f"{group}-{n}") for n in range(count)]
        for group, count in enumerate(counts)
    ]
    grid = grid_of(counts, width, room)
    lines = lines_of(groups, grid, 300)
    assert all(text_width("".join(span.text for span in line)) <= width for line in lines)
    found = {
        panel.key
        for y in range(0, len(lines), grid.pitch)
        for x in range(width)
        if (panel := panel_at(groups, grid, y, x)) is not None
    }
    assert found == {panel.key for group in groups for panel in group}


def test_readings_are_kept_in_fixed_memory_and_what_is_absent_stays_absent() -> None:
    history = ReadingHistory(("a", "b"), length=10)
    for second in range(25):
        history.add(1000 * second, {"a": float(second), "b": None if second % 2 else 1.0})
    assert history.binned("a", 10, 10, 24_000) == [float(s) for s in range(15, 25)]
    assert history.binned("b", 5, 10, 24_000) == [1.0] * 5
    assert history.binned("a", 5, 20, 34_000) == [17.5, 21.5, 24.0, None, None]
    history.add(34_000, {"a": 3.0})
    assert history.binned("a", 5, 20, 34_000) == [17.5, 21.5, 24.0, None, 3.0]
    assert history.binned("a", 4, 60, 1_000_000) == [None] * 4


def test_a_rate_needs_two_readings_and_none_is_made_of_a_counter_that_began_again() -> None:
    rates = CounterRates()
    totals = [(0, 100.0), (1000, 300.0), (3000, 500.0), (4000, 10.0), (5000, None), (6000, 50.0)]
    assert [rates.rate("x", ts, total) for ts, total in totals] == [None, 200, 100, None, None, None]  # fmt: skip
