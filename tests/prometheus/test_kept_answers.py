"""Answers of which some steps are kept: the same as computed ones, and only what cannot change is kept."""

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collector.conftest import wire_maker  # noqa: F401  a fixture
from tests.each import each
from tests.served import Served

from gpuwarden.clock import ManualClock
from gpuwarden_collector.query.port import HttpFrontContext
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.front import PROMETHEUS
from gpuwarden_prometheus.kept_answers import (
    KEPT_S,
    FoundSeries,
    JoinedAnswer,
    KeptAnswers,
    RangeQuestion,
    may_be_kept,
    read_series,
)
from gpuwarden_prometheus.relations import BLOCK_STEPS, Grid
from gpuwarden_prometheus.tiers import MINUTE_MS, RolledUntil

BEGAN_MS = 1_700_000_000_123
LABELS = ('{"gpu":"0"}', '{"gpu":"1"}', '{"gpu":"2","node":"a],[b"}')


def point(labels: str, ms: int, rolled: RolledUntil, now_s: float) -> str | None:
    """A value that changes until it is rolled up; each series has gaps."""
    at = ms // 1000 + LABELS.index(labels)
    if at % 7 == 0 or (labels == LABELS[1] and at % 3000 < 1500):
        return None
    value = at if ms <= rolled.minutes_ms else at + now_s
    return f'[{ms / 1000:.3f},"{value}"]'


def computed(question: RangeQuestion, skipped: int, rolled: RolledUntil, now_s: float) -> str:
    """What a query process answers."""
    grid, texts = question.grid, []
    for labels in LABELS:
        blocks: dict[int, list[str]] = {}
        for i in range(skipped, grid.steps):
            found = point(labels, grid.start_ms + i * grid.step_ms, rolled, now_s)
            if found:
                block = (grid.start_ms // grid.step_ms + i) // BLOCK_STEPS
                blocks.setdefault(block, []).append(found)
        if blocks:
            lines = [f"{block} {','.join(points)}" for block, points in blocks.items()]
            texts.append("\n".join([labels, *lines]) + "\n\n")
    return "".join(texts)


def answer(kept: KeptAnswers, question: RangeQuestion, rolled: RolledUntil, now_s: float) -> Any:
    """The series of an answer, and how many steps were known."""
    known = kept.known(question, now_s)
    text = computed(question, known.steps, rolled, now_s)
    series = [*read_series(text)]
    joined = JoinedAnswer(known)
    document = json.loads(f"[{joined.of(series)}{joined.rest()}]")
    blocks: dict[int, dict[str, str]] = {}
    for one in series:
        for block, points in one.points.items():
            blocks.setdefault(block, {})[one.labels] = points
    kept.keep(question, known.steps, blocks, rolled, now_s)
    return document, known.steps


def question_of(start_ms: int, steps: int, step_ms: int = MINUTE_MS) -> RangeQuestion:
    return RangeQuestion("reader", "up", Grid(start_ms, step_ms, steps), 300_000)


@settings(max_examples=40)
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 40), st.integers(2, 200), st.sampled_from([7_000, 60_000]), st.integers(0, 90)),
        min_size=2, max_size=12,
    ),
    lag=st.integers(0, 30),
    characters_max=st.sampled_from([2_000, 10_000_000]),
)  # fmt: skip
def test_an_answer_is_the_one_that_would_be_computed(
    asked: list[tuple[int, int, int, int]], lag: int, characters_max: int
) -> None:
    kept, now_s, rolled_ms = KeptAnswers(characters_max), 0.0, 0
    for moved, steps, step_ms, later_s in asked:
        now_s += later_s
        question = question_of(BEGAN_MS + moved * step_ms, steps, step_ms)
        # What was rolled up stays so.
        rolled_ms = max(rolled_ms, question.grid.end_ms - lag * step_ms)
        rolled = RolledUntil(rolled_ms)
        document, known = answer(kept, question, rolled, now_s)
        wanted, _ = answer(KeptAnswers(), question, rolled, now_s)
        assert document == wanted
        assert known <= max(0, steps - 2)
        assert 0 <= kept.characters <= characters_max


def test_a_refresh_computes_the_newest_steps_and_those_of_an_open_block() -> None:
    kept = KeptAnswers()
    first = question_of(BEGAN_MS, 360)
    rolled = RolledUntil(first.grid.end_ms - 4 * MINUTE_MS)
    assert answer(kept, first, rolled, 0.0)[1] == 0
    later = question_of(BEGAN_MS + MINUTE_MS, 360)
    known = answer(kept, later, RolledUntil(rolled.minutes_ms + MINUTE_MS), 60.0)[1]
    assert 360 - 4 - BLOCK_STEPS <= known <= 360 - 4
    assert kept.known(replace(later, reader="another"), 60.0).steps == 0
    assert kept.known(replace(later, query="down"), 60.0).steps == 0
    assert kept.known(replace(later, lookback_ms=1), 60.0).steps == 0
    shifted = replace(later.grid, start_ms=later.grid.start_ms + 1)
    assert kept.known(replace(later, grid=shifted), 60.0).steps == 0


def test_blocks_hold_for_some_minutes() -> None:
    kept, question = KeptAnswers(), question_of(BEGAN_MS, 100)
    rolled = RolledUntil(question.grid.end_ms)
    answer(kept, question, rolled, 0.0)
    assert kept.known(question, KEPT_S).steps > 0
    assert kept.known(question, KEPT_S + 0.1).steps == 0
    answer(kept, question, RolledUntil(), KEPT_S + 1)
    assert kept.known(question, KEPT_S + 1).steps == 0, "nothing is rolled up, nothing is kept"


def test_hours_are_final_when_hours_are_rolled_up() -> None:
    hour_ms = 60 * MINUTE_MS
    question = question_of(BEGAN_MS, 48, hour_ms)
    end_ms = question.grid.end_ms
    assert question.final_steps(RolledUntil(end_ms, end_ms - 10 * hour_ms)) == 38
    assert question.final_steps(RolledUntil(end_ms, end_ms)) == 48
    assert question.final_steps(RolledUntil()) < 1


@each(
    "query",
    [
        "sum(rate(gpuwarden_gpu_energy_joules_total[5m])) by (model)",
        "gpuwarden_gpu_util_ratio offset 5m",
        'max_over_time(up{node=~"a@b|offset -5m#"}[1h:1m])',
    ],
)
def test_what_looks_back_alone_may_be_kept(query: str) -> None:
    assert may_be_kept(query)


@each(
    "query",
    [
        "gpuwarden_gpu_util_ratio @ end()",
        "gpuwarden_gpu_util_ratio offset -5m",
        "gpuwarden_gpu_util_ratio OFFSET\t- 5m",
        "gpuwarden_gpu_util_ratio offset # why\n -5m",
        "limitk(2, gpuwarden_gpu_util_ratio)",
        '{__name__=~"gpuwarden_.*"}',
        "ALERTS",
        '{"ALERTS"}',
        "sum(gpuwarden_waste_usd_per_hour)",
    ],
)
def test_what_may_change_afterwards_is_not_kept(query: str) -> None:
    assert not may_be_kept(query)


def test_series_without_new_steps_are_in_the_order_of_labels() -> None:
    kept, question = KeptAnswers(), question_of(BEGAN_MS, 64)
    everything = {label: f'[1,"{n}"]' for n, label in enumerate("bdfh")}
    first = question.grid.start_ms // question.grid.step_ms // BLOCK_STEPS
    blocks = dict.fromkeys(range(first, first + 5), everything)
    kept.keep(question, 0, blocks, RolledUntil(question.grid.end_ms), 0.0)
    known = kept.known(question, 0.0)
    assert known.steps > 0
    joined = JoinedAnswer(known)
    text = joined.of([FoundSeries(label, {0: '[2,"9"]'}) for label in "acdg"]) + joined.rest()
    assert [one.split(",")[0] for one in text.split('{"metric":')[1:]] == [*"abcdfgh"]


class RecordingQueries:
    """Notes the texts of queries."""

    def __init__(self, queries: Any) -> None:
        self._queries = queries
        self.texts: list[str] = []

    def run(self, form: str, sql: str, *args: Any, **more: Any) -> Any:
        self.texts.append(sql)
        return self._queries.run(form, sql, *args, **more)


@pytest.fixture
def recorded(tmp_path: Path, wire_maker: Any) -> Iterator[tuple[Served, RecordingQueries, Any]]:  # noqa: F811
    """A collector whose rows of a minute count as rolled up, and the texts that its API runs."""
    wire = wire_maker()
    clock = ManualClock(wire.now)
    seen: list[RecordingQueries] = []

    def routes(context: HttpFrontContext) -> Any:
        seen.append(RecordingQueries(context.queries))
        until = wire.gpu_row(0, 63)["ts"].replace(tzinfo=None)
        chosen = replace(context, queries=seen[0], rolled_until=lambda: (until, until))
        return PROMETHEUS.routes(chosen)

    settings = CollectorSettings(port=0, data_dir=tmp_path)
    served = Served(settings, clock, http_fronts=[replace(PROMETHEUS, routes=routes)])
    served.begin()
    rows = [wire.gpu_row(gpu, n, power_watts=300.0 + n) for n in range(64) for gpu in range(3)]
    served.post(wire.zstd(wire.stream("gpu_samples", rows)))
    yield served, seen[0], (clock, rows[-1]["ts"].timestamp())
    served.end()


def test_a_refresh_over_http_asks_for_the_newest_steps_alone(
    recorded: tuple[Served, RecordingQueries, Any],
) -> None:
    served, queries, (clock, end_s) = recorded
    assert served.collector is not None

    def asked(later_s: int, **more: object) -> Any:
        chosen = {
            "query": "max by (gpu) (gpuwarden_gpu_power_watts)", "start": end_s - 63 + later_s,
            "end": end_s + later_s, "step": 1, **more,
        }  # fmt: skip
        assert served.collector is not None
        url = (
            f"{served.collector.url}/prometheus/api/v1/query_range?{urllib.parse.urlencode(chosen)}"
        )
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)

    def known() -> int:
        header = queries.texts[-1].partition("\n")[0].split()
        return int(header[-1]) if header[1] == "blocks" else -1

    first = asked(0)
    assert known() == 0
    assert first["data"]["resultType"] == "matrix"
    assert [len(one["values"]) for one in first["data"]["result"]] == [64, 64, 64]
    assert asked(1, nocache=1) == asked(1)
    assert known() >= 64 - 2 * BLOCK_STEPS
    clock.advance(KEPT_S + 1)
    assert asked(1) == asked(1, nocache=1)
    assert queries.texts[-2].partition("\n")[0].endswith(" 0"), "kept for minutes only"
    asked(1, limit=1)
    assert known() == -1
