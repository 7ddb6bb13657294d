"""Each change of a source's state is one event."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.sampling.health import (
    Outcome,
    Overdue,
    ProbeFailed,
    ProbeHealth,
    Read,
    observe,
)


def kinds(*outcomes: tuple[float, Outcome]) -> list[tuple[str, float | None]]:
    health, told = ProbeHealth(), []
    for now_s, outcome in outcomes:
        health, report = observe(health, "gpu0", outcome, now_s)
        if report is not None:
            told.append((report.kind, report.duration_seconds))
    return told


def test_a_failure_is_told_once_and_so_is_its_end_with_how_long_it_lasted() -> None:
    lost = ProbeFailed("gpu_lost", "fell off the bus")
    assert kinds((0, Read()), (1, lost), (2, lost), (9, Read()), (10, Read())) == [
        ("gpu_lost", None),
        ("probe_recovered", 8),
    ]


def test_trouble_that_changes_its_kind_is_told_again_and_lasts_from_its_beginning() -> None:
    assert kinds(
        (1, ProbeFailed("driver_timeout", "x")), (5, ProbeFailed("gpu_lost", "y")), (11, Read())
    ) == [("driver_timeout", None), ("gpu_lost", None), ("probe_recovered", 10)]


def test_a_stuck_call_counts_from_when_it_began() -> None:
    assert kinds((12, Overdue(2.0)), (22, Read())) == [
        ("probe_stuck", 2.0),
        ("probe_recovered", 12),
    ]


OUTCOMES = st.sampled_from([Read(), ProbeFailed("a", "m"), ProbeFailed("b", "m"), Overdue(2.0)])


@settings(max_examples=50)
@given(outcomes=st.lists(OUTCOMES, max_size=40))
def test_trouble_and_recovery_take_turns(outcomes: list[Outcome]) -> None:
    health, open_trouble = ProbeHealth(), None
    for now, outcome in enumerate(outcomes):
        health, report = observe(health, "p", outcome, now)
        if report is None:
            continue
        if report.kind == "probe_recovered":
            assert open_trouble is not None
            open_trouble = None
        else:
            assert report.kind != open_trouble
            open_trouble = report.kind
    assert health.trouble == open_trouble
