"""The life of an alert: never early, never twice, and nothing from what nobody knows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.alert import AlertState
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.definition.templates import TEXT_CHARS_MAX
from gpuwarden_rules.evaluation.state import (
    FLAPPING,
    FLAPS_MAX,
    STALE_MAX,
    Account,
    RowsError,
    RuleState,
    Transition,
    fingerprints_in,
    found_rows,
    restored,
    step,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
PENDING, FIRING, RESOLVED = AlertState.PENDING, AlertState.FIRING, AlertState.RESOLVED


def rule_of(
    hold: str = "0s", keep: str = "0s", summary: str = "{gpu}", warm_up: str = "0s"
) -> Rule:
    (rule,) = parse(
        f"""
        rules:
          - name: hot
            severity: warning
            labels: [node, gpu]
            for: {hold}
            keep_firing_for: {keep}
            warm_up: {warm_up}
            summary: "{summary}"
            remedy: cool {{node}}
            sql: SELECT $now
        """,
        "r.yaml",
    )
    return rule


def row(gpu: int = 0, **more: Any) -> dict[str, Any]:
    return {"node": "n1", "gpu": gpu, **more}


def replay(
    rule: Rule, rows_at: Mapping[int, Sequence[Mapping[str, Any]]]
) -> tuple[RuleState, list[tuple[int, Transition]]]:
    """Evaluate at the minutes given; the state at the end, and transitions with their minute."""
    state = RuleState()
    happened: list[tuple[int, Transition]] = []
    for minute, rows in rows_at.items():
        state, transitions = step(state, rows, rule, START + timedelta(minutes=minute))
        happened += [(minute, transition) for transition in transitions]
    return state, happened


def states(happened: list[tuple[int, Transition]]) -> list[tuple[int, AlertState]]:
    return [(minute, transition.alert.state) for minute, transition in happened]


def test_without_for_the_first_row_fires() -> None:
    state, happened = replay(rule_of(), {0: [row()]})
    assert states(happened) == [(0, FIRING)]
    (alert,) = state.values()
    assert (alert.labels, alert.remedy) == ({"node": "n1", "gpu": "0"}, "cool n1")
    assert (alert.active_at, alert.fired_at, alert.seen_at) == (START, START, START)


def test_with_for_it_is_pending_first() -> None:
    _, happened = replay(rule_of("5m"), {m: [row()] for m in range(0, 10, 2)})
    assert states(happened) == [(0, PENDING), (6, FIRING)]


def test_a_pending_alert_that_is_gone_is_over_without_having_fired() -> None:
    state, happened = replay(rule_of("5m", "10m"), {0: [row()], 1: [], 2: []})
    assert states(happened) == [(0, PENDING), (1, RESOLVED)]
    assert happened[1][1].alert.fired_at is None
    assert state == {}


def test_a_firing_alert_goes_on_for_keep_firing_for() -> None:
    rows_at = {0: [row()], **{m: [] for m in range(1, 8)}}
    _, happened = replay(rule_of(keep="5m"), rows_at)
    assert states(happened) == [(0, FIRING), (5, RESOLVED)]


def test_an_alert_that_comes_back_is_a_new_episode() -> None:
    state, happened = replay(rule_of(), {0: [row()], 1: [], 2: [row()]})
    assert states(happened) == [(0, FIRING), (1, RESOLVED), (2, FIRING)]
    (alert,) = state.values()
    assert alert.active_at == START + timedelta(minutes=2)
    assert alert.fingerprint == happened[0][1].alert.fingerprint


def test_a_row_that_does_not_hold_is_no_row() -> None:
    _, happened = replay(rule_of(), {0: [row(holds=False)], 1: [row()], 2: [row(holds=False)]})
    assert states(happened) == [(1, FIRING), (2, RESOLVED)]


def test_what_nobody_can_say_neither_starts_nor_fires_nor_clears() -> None:
    unknown = [row(holds=None)]
    assert replay(rule_of(), {0: unknown})[1] == []
    state, happened = replay(rule_of("5m"), {0: [row()], 6: unknown, 90: unknown})
    assert states(happened) == [(0, PENDING)]
    (alert,) = state.values()
    assert alert.seen_at == START
    assert alert.unknown_since == START + timedelta(minutes=6)
    _, happened = replay(rule_of(), {0: [row()], 60: unknown, 61: []})
    assert states(happened) == [(0, FIRING), (61, RESOLVED)]


def test_it_began_when_the_sql_first_said() -> None:
    early, late = START - timedelta(hours=2), START - timedelta(hours=1)
    state, _ = replay(rule_of(), {0: [row(began_at=late)], 1: [row(began_at=early)], 2: [row()]})
    (alert,) = state.values()
    assert alert.began_at == early
    state, _ = replay(rule_of(), {0: [row(began_at=START + timedelta(hours=1))]})
    assert [alert.began_at for alert in state.values()] == [START], "not after it was found"


def test_texts_follow_the_row() -> None:
    rows_at = {m: [row(usd_per_hour=6.0, began_at=START)] for m in (0, 60)}
    state, _ = replay(rule_of(summary="{gpu} {active}"), rows_at)
    (alert,) = state.values()
    assert alert.summary == "0 1 h 00 min"
    assert alert.usd_so_far(START + timedelta(hours=1)) == 6.0


@pytest.mark.parametrize("price", [None, float("nan"), float("inf")])
def test_an_unknown_price_is_not_free(price: float | None) -> None:
    state, _ = replay(rule_of(), {0: [row(usd_per_hour=price, value=price)]})
    (alert,) = state.values()
    assert (alert.usd_per_hour, alert.value, alert.usd_so_far(START)) == (None, None, None)


def test_a_label_that_is_null_does_not_apply() -> None:
    state, _ = replay(rule_of(summary="x"), {0: [row(), {"node": "n1", "gpu": None}]})
    assert sorted(len(alert.labels) for alert in state.values()) == [1, 2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(), row()], r"two rows have the same labels \(node=n1, gpu=0\)"),
        ([row(), row(holds=None)], "two rows have the same labels"),
        ([{"node": "n1"}], "does not return the label 'gpu'"),
        ([row(value="much")], "column 'value' must be a number"),
        ([row(began_at="today")], "column 'began_at' must be a TIMESTAMP"),
        ([row(began_at=START.replace(tzinfo=None))], "column 'began_at' must be a TIMESTAMP"),
        ([row(severity="bad")], "column 'severity' must be one of info, warning, critical"),
    ],
)
def test_rows_that_cannot_be_alerts_are_an_error(rows: list[Any], message: str) -> None:
    with pytest.raises(RowsError, match=message):
        step({}, rows, rule_of(), START)


def test_a_text_that_the_row_cannot_fill_is_an_error() -> None:
    with pytest.raises(RowsError, match="{user}, which the SQL does not return"):
        step({}, [row()], rule_of(summary="{user}"), START)


def test_who_muted_an_alert_stays_known() -> None:
    state, _ = step({}, [row()], rule_of(), START)
    muted = {key: replace(alert, muted="silenced by alice") for key, alert in state.items()}
    (alert,) = step(muted, [row()], rule_of(), START + timedelta(minutes=1))[0].values()
    assert alert.muted == "silenced by alice"


def test_a_cost_that_waste_accounts_for_replaces_the_price_by_the_hour() -> None:
    rule, rows = rule_of(), [row(usd_per_hour=6.0)]
    state, _ = step({}, rows, rule, START)
    (key,) = state
    hour = START + timedelta(hours=1)
    account = Account(4.5, hour - timedelta(minutes=5), START - timedelta(hours=2))
    (alert,) = step(state, rows, rule, hour, accounts={key: account})[0].values()
    assert alert.usd_so_far(hour) == 4.5
    assert (alert.accounted_usd, alert.accounted_until) == (4.5, account.until)
    assert alert.began_at == START, "an alert that is known keeps its begin"
    # A new alert begins with its account, and later steps without an account keep the cost.
    state, _ = step({}, rows, rule, hour, accounts={key: account})
    (alert,) = step(state, rows, rule, hour + timedelta(hours=1))[0].values()
    assert (alert.began_at, alert.accounted_usd) == (account.began_at, 4.5)
    assert alert.usd_so_far(hour) == 4.5
    # An alert whose row is gone ends with the cost that it has by now.
    _, (over,) = step(state, [], rule, hour, accounts={key: account._replace(usd=9.0)})
    assert (over.alert.state, over.alert.accounted_usd) == (RESOLVED, 9.0)


def test_a_condition_that_was_unknown_and_ended_is_not_unknown_while_the_alert_is_kept() -> None:
    state, _ = replay(rule_of(keep="10m"), {0: [row()], 1: [row(holds=None)], 2: []})
    (alert,) = state.values()
    assert (alert.state, alert.unknown_since) == (FIRING, None)


def test_a_node_that_sends_again_is_not_stale_though_the_condition_is_unknown() -> None:
    state, _ = step({}, [row()], rule_of(), START)
    state, _ = step(state, [], rule_of(), START + timedelta(minutes=1), {"n1"})
    assert [alert.stale_since for alert in state.values()] == [START + timedelta(minutes=1)]
    state, _ = step(state, [row(holds=None)], rule_of(), START + timedelta(minutes=2))
    assert [alert.stale_since for alert in state.values()] == [None]


def test_the_end_of_an_alert_of_a_silent_node_says_why() -> None:
    state, _ = step({}, [row()], rule_of("5m"), START)
    _, (over,) = step(state, [], rule_of("5m"), START, {"n1"})
    assert over.alert.resolved_reason == "n1 stopped sending"
    state, _ = step({}, [row()], rule_of(), START)
    state, _ = step(state, [], rule_of(), START, {"n1"})
    _, (over,) = step(state, [], rule_of(), START + STALE_MAX, {"n1"})
    assert (over.before, over.alert.resolved_at) == (FIRING, START + STALE_MAX)
    assert over.alert.resolved_reason == ("n1 has sent nothing for 30 min, so its state is unknown")


def test_unknown_is_over_when_somebody_can_say_again() -> None:
    unknown = [row(holds=None)]
    state, happened = replay(rule_of(), {0: [row()], 5: unknown, 9: unknown, 10: [row()]})
    (alert,) = state.values()
    assert alert.unknown_since is None
    assert states(happened) == [(0, FIRING)]
    assert replay(rule_of(), {0: unknown})[0].unknown == {alert.fingerprint}


def test_a_job_that_warms_up_is_not_judged() -> None:
    began = START - timedelta(minutes=5)
    rows_at = {m: [row(job_started_at=began)] for m in range(8)}
    _, happened = replay(rule_of(warm_up="10m"), rows_at)
    assert states(happened) == [(5, FIRING)]
    _, happened = replay(rule_of(warm_up="10m"), {0: [row(job_started_at=None)]})
    assert states(happened) == [(0, FIRING)]


def test_an_alert_has_what_its_row_says() -> None:
    def of(**more: Any) -> tuple[object, ...]:
        (alert,) = replay(rule_of(), {0: [row(**more)]})[0].values()
        return alert.owner, str(alert.severity), alert.value, alert.simulated

    said = {"owner": "alice", "severity": "critical", "value": 3.5, "simulated": True}
    assert of(**said) == ("alice", "critical", 3.5, True)
    assert of(owner=None, severity=None) == (None, "warning", None, False)
    assert of(owner="a" * 10_000)[0] == "a" * TEXT_CHARS_MAX


def test_what_comes_and_goes_too_often_is_held_and_says_so() -> None:
    on_off = {m: [row()] if m % 10 == 0 else [] for m in range(0, 60, 5)}
    state, happened = replay(rule_of(), on_off)
    changes = [(0, FIRING), (5, RESOLVED), (10, FIRING), (15, RESOLVED), (20, FIRING)]
    assert states(happened) == changes
    (alert,) = state.values()
    assert alert.summary == "0" + FLAPPING
    assert alert.active_at == START + timedelta(minutes=20)


def test_what_was_held_is_over_once_it_has_been_quiet() -> None:
    on_off = {m: [row()] if m % 10 == 0 else [] for m in range(0, 60, 5)}
    quiet = {m: [] for m in range(60, 150, 5)}
    state, happened = replay(rule_of(), on_off | quiet)
    assert state == {}
    at, last = happened[-1]
    assert last.alert.state is RESOLVED
    # Four changes in an hour: the last of them at 40, 45, 50 and 55.
    assert at == 100


def test_fingerprints_of_rows_are_those_of_a_step() -> None:
    rule, young = rule_of(warm_up="10m"), START - timedelta(minutes=5)
    rows = [row(0), row(1, holds=None), row(2, holds=False), row(3, job_started_at=young)]
    state, _ = step({}, rows, rule, START)
    assert fingerprints_in(rows, rule, START) == (state.keys(), state.unknown)
    assert len(state.unknown) == 2
    (alert,) = state.values()
    assert found_rows(rows, rule, START) == {alert.fingerprint: (alert.labels, rows[0])}


def test_a_restart_finds_open_alerts_and_their_changes_in_what_is_stored() -> None:
    state, happened = replay(rule_of(), {0: [row()], 5: [], 10: [row(), row(1)]})
    stored = {(t.alert.fingerprint, t.alert.active_at): t.alert for _, t in happened}
    again = restored(reversed(stored.values()))
    assert again == state
    assert again.changes == state.changes


def test_an_episode_that_ended_in_silence_counts_for_flapping() -> None:
    state, _ = replay(rule_of(), {0: [row()]})
    for minute in (1, 31):
        state, _ = step(state, [], rule_of(), START + timedelta(minutes=minute), {"n1"})
    assert state == {}
    for minute, rows in ((32, [row()]), (33, []), (34, [row()])):
        state, _ = step(state, rows, rule_of(), START + timedelta(minutes=minute))
    (alert,) = state.values()
    assert alert.summary.endswith(FLAPPING)


HISTORY = st.lists(
    st.tuples(
        st.integers(1, 7),  # minutes since the evaluation before
        st.dictionaries(st.integers(0, 2), st.sampled_from([True, False, None]), max_size=3),
    ),
    max_size=40,
)
HOLDS = st.integers(0, 12)


@given(HISTORY, HOLDS, HOLDS)
def test_any_history_keeps_the_promises(
    history: list[tuple[int, dict[int, bool | None]]], hold: int, keep: int
) -> None:
    rule = rule_of(f"{hold}m", f"{keep}m")
    rows_at: dict[int, list[dict[str, Any]]] = {}
    minute = 0
    for gap, gpus in history:
        minute += gap
        rows_at[minute] = [row(gpu, holds=holds) for gpu, holds in gpus.items()]
    state, happened = replay(rule, rows_at)

    assert all(key == alert.fingerprint for key, alert in state.items())
    assert all(alert.state in (PENDING, FIRING) for alert in state.values())
    episodes: dict[tuple[str, datetime], list[Transition]] = {}
    for at, transition in happened:
        alert = transition.alert
        episodes.setdefault((alert.fingerprint, alert.active_at), []).append(transition)
        held_for = START + timedelta(minutes=at) - alert.active_at
        if alert.state is FIRING:
            assert held_for >= timedelta(minutes=hold), "fired before `for`"
            assert {(True)} == {
                g
                for gpu, g in ((r["gpu"], r["holds"]) for r in rows_at[at])
                if str(gpu) == alert.labels["gpu"]
            }, "fired on something that was not seen"
        if alert.state is RESOLVED and alert.fired_at:
            assert alert.resolved_at is not None
            assert alert.resolved_at - alert.seen_at >= timedelta(minutes=keep)
    for episode in episodes.values():
        path = [transition.alert.state for transition in episode]
        assert path in (
            [PENDING],
            [FIRING],
            [PENDING, FIRING],
            [PENDING, RESOLVED],
            [FIRING, RESOLVED],
            [PENDING, FIRING, RESOLVED],
        )
        assert episode[0].before is None
        assert [t.before for t in episode[1:]] == path[:-1]
    for key in {transition.alert.fingerprint for _, transition in happened}:
        at = [m for m, t in happened if t.alert.fingerprint == key and t.alert.fired_at]
        for first, last in zip(at, at[FLAPS_MAX + 1 :], strict=False):
            assert last - first >= 60, "flapped"
    live = {(alert.fingerprint, alert.active_at) for alert in state.values()}
    ended = {key for key, e in episodes.items() if e[-1].alert.state is RESOLVED}
    assert live == episodes.keys() - ended


def test_an_immediate_row_does_not_wait_for_for() -> None:
    rows = [row(0, immediate=True), row(1, immediate=False), row(2)]
    _, happened = replay(rule_of("5m"), {0: rows, 6: rows})
    assert [(m, t.alert.labels["gpu"], t.alert.state) for m, t in happened] == [
        (0, "0", FIRING),
        (0, "1", PENDING),
        (0, "2", PENDING),
        (6, "1", FIRING),
        (6, "2", FIRING),
    ]


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.booleans(), st.sampled_from([True, False, None])),
        max_size=40,
    ),
    HOLDS,
    HOLDS,
)
def test_nothing_begins_on_a_silent_node_and_what_fires_is_stale_until_it_ends(
    history: list[tuple[int, bool, bool | None]], hold: int, keep: int
) -> None:
    rule, state = rule_of(f"{hold}m", f"{keep}m"), RuleState()
    now, silent_since = START, None
    for gap, is_silent, holds in history:
        now += timedelta(minutes=gap)
        silent_since = (silent_since or now) if is_silent else None
        before = state
        state, transitions = step(state, [row(holds=holds)], rule, now, {"n1"} if is_silent else {})
        for alert in state.values():
            assert alert.stale_since == silent_since
        if not is_silent:
            assert not any(t.alert.resolved_reason for t in transitions)
            continue
        assert all(alert.state is FIRING for alert in state.values())
        assert all(t.alert.state is RESOLVED and t.alert.resolved_reason for t in transitions)
        firing = {key for key, alert in before.items() if alert.state is FIRING}
        is_over = now - silent_since >= STALE_MAX
        assert state.keys() == (set() if is_over else firing)


def test_a_rule_about_silence_judges_silent_nodes() -> None:
    rule = replace(rule_of("5m"), judges_silent_nodes=True)
    state, transitions = step(RuleState(), [row()], rule, START, {"n1"})
    assert len(state) == len(transitions) == 1


WITH_STEPS_BACK = st.lists(
    st.tuples(
        st.integers(-20, 7),
        st.dictionaries(st.integers(0, 2), st.sampled_from([True, False, None]), max_size=3),
    ),
    max_size=40,
)


@given(WITH_STEPS_BACK, HOLDS, HOLDS)
def test_a_clock_that_goes_back_breaks_no_promise(
    history: list[tuple[int, dict[int, bool | None]]], hold: int, keep: int
) -> None:
    rule = rule_of(f"{hold}m", f"{keep}m")
    state = RuleState()
    minute = 0
    for gap, gpus in history:
        minute += gap
        now = START + timedelta(minutes=minute)
        rows = [row(g, holds=h, usd_per_hour=2.0) for g, h in gpus.items()]
        state, transitions = step(state, rows, rule, now)
        for alert in state.values():
            assert "-" not in alert.summary, "costs less than nothing"
        for alert in (t.alert for t in transitions):
            if alert.state is FIRING:
                assert now - alert.active_at >= timedelta(minutes=hold)
            if alert.state is RESOLVED:
                assert alert.resolved_at is not None
                assert alert.resolved_at >= alert.active_at >= alert.began_at
                assert alert.fingerprint not in state
    over = step(state, [], rule, now := START + timedelta(minutes=minute))
    assert all(alert.seen_at <= now for alert in over[0].values())
    # A minute beyond the hour in which changes count, and then beyond `keep`.
    later = now + timedelta(minutes=max(keep, 61))
    assert step(over[0], [], rule, later)[0] == {}


def test_an_alert_that_is_gone_does_not_wait_for_a_clock_that_went_back() -> None:
    """A clock an hour ahead when it was last seen: `keep_firing_for` counts from the new time."""
    _, happened = replay(rule_of(keep="5m"), {60: [row()], 0: [], 4: [], 5: []})
    assert states(happened) == [(60, FIRING), (5, RESOLVED)]
    _, happened = replay(rule_of(), {60: [row()], 0: []})
    assert states(happened) == [(60, FIRING), (0, RESOLVED)]
