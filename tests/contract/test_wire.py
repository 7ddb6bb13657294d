"""Identity of a batch in request headers."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import EPOCH, to_ms
from gpuwarden.wire import (
    BATCH_SECONDS_MAX,
    BatchId,
    WireError,
    batch_id_of,
    batch_seconds_of,
    error_sentence,
    headers_of,
    now_ms_of,
)

GOOD = headers_of(BatchId("agent-1", "boot-1", 7, 5))
names = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)


@given(names, names, st.integers(1, 10**18 - 1), st.data())
def test_identity_survives_the_headers(agent, boot, sequence, data) -> None:
    oldest = data.draw(st.integers(0, sequence))
    is_sent_before, is_import = data.draw(st.booleans()), data.draw(st.booleans())
    batch = BatchId(
        agent, boot, sequence, oldest, is_sent_before=is_sent_before, is_import=is_import
    )
    assert batch_id_of(headers_of(batch)) == batch


def test_a_batch_that_says_0_is_neither_sent_before_nor_history() -> None:
    found = batch_id_of(GOOD | {"Gpuwarden-Sent-Before": "0", "Gpuwarden-Import": "0"})
    assert (found.is_sent_before, found.is_import) == (False, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Gpuwarden-Wire-Version": None}, "Gpuwarden-Wire-Version is missing; this collector"),
        ({"Gpuwarden-Wire-Version": "9"}, "is '9'; this collector speaks 1"),
        ({"Gpuwarden-Agent-Id": None}, "Gpuwarden-Agent-Id is missing"),
        ({"Gpuwarden-Agent-Id": "a b"}, "must be 1 to 64 letters"),
        ({"Gpuwarden-Boot-Id": "x" * 65}, "must be 1 to 64 letters"),
        ({"Gpuwarden-Sequence": "-1"}, "whole number"),
        ({"Gpuwarden-Sequence": "٣"}, "whole number"),
        ({"Gpuwarden-Sequence": "0", "Gpuwarden-Oldest-Sequence": "0"}, "at least 1"),
        ({"Gpuwarden-Oldest-Sequence": "8"}, "8 is above Gpuwarden-Sequence 7"),
    ],
)
def test_what_is_wrong_is_named(change, message) -> None:
    headers = {k: v for k, v in (GOOD | change).items() if v is not None}
    with pytest.raises(WireError, match=message):
        batch_id_of(headers)


@pytest.mark.parametrize("value", ["9" * 18, "253402300800000", "-1", "12.5", "", "1" * 19])
def test_a_clock_that_shows_no_time_of_a_calendar_is_refused(value: str) -> None:
    with pytest.raises(
        WireError, match=r"Gpuwarden-Now must be milliseconds since 1970, before .*10000"
    ):
        now_ms_of({"Gpuwarden-Now": value})


@pytest.mark.parametrize("now", [EPOCH, datetime.max.replace(tzinfo=UTC)])
def test_any_instant_that_a_header_can_hold_is_read(now: datetime) -> None:
    assert now_ms_of({"Gpuwarden-Now": str(to_ms(now))}) == to_ms(now)
    assert now_ms_of({}) is None


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"error": "no such table"}', "no such table"),
        (b'{"error": "no such column", "hint": "did you mean node"}', "no such column; did you mean node"),
        (
            '{"error": "syntax error", "position": {"line": 2, "column": 7}}',
            "syntax error (line 2, column 7)",
        ),
        ('{"error": "a", "hint": "b", "position": {"line": 1, "column": 1}}', "a; b (line 1, column 1)"),
        ('{"message": "not ours"}', None),
        ('["error"]', None),
        ('{"error": "a", "position": 3}', None),
        ("<html>502 Bad Gateway</html>", None),
        (b"\xff", None),
    ],
)  # fmt: skip
def test_the_sentence_of_an_error_has_its_hint_and_position(
    body: str | bytes, sentence: str | None
) -> None:
    assert error_sentence(body) == sentence


@given(st.none() | st.text(max_size=20) | st.integers(-5, 10**20).map(str))
def test_a_length_of_batch_that_is_no_number_asks_for_nothing(value) -> None:
    seconds = batch_seconds_of(value)
    assert 0 <= seconds <= BATCH_SECONDS_MAX
    is_number = value is not None and value.isascii() and value.isdigit() and len(value) <= 18
    assert seconds == (min(int(value), BATCH_SECONDS_MAX) if is_number else 0)
