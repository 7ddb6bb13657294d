"""The OpenAPI document has what is served, and what is served does as it says."""

import re
from pathlib import Path
from typing import Any

import aiohttp
from tests.end_to_end.conftest import copy_rules

from gpuwarden.clock import SystemClock
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_collector.auth.scopes import NEEDS
from gpuwarden_collector.http.openapi import ENDPOINTS
from gpuwarden_collector.settings import CollectorSettings

ROOT = Path(__file__).parents[3]


def test_the_document_has_each_endpoint_that_has_a_scope_and_a_text() -> None:
    assert ENDPOINTS.keys() == NEEDS.keys()
    documented = set(
        re.findall(r"^### (\w+) (/\S*)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    )
    assert ENDPOINTS.keys() == documented


async def test_what_is_served_is_what_the_document_says(data_dir: Path) -> None:
    no_rules = (copy_rules(data_dir / "no_rules"),)
    settings = CollectorSettings(port=0, data_dir=data_dir, rules_dirs=no_rules)
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
