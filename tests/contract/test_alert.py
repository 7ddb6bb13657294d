"""Alerts know who they are and what they have cost; silences cover what their matchers say."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.alert import (
    Alert,
    AlertState,
    Severity,
    Silence,
    fingerprint,
    first_covering,
    matcher_of,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
ALERT = Alert(
    fingerprint="f",
    rule="gpu_idle_held",
    severity=Severity.WARNING,
    state=AlertState.FIRING,
    labels={"node": "n1", "gpu": "0"},
    summary="s",
    remedy="r",
    value=1.0,
    usd_per_hour=2.0,
    began_at=START,
    active_at=START + timedelta(minutes=30),
    seen_at=START + timedelta(minutes=30),
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SILENCE = Silence(
    id="s1", author="alice", comment="", starts_at=NOON, ends_at=NOON + timedelta(hours=6)
)


def test_cost_runs_from_when_it_began_until_it_resolved() -> None:
    assert ALERT.usd_so_far(START + timedelta(hours=3)) == 6.0
    resolved = replace(ALERT, resolved_at=START + timedelta(hours=1))
    assert resolved.usd_so_far(START + timedelta(hours=3)) == 2.0
    assert replace(ALERT, usd_per_hour=None).usd_so_far(START + timedelta(hours=3)) is None


LABELS = st.dictionaries(st.text(), st.text())


@given(LABELS, LABELS, st.randoms())
def test_a_fingerprint_is_of_the_labels_in_any_order(labels, other, random) -> None:
    shuffled = list(labels.items())
    random.shuffle(shuffled)
    assert fingerprint("rule", dict(shuffled)) == fingerprint("rule", labels)
    assert (fingerprint("rule", labels) == fingerprint("rule", other)) == (labels == other)


def test_fingerprints_are_the_same_in_every_version() -> None:
    assert fingerprint("gpu_idle_held", {"node": "n1", "gpu": "0"}) == "285bc22be52c56fb"


@pytest.mark.parametrize(
    ("matchers", "covers"),
    [
        (["node=n1"], True),
        (["node=n"], False),
        (["node=~n."], True),
        (["node=~n"], False),
        (["node!=n1"], False),
        (["node!~x.*"], True),
        (["rule=gpu_idle_held", "severity=warning"], True),
        (["rule=gpu_idle_held", "severity=critical"], False),
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
    silence = replace(SILENCE, fingerprint="f")
    assert silence.covers(ALERT)
    assert not silence.covers(replace(ALERT, fingerprint="f2"))


def test_the_reason_says_until_when_by_whom_and_why() -> None:
    assert SILENCE.reason(NOON) == "silenced until 18:00 UTC by alice"
    longer = replace(SILENCE, ends_at=NOON + timedelta(days=2), comment="rack moves")
    assert longer.reason(NOON) == "silenced until 2026-01-03 12:00 UTC by alice: rack moves"
    known = replace(SILENCE, fingerprint="f1")
    assert known.reason(NOON) == "acknowledged until 18:00 UTC by alice"


def test_the_silence_that_holds_longest_is_named() -> None:
    longer = replace(SILENCE, id="s2", ends_at=NOON + timedelta(hours=9))
    over = replace(SILENCE, id="s3", starts_at=NOON - timedelta(hours=1), ends_at=NOON)
    later = replace(longer, id="s4", starts_at=NOON + timedelta(seconds=1))
    assert first_covering([SILENCE, longer, over, later], ALERT, NOON) is longer
    assert first_covering([over, later], ALERT, NOON) is None
