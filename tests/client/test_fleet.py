"""The Python client against a real collector: frames, records, charts, live rows, and what goes wrong."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import pytest

from gpuwarden.clock import SystemClock, to_ms
from gpuwarden.waste_report import BY
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_agent.queue.encode import encode
from gpuwarden_client import AsyncFleet, CallError, Fleet, RefusedError, connect, connect_async
from gpuwarden_client.chart import chart_of
from gpuwarden_collector import stages
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.settings import CollectorSettings

NOW = datetime.now(UTC).replace(microsecond=0)
pytestmark = pytest.mark.usefixtures("fresh_now")
GPUS = 2


@pytest.fixture
async def collector(data_dir, monkeypatch) -> AsyncIterator[Collector]:
    monkeypatch.setattr(stages, "SqlQuerier", partial(SqlQuerier, rows_max=50))
    settings = CollectorSettings(port=0, data_dir=data_dir)
    async with running(settings, SystemClock()) as found:
        yield found


@pytest.fixture
async def fleet(collector: Collector) -> AsyncFleet:
    """Of two GPUs, with samples of the ten seconds before NOW; the second never says its power."""
    await asyncio.to_thread(_send, collector.url, 1, [_samples(NOW, s) for s in range(10)])
    return connect_async(collector.url)


def _samples(now: datetime, seconds_ago: int) -> list[dict]:
    ts = to_ms(now - timedelta(seconds=seconds_ago))
    return [
        {
            "ts": ts, "node": "n1", "gpu": gpu, "gpu_uuid": f"GPU-{gpu}", "simulated": True,
            "util_percent": 10.0 * seconds_ago, **({"power_watts": 300.5} if gpu == 0 else {}),
        }
        for gpu in range(GPUS)
    ]  # fmt: skip


def _send(url: str, sequence: int, samples: list[list[dict]]) -> None:
    body = encode({"gpu_samples": [row for rows in samples for row in rows]})
    headers = {"Content-Type": CONTENT_TYPE, "Content-Encoding": "zstd"}
    request = Request(
        url + INGEST_PATH, body, {**headers, **headers_of(BatchId("a", "boot", sequence, 1))}
    )
    with urlopen(request) as answer:
        assert answer.status == 204


async def test_a_question_of_the_cookbook_is_asked_by_name(fleet: AsyncFleet) -> None:
    rows = await fleet.ask("gpus-now", node="n?").rows()
    assert [(row["node"], row["gpu"], row["power_watts"]) for row in rows] == [
        ("n1", 0, 300.5),
        ("n1", 1, None),
    ]
    assert await fleet.ask("waste-by-user", since="2h").rows() == []
    with pytest.raises(CallError, match="is it gpus-now"):
        fleet.ask("gpus-nw")
    with pytest.raises(CallError, match="not a duration"):
        fleet.ask("waste-by-user", since="yesterday")


async def test_rows_are_frames_records_and_tables(fleet: AsyncFleet) -> None:
    query = fleet.sql(
        "SELECT ts, gpu, power_watts FROM gpu_samples WHERE ts >= $since AND gpu_uuid = $gpu ORDER BY ts",
        since=NOW - timedelta(seconds=4),
        gpu="GPU-0",
    )
    table = await query.arrow()
    assert table.column_names == ["ts", "gpu", "power_watts"]
    rows = await query.rows()
    assert [row["ts"] for row in rows] == [NOW - timedelta(seconds=s) for s in range(4, -1, -1)]
    pandas, polars = await query.df(), await query.pl()
    assert pandas["ts"].iloc[-1].to_pydatetime() == polars["ts"][-1] == NOW
    assert pandas["power_watts"].tolist() == polars["power_watts"].to_list() == [300.5] * 5
    absent = fleet.sql("SELECT DISTINCT power_watts FROM gpu_samples WHERE gpu = $gpu", gpu=1)
    assert await absent.one() is None


async def test_batches_are_counted_as_they_arrive_and_a_cut_is_said(fleet: AsyncFleet) -> None:
    seen: list[tuple[int, int]] = []
    sql = "SELECT * FROM range($n)"
    query = fleet.sql(sql, n=50, progress=lambda *arrived: seen.append(arrived))
    assert sum([batch.num_rows async for batch in query.batches()]) == 50
    assert seen[-1][0] == 50
    assert seen[-1][1] > 50 * 8
    assert query.query.is_truncated is False
    cut = fleet.sql(sql, n=51)
    assert len(await cut.rows()) == 50
    assert cut.query.is_truncated


async def test_a_question_that_cannot_be_answered_says_why(fleet: AsyncFleet) -> None:
    with pytest.raises(RefusedError, match='"nope" not found'):
        await fleet.sql("SELECT nope FROM gpu_samples").rows()
    with pytest.raises(CallError, match="parameter since is a time without a zone"):
        await fleet.sql("SELECT $since", since=datetime(2026, 1, 1)).rows()  # noqa: DTZ001
    with pytest.raises(CallError, match="has 2 rows of 1 column"):
        await fleet.sql("SELECT * FROM range(2)").one()
    with pytest.raises(CallError, match="by = tema is unknown; it must be one of username, node"):
        fleet.waste(by="tema")
    with pytest.raises(CallError, match="since = 999999999d is longer ago than there are years"):
        fleet.waste(since="999999999d")
    with pytest.raises(CallError, match="no collector answers at http://127.0.0.1:9"):
        connect("http://127.0.0.1:9").sql("SELECT 1").rows()
    with pytest.raises(CallError, match="url = localhost is not a URL"):
        connect("localhost")


@pytest.mark.slow
async def test_questions_by_name_have_answers(fleet: AsyncFleet) -> None:
    gpus = await fleet.gpus(node="n1").rows()
    assert [(g["gpu"], g["util_percent"]) for g in gpus] == [(0, 0.0), (1, 0.0)]
    assert await fleet.gpus(node="n2").rows() == []
    for query in (
        fleet.nodes(), fleet.alerts(), fleet.alerts(None), fleet.incidents(), fleet.why("n1/0"),
        *(fleet.waste(by=by, since="1d") for by in BY),
    ):  # fmt: skip
        assert await query.rows() == [], query.query


async def test_rows_come_live_each_once(fleet: AsyncFleet, collector: Collector) -> None:
    found: list[tuple[str, datetime]] = []

    async def listen() -> None:
        async for row in fleet.live("gpu_samples", every_s=0.01, node="n1"):
            found.append((row["gpu_uuid"], row["ts"]))
            if len(found) == 3 * GPUS:
                return

    # Of a second that has not been, so that all are after the stream's begin; the second batch is older.
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        group.create_task(listen())
        await asyncio.sleep(0.1)
        await asyncio.to_thread(_send, collector.url, 2, [_samples(ahead, 0), _samples(ahead, 2)])
        await asyncio.sleep(0.1)
        await asyncio.to_thread(_send, collector.url, 3, [_samples(ahead, 1)])
    stamps = {ahead - timedelta(seconds=s) for s in range(3)}
    assert sorted(found) == sorted((f"GPU-{g}", ts) for g in range(GPUS) for ts in stamps)
    with pytest.raises(CallError, match="no column nod"):
        next(fleet.fleet.live(nod="n1"))
    with pytest.raises(CallError, match="table = alerts cannot be streamed"):
        next(fleet.fleet.live("alerts"))


async def test_a_notebook_shows_a_table_and_a_chart(fleet: AsyncFleet) -> None:
    query = fleet.sql("SELECT ts, '<b>' AS name, util_percent FROM gpu_samples")
    html = await asyncio.to_thread(query.query._repr_html_)
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "20 rows of 3 columns" in html
    svg = await asyncio.to_thread(lambda: query.query.chart()._repr_svg_())
    ElementTree.fromstring(svg)
    assert "util_percent by name" in svg


def test_what_was_not_read_is_not_drawn() -> None:
    seconds = [0, 1, 2, 3, 10, 11, 12, 30]
    rows = [{"ts": NOW + timedelta(seconds=s), "watts": 1.0 * s} for s in seconds]
    (path,) = ElementTree.fromstring(chart_of(rows).svg).iter("{http://www.w3.org/2000/svg}path")
    drawn = path.attrib["d"]
    assert drawn.count("M") == 3
    assert drawn.endswith("h0"), "a reading alone is a dot"
    for wrong, why in (
        ([], "no rows"),
        ([{"ts": NOW, "name": "a"}], "no column but ts is a number"),
        ([{"ts": NOW, "watts": None}], "no column but ts is a number"),
    ):
        with pytest.raises(CallError, match=why):
            chart_of(wrong)
    with pytest.raises(CallError, match="there is no column volts; there are ts, watts"):
        chart_of(rows, y="volts")


def test_the_client_loads_no_server_and_no_frame_before_it_needs_one() -> None:
    code = (
        "import sys, gpuwarden_client; gpuwarden_client.connect('http://127.0.0.1:9');"
        "bad = [n for n in sys.modules if n.split('.')[0] in"
        " ('duckdb', 'aiohttp', 'pandas', 'pyarrow', 'gpuwarden_collector', 'gpuwarden_agent')];"
        "sys.exit(str(bad) if bad else 0)"
    )
    environment = {**os.environ, "GPUWARDEN_TOKEN": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_token_is_not_shown() -> None:
    token = "gw_read_" + "0" * 12 + "_" + "x" * 43
    try:
        fleet = Fleet(connect("http://127.0.0.1:9", token).collector)
    except CallError as error:
        assert token not in str(error)
    else:
        assert token not in repr(fleet.collector)
