"""A request for a silence is taken as it was meant, or refused in one sentence."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_rules.http.answers import RequestError
from gpuwarden_rules.http.silences import silence_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
GOOD = {"matchers": ["node=n1"], "for": "2h", "comment": "rack moves"}


def made(**changes: Any):
    document = {k: v for k, v in {**GOOD, **changes}.items() if v is not ...}
    return silence_of(document, [], NOW, "s1", "alice")


def test_a_silence_is_as_asked_for() -> None:
    silence = made()
    assert [str(matcher) for matcher in silence.matchers] == ["node=n1"]
    assert (silence.id, silence.author, silence.comment) == ("s1", "alice", "rack moves")
    assert (silence.starts_at, silence.ends_at) == (NOW, NOW + timedelta(hours=2))


def test_it_may_name_its_instants() -> None:
    silence = made(
        **{"for": ...}, starts_at="2026-01-02T00:00:00", ends_at="2026-01-02T02:00:00+01:00"
    )
    assert silence.starts_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert silence.ends_at == datetime(2026, 1, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matchers": ...}, 'give either "matchers" or "fingerprint"'),
        ({"fingerprint": "f"}, 'give either "matchers" or "fingerprint"'),
        ({"matchers": ..., "fingerprint": "f"}, "no alert with fingerprint 'f' is active"),
        ({"matchers": []}, "1 to 20 entries"),
        ({"matchers": "node=n1"}, "must be a list"),
        ({"matchers": ["x"]}, "'x' is not a matcher"),
        ({"author": "bob"}, "unknown key 'author'"),
        ({"comment": "two\nlines"}, "one line"),
        ({"for": ...}, 'give either "for"'),
        ({"ends_at": "2026-01-02T00:00:00Z"}, 'give either "for"'),
        ({"for": "0s"}, "not a duration"),
        ({"for": 7}, "not a duration"),
        ({"for": "999999999d"}, "within 366 days"),
        (
            {"for": ..., "ends_at": "2025-01-02T00:00:00Z"},
            "must end after it starts, and after now",
        ),
        ({"for": ..., "ends_at": "soon"}, '"ends_at" must be a time from 1970'),
        ({"for": "400d", "starts_at": "9999-12-31T00:00:00Z"}, '"starts_at" must be a time'),
        ({"for": "400d", "starts_at": "9998-12-31T00:00:00Z"}, "within 366 days"),
        ({"starts_at": "0001-01-01T00:00:00+14:00"}, '"starts_at" must be a time'),
        ({"starts_at": 7}, '"starts_at" must be a time'),
        ({"untli": "x"}, "unknown key 'untli'"),
    ],
)
def test_a_slip_is_said_in_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        made(**changes)
    assert message in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    JSON | st.dictionaries(st.sampled_from([*GOOD, "ends_at", "starts_at", "fingerprint"]), JSON)
)
def test_anything_else_is_refused_and_nothing_breaks(document: Any) -> None:
    try:
        silence_of(document, [], NOW, "s1", "alice")
    except RequestError as error:
        assert str(error)
