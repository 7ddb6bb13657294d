"""Serves `POST /v1/gpu-tests`: results of `gpuwarden agent test-gpus`, which become rows of table `gpu_tests`."""

from collections.abc import Iterable

import pyarrow as pa
from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.gpu_test import GPU_TESTS, GPU_TESTS_PATH, GpuTestError, run_of
from gpuwarden_collector.auth.gate import node_of, sender_of
from gpuwarden_collector.http.app import error_response
from gpuwarden_collector.http.json_bodies import JsonBodyError, answering_errors, json_body
from gpuwarden_collector.ingest.admission import Admission, gpu_test_batch
from gpuwarden_collector.ingest.commit_plan import Rejected, RetryLater
from gpuwarden_collector.storage.schemas import arrow_schema

_BODY_BYTES_MAX = 1024**2
_SCHEMA = arrow_schema(GPU_TESTS.columns)
_WRONG = "the body must be JSON, as gpuwarden agent test-gpus sends it"


def gpu_test_routes(admission: Admission, clock: Clock) -> Iterable[web.AbstractRouteDef]:
    """The route for the application."""

    async def add(request: web.Request) -> web.Response:
        document = await json_body(request, _BODY_BYTES_MAX, _WRONG)
        try:
            run = run_of(document, clock.now())
        except GpuTestError as error:
            raise JsonBodyError(400, str(error)) from error
        bound_to = node_of(request)
        if bound_to not in (None, run.node):
            return error_response(403, f"this token is for node {bound_to}, not for {run.node}")
        rows = pa.Table.from_pylist(run.rows(), _SCHEMA)
        batch = gpu_test_batch(rows, run.node, run.run, sender_of(request), request.content_length)
        match await admission.store(batch):
            case RetryLater(reason, retry_after_s, status):
                return error_response(status, reason, retry_after_s)
            case Rejected(reason, status):
                return error_response(status, reason)
        return web.json_response({"received": rows.num_rows}, status=201)

    return [web.post(GPU_TESTS_PATH, answering_errors(add))]
