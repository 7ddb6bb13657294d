"""Every endpoint answers as the OpenAPI document says, to all that the document allows, and to what it does not."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from gpuwarden.access import Scope, Token
from gpuwarden.clock import SystemClock
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.http.openapi import PATH
from gpuwarden_collector.settings import CollectorSettings

pytestmark = pytest.mark.slow

LINE_MAX = 8_000
"""Of the address of a request."""
EXAMPLES = 2
"""Of each endpoint, and as many that the document does not allow."""
SAYS_NOT_ALL = frozenset(
    {
        "POST /v1/ingest",
        "POST /prometheus/api/v1/write",
        "POST /otlp/v1/metrics",
        "POST /v1/gpu-tests",
        "POST /v1/sql",
        "POST /mcp",
        "POST /v1/queries",
        "POST /v1/enroll",
        "POST /v1/silences",
        "GET /v1/annotations",
        "POST /v1/annotations",
        "POST /v1/backtests",
        "POST /login",
        "GET /prometheus/federate",
        *(
            f"{method} /prometheus/api/v1/{name}"
            for method in ("GET", "POST")
            for name in ("query", "query_range", "series", "labels", "query_exemplars")
        ),
        *(f"GET /prometheus/api/v1/{name}" for name in ("label/{name}/values", "metadata")),
        "GET /v1/silences/preview",
        "GET /v1/fleet/past",
        *(
            f"GET /v1/{name}"
            for name in (
                "series",
                "series/model",
                "live",
                "usual",
                "timeline",
                "health",
                "coverage",
                "map/nodes",
            )
        ),
        *(
            "GET /money",
            "GET /money/report",
            "GET /v1/money.csv",
            "GET /jobs/{name}",
            "GET /users/{name}",
        ),
    }
)
"""Whose schema allows what has no meaning: a text that is not SQL, an end before the begin."""


@schemathesis.serializer("application/vnd.apache.arrow.stream", "application/x-protobuf")
def as_it_is(_context: Any, value: Any) -> bytes:
    """Bodies of batches that are none."""
    return value if isinstance(value, bytes) else str(value).encode()


class Served:
    """A collector with rules and pages in a thread of its own, and an admin's token."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = Token.new(Scope.ADMIN)
        self._is_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token.text}"}

    async def _run(self) -> None:
        token, clock = self._token, SystemClock()
        entry = TokenEntry(token.id, Scope.ADMIN, token.digest, clock.now())
        edit(self._folder / NAME, lambda store: (store.with_entry(entry), None))
        settings = CollectorSettings(port=0, data_dir=self._folder, require_tokens=True)
        try:
            async with collecting(settings, clock) as collector:
                self.url = collector.url
                self._is_up.set()
                await self._stop.wait()
        finally:
            self._is_up.set()

    def begin(self) -> None:
        self._thread.start()
        assert self._is_up.wait(60)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("openapi"))
    made.begin()
    yield made
    made.end()


@pytest.fixture(scope="module")
def operations(served: Served) -> dict[str, Any]:
    schema = schemathesis.openapi.from_url(served.url + PATH, headers=served.headers)
    return {one.ok().label: one.ok() for one in schema.get_all_operations()}


def test_endpoints_answer_as_the_document_says(served: Served, operations: dict[str, Any]) -> None:
    assert len(operations) > 50
    found = [
        failure
        for operation in operations.values()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for failure in deviations(served, operation, mode)
    ]
    assert not found, "\n\n".join(found)


def deviations(served: Served, operation: Any, mode: GenerationMode) -> list[str]:
    """What is not as the document says, one of each kind."""
    found: dict[str, str] = {}
    # A parameter that no endpoint knows is passed over, as one of a newer page or client may be.
    excluded = [negative_data_rejection]
    if operation.label in SAYS_NOT_ALL:
        excluded.append(positive_data_acceptance)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES, phases=[Phase.generate], database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def call(case: Any) -> None:
        # A longer line is refused before its path is known, in plain text.
        assume(len(case.formatted_path + urlencode(case.query or {}, doseq=True)) < LINE_MAX)
        try:
            case.call_and_validate(headers=served.headers, excluded_checks=excluded, timeout=60)
        except FailureGroup as group:
            for one in group.exceptions:
                found.setdefault(type(one).__name__, f"{operation.label}, {mode}: {group}")

    try:
        call()
    except Unsatisfiable:  # nothing can be wrong about it
        assert mode is GenerationMode.NEGATIVE
    return [*found.values()]
