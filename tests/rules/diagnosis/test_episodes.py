"""Episodes begin, continue, change and end; what is saved adds up to what was found."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.diagnosis.scenes import END

from gpuwarden.diagnosis import Bottleneck, Diagnosis
from gpuwarden_rules.diagnosis.episodes import GONE_AFTER, REFRESH, EpisodeState, restored, step

LOOK = timedelta(seconds=15)


def found(
    bottleneck: Bottleneck, look: int, subject: str = "GPU-1", cause: str | None = None
) -> Diagnosis:
    at = END + look * LOOK
    return Diagnosis(
        subject=subject,
        kind="gpu",
        bottleneck=bottleneck,
        confidence=1.0,
        summary=bottleneck.value,
        advice=None,
        cause=cause,
        began_at=at,
        seen_at=at,
    )


def looks(*bottlenecks: Bottleneck | None) -> tuple[EpisodeState, list[Diagnosis]]:
    state, saved = EpisodeState(), []
    for number, bottleneck in enumerate(bottlenecks):
        seen = [] if bottleneck is None else [found(bottleneck, number)]
        state, changed = step(state, seen, END + number * LOOK)
        saved += changed
    return state, saved


BUSY, WORKERS, MAIN = Bottleneck.BUSY, Bottleneck.LOADER_WORKERS, Bottleneck.LOADER_MAIN


def test_an_episode_begins_at_once_and_goes_on_without_being_saved() -> None:
    state, saved = looks(BUSY, BUSY, BUSY)
    assert saved == [found(BUSY, 0)]
    assert state.open["GPU-1"] == replace(found(BUSY, 2), began_at=END)


def test_one_look_on_the_edge_changes_nothing_two_do() -> None:
    state, saved = looks(BUSY, WORKERS, BUSY, WORKERS)
    assert [d.bottleneck for d in saved] == [BUSY]
    state, saved = looks(BUSY, WORKERS, WORKERS)
    ended, begun = saved[1:]
    assert ended.ended_at == begun.began_at == END + LOOK
    assert state.open["GPU-1"].bottleneck is WORKERS
    assert looks(BUSY, WORKERS, MAIN)[0].open["GPU-1"].bottleneck is BUSY


def test_another_cause_is_another_episode() -> None:
    state, _ = step(EpisodeState(), [found(Bottleneck.WAITS_FOR_PEER, 0, cause="GPU-2")], END)
    for look in (1, 2):
        seen = [found(Bottleneck.WAITS_FOR_PEER, look, cause="GPU-3")]
        state, changed = step(state, seen, END + look * LOOK)
    assert [d.cause for d in changed] == ["GPU-2", "GPU-3"]


def test_what_goes_on_is_saved_again_after_some_minutes() -> None:
    count = REFRESH // LOOK
    _, saved = looks(*[BUSY] * (count + 1))
    assert [d.seen_at - END for d in saved] == [timedelta(0), REFRESH]
    assert {d.began_at for d in saved} == {END}


def test_a_subject_that_is_gone_ends_when_it_was_last_seen() -> None:
    count = GONE_AFTER // LOOK
    state, saved = looks(BUSY, *[None] * count)
    assert state.open == {} and saved[-1].ended_at == END
    assert looks(BUSY, *[None] * (count - 1))[0].open


def test_a_restart_goes_on_where_the_store_was() -> None:
    state = restored([found(BUSY, 0), replace(found(WORKERS, 0, "GPU-2"), ended_at=END)])
    state, changed = step(state, [found(BUSY, 1)], END + LOOK)
    assert changed == [] and state.open["GPU-1"].began_at == END


@given(st.lists(st.sampled_from([None, BUSY, WORKERS, MAIN]), max_size=40))
@settings(max_examples=100)
def test_saved_episodes_do_not_overlap_and_only_one_is_open(
    course: list[Bottleneck | None],
) -> None:
    state, saved = looks(*course)
    rows = {(d.subject, d.began_at): d for d in saved}
    open_rows = [d for d in rows.values() if d.ended_at is None]
    assert {d.began_at for d in open_rows} == {d.began_at for d in state.open.values()}
    ordered = sorted(rows.values(), key=lambda d: d.began_at)
    for before, after in pairwise(ordered):
        assert before.ended_at is not None and before.ended_at <= after.began_at
