"""Requests that are odd get an answer of 4xx: no trace in the log, no wait without end, at any endpoint."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from gpuwarden.clock import SystemClock
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_collector import daemon, stages
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.http.app import Api
from gpuwarden_collector.http.bodies import BodyReader
from gpuwarden_collector.http.openapi import ENDPOINTS
from gpuwarden_collector.settings import CollectorSettings

BODY_S = 1.0
WITH_BODY = sorted((m, p) for m, p in ENDPOINTS if m in ("POST", "PUT", "PATCH"))
WITHOUT = ("/logout", "/v1/rules/reload")
"""Read no body."""
JSON = {"Content-Type": "application/json"}
NESTED = b'{"a":' + b"[" * 100_000
ODD: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(
        ("POST", path, {"data": b"{}", "headers": {"Origin": origin, **JSON}})
        for path in ("/v1/silences", "/v1/sql", "/v1/ingest", "/mcp", "/login")
        for origin in ("http://[", "//[", "http://[::1", "null", "http://a@b:c", "")
    ),
    *(
        ("POST", path, {"data": data, "headers": {"Content-Type": f"application/json{charset}"}})
        for path in ("/v1/silences", "/v1/backtests", "/v1/sql", "/v1/queries", "/v1/enroll", "/mcp")
        for data in (b"\xff\xfe{", NESTED, b"[1]", b'"\\ud800"')
        for charset in ("; charset=none", "; charset=undefined", "")
    ),
    ("GET", "/users/%00", {}),
    ("GET", "/jobs/%00", {}),
    ("GET", "/jobs/%00%0a%e2%80%ae", {}),
    ("GET", "/v1/series?gpu_uuid=%00&metric=util_percent", {}),
)  # fmt: skip
FINE = (
    *(f"/v1/fleet/past?by={by}" for by in ("*", "$", "a.b", "a/b", "~", "", "model", "[0]")),
    "/?by=*",
)

ABSURD = (
    "9" * 400,
    "9" * 5_000,
    "-1",
    "1e999",
    "nan",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "999999999d",
)
NUMBERS = (
    "/v1/series?node=n&metrics=util_percent&begin={}",
    "/v1/series?node=n&metrics=util_percent&last={}",
    "/v1/series?node=n&metrics=util_percent&columns={}",
    "/v1/live?node=n&metrics=util_percent&seconds={}",
    "/nodes/n?gpu={}",
    "/audit?days={}",
    "/alerts/f?active_at={}",
    "/v1/alerts/f/explanation?active_at={}",
    "/v1/annotations?begin={}",
    "/v1/fleet/past?since={}",
    "/prometheus/api/v1/query?query=up&time={}",
    "/prometheus/api/v1/query?query=up&timeout={}",
    "/prometheus/api/v1/query?query=up&lookback_delta={}",
    "/prometheus/api/v1/query_range?query=up&start=1&end=2&step={}",
)
"""Parameters that are numbers, instants or durations."""
FIELDS = (
    ("/v1/silences", {"matchers": ["a=b"], "for": "400d"}, ("starts_at", "for")),
    ("/v1/silences", {"matchers": ["a=b"]}, ("ends_at",)),
    ("/v1/annotations", {"text": "x", "node": "n"}, ("at", "until", "gpu")),
    ("/v1/backtests", {"rule": "gpu_hot"}, ("since",)),
    ("/v1/sql", {"sql": "SELECT 1"}, ("row_limit",)),
)  # fmt: skip


@pytest.fixture
async def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    monkeypatch.setattr(stages, "BodyReader", partial(BodyReader, timeout_s=BODY_S))
    monkeypatch.setattr(daemon, "Api", partial(Api, body_timeout_s=BODY_S))
    settings = CollectorSettings(port=0, data_dir=tmp_path)
    async with collecting(settings, SystemClock()) as found:
        yield found


async def test_odd_requests_are_refused_and_a_body_that_does_not_come_is_given_up(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    url = URL(collector.url)

    async def status_of(method: str, path: str) -> int:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = (
            f"{method} {path.replace('{', '').replace('}', '')} HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        writer.write(head.encode())
        async with asyncio.timeout(BODY_S + 10):
            line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    found = await asyncio.gather(*(status_of(*one) for one in WITH_BODY))
    assert collector.stats.request_failures == 0
    assert not [r for r in caplog.records if r.exc_info]
    unanswered = {
        (method, path): status
        for (method, path), status in zip(WITH_BODY, found, strict=True)
        if not (400 <= status < 500 or status == 503 or path in WITHOUT)
    }
    assert not unanswered
    wrong = []
    async with aiohttp.ClientSession() as session:
        for method, path, more in ODD:
            odd = URL(collector.url + path, encoded=True)
            async with session.request(method, odd, allow_redirects=False, **more) as answer:
                if not 400 <= answer.status < 500:
                    wrong.append((method, path, str(more)[:100], answer.status))
        for path in FINE:
            async with session.get(URL(collector.url + path, encoded=True)) as answer:
                if answer.status not in (200, 400):
                    wrong.append(("GET", path, "", answer.status))
    assert collector.stats.request_failures == 0
    assert not wrong


async def test_absurd_numbers_and_instants_are_refused_or_answered(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = []
    async with aiohttp.ClientSession(collector.url) as session:

        async def ask(method: str, path: str, **more: Any) -> None:
            async with session.request(method, path, allow_redirects=False, **more) as answer:
                if answer.status >= 500:
                    wrong.append((method, path[:100], str(more)[:100], answer.status))

        for value in ABSURD:
            for path in NUMBERS:
                await ask("GET", path.format(quote(value)))
            for path, fine, names in FIELDS:
                for name, sent in ((name, sent) for name in names for sent in (value, 10**400, -1)):
                    await ask("POST", path, json={**fine, name: sent})
    assert not wrong
    assert collector.stats.request_failures == 0
    assert not [r for r in caplog.records if r.exc_info]
