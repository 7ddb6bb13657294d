"""Timestamps of many tools become the instant that they mean."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import from_ms, to_ms
from gpuwarden_importing.instants import Instants

NOW_MS = to_ms(datetime(2026, 11, 21, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026/07/14 09:00:44.579", "2026-07-14T09:00:44.579"),
        ("2026-07-14T09:00:44Z", "2026-07-14T09:00:44"),
        ("2026-07-14 09:00:44,5", "2026-07-14T09:00:44.500"),
        ("2025-01-21T04:41:44,285060+02:00", "2025-01-21T02:41:44.285"),
        ("Thu Aug  6 01:03:40 2026", "2026-08-06T01:03:40"),
        ("[Sun Feb 23 16:24:18 2025]", "2025-02-23T16:24:18"),
        ("Tue 2025-01-21 04:41:44 UTC", "2025-01-21T04:41:44"),
        ("1753000000", "2025-07-20T08:26:40"),
        ("1753000000.25", "2025-07-20T08:26:40.250"),
        ("1753000000123", "2025-07-20T08:26:40.123"),
        ("Tue Jul 14 09:00:26 UTC 2026", "2026-07-14T09:00:26"),
        ("Feb 27 2025 15:10:02", "2025-02-27T15:10:02"),
        ("Dec 25 10:00:00", "2025-12-25T10:00:00"),
    ],
)
def test_a_time_is_read_as_the_tool_wrote_it(text: str, iso: str) -> None:
    ts_ms = Instants(now_ms=NOW_MS).parse(text)
    assert ts_ms is not None
    assert from_ms(ts_ms) == datetime.fromisoformat(iso).replace(tzinfo=UTC)


def test_a_time_without_zone_is_of_the_zone_that_was_named_and_says_so() -> None:
    instants = Instants(ZoneInfo("Europe/Berlin"))
    assert from_ms(instants.parse("2026/07/14 09:00:44.579") or 0).hour == 7
    assert instants.has_assumed_zone
    with_zone = Instants(ZoneInfo("Europe/Berlin"))
    assert from_ms(with_zone.parse("2026-07-14T09:00:44Z") or 0).hour == 9
    assert not with_zone.has_assumed_zone


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "", " "])
def test_what_is_no_time_and_says_so_is_absent(text: str) -> None:
    assert Instants().parse(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026/13/40 09:00:44",
        "2026/07/14 25:00:44",
        "99",
        "Feb 31 10:00:00",
        "14.07.2026 09:00:44",
        "7/14/2026 9:00:44 PM",
        "Mär 03 10:00:00",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|no year"):
        Instants(now_ms=NOW_MS).parse(text)


@given(
    st.integers(31_536_000_000, 4_102_444_800_000),
    st.sampled_from(["%Y/%m/%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f"]),
    st.integers(-12 * 60, 14 * 60),
)
def test_every_instant_comes_back(ts_ms: int, form: str, offset: int) -> None:
    zone = timezone(timedelta(minutes=offset))
    instants = Instants(zone)
    text = from_ms(ts_ms).astimezone(zone).strftime(form)[:-3]
    assert instants.parse(text) == ts_ms
    assert instants.parse(text) == ts_ms, "the second time is the short way"


@given(st.text(max_size=40))
def test_rubbish_is_refused_or_absent(text: str) -> None:
    with suppress(ValueError):
        Instants(now_ms=NOW_MS).parse(text)


def test_the_second_pass_of_a_repeated_hour_follows_a_later_time() -> None:
    instants = Instants(ZoneInfo("Europe/Berlin"))
    texts = [
        f"2026/10/25 {clock}:00.000"
        for clock in ("01:45", "02:15", "02:45", "02:15", "02:45", "03:15")
    ]
    times = [instants.parse(text) or 0 for text in texts]
    assert [then - ts for ts, then in pairwise(times)] == [30 * 60_000] * 5
    with pytest.raises(ValueError, match="does not exist in Europe/Berlin"):
        instants.parse("2026-03-29 02:30:00")
