"""Each reading that is due is made once, and everything that was due is accounted for."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.sampling.coverage import Coverage, CoverageTally
from gpuwarden_agent.sampling.health import Overdue, ProbeFailed, Read

FAST, SLOW = "gpu_samples", "gpu_detail_samples"
CADENCES = {FAST: 1, SLOW: 10}


def tallies(coverage: Coverage) -> dict[Any, dict[str, Any]]:
    return {row.pop("table_name"): dict(row) for row in coverage.rows()}


def counts(**some: int) -> dict[str, int]:
    return {**dict.fromkeys(CoverageTally.__slots__, 0), **some}


def test_a_slow_table_is_due_at_the_first_tick_of_each_of_its_periods() -> None:
    coverage = Coverage(CADENCES, 1000)
    due = []
    for second in (7, 8, 10, 11, 19, 23):
        coverage.tick(second * 1000)
        due.append(SLOW in coverage.take())
    assert due == [True, False, True, False, False, True]


def test_what_could_not_be_read_stays_due_and_only_what_another_overtakes_is_skipped() -> None:
    coverage = Coverage(CADENCES, 1000)
    for second in (10, 11, 12):
        coverage.tick(second * 1000)
    due = coverage.take()
    assert due == {FAST, SLOW}
    coverage.settle(due, Read(), {FAST: [], SLOW: []})
    assert tallies(coverage) == {
        FAST: counts(expected=3, skipped=2, taken=1),
        SLOW: counts(expected=1, taken=1),
    }


def test_a_table_that_the_reading_lacks_failed_and_one_without_rows_was_taken() -> None:
    coverage = Coverage(CADENCES, 1000)
    coverage.tick(0)
    coverage.settle(coverage.take(), Read(), {SLOW: []})
    assert tallies(coverage) == {
        FAST: counts(expected=1, failed=1),
        SLOW: counts(expected=1, taken=1),
    }


def test_missed_ticks_cost_a_slow_table_only_whole_periods() -> None:
    coverage = Coverage(CADENCES, 1000)
    coverage.tick(10_000)
    coverage.tick(16_000, missed_ticks=5)
    assert tallies(coverage)[FAST]["missed"] == 5
    coverage.tick(47_000, missed_ticks=30)
    assert tallies(coverage)[SLOW] == counts(expected=3, missed=2, skipped=1)


def test_time_that_the_clock_leapt_over_was_not_missed() -> None:
    coverage = Coverage(CADENCES, 1000)
    coverage.tick(10_000)
    coverage.tick(3_610_000)
    assert tallies(coverage)[FAST] == counts(expected=2, skipped=1)


def test_events_are_not_expected_at_any_time() -> None:
    coverage = Coverage({"events": 1}, 1000)
    coverage.tick(0)
    coverage.settle(coverage.take(), Read(), {"events": []})
    assert coverage.rows() == []


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),
            st.sampled_from(["busy", "read", "half", "failed", "late"]),
        ),
        max_size=80,
    )
)
def test_every_reading_that_was_due_has_one_fate(steps: list[tuple[int, str]]) -> None:
    coverage = Coverage(CADENCES, 1000)
    second, total = 0, {table: CoverageTally() for table in CADENCES}
    pending: frozenset[str] = frozenset()
    for step, fate in steps:
        second += step
        coverage.tick(second * 1000, missed_ticks=step - 1)
        if fate == "busy":
            continue
        due = coverage.take()
        match fate:
            case "read":
                coverage.settle(due, Read(), {table: [] for table in due})
            case "half":
                coverage.settle(due, Read(), {FAST: []})
            case "failed":
                coverage.settle(due, ProbeFailed("probe_failed", "no"), {})
            case "late":
                coverage.settle(due, Overdue(1.0), {})
    pending = coverage.take()
    for table, row in tallies(coverage).items():
        total[table] = CoverageTally(**row)
    for table, tally in total.items():
        fates = tally.taken + tally.missed + tally.skipped + tally.late + tally.failed
        assert tally.expected == fates + (table in pending)
    assert total[FAST].expected == (second - steps[0][0] + 1 if steps else 0)
