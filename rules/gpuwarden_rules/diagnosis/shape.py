"""Measures utilization over a window: percentiles, pauses and periodicity.

All GPUs are one matrix with a row for each GPU and a column for each second, oldest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

OFFSET = 32
"""Code point of 0 in a packed series: lower ones are control characters."""
SLOT_S = 12
"""A slot of the window counts as covered with one reading: agents may read every ten seconds."""
SPARSE_READINGS_MIN, SPARSE_S_MAX = 3, 45
"""Of a GPU that is read less often than in each slot, as by scrapes every 30 s, a reading holds for the usual time to
the next one and half of it: the newest may still be on its way."""
EACH_SECOND_MIN = 0.75
"""With fewer readings a second, pauses and periods are not visible."""
GAP_BELOW, BUSY_FROM = 10, 80
PAUSE_S_MIN = 3
LAG_S_MIN, LAG_S_MAX = 2, 60
NEARLY_HIGHEST = 0.9
FLAT_BELOW_PERCENT = 5.0
"""A series with a smaller standard deviation has no period."""
NEAR_S = 5
"""A reading of the process tree belongs to a pause that is this close."""
LONG_PAUSE_S = 5


@dataclass(frozen=True, slots=True)
class Shape:
    """Features of one GPU's utilization; absent where the readings are too few."""

    values: dict[str, float | None]
    pauses: Sequence[tuple[int, int]] = ()
    """Pauses as seconds before the end of the window, from and to."""


def unpacked(texts: Sequence[str | None], window_s: int) -> Matrix:
    """Series packed as two characters a reading (age in seconds, percent); NaN where there is none."""
    matrix = np.full((len(texts), window_s), np.nan, np.float32)
    known = [text or "" for text in texts]
    codes = np.frombuffer("".join(known).encode("latin-1"), np.uint8).astype(np.int64) - OFFSET
    rows = np.repeat(np.arange(len(known)), [len(text) // 2 for text in known])
    ages, percents = codes[0::2], codes[1::2]
    is_inside = (ages >= 0) & (ages < window_s)
    columns = window_s - 1 - ages[is_inside]
    matrix[rows[is_inside], columns] = percents[is_inside]
    return matrix


def shapes(matrix: Matrix) -> list[Shape]:
    """The shape of each row."""
    rows, seconds = matrix.shape
    if not rows:
        return []
    is_known = ~np.isnan(matrix)
    count = is_known.sum(axis=1)
    slots = _held(is_known, count).reshape(rows, seconds // SLOT_S, SLOT_S).any(axis=2)
    is_gap = is_known & (matrix < GAP_BELOW)
    safe = np.maximum(count, 1)
    filled = np.where(is_known, matrix, 0.0)
    mean = filled.sum(axis=1) / safe
    spread = np.sqrt((np.where(is_known, matrix - mean[:, None], 0.0) ** 2).sum(axis=1) / safe)
    acf = _autocorrelation(np.where(is_known, matrix, mean[:, None]))
    has_period = spread >= FLAT_BELOW_PERCENT
    ordered = np.sort(matrix, axis=1)  # NaN last
    columns: dict[str, Any] = {
        "duty": mean / 100,
        "stall": 1 - mean / 100,
        "util_p5": _percentile(ordered, count, 0.05),
        "util_p95": _percentile(ordered, count, 0.95),
        "util_cv": np.where(mean > 0, spread / np.maximum(mean, 1e-9), np.nan),
        "busy_share": (filled >= BUSY_FROM).sum(axis=1) / safe,
    }
    by_second: dict[str, Any] = {
        "autocorrelation": np.where(has_period, acf, 0.0),
    }
    coverage = slots.mean(axis=1)
    made = []
    for row in range(rows):
        values: dict[str, float | None] = {"coverage": float(coverage[row])}
        pauses: list[tuple[int, int]] = []
        if count[row]:
            values |= {name: _number(column[row]) for name, column in columns.items()}
        if count[row] >= EACH_SECOND_MIN * seconds:
            values |= {name: _number(column[row]) for name, column in by_second.items()}
            runs = _runs(is_gap[row])
            pauses = [(seconds - end, seconds - begin) for begin, end in runs]
            lengths = [end - begin for begin, end in runs]
            values["gaps"] = float(sum(length >= PAUSE_S_MIN for length in lengths))
            values["gap_longest"] = float(max(lengths, default=0))
        made.append(Shape(values, pauses))
    return made


def _held(is_known: NDArray[np.bool_], count: NDArray[np.int_]) -> NDArray[np.bool_]:
    """The seconds that readings hold for."""
    _rows, seconds = is_known.shape
    held = is_known.copy()
    is_sparse = (count >= SPARSE_READINGS_MIN) & (count < seconds / SLOT_S)
    for row in np.flatnonzero(is_sparse):
        at = np.flatnonzero(is_known[row])
        spacing = int(np.median(np.diff(at)))
        if spacing <= SPARSE_S_MAX:
            held[row, max(0, at[0] - spacing) : at[0]] = True
            for one in at:
                held[row, one : one + spacing * 3 // 2] = True
    return held


def gap_turnovers(pauses: Sequence[tuple[int, int]], ages: Sequence[float], span_s: float) -> int:
    """How many readings with new workers (each of the `span_s` before its age) are near a pause."""
    return sum(
        any(to >= age - NEAR_S and since <= age + span_s + NEAR_S for since, to in pauses)
        for age in ages
    )


def gap_write(
    pauses: Sequence[tuple[int, int]], writes: Sequence[tuple[float, float]], span_s: float
) -> float:
    """Highest rate at which a long pause wrote: the bytes of the readings (age, bytes a second) that
    touch it, over its length.
    """
    rates = [
        span_s * sum(rate for age, rate in writes if to >= age and since <= age + span_s)
        / max(to - since, span_s)
        for since, to in _long(pauses)
    ]  # fmt: skip
    return max(rates, default=0.0)


def gap_mean(
    pauses: Sequence[tuple[int, int]], readings: Sequence[tuple[float, float]], span_s: float
) -> float | None:
    """Mean of readings (age, mean over the `span_s` before) during long pauses.

    The part of a reading beside a pause is assumed to be the median of readings that touch no pause. None
    without a long pause, or without a reading beside one.
    """
    overlaps = [
        sum(max(0.0, min(to, age + span_s) - max(since, age)) for since, to in _long(pauses))
        for age, _ in readings
    ]
    beside = [mean for (_, mean), overlap in zip(readings, overlaps, strict=True) if not overlap]
    inside = sum(overlaps)
    if not inside or not beside:
        return None
    usual = median(beside)
    gained = sum(
        span_s * mean - (span_s - overlap) * usual
        for (_, mean), overlap in zip(readings, overlaps, strict=True)
        if overlap
    )
    return max(0.0, gained / inside)


def pairs(text: str | None) -> list[tuple[int, int]]:
    """Pairs packed as two characters each."""
    codes = [ord(letter) - OFFSET for letter in text or ""]
    return list(zip(codes[0::2], codes[1::2], strict=True))


def _long(pauses: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(since, to) for since, to in pauses if to - since >= LONG_PAUSE_S]


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _percentile(ordered: Matrix, count: NDArray[np.int64], share: float) -> NDArray[np.float32]:
    """The percentile of sorted rows, with NaN last."""
    at = np.clip(np.ceil(share * count).astype(np.int64) - 1, 0, ordered.shape[1] - 1)
    values: NDArray[np.float32] = ordered[np.arange(len(ordered)), at]
    return values


def _autocorrelation(filled: Matrix) -> NDArray[np.float64]:
    """Highest autocorrelation of each detrended row at the lags of a loop."""
    rows, seconds = filled.shape
    time = np.arange(seconds) - (seconds - 1) / 2
    centred = filled - filled.mean(axis=1, keepdims=True)
    slope = centred @ time / (time @ time)
    series = centred - slope[:, None] * time
    spectrum = np.fft.rfft(series, 2 * seconds, axis=1)
    products = np.fft.irfft(spectrum * np.conj(spectrum), axis=1)[:, :seconds]
    energy = np.maximum(products[:, :1], 1e-9)
    # Divide each lag by its number of pairs, so that long periods do not look weaker than short ones.
    pairs = seconds / (seconds - np.arange(seconds))
    correlation = products / energy * pairs
    # A series that changes slowly correlates at short lags: a period comes after the first zero.
    has_crossed = np.logical_or.accumulate(correlation <= 0, axis=1)
    correlation = np.where(has_crossed, correlation, -1.0)
    last = min(LAG_S_MAX, seconds // 2)
    here = correlation[:, LAG_S_MIN : last + 1]
    is_peak = (here >= correlation[:, LAG_S_MIN - 1 : last]) & (
        here >= correlation[:, LAG_S_MIN + 1 : last + 2]
    )
    peaks = np.where(is_peak, here, -1.0)
    # Multiples of a period have equal peaks: take the first.
    best = (peaks >= NEARLY_HIGHEST * peaks.max(axis=1, keepdims=True)).argmax(axis=1)
    highest: NDArray[np.float64] = np.clip(here[np.arange(rows), best], 0, 1)
    return highest


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs of true values, as begin and end (exclusive)."""
    if not flags.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False]))))
    return [(int(a), int(b)) for a, b in zip(edges[0::2], edges[1::2], strict=True)]
