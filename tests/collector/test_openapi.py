"""The OpenAPI document has what is served, and what is served does as it says."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpuwarden.clock import SystemClock
from gpuwarden_cli.services import collecting
from gpuwarden_collector.auth.scopes import NEEDS
from gpuwarden_collector.http.openapi import ENDPOINTS
from gpuwarden_collector.settings import CollectorSettings

ROOT = Path(__file__).parents[2]


def test_the_document_has_each_endpoint_that_has_a_scope_and_a_text() -> None:
    assert ENDPOINTS.keys() == NEEDS.keys()
    documented = set(
        re.findall(r"^### (\w+) (/\S*)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    )
    assert ENDPOINTS.keys() == documented


async def test_what_is_served_is_what_the_document_says(data_dir: Path) -> None:
    settings = CollectorSettings(port=0, data_dir=data_dir, threads=1)
    async with collecting(settings, SystemClock()) as collector:
        async with (
            aiohttp.ClientSession() as session,
            session.get(collector.url + "/v1/openapi.json") as answer,
        ):
            assert answer.content_type == "application/json"
            said: dict[str, Any] = await answer.json()
        served = {(m, p) for m, p in collector.endpoints if m != "HEAD"}
    assert said["openapi"].startswith("3.1")
    operations = {(m.upper(), path) for path, kinds in said["paths"].items() for m in kinds}
    assert operations == served
    sql = said["paths"]["/v1/sql"]["post"]
    assert sql["x-scope"] == "read"
    assert "application/x-ndjson" in sql["responses"]["200"]["content"]


@pytest.mark.slow
async def test_requests_of_all_kinds_are_answered_as_the_document_says(data_dir: Path) -> None:
    import asyncio

    settings = CollectorSettings(port=0, data_dir=data_dir, threads=1, query_timeout_s=2)
    async with collecting(settings, SystemClock()) as collector:
        findings = await asyncio.to_thread(fuzz, collector.url)
    assert findings == []


def fuzz(url: str) -> list[str]:
    """What schemathesis finds: errors of the server, statuses and types that the document does not have."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import checks

    schema = schemathesis.openapi.from_url(url + "/v1/openapi.json")
    wanted = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    findings: list[str] = []
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=15,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            try:
                case.call_and_validate(checks=wanted, timeout=20)
            except Exception as error:  # noqa: BLE001  all that it finds is listed
                operation = f"{case.method} {case.path}"
                findings.append(f"{operation}: {error!r:.600}")

        check()
    return sorted(set(findings))
