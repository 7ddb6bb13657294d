"""Alerts know who they are and what they have cost."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.alert import Alert, AlertState, Severity, fingerprint

START = datetime(2026, 1, 1, tzinfo=UTC)
ALERT = Alert(
    fingerprint="f",
    rule="gpu_idle_held",
    severity=Severity.WARNING,
    state=AlertState.FIRING,
    labels={"node": "n1"},
    summary="s",
    remedy="r",
    value=1.0,
    usd_per_hour=2.0,
    began_at=START,
    active_at=START + timedelta(minutes=30),
    seen_at=START + timedelta(minutes=30),
)


def test_cost_runs_from_when_it_began_until_it_resolved() -> None:
    assert ALERT.usd_so_far(START + timedelta(hours=3)) == 6.0
    resolved = replace(ALERT, resolved_at=START + timedelta(hours=1))
    assert resolved.usd_so_far(START + timedelta(hours=3)) == 2.0


def test_an_unknown_price_is_an_unknown_cost() -> None:
    assert replace(ALERT, usd_per_hour=None).usd_so_far(START + timedelta(hours=3)) is None


@given(st.dictionaries(st.text(), st.text()), st.randoms())
def test_a_fingerprint_does_not_depend_on_the_order_of_labels(labels, random) -> None:
    shuffled = list(labels.items())
    random.shuffle(shuffled)
    assert fingerprint("rule", dict(shuffled)) == fingerprint("rule", labels)


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_different_labels_have_different_fingerprints(one, other) -> None:
    assert (fingerprint("rule", one) == fingerprint("rule", other)) == (one == other)


def test_fingerprints_are_the_same_in_every_version() -> None:
    assert fingerprint("gpu_idle_held", {"node": "n1", "gpu": "0"}) == "285bc22be52c56fb"
