"""Each fault that was kept from ending the process is counted, and told in a bounded number of lines."""

import pytest

from gpuwarden_collector.stats import Faults


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001  whichever it is
        return caught


def test_a_place_is_traced_once_and_logged_each_time_its_count_doubles(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults()
    for _ in range(1_000):
        faults.note("decode", raised(ValueError("x\ny")))
    faults.note("store", raised(KeyError("another")))
    assert faults.counts == {"decode": 1_000, "store": 1}
    assert [r.times for r in caplog.records] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1]
    assert [bool(r.exc_info) for r in caplog.records] == [True] + [False] * 9 + [True]
    assert {r.reason for r in caplog.records} == {"x", "'another'"}


def test_any_number_of_places_is_logged_in_a_bounded_number_of_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults()
    for number in range(1_000):
        kind = type(f"Odd{number}Error", (Exception,), {})
        faults.note("decode", raised(kind("")))
    assert faults.counts["decode"] == 1_000
    assert len(caplog.records) < 120
