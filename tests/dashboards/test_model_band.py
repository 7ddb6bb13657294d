"""The band of a model: percentiles of other GPUs, by column, where enough of them report."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_dashboards.http import ParameterError
from gpuwarden_dashboards.read.model_band import (
    band_span,
    read_model_band,
)
from gpuwarden_dashboards.read.series import Span, span_of

BEGIN = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def fleet(querier):
    """Eleven H100: GPU g draws 100 g watts; GPU 10 began at half past. One A100 and one MIG device."""
    querier.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated, mig_instance) SELECT 'G' || g, 'n', g,"
        " if(g = 11, 'A100', 'H100'), false, if(g = 12, '1g', NULL) FROM range(13) t(g)"
    )
    for table, step in (("gpu_1m", "to_minutes(i)"), ("gpu_1h", "to_hours(i)")):
        querier.db.execute(
            f"INSERT INTO {table} (ts, node, gpu, gpu_uuid, simulated, samples, detail_samples, health_samples, power_watts_avg,"
            " util_percent_avg, pcie_rx_bytes_delta)"
            f" SELECT $1::TIMESTAMP + {step}, 'n', g, 'G' || g, false, 60, 6, 1, 100 * g, if(g < 4, g, NULL), 600 * g"
            " FROM range(120) a(i), range(13) t(g) WHERE g <> 10 OR i >= 30",
            [BEGIN],
        )
    return querier


def hour() -> Span:
    return band_span(span_of(BEGIN, BEGIN + HOUR, 500))


async def test_it_is_of_other_gpus_of_the_model(fleet) -> None:
    band = await read_model_band(fleet, "G0", ["power_watts"], hour())
    assert (band.model, band.gpus, band.reason) == ("H100", 10, "")
    (line,) = band.lines
    assert (line.metric, line.unit, len(line.mean)) == ("power_watts", "watts", 60)
    # 1 to 9 first, then 1 to 10.
    assert (line.least[0], line.mean[0], line.greatest[0]) == (180, 500, 820)
    assert (line.least[59], line.mean[59], line.greatest[59]) == (190, 550, 910)
    own = await read_model_band(fleet, "G9", ["power_watts"], hour())
    assert own.lines[0].greatest[0] == 720  # 0 to 8


async def test_fewer_than_four_are_no_band(fleet) -> None:
    band = await read_model_band(fleet, "G0", ["util_percent", "power_watts"], hour())
    assert band.lines[0].mean == [None] * 60  # 1, 2 and 3 report it
    alone = await read_model_band(fleet, "G11", ["power_watts"], hour())
    assert (alone.lines, alone.reason) == ((), "fewer than 4 others of its model report")
    assert (await read_model_band(fleet, "nobody", ["power_watts"], hour())).lines == ()


async def test_a_counter_is_a_rate_and_what_no_rollup_of_gpus_has_is_left_out(fleet) -> None:
    names = ["pcie_rx_bytes_total", "host.cpu_util_percent", "power_watts"]
    band = await read_model_band(fleet, "G0", names, hour())
    assert [line.metric for line in band.lines] == ["pcie_rx_bytes_total", "power_watts"]
    assert (band.lines[0].mean[0], band.lines[0].unit) == (50, "bytes/s")
    none = await read_model_band(fleet, "G0", ["host.cpu_util_percent"], hour())
    assert none.reason == "no rollup has these metrics"
    with pytest.raises(ParameterError, match="there is no metric nothing"):
        await read_model_band(fleet, "G0", ["nothing"], hour())
    with pytest.raises(ParameterError, match="1 to 40 metrics"):
        await read_model_band(fleet, "G0", [], hour())


async def test_a_long_span_is_read_by_the_hour_and_a_longer_one_not_at_all(fleet) -> None:
    span = band_span(span_of(BEGIN, BEGIN + 48 * HOUR, 500))
    assert (span.resolution_s, span.columns, span.step_ms) == (3600, 48, 3_600_000)
    band = await read_model_band(fleet, "G0", ["power_watts"], span)
    assert band.lines[0].mean[47] == 550
    beyond = band_span(span_of(BEGIN, BEGIN + timedelta(days=120), 500))
    assert beyond.columns <= 120
    assert (
        await read_model_band(fleet, "G0", ["power_watts"], beyond)
    ).reason == "no band beyond 90 days"
