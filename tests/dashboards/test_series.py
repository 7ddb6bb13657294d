"""Downsampling for charts, against a plain computation over the same rows."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import to_ms
from gpuwarden_dashboards.read.series import (
    DRAWABLE,
    LAST_MS,
    MINUTES_UP_TO,
    SAMPLES_UP_TO,
    Place,
    Span,
    read_series,
    span_of,
)
from gpuwarden_dashboards.read.timeline import read_timeline

BEGIN = datetime(2026, 3, 1, 10, tzinfo=UTC)
GPU = Place(gpu_uuids=("GPU-1",))


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001  made aware below
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=4000)),
    st.integers(1, 4000),
)
def test_columns_cover_the_span_and_are_whole_readings(begin, length, columns) -> None:
    begin = begin.replace(tzinfo=UTC)
    span = span_of(begin, begin + length, columns)
    assert 1 <= span.columns <= columns
    assert span.begin <= begin
    assert span.end >= begin + length
    assert span.step_ms % (1000 * span.resolution_s) == 0
    assert span.begin_ms % (1000 * span.resolution_s) == 0
    expected = 1 if length <= SAMPLES_UP_TO else 60 if length <= MINUTES_UP_TO else 3600
    assert span.resolution_s == expected


def add(db, second: float, util: float | None, energy: float | None = None) -> None:
    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent, energy_joules_total,"
        " clocks_event_reasons) VALUES (?, 'n1', 0, 'GPU-1', false, ?, ?, ?)",
        [
            (BEGIN + timedelta(seconds=second)).replace(tzinfo=None),
            util,
            energy,
            0x21 if util else 1,
        ],
    )


async def test_spikes_and_gaps_survive(querier) -> None:
    for second in (*range(60), *range(120, 180)):
        add(querier.db, second, 100.0 if second == 33 else 10.0)
    span = span_of(BEGIN, BEGIN + timedelta(minutes=3), 18)
    (line,) = await read_series(querier, GPU, ["util_percent"], span)
    assert line.greatest == [10.0] * 3 + [100.0] + [10.0] * 2 + [None] * 6 + [10.0] * 6
    assert line.mean[3] == 19.0
    assert line.least[3] == 10.0
    assert line.unit == "percent"


async def test_a_counter_is_a_rate_and_a_reset_is_no_rate(querier) -> None:
    for second, joules in enumerate([100.0, 400.0, 700.0, 5.0, 305.0, None, 905.0]):
        add(querier.db, second, 1.0, joules)
    span = span_of(BEGIN, BEGIN + timedelta(seconds=7), 7)
    (line,) = await read_series(querier, GPU, ["energy_joules_total"], span)
    assert line.mean == [None, 300.0, 300.0, None, 300.0, None, None]
    assert line.unit == "joules/s"


async def test_long_spans_come_from_rollups_weighed_by_window(querier) -> None:
    for minute, (least, mean, greatest) in enumerate([(0, 50, 99), (40, 60, 80)]):
        querier.db.execute(
            "INSERT INTO gpu_1m (ts, node, gpu, gpu_uuid, simulated, samples, detail_samples,"
            " health_samples, util_percent_min, util_percent_avg, util_percent_max, energy_joules_delta)"
            " VALUES (?, 'n1', 0, 'GPU-1', false, 60, 0, 0, ?, ?, ?, 6000)",
            [(BEGIN + timedelta(minutes=minute)).replace(tzinfo=None), least, mean, greatest],
        )
    span = span_of(BEGIN, BEGIN + timedelta(days=1), 720)
    util, energy = await read_series(querier, GPU, ["util_percent", "energy_joules_total"], span)
    assert (util.least[0], util.mean[0], util.greatest[0]) == (0.0, 55.0, 99.0)
    assert energy.mean[:2] == [100.0, None]


@pytest.mark.parametrize(
    ("length", "place"),
    [
        (timedelta(hours=1), Place(node="n1")),
        (timedelta(days=2), Place(gpu_uuids=("GPU-1",), job="7")),
        (timedelta(days=90), Place(node="n1")),
    ],
)
async def test_every_metric_of_the_catalogue_can_be_drawn(querier, length, place) -> None:
    span = span_of(BEGIN, BEGIN + length, 100)
    names = list(DRAWABLE)
    for start in range(0, len(names), 40):
        assert await read_series(querier, place, names[start : start + 40], span) == []


@pytest.mark.parametrize("length", [timedelta(minutes=10), timedelta(days=2), timedelta(days=90)])
async def test_slow_clocks_are_a_strip_and_events_and_alerts_are_marks(querier, length) -> None:
    db = querier.db
    add(db, 30, 50.0)
    add(db, 40, None)
    at = (BEGIN + timedelta(seconds=20)).replace(tzinfo=None)
    db.execute(
        "INSERT INTO gpu_1m (ts, node, gpu, gpu_uuid, simulated, samples, detail_samples, health_samples,"
        " reason_software_thermal_slowdown_seconds) VALUES (?, 'n1', 0, 'GPU-1', false, 60, 0, 0, 5)",
        [BEGIN.replace(tzinfo=None)],
    )
    db.execute("INSERT INTO gpu_1h BY NAME SELECT * FROM gpu_1m")
    db.execute(
        "INSERT INTO events (ts, node, gpu, gpu_uuid, simulated, kind, severity, message)"
        " VALUES (?, 'n1', 0, 'GPU-1', false, 'xid', 'critical', 'GPU 0: Xid 79')",
        [at],
    )
    db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu, gpu_uuid, labels, summary,"
        " remedy, began_at, active_at, fired_at, seen_at, simulated) SELECT 'f', 'gpu_lost', 'critical', 'lost_work',"
        " 'firing', 'n1', 0, 'GPU-1', '{}', 's', 'r', $1, $1, $1, $1, false",
        [at],
    )
    span = span_of(BEGIN, BEGIN + length, 600)
    found = await read_timeline(querier, GPU, span)
    assert [(mark.kind, mark.name, mark.end_ms) for mark in found.marks] == [
        ("event", "xid", to_ms(at.replace(tzinfo=UTC))),
        ("alert", "gpu_lost", None),
    ]
    (strip,) = found.strips
    assert strip.name == "software thermal slowdown"
    assert list(strip.held) == [30 if span.resolution_s == 1 else 0]
    (states,) = found.states
    assert (states.node, states.gpu_uuid) == ("n1", "GPU-1")
    assert states.runs == (
        [(30, 10, "throttled"), (40, 1, "unknown")]
        if span.resolution_s == 1
        else [(0, 1, "throttled")]
    )


def test_a_range_that_is_rounded_up_beyond_the_last_time_ends_there() -> None:
    span = Span(begin_ms=LAST_MS - 1000, step_ms=600_000, columns=5, resolution_s=1)
    assert span.end.year == 9999
