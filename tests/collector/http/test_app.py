"""The HTTP API answers as `docs/api.md` says, errors always in one shape."""

import asyncio
import contextlib
import csv
import io
import json
import logging
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from multidict import CIMultiDict
from tests.each import each
from tests.served import Served
from yarl import URL

from gpuwarden.clock import ManualClock
from gpuwarden.doctor import FAIL
from gpuwarden.logs import TextFormatter
from gpuwarden.query import NDJSON_TYPE, QueryError
from gpuwarden.wire import (
    BODY_BYTES_MAX,
    CONTENT_TYPE,
    INGEST_PATH,
    SEQUENCE_HEADER,
    VERSION_HEADER,
    BatchId,
    headers_of,
)
from gpuwarden_collector import stages
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.doctor import examine
from gpuwarden_collector.http.sql import Form
from gpuwarden_collector.query.fair_queue import WAITING_MAX
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_dashboards.read.series import DRAWABLE, GPUS_MAX, METRICS_MAX


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Collector]:
    """A collector in a thread, with one query process, for tests that store nothing."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    served = Served(
        CollectorSettings(port=0, data_dir=folder, query_processes=1),
        ManualClock(datetime(2026, 3, 1, 12, tzinfo=UTC)),
    )
    served.begin()
    assert served.collector is not None
    yield served.collector
    served.end()


ENDLESS = b"SELECT count(*) FROM range(1000000000) a, range(1000000000) b"


async def test_a_batch_is_stored_once_however_often_it_is_sent(
    start: Any, wire: Any, post: Any
) -> None:
    body = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(8, range(5))))
    async with start() as collector:
        assert [(await post(collector.url, body, 1))[:2] for _ in range(3)] == [(204, "")] * 3
        assert (await post(collector.url, body, 2))[0] == 204
        count = await collector.querier.query("SELECT count(*) FROM gpu_samples")
        assert count.rows == [(80,)]
        assert (collector.stats.batches, collector.stats.duplicates) == (2, 2)
    async with start() as collector:
        assert (await post(collector.url, body, 1))[0] == 204
        assert collector.stats.duplicates == 1


WRONG_HEADERS = (
    ({VERSION_HEADER: "2"}, 426, "this collector speaks 1"),
    ({SEQUENCE_HEADER: "0"}, 400, "must be at least 1"),
    ({SEQUENCE_HEADER: "-1"}, 400, "whole number"),
    ({"Content-Type": "text/plain"}, 415, f"must be {CONTENT_TYPE}"),
    ({"Content-Encoding": "gzip"}, 415, "send zstd or none"),
)


async def test_wrong_headers_and_those_that_stand_twice_are_refused(
    shared: Collector, wire: Any, post: Any, session: aiohttp.ClientSession
) -> None:
    body = wire.stream("gpu_samples", [wire.gpu_row()])
    for name, second in ((SEQUENCE_HEADER, "9"), ("Content-Encoding", "gzip")):
        twice = CIMultiDict(headers_of(BatchId("agent-1", "boot-1", 1)))
        twice.update({"Content-Type": CONTENT_TYPE, "Content-Encoding": "zstd"})
        twice.add(name, second)
        url = shared.url + INGEST_PATH
        async with session.post(url, data=wire.zstd(body), headers=twice) as answer:
            said = (await answer.json())["error"]
        assert (answer.status, said) == (400, f"header {name} occurs more than once")
    for headers, status, reason in WRONG_HEADERS:
        got, text, _ = await post(shared.url, body, headers=headers)
        assert (got, reason in text) == (status, True), headers
    assert shared.stats.batches == 0


async def test_a_hundred_megabytes_are_refused_without_being_read(
    shared: Collector, post: Any
) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield bytes(1024 * 1024)

    status, text, _ = await post(shared.url, bytes(BODY_BYTES_MAX + 1))
    assert (status, "most is" in text) == (413, True)
    try:
        status, text, _ = await post(shared.url, endless())
    except (aiohttp.ClientConnectionError, ConnectionError):
        pass  # closed while the client was still sending, which it may see first
    else:
        assert status == 413
    assert shared.stats.refused["413"] == 2


async def test_unknown_columns_are_counted_and_logged_once(
    start: Any, wire: Any, post: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with start() as collector:
        for sequence in (1, 2):
            table = wire.table("gpu_samples", [wire.gpu_row(second=sequence)])
            newer = table.append_column("warp_factor", pa.array([9.9]))
            body = wire.written(newer, "gpu_samples")
            assert (await post(collector.url, body, sequence, encoding=None))[0] == 204
        assert collector.stats.unknown_columns == {"gpu_samples": 2}
    assert sum("unknown columns" in r.getMessage() for r in caplog.records) == 1


async def test_sql_answers_in_the_form_that_is_asked_for(
    shared: Collector, session: aiohttp.ClientSession
) -> None:
    url = shared.url + "/v1/sql"
    asked = {"sql": "SELECT $a AS a, 'x' AS b", "params": {"a": 1}}
    async with session.post(url, json=asked) as answer:
        body = await answer.json()
        assert (body["rows"], body["truncated"]) == ([[1, "x"]], False)
        assert answer.headers["Gpuwarden-Truncated"] == "false"
    sql = "SELECT 1 AS a, 'x' AS b"
    async with session.post(url, data=sql, headers={"Accept": "text/csv"}) as answer:
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert list(csv.reader(io.StringIO(await answer.text()))) == [["a", "b"], ["1", "x"]]
    async with session.post(url, data=sql, headers={"Accept": CONTENT_TYPE}) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        table = pa.ipc.open_stream(await answer.read()).read_all()
        assert table.to_pylist() == [{"a": 1, "b": "x"}]
    async with session.post(url, data=sql, headers={"Accept": NDJSON_TYPE}) as answer:
        assert answer.headers["Content-Type"] == NDJSON_TYPE + "; charset=utf-8"
        assert await answer.json(content_type=None) == {"a": 1, "b": "x"}
    parquet = "application/vnd.apache.parquet"
    async with session.post(url, data=sql, headers={"Accept": parquet}) as answer:
        assert answer.headers["Content-Type"] == parquet
        table = pq.read_table(io.BytesIO(await answer.read()))
        assert table.to_pylist() == [{"a": 1, "b": "x"}]


WRONG_SQL = (
    ("DELETE FROM gpus", 400, "only SELECT and EXPLAIN are allowed, not DELETE"),
    ("SELECT 1; SELECT 2", 400, "only one statement"),
    ("SELECT * FROM glob('*')", 400, "table function glob() is not allowed"),
    ("PRAGMA table_info(current_setting('temp_directory'))", 400, "PRAGMA is not allowed;"),
    ("FROM 'lake/x.duckdb'", 400, "table lake/x.duckdb does not exist or is not open to"),
    ("", 400, "the query is empty"),
    ("SELECT count(*) FROM range(1000000000) a, range(1000000000) b", 504, "longer than"),
    ("x" * 2_000_000, 413, "most is 1048576"),
)


async def test_wrong_sql_is_answered_with_its_reason(
    start: Any, session: aiohttp.ClientSession
) -> None:
    async with start(query_timeout_s=1) as collector:
        for sql, status, reason in WRONG_SQL:
            async with session.post(collector.url + "/v1/sql", data=sql) as answer:
                body = await answer.json()
            assert (answer.status, body["status"]) == (status, status), sql[:80]
            assert reason in body["error"], sql[:80]


WRONG = [
    ("SELECT util_percent FROM gpu_1m", "util_percent", "did you mean util_percent_avg?"),
    (
        "SELECT *,\n  'é' || m.util_percent\nFROM gpu_1m m",
        "m.util",
        "did you mean util_percent_avg?",
    ),
    ("EXPLAIN SELECT nodee FROM gpus", "nodee", "did you mean node?"),
    (f"SELECT {'gpu, ' * 40} nodee, gpu FROM gpus", "nodee", "did you mean node?"),
    ("SELECT 'ö' AS a\nFROM gpu_sample", "gpu_sample", "did you mean gpu_samples?"),
    (
        "EXPLAIN ANALYZE SELECT 'ö', FROM (FROM gpu_sample)",
        "gpu_sample",
        "did you mean gpu_samples?",
    ),
    ("SELECT medain(gpu) FROM gpus", "medain", "did you mean median?"),
    ("SELECT 'ä', gpu FRM gpus x y", "gpus x", None),
    ("EXPLAIN SELECT gpu FROM gpus WHERE WHERE", "WHERE", None),
    ("SELECT sum(ts) FROM gpu_samples", "sum(ts)", "there are sum(DECIMAL) -> DECIMAL"),
    ("SELECT 'x'::INTEGER", None, None),
]


async def test_an_error_has_its_place_and_what_was_likely_meant(
    shared: Collector, session: aiohttp.ClientSession
) -> None:
    said = {}
    for sql, _, _ in WRONG:
        async with session.post(shared.url + "/v1/sql", data=sql.encode()) as answer:
            said[sql] = await answer.json()

    @each("sql, word, hint", WRONG)
    def check(sql: str, word: str | None, hint: str | None) -> None:
        found = said[sql]
        assert found["status"] == 400
        assert "\n" not in found["error"]
        assert (found.get("hint") or "").startswith(hint or "")
        assert hint is not None or "hint" not in found
        if word is not None:
            place = found["position"]
            assert sql[place["offset"] :].startswith(word)
            assert sql.split("\n")[place["line"] - 1][place["column"] - 1 :].startswith(word)

    check()


async def test_a_collector_whose_writer_is_stuck_is_healthy_but_not_ready(
    start: Any,
    session: Any,
    wire: Any,
    post: Any,
    stuck_clock: Any,
    eventually: Any,
    data_dir: Path,
) -> None:
    async def statuses(url: str) -> list[int]:
        answers = [await session.get(url + path) for path in ("/healthz", "/readyz")]
        return [answer.status for answer in answers]

    async with start(clock=stuck_clock) as collector, asyncio.TaskGroup() as group:
        assert await statuses(collector.url) == [200, 200]
        stuck_clock.may_go.clear()
        body = wire.stream("gpu_samples", [wire.gpu_row()])
        sent = group.create_task(post(collector.url, body, encoding=None))
        await eventually(stuck_clock.is_stuck.is_set)
        stuck_clock.advance(60)
        assert await statuses(collector.url) == [200, 503]
        settings = CollectorSettings(data_dir=data_dir, port=0)
        checks = await asyncio.to_thread(examine, settings, stuck_clock, None)
        (found,) = (check for check in checks if check.name == "collector")
        async with session.get(collector.url + "/readyz") as answer:
            said = await answer.json()
        assert (found.status, found.finding, said["checks"]) == (FAIL, said["error"], ["writer"])
        stuck_clock.may_go.set()
    assert sent.result()[0] == 204


async def test_on_a_full_disk_the_collector_is_not_ready_until_batches_may_be_tried_again(
    start: Any,
    session: Any,
    wire: Any,
    post: Any,
    clock: Any,
    eventually: Any,
    files_of_at_most: Any,
) -> None:
    async def is_ready(url: str) -> bool:
        async with session.get(url + "/readyz") as answer:
            return bool(answer.status == 200)

    body = wire.stream("gpu_samples", [wire.gpu_row()])
    async with start() as collector:
        await post(collector.url, body, 1, encoding=None)
        with files_of_at_most(0):
            status, text, headers = await post(collector.url, body, 2, encoding=None)
            assert (status, headers["Retry-After"]) == (503, "5")
            assert "the store cannot take it now" in text
            assert not await is_ready(collector.url)
            assert collector.is_alive()  # the watchdog must not end what a restart cannot help
            clock.advance(30)
            await eventually(collector.is_alive)
            assert await is_ready(collector.url)
        assert (await post(collector.url, body, 2, encoding=None))[0] == 204
        assert await is_ready(collector.url)


async def test_queries_beyond_the_most_that_may_wait_are_told_to_come_back(
    start: Any, session: aiohttp.ClientSession, eventually: Any
) -> None:
    go = asyncio.Event()
    refused = []

    async def body() -> AsyncIterator[bytes]:
        await go.wait()
        yield ENDLESS

    async def ask(url: str) -> None:
        async with session.post(url, data=body()) as answer:
            refused.append((answer.status, answer.headers["Retry-After"]))

    async with start() as collector:
        url = collector.url + "/v1/sql"
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(url)) for _ in range(2 + WAITING_MAX + 5)]
            await asyncio.sleep(0)
            go.set()
            await eventually(lambda: len(refused) == 5)
            for task in asked:
                task.cancel()
        assert refused == [(429, "1")] * 5
        assert collector.stats.query_errors["busy"] == 5


async def test_a_query_ends_when_its_client_goes_away(
    shared: Collector, session: aiohttp.ClientSession, eventually: Any
) -> None:
    url = shared.url + "/v1/sql"
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.post(url, data=ENDLESS), 0.1)
    async with asyncio.timeout(15), session.post(url, data=b"SELECT 7") as answer:
        assert (await answer.json())["rows"] == [[7]]


async def test_a_client_that_goes_away_while_rows_come_frees_the_query_process(
    shared: Collector, session: aiohttp.ClientSession
) -> None:
    asked = {"sql": "SELECT * FROM range(1000000000)", "row_limit": 20_000_000}
    url = shared.url + "/v1/sql"
    for accept in ("text/csv", "application/x-ndjson", CONTENT_TYPE):
        answer = await session.post(url, json=asked, headers={"Accept": accept})
        await answer.content.readexactly(1_000_000)
        answer.close()
        async with asyncio.timeout(10), session.post(url, data=b"SELECT 7") as after:
            assert (await after.json())["rows"] == [[7]]


async def test_what_cannot_be_completed_does_not_look_complete(
    shared: Collector, session: aiohttp.ClientSession
) -> None:
    sql = "SELECT CASE WHEN i = 900000 THEN 'x' ELSE '1' END::INTEGER AS a FROM range(1000000) t(i)"
    asked = {"sql": sql, "row_limit": 1_000_000}
    url = shared.url + "/v1/sql"
    for accept in ("text/csv", "application/json", CONTENT_TYPE):
        async with session.post(url, json=asked, headers={"Accept": accept}) as answer:
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
    async with session.post(url, json=asked, headers={"Accept": NDJSON_TYPE}) as answer:
        *rows, last = (await answer.text()).splitlines()
    assert rows[0] == '{"a":1}'
    assert "Could not convert" in json.loads(last)["gpuwarden.error"]["error"]


async def test_rows_that_are_cut_after_they_were_begun_say_so_at_their_end(
    start: Any, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SqlQuerier", partial(SqlQuerier, rows_max=300_000))
    async with start() as collector:
        url = collector.url + "/v1/sql"
        ends: dict[str, bytes] = {}
        for form in Form:
            data = "SELECT range AS n, hash(range) AS h FROM range(400000)"
            async with session.post(url, data=data, headers={"Accept": form}) as answer:
                assert "Gpuwarden-Truncated" not in answer.headers
                ends[form.name] = (await answer.read())[-1_000:]
    assert ends["JSON"].partition(b"]]")[2].startswith(b',"truncated":true')
    assert ends["NDJSON"].endswith(b'\n{"gpuwarden.truncated":true,"rows":300000}\n')
    assert ends["CSV"].endswith(b"\n# gpuwarden.truncated: there are more rows than these 300000\n")
    assert all(b"gpuwarden.truncated" in ends[name] for name in ("ARROW", "PARQUET"))


async def test_a_client_that_does_not_take_its_rows_loses_them(
    start: Any, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden_collector.http.sql.QUERY_SEND_S", 1)
    monkeypatch.setattr("gpuwarden_collector.query.querier.QUERY_SEND_S", 1)
    sql = b"SELECT repeat('x', 10000) FROM range(3000)"
    head = b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nAccept: text/csv\r\nContent-Length: %d\r\n\r\n"
    async with start(query_processes=1) as collector:
        port = int(collector.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(head % len(sql) + sql)
        async with session.post(collector.url + "/v1/sql", data=b"SELECT 7") as answer:
            assert (await answer.json())["rows"] == [[7]]
        got_bytes = 0
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1 << 20):
                    got_bytes += len(piece)
        writer.close()
    assert got_bytes < 30_000_000


async def test_what_is_not_http_is_counted_and_does_not_fill_the_log(
    shared: Collector, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(shared.url.rpartition(":")[2])
    for garbage in (b"\x16\x03\x01 tls\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 9999):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage + b"\r\n\r\n")
        assert b"400 Bad Request" in await reader.readline()
        writer.close()
    async with session.get(shared.url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    assert "gpuwarden_collector_malformed_requests_total 2.0" in lines
    assert "Traceback" not in caplog.text


async def test_the_address_of_a_chart_with_256_gpus_is_read(
    shared: Collector, session: aiohttp.ClientSession
) -> None:
    uuids = "%2C".join(f"GPU-{uuid.UUID(int=number)}" for number in range(GPUS_MAX))
    names = "%2C".join(sorted(DRAWABLE, key=len)[-METRICS_MAX:])
    query = f"gpu_uuid={uuids}&metrics={names}&columns=1000&begin=1772359200000&end=1772362800000"
    where = URL(f"{shared.url}/healthz?{query}", encoded=True)
    async with session.get(where) as answer:
        assert answer.status == 200, await answer.text()


async def test_other_routes_are_served_beside_the_api_and_faults_do_not_end_it(
    start: Any, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    def routes(querier: Any) -> list[web.RouteDef]:
        async def page(request: web.Request) -> web.Response:
            result = await querier.query("SELECT 6 * 7")
            return web.Response(text=f"{result.rows[0][0]}")

        async def broken(request: web.Request) -> web.Response:
            raise ZeroDivisionError

        return [web.get("/", page), web.get("/broken", broken)]

    async with start(routes=routes) as collector:
        async with session.get(collector.url + "/") as answer:
            assert await answer.text() == "42"
        async with session.get(collector.url + "/broken") as answer:
            assert await answer.json() == {
                "error": "the collector failed on this request; see its log",
                "status": 500,
            }
        async with session.get(collector.url + "/nothing") as answer:
            assert await answer.json() == {"error": "there is nothing at /nothing", "status": 404}
        browser = {"Accept": "text/html,*/*"}
        async with session.get(collector.url + "/no<b>", headers=browser) as answer:
            assert (answer.status, answer.content_type) == (404, "text/html")
            assert "There is nothing at /no&lt;b&gt;." in await answer.text()
        async with session.get(collector.url + "/v1/nothing", headers=browser) as answer:
            assert answer.content_type == "application/json"
        async with session.get(collector.url + "/v1/ingest") as answer:
            assert answer.status == 405
            assert answer.headers["Allow"] == "POST"
            assert (await answer.json())["error"] == "/v1/ingest does not take GET"
    assert "ZeroDivisionError" in caplog.text


async def test_what_was_asked_is_kept_for_admins(
    start: Any, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SqlQuerier", partial(SqlQuerier, rows_max=3))
    wrong = "SELECT util_percent FROM gpu_1m"
    async with start() as collector:
        url = collector.url + "/v1/sql"
        asked = {"sql": "SELECT $key AS key", "params": {"key": "hidden"}}
        async with session.post(url, json=asked, headers={"Accept": "text/csv"}) as answer:
            size = len(await answer.read())
        for sql in ("FROM range(5)", wrong):
            async with session.post(url, data=sql) as answer:
                await answer.read()
        rows: list[list[Any]] = []
        async with asyncio.timeout(20):
            while len(rows) < 3:
                await asyncio.sleep(0.2)
                log = "SELECT sql, form, outcome, error, rows, bytes, address FROM query_log WHERE number < 4"
                async with session.post(url, data=log + " ORDER BY number") as answer:
                    rows = (await answer.json())["rows"]
        assert rows[0] == [asked["sql"], "csv", "ok", None, 1, size, "127.0.0.1"]
        assert rows[1][:5] == ["FROM range(5)", "json", "truncated", None, 3]
        assert rows[2][:3] == [wrong, "json", "wrong"]
        assert "did you mean" in rows[2][3]
        with pytest.raises(QueryError, match="query_log needs a token"):
            await collector.querier.query("SELECT count(*) FROM (FROM query_log)")


async def test_the_log_has_no_answer_link_that_failed_or_was_denied(
    start: Any, session: aiohttp.ClientSession
) -> None:
    log, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(log)
    handler.setFormatter(TextFormatter(with_time=False))
    root.addHandler(handler)

    async def fails(request: web.Request) -> web.Response:
        raise KeyError(request.path)

    try:
        async with start(routes=lambda _: [web.post("/answer/{secret}", fails)]) as collector:
            for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"X-Forwarded-For": "1.2.3.4"}):
                async with session.post(
                    f"{collector.url}/answer/s3cr3t", headers=headers
                ) as answer:
                    assert answer.status in (403, 500)
    finally:
        root.removeHandler(handler)
    assert log.getvalue().count("path=/answer/***") == 3
    assert "s3cr3t" not in log.getvalue()
