"""Recordings of real training loops are judged by the product as it is: never wrongly, mostly rightly.

bench/diagnosis/README.md says how they were recorded.
"""

from pathlib import Path

import pytest
from bench.diagnosis.judge import Judged, load_all, macro_f1, verdicts
from bench.diagnosis.recordings import LOSSES, Recording

from gpuwarden.diagnosis import HEALTHY, INPUT_BOUND

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data"
MACRO_F1_MIN = 0.95


@pytest.fixture(scope="module")
def every_recording() -> list[Recording]:
    return load_all(DATA)


@pytest.fixture(scope="module")
def recordings(every_recording: list[Recording]) -> list[Recording]:
    """Those of nodes that did nothing else."""
    return [recording for recording in every_recording if not recording.run.is_loaded]


def wrong(several: list[Judged]) -> list[str]:
    return [f"{v.run.name} {v.scenario.name}: {v.said.value}" for v in several if v.is_wrong]


def test_with_all_data_verdicts_are_right(recordings: list[Recording]) -> None:
    found = verdicts(recordings)[0]
    assert wrong(found) == []
    assert macro_f1(found) >= MACRO_F1_MIN


def test_work_of_others_on_the_node_makes_no_verdict_wrong(
    every_recording: list[Recording],
) -> None:
    loaded = [recording for recording in every_recording if recording.run.is_loaded]
    assert loaded
    assert wrong(verdicts(loaded)[0]) == []


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "all data"])
def test_what_is_missing_makes_a_verdict_unknown_and_not_wrong(
    recordings: list[Recording], loss: str
) -> None:
    assert wrong(verdicts(recordings, LOSSES[loss])[0]) == []


def test_no_healthy_loop_is_called_input_bound_at_any_moment(recordings: list[Recording]) -> None:
    looks = verdicts(recordings, before_end_s=(0, 10, 20))
    accused = [
        f"{v.run.name} {v.scenario.name}: {v.said.value}"
        for several in looks.values()
        for v in several
        if v.scenario.truth in HEALTHY and v.said in INPUT_BOUND
    ]
    assert accused == []
