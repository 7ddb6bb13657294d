"""Keeps what range queries found for steps that are rolled up, so that a dashboard's refresh computes only the newest.

An answer is kept in blocks of steps, as Mimir's and VictoriaMetrics' caches of results divide it by time. A block holds
for `KEPT_S`: late rows, and labels that change afterwards, are seen when it is computed again.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden.collector_metrics import SOURCES
from gpuwarden_prometheus.relations import BLOCK_STEPS, QUOTED, Grid
from gpuwarden_prometheus.tiers import HOUR_MS, LONG_MS, RolledUntil

KEPT_S = 300.0
CHARACTERS_MAX = 64 * 1024 * 1024
"""Most characters of all blocks."""
ANSWER_CHARACTERS_MAX = CHARACTERS_MAX // 8
"""Answers that are longer are not kept."""
KEPT_STEPS_MIN = 2 * BLOCK_STEPS
"""Least steps of a range query whose answer is kept."""
_PART_STEPS_MIN = 2
"""Least steps that are computed: one step alone would be answered as an instant is."""
_WORD = re.compile(r"[A-Za-z_:][\w:]*")
_OTHER_TIMES = re.compile(r"[@#]|\boffset\b(?!\s*\d)", re.IGNORECASE)
"""Of the start, the end, or times after a step; a comment may hide them."""
_NOT_BY_STEP = {"__name__", "limitk", "limit_ratio"} | {
    metric.name for source in SOURCES.values() for metric in source.metrics
}
"""What may be any metric, picks other series each time, or is computed again for hours that are over."""

Series = Mapping[str, str]
"""Points as JSON, separated by commas, by labels as JSON."""


def may_be_kept(query: str) -> bool:
    """Whether a step's values depend on the step and on rows before it alone."""
    bare = QUOTED.sub("''", query)
    return not _OTHER_TIMES.search(bare) and _NOT_BY_STEP.isdisjoint(_WORD.findall(query))


@dataclass(frozen=True, slots=True)
class RangeQuestion:
    """A range query of somebody."""

    reader: str
    """Equal for those who may see the same rows."""
    query: str
    grid: Grid
    lookback_ms: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for questions that have the same values at the steps that they share."""
        grid = self.grid
        is_long = grid.end_ms - grid.start_ms >= LONG_MS
        offset_ms = grid.start_ms % grid.step_ms
        return self.reader, self.query, grid.step_ms, offset_ms, self.lookback_ms, is_long

    def final_steps(self, rolled: RolledUntil) -> int:
        """Number of its first steps whose rows are rolled up."""
        grid = self.grid
        until_ms = rolled.of(HOUR_MS if grid.step_ms >= HOUR_MS else 0)
        return min((until_ms - grid.start_ms) // grid.step_ms + 1, grid.steps)


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """What was found for the steps of a block."""

    first: int
    """The number of its first step that was asked for."""
    found_s: float
    series: Series
    characters: int


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """The steps of a question that need not be computed."""

    steps: int = 0
    series: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Points of each series, in pieces."""


@dataclass(slots=True)
class KeptAnswers:
    """Blocks by question, those used last at the end."""

    characters_max: int = CHARACTERS_MAX
    characters: int = 0
    _blocks: "OrderedDict[tuple[object, ...], KeptBlock]" = field(default_factory=OrderedDict)

    def known(self, question: RangeQuestion, now_s: float) -> KnownSteps:
        """The first steps of a question, as far as they are kept without a gap."""
        grid = question.grid
        first = number = grid.start_ms // grid.step_ms
        last = first + grid.steps - 1
        pieces: dict[str, list[str]] = {}
        while (after := (number // BLOCK_STEPS + 1) * BLOCK_STEPS) + _PART_STEPS_MIN - 1 <= last:
            block = self._block((question.key, number // BLOCK_STEPS), number, now_s)
            if block is None:
                break
            since_ms = grid.start_ms + (number - first) * grid.step_ms
            for labels, points in block.series.items():
                cut = points if number == block.first else _since(points, since_ms)
                if cut:
                    pieces.setdefault(labels, []).append(cut)
            number = after
        return KnownSteps(number - first, pieces)

    def _block(self, key: tuple[object, ...], number: int, now_s: float) -> KeptBlock | None:
        block = self._blocks.get(key)
        if block is None or block.first > number:
            return None
        if now_s - block.found_s > KEPT_S:
            self._forget(key)
            return None
        self._blocks.move_to_end(key)
        return block

    def keep(
        self,
        question: RangeQuestion,
        skipped: int,
        found: Mapping[int, Series],
        rolled: RolledUntil,
        now_s: float,
    ) -> None:
        """Keep what was found, by block, for the steps after those skipped; `rolled`: when they were computed."""
        grid = question.grid
        zero = grid.start_ms // grid.step_ms
        number, end = zero + skipped, zero + question.final_steps(rolled)
        while (after := (number // BLOCK_STEPS + 1) * BLOCK_STEPS) <= end:
            key = (question.key, number // BLOCK_STEPS)
            series = found.get(number // BLOCK_STEPS, {})
            characters = sum(len(labels) + len(points) for labels, points in series.items())
            self._forget(key)
            self._blocks[key] = KeptBlock(number, now_s, series, characters)
            self.characters += characters
            number = after
        while self.characters > self.characters_max:
            self._forget(next(iter(self._blocks)))

    def _forget(self, key: tuple[object, ...]) -> None:
        if (block := self._blocks.pop(key, None)) is not None:
            self.characters -= block.characters


def _since(points: str, since_ms: int) -> str:
    """Points `[seconds,"value"]` from an instant on."""
    begin = 0
    while begin < len(points):
        seconds = points[begin + 1 : points.index(",", begin)]
        if round(float(seconds) * 1000) >= since_ms:
            return points[begin:]
        following = points.find("],[", begin)
        if following < 0:
            break
        begin = following + 2
    return ""


@dataclass(frozen=True, slots=True)
class FoundSeries:
    """What was computed for a series."""

    labels: str
    points: Mapping[int, str]
    """By block."""


def read_series(text: str) -> Iterator[FoundSeries]:
    """Read what `encode.py` writes of steps in blocks."""
    for one in text.split("\n\n"):
        labels, *lines = one.split("\n")
        if lines:
            numbered = (line.partition(" ") for line in lines)
            yield FoundSeries(labels, {int(number): points for number, _, points in numbered})


class JoinedAnswer:
    """Joins the series that are kept with those that are found, both in the order of their labels."""

    def __init__(self, known: KnownSteps) -> None:
        self._known = known.series
        self._labels = sorted(known.series, reverse=True)
        self._is_first = True

    def of(self, found: Iterable[FoundSeries]) -> str:
        """JSON of the next series."""
        texts: list[str] = []
        for one in found:
            texts += self._before(one.labels)
            kept: Sequence[str] = ()
            if self._labels and self._labels[-1] == one.labels:
                kept = self._known[self._labels.pop()]
            texts.append(_json(one.labels, [*kept, *one.points.values()]))
        return self._list(texts)

    def rest(self) -> str:
        """JSON of the series that have no new steps."""
        return self._list([_json(labels, self._known[labels]) for labels in reversed(self._labels)])

    def _before(self, labels: str) -> Iterator[str]:
        while self._labels and self._labels[-1] < labels:
            kept = self._labels.pop()
            yield _json(kept, self._known[kept])

    def _list(self, texts: Sequence[str]) -> str:
        comma = "" if self._is_first or not texts else ","
        self._is_first = self._is_first and not texts
        return comma + ",".join(texts)


def _json(labels: str, pieces: Sequence[str]) -> str:
    return f'{{"metric":{labels},"values":[{",".join(pieces)}]}}'
