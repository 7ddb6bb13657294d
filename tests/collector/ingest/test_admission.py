"""Every endpoint that a node's token may send to has the same bounds: its quota, its own node, its own GPUs."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from tests.contract.test_gpu_test import RUN
from tests.remote_write import encode

from gpuwarden.access import Scope, Token
from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.gpu_test import GPU_TESTS_PATH
from gpuwarden.wire import INGEST_PATH
from gpuwarden_collector import stages
from gpuwarden_collector.auth.scopes import NEEDS
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.ingest.receiver import ReceiverLimits
from gpuwarden_collector.processes.control_socket import ask
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.received.endpoints import OTLP_PATH, WRITE_PATH
from gpuwarden_prometheus.received.front import RECEIVED
from gpuwarden_prometheus.received.messages import new_request

ENDPOINTS = [key for key, need in NEEDS.items() if need is Scope.INGEST]
Answer = tuple[int, str]
Send = Callable[[str, Token, str, str], Awaitable[Answer]]
"""Sends a reading or result: address of the collector, token, node, GPU."""


class NodeRequests:
    """A request about one GPU of a node, for each endpoint of scope ingest; each call sends another one."""

    def __init__(self, wire: Any, post: Any, session: Any, bearer: Any, clock: ManualClock) -> None:
        self._wire, self._post, self._session = wire, post, session
        self._bearer, self._clock = bearer, clock
        self._numbers = itertools.count(1)
        self.by_endpoint: dict[tuple[str, str], Send] = {
            ("POST", INGEST_PATH): self.batch,
            ("POST", WRITE_PATH): self.remote_write,
            ("POST", OTLP_PATH): self.otlp,
            ("POST", GPU_TESTS_PATH): self.gpu_test,
        }

    async def batch(self, url: str, token: Token, node: str, gpu: str) -> Answer:
        number = next(self._numbers)
        row = self._wire.gpu_row(0, number, node=node, gpu_uuid=gpu)
        body = self._wire.zstd(self._wire.stream("gpu_samples", [row]))
        status, said, _ = await self._post(
            url, body, number, agent=f"of-{node}", headers=self._bearer(token)
        )
        return status, said

    async def remote_write(self, url: str, token: Token, node: str, gpu: str) -> Answer:
        message = new_request(1)
        series = message.timeseries.add()
        labels = {"Hostname": node, "UUID": gpu, "__name__": "DCGM_FI_DEV_GPU_UTIL"}
        for name, value in sorted(labels.items()):
            series.labels.add(name=name, value=value)
        series.samples.add(value=5.0, timestamp=self._time_ms())
        kind = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        return await self._send(url + WRITE_PATH, token, data=encode(message), headers=kind)

    async def otlp(self, url: str, token: Token, node: str, gpu: str) -> Answer:
        message = ExportMetricsServiceRequest()
        metric = message.resource_metrics.add().scope_metrics.add().metrics.add()
        metric.name = "hw.gpu.utilization"
        point = metric.gauge.data_points.add(time_unix_nano=self._time_ms() * 10**6, as_double=0.5)
        for name, value in {"host.name": node, "hw.id": gpu, "hw.vendor": "nvidia"}.items():
            point.attributes.add(key=name).value.string_value = value
        kind = {"Content-Type": "application/x-protobuf"}
        body = message.SerializeToString()
        return await self._send(url + OTLP_PATH, token, data=body, headers=kind)

    async def gpu_test(self, url: str, token: Token, node: str, gpu: str) -> Answer:
        document = RUN.document() | {"node": node, "run": f"{next(self._numbers):012x}"}
        now = self._clock.now().isoformat()
        document["results"][0] |= {"gpu_uuid": gpu, "began_at": now, "ended_at": now}
        return await self._send(url + GPU_TESTS_PATH, token, json=document)

    def _time_ms(self) -> int:
        return to_ms(self._clock.now()) + next(self._numbers)

    async def _send(self, url: str, token: Token, **request: Any) -> Answer:
        headers = {**request.pop("headers", {}), **self._bearer(token)}
        async with self._session.post(url, headers=headers, **request) as answer:
            return answer.status, await answer.text()


@pytest.fixture
def requests(wire: Any, post: Any, session: Any, bearer: Any, clock: ManualClock) -> NodeRequests:
    return NodeRequests(wire, post, session, bearer, clock)


Collecting = Callable[..., AbstractAsyncContextManager[Collector]]


@pytest.fixture
def collecting(data_dir: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Collecting:
    """A collector with every endpoint of scope ingest."""
    monkeypatch.setattr(stages, "ReceiverLimits", partial(ReceiverLimits, open_ms=100))

    @asynccontextmanager
    async def started(**more: Any) -> AsyncIterator[Collector]:
        settings = CollectorSettings(
            port=0, data_dir=data_dir, require_tokens=True, **more
        )  # fmt: skip
        async with running(settings, clock, sample_front=RECEIVED) as collector:
            yield collector

    return started


async def _rows(collector: Collector, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in (await collector.querier.query(sql, {})).rows]


async def _until(collector: Collector, sql: str, rows: list[tuple[Any, ...]]) -> None:
    """Wait until a query has these rows: series become rows a little later."""
    for _ in range(2_000):
        if await _rows(collector, sql) == rows:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{sql}: {await _rows(collector, sql)}")


async def test_a_sender_over_its_quota_waits_at_every_endpoint(
    collecting: Collecting, requests: NodeRequests, grant: Any, data_dir: Path
) -> None:
    async with collecting(agent_bytes_per_day_max=1) as collector:
        for number, endpoint in enumerate(ENDPOINTS):
            send, node = requests.by_endpoint[endpoint], f"n{number}"
            token = grant(Scope.INGEST, node=node)
            other = grant(Scope.INGEST, node=f"other{number}")
            assert (await send(collector.url, token, node, f"GPU-{node}"))[0] < 300, endpoint
            status, said = await send(collector.url, token, node, f"GPU-{node}")
            assert status == 429 and "agent_bytes_per_day_max" in said, endpoint
            status, said = await send(collector.url, other, f"other{number}", f"GPU-other{number}")
            assert status < 300, (endpoint, said)
        assert collector.stats.over_quota_batches == len(ENDPOINTS)
        health = await asyncio.to_thread(ask, data_dir, "health", 20.0)
        assert health is not None and "node n0" in health["sample"]["over_quota"]


async def test_a_node_s_token_stores_nothing_as_another_node_at_any_endpoint(
    collecting: Collecting, requests: NodeRequests, grant: Any
) -> None:
    token = grant(Scope.INGEST, node="n1")
    async with collecting() as collector:
        for endpoint in ENDPOINTS:
            status, said = await requests.by_endpoint[endpoint](collector.url, token, "n2", "GPU-2")
            assert status == 403 and "n1" in said and "n2" in said, endpoint
        assert collector.stats.denied == {"node": 1}, "the batch"


async def test_rows_about_another_node_s_gpu_are_left_out_and_reported_at_every_endpoint(
    collecting: Collecting, requests: NodeRequests, grant: Any, clock: ManualClock
) -> None:
    owner = grant(Scope.INGEST, node="owner")
    async with collecting() as collector:
        for number, endpoint in enumerate(ENDPOINTS):
            node, gpu = f"n{number}", f"GPU-{number}"
            status, said = await requests.batch(collector.url, owner, "owner", gpu)
            assert status == 204, said
            send, token = requests.by_endpoint[endpoint], grant(Scope.INGEST, node=node)
            status, said = await send(collector.url, token, node, gpu)
            assert status < 300, (endpoint, said)
            clock.advance(1)  # rows of series are due
            sql = f"SELECT gpu_uuid FROM events WHERE kind = 'gpu_claimed_twice' AND message LIKE 'node {node} %'"
            await _until(collector, sql, [(gpu,)])
            for table in ("gpu_samples", "gpu_tests", "gpus"):
                count = f"SELECT count(*) FROM {table} WHERE gpu_uuid = '{gpu}' AND node <> 'owner'"
                assert await _rows(collector, count) == [(0,)], (endpoint, table)
