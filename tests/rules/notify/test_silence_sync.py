"""Silences here and in an Alertmanager become equal, whatever is lost on the way."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from gpuwarden.alert import Silence, matcher_of
from gpuwarden_rules.notify.silence_sync import (
    KEPT,
    CreateThere,
    ExpireThere,
    NotCarriedError,
    SaveHere,
    SilenceLink,
    SyncPlan,
    SyncState,
    TheirSilence,
    can_match,
    comment_there,
    created,
    id_here,
    matchers_there,
    silence_here,
    step,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RULES = {"gpu_idle_held": ("node", "gpu", "gpu_uuid"), "node_down": ("node",)}
STATE = SyncState(installation="0123abcd")


def ours(silence_id: str = "s1", *, ends: float = 60, matcher: str = "node=n1") -> Silence:
    return Silence(
        id=silence_id,
        matchers=(matcher_of(matcher),),
        author="ann",
        comment="move",
        starts_at=T0,
        ends_at=T0 + timedelta(minutes=ends),
    )


def theirs(
    theirs_id: str = "t1",
    *,
    ends: float = 60,
    comment: str = "theirs",
    matcher: tuple[str, str, str] = ("node", "=", "n1"),
    is_expired: bool = False,
) -> TheirSilence:
    return TheirSilence(
        id=theirs_id,
        matchers=(matcher,),
        author="bob",
        comment=comment,
        starts_at=T0,
        ends_at=T0 + timedelta(minutes=ends),
        is_expired=is_expired,
    )


def planned(
    state: SyncState, mine: list[Silence], known: list[TheirSilence], minutes: float = 1
) -> SyncPlan:
    now = T0 + timedelta(minutes=minutes)
    return step(state, {s.id: s for s in mine}, {t.id: t for t in known}, RULES, now)


def linked(theirs_id: str | None = "t1", *, ours_id: str = "s1", **about: Any) -> SyncState:
    ends_at = T0 + timedelta(minutes=about.pop("ends", 60))
    return replace(STATE, links={ours_id: SilenceLink(theirs=theirs_id, ends_at=ends_at, **about)})


def test_a_silence_is_made_there_once_its_answer_is_known() -> None:
    plan = planned(STATE, [ours()], [])
    assert plan.effects == [CreateThere(ours())]
    state = created(plan.state, "s1", "t1")
    assert state.links["s1"].theirs == "t1"
    assert (
        planned(state, [ours()], [theirs(comment=comment_there(ours(), "0123abcd"))]).effects == []
    )


def test_one_whose_answer_was_lost_is_found_by_its_marker() -> None:
    marked = theirs(comment=comment_there(ours(), "0123abcd"))
    plan = planned(linked(None), [ours()], [marked])
    assert plan.effects == []
    assert plan.state.links["s1"].theirs == "t1"


def test_of_two_whose_answers_were_lost_the_one_that_a_person_expired_counts() -> None:
    comment = comment_there(ours(), "0123abcd")
    known = [theirs("t1", comment=comment), theirs("t2", ends=1, comment=comment, is_expired=True)]
    plan = planned(linked(None), [ours()], known, minutes=2)
    assert plan.effects == [ExpireThere("t1"), SaveHere(ours(ends=1))]


def test_one_that_alertmanager_no_longer_lists_is_not_made_again() -> None:
    plan = planned(linked("t1"), [ours()], [])
    assert plan.effects == []


def test_the_marker_of_another_collector_is_a_silence_of_theirs() -> None:
    marked = theirs(comment=comment_there(ours(), "ffffffff"))
    (effect,) = planned(STATE, [], [marked]).effects
    assert isinstance(effect, SaveHere)
    assert effect.silence.id == id_here("t1")


def test_an_edited_comment_does_not_make_a_second_silence() -> None:
    assert planned(linked("t1"), [ours()], [theirs(comment="edited")]).effects == []


def test_an_end_here_wins_over_a_later_end_there() -> None:
    plan = planned(linked("t1"), [ours(ends=5)], [theirs(ends=600)], minutes=6)
    assert plan.effects == [ExpireThere("t1")]


def test_an_end_there_and_a_new_end_there_are_taken_over() -> None:
    (effect,) = planned(linked("t1"), [ours()], [theirs(ends=90)]).effects
    assert effect == SaveHere(ours(ends=90))
    expired = theirs(ends=3, is_expired=True)
    (effect,) = planned(linked("t1"), [ours()], [expired], minutes=4).effects
    assert effect == SaveHere(ours(ends=3))


def test_one_that_ended_here_while_alertmanager_was_away_for_weeks_is_expired_there() -> None:
    state = linked("t1", ours_id=id_here("t1"), ends=30 * 24 * 60, is_seen=True)
    plan = planned(state, [], [theirs(ends=30 * 24 * 60)], minutes=20 * 24 * 60)
    assert plan.effects == [ExpireThere("t1")]


def test_a_link_is_forgotten_a_week_after_its_silence() -> None:
    late = KEPT / timedelta(minutes=1) + 61
    assert planned(linked("t1"), [], [], minutes=late).state.links == {}
    assert planned(linked("t1"), [], [], minutes=late - 2).state.links != {}


@pytest.mark.parametrize(
    ("silence", "why"),
    [
        (replace(ours(), matchers=(), fingerprint="ab"), "acknowledgement"),
        (ours(matcher="alertname=x"), "alertname"),
        (ours(matcher="node!=n1"), "no matcher needs a label"),
    ],
)
def test_what_alertmanager_cannot_express_stays_here_and_is_named(
    silence: Silence, why: str
) -> None:
    plan = planned(STATE, [silence], [])
    assert plan.effects == []
    assert why in plan.not_carried["s1"]
    with pytest.raises(NotCarriedError):
        matchers_there(silence)


@pytest.mark.parametrize(
    ("matcher", "why"),
    [
        (("incident", "=", "i1"), "no label incident"),
        (("rule", "=", "x"), "no label rule"),
        (("node", "=~", "n" * 300), "at most"),
        (("node", "=", "a\nb"), "printable"),
    ],
)
def test_what_cannot_be_expressed_here_stays_there_and_is_named(
    matcher: tuple[str, str, str], why: str
) -> None:
    plan = planned(STATE, [], [theirs(matcher=matcher)])
    assert plan.effects == []
    assert why in plan.not_carried["t1"]


def test_the_name_of_a_rule_is_alertname_there() -> None:
    silence = ours(matcher="rule=~gpu_.*")
    assert matchers_there(silence) == (("alertname", "=~", "gpu_.*"),)
    back = silence_here(theirs(matcher=("alertname", "=~", "gpu_.*")))
    assert back.matchers == silence.matchers


def test_silences_that_no_alert_of_ours_can_match_are_left_alone() -> None:
    assert not can_match(theirs(matcher=("instance", "=", "db1")), RULES)
    assert not can_match(theirs(matcher=("alertname", "=", "HostDown")), RULES)
    assert can_match(theirs(matcher=("instance", "!=", "db1")), RULES)
    assert can_match(theirs(matcher=("alertname", "=~", "node_.*")), RULES)
    assert planned(STATE, [], [theirs(matcher=("instance", "=", "db1"))]).not_carried == {}


@dataclass
class FakeAlertmanager:
    """Silences as Alertmanager keeps them."""

    silences: dict[str, TheirSilence] = field(default_factory=dict)

    def make(
        self, starts_at: datetime, ends_at: datetime, comment: str, now: datetime
    ) -> str | None:
        if ends_at <= now:
            return None
        made = replace(
            theirs(f"t{len(self.silences)}", comment=comment),
            starts_at=max(starts_at, now),
            ends_at=ends_at,
        )
        self.silences[made.id] = made
        return made.id

    def expire(self, theirs_id: str, now: datetime) -> None:
        one = self.silences[theirs_id]
        if one.ends_at > now:
            starts_at = min(one.starts_at, now)
            self.silences[theirs_id] = replace(
                one, starts_at=starts_at, ends_at=now, is_expired=True
            )

    def listed(self, now: datetime) -> dict[str, TheirSilence]:
        return {
            key: replace(one, is_expired=one.ends_at <= now) for key, one in self.silences.items()
        }


class BothSides(RuleBasedStateMachine):
    """Creates and ends silences on both sides, loses answers, and delays requests."""

    def __init__(self) -> None:
        super().__init__()
        self.now = T0
        self.here: dict[str, Silence] = {}
        self.there = FakeAlertmanager()
        self.state = STATE
        self.delayed: list[Callable[[], object]] = []
        self.ended: set[str] = set()
        """Ids here and there that a person ended."""

    @rule(minutes=st.integers(1, 40), ahead=st.sampled_from([0, 0, 5]))
    def create_here(self, minutes: int, ahead: int) -> None:
        starts_at = self.now + timedelta(minutes=ahead)
        made = replace(ours(f"s{len(self.here)}"), starts_at=starts_at)
        self.here[made.id] = replace(made, ends_at=starts_at + timedelta(minutes=minutes))

    @rule(minutes=st.integers(1, 40))
    def create_there(self, minutes: int) -> None:
        self.there.make(self.now, self.now + timedelta(minutes=minutes), "theirs", self.now)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def end_here(self, data: st.DataObject) -> None:
        active = [s for s in self.here.values() if s.ends_at > self.now]
        if active:
            one = data.draw(st.sampled_from(active))
            self.here[one.id] = replace(one, ends_at=self.now)
            self.ended |= {one.id, *(t.id for t in self._copies(one.id))}

    def _copies(self, ours_id: str) -> list[TheirSilence]:
        """What belongs there to a silence here."""
        marker = f" {ours_id}]"
        return [
            t
            for t in self.there.silences.values()
            if t.comment.endswith(marker) or id_here(t.id) == ours_id
        ]

    @precondition(lambda self: self.there.silences)
    @rule(data=st.data(), later=st.integers(0, 30))
    def expire_or_extend_there(self, data: st.DataObject, later: int) -> None:
        active = [t for t in self.there.silences.values() if t.ends_at > self.now]
        if active:
            one = data.draw(st.sampled_from(active))
            if later < 10:
                made_here = one.comment.removesuffix("]").rpartition(" ")[2]
                ours_id = made_here if made_here in self.here else id_here(one.id)
                copies = [t for t in self._copies(ours_id) if t.ends_at > self.now]
                self.there.expire(one.id, self.now)
                # Of two copies a person may end one that is about to be expired in any case.
                self.ended |= {one.id, *([ours_id] if len(copies) == 1 else [])}
            else:
                self.there.silences[one.id] = replace(
                    one, ends_at=self.now + timedelta(minutes=later)
                )

    @rule(seconds=st.integers(2, 1200))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(fates=st.lists(st.sampled_from(["done", "lost", "no answer", "late"]), max_size=8))
    def sync(self, fates: list[str]) -> None:
        plan = step(self.state, self.here, self.there.listed(self.now), RULES, self.now)
        self.state = plan.state
        for number, effect in enumerate(plan.effects):
            self._do(effect, fates[number] if number < len(fates) else "done")

    @rule()
    def late_requests_arrive(self) -> None:
        for request in self.delayed:
            request()
        self.delayed.clear()

    def _do(self, effect: object, fate: str) -> None:
        if isinstance(effect, SaveHere):
            # What is stored here is done, or it is not: a crash.
            if fate == "done":
                assert effect.silence.id not in self.ended or effect.silence.ends_at <= self.now
                self.here[effect.silence.id] = effect.silence
        elif isinstance(effect, ExpireThere):
            self._request(fate, lambda: self.there.expire(effect.id, self.now))
        elif isinstance(effect, CreateThere):
            one = effect.silence
            comment = comment_there(one, self.state.installation)
            answer = self._request(
                fate, lambda: self.there.make(one.starts_at, one.ends_at, comment, self.now)
            )
            if answer is not None:
                self.state = created(self.state, one.id, str(answer))

    def _request(self, fate: str, request: Callable[[], object]) -> object:
        if fate == "late":
            self.delayed.append(request)
        if fate in ("done", "no answer"):
            answer = request()
            return answer if fate == "done" else None
        return None

    def teardown(self) -> None:
        self.late_requests_arrive()
        for _ in range(4):
            self.sync([])
        plan = step(self.state, self.here, self.there.listed(self.now), RULES, self.now)
        assert plan.effects == []
        assert plan.not_carried == {}
        active_here = {s.id: s for s in self.here.values() if s.ends_at > self.now}
        active_there = {t.id: t for t in self.there.silences.values() if t.ends_at > self.now}
        links = {key: self.state.links[key].theirs for key in active_here}
        assert sorted(map(str, links.values())) == sorted(active_there)
        for key, theirs_id in links.items():
            assert theirs_id is not None
            apart = active_here[key].ends_at - active_there[theirs_id].ends_at
            assert abs(apart) < timedelta(seconds=1)
        assert not self.ended & (active_here.keys() | active_there.keys())


TestBothSides = BothSides.TestCase
