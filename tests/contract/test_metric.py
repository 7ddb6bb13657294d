"""A metric's kind says what may be done with it."""

import pytest

from gpuwarden.metric import COUNTER, F32, FLAGS, GAUGE, Kind, Metric


@pytest.mark.parametrize(
    ("kind", "rollup"),
    [
        (GAUGE, ("avg", "min", "max", "last")),
        (COUNTER, ("delta",)),
        (FLAGS, ("share",)),
    ],
)
def test_a_window_is_summarised_by_kind(kind: Kind, rollup: tuple[str, ...]) -> None:
    assert Metric("a_percent", F32, "percent", kind, "source", "Meaning.").rollup == rollup
