"""Silences cover what their matchers say, for as long as they say."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden.silence import Silence, first_covering, matcher_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALERT = Alert(
    fingerprint="f1",
    rule="gpu_hot",
    severity=Severity.WARNING,
    state=AlertState.FIRING,
    labels={"node": "n1", "gpu": "0"},
    summary="",
    remedy="",
    value=None,
    usd_per_hour=None,
    began_at=NOW,
    active_at=NOW,
    seen_at=NOW,
)
SILENCE = Silence(
    id="s1", author="alice", comment="", starts_at=NOW, ends_at=NOW + timedelta(hours=6)
)


@pytest.mark.parametrize(
    ("matchers", "covers"),
    [
        (["node=n1"], True),
        (["node=n"], False),
        (["node=~n."], True),
        (["node=~n"], False),
        (["node!=n1"], False),
        (["node!~x.*"], True),
        (["rule=gpu_hot", "severity=warning"], True),
        (["rule=gpu_hot", "severity=critical"], False),
        (["team="], True),
        (["team!="], False),
    ],
)
def test_all_matchers_must_match(matchers: list[str], covers: bool) -> None:
    silence = replace(SILENCE, matchers=tuple(map(matcher_of, matchers)))
    assert silence.covers(ALERT) is covers


@pytest.mark.parametrize(
    "text", ["", "node", "=n1", "7=x", "node=~(", "node=~(?=n1)", "node==~[", "node=" + "x" * 300]
)
def test_what_is_no_matcher_is_refused_in_one_line(text: str) -> None:
    if text == "node==~[":
        assert str(matcher_of(text)) == text  # the value may have anything
        return
    with pytest.raises(ValueError, match=r"matcher|regular expression") as caught:
        matcher_of(text)
    assert "\n" not in str(caught.value)


def test_no_pattern_hangs_whoever_waits_for_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    """With backtracking the first would take years."""
    assert not matcher_of("node=~(a+)+").matches({"node": "a" * 1000 + "!"})
    assert matcher_of("node=~(a|aa)+").matches({"node": "a" * 1000})
    with pytest.raises(ValueError, match="regular expression"):
        matcher_of("node=~(")
    assert capfd.readouterr() == ("", "")


@given(
    st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True),
    st.sampled_from(["=", "!="]),
    st.text(max_size=20).map(str.strip),
)
def test_a_matcher_reads_as_it_was_written(name: str, operator: str, value: str) -> None:
    if value.startswith("~"):
        return
    text = f"{name}{operator}{value}"
    matcher = matcher_of(text)
    assert str(matcher) == text
    assert matcher.matches({name: value}) is (operator == "=")


def test_an_acknowledgement_is_of_one_alert() -> None:
    silence = replace(SILENCE, fingerprint="f1")
    assert silence.covers(ALERT)
    assert not silence.covers(replace(ALERT, fingerprint="f2"))


def test_the_reason_says_until_when_by_whom_and_why() -> None:
    assert SILENCE.reason(NOW) == "silenced until 18:00 UTC by alice"
    longer = replace(SILENCE, ends_at=NOW + timedelta(days=2), comment="rack moves")
    assert longer.reason(NOW) == "silenced until 2026-01-03 12:00 UTC by alice: rack moves"
    known = replace(SILENCE, fingerprint="f1")
    assert known.reason(NOW) == "acknowledged until 18:00 UTC by alice"


def test_the_silence_that_holds_longest_is_named() -> None:
    longer = replace(SILENCE, id="s2", ends_at=NOW + timedelta(hours=9))
    over = replace(SILENCE, id="s3", starts_at=NOW - timedelta(hours=1), ends_at=NOW)
    later = replace(longer, id="s4", starts_at=NOW + timedelta(seconds=1))
    assert first_covering([SILENCE, longer, over, later], ALERT, NOW) is longer
    assert first_covering([over, later], ALERT, NOW) is None
