"""The OpenAPI document has each endpoint that has a scope; `auth/test_scopes.py` compares those with the routes."""

import re
from pathlib import Path

from gpuwarden_collector.auth.scopes import NEEDS
from gpuwarden_collector.http.openapi import ENDPOINTS, document

ROOT = Path(__file__).parents[3]


def test_the_document_has_each_endpoint_that_has_a_scope_and_a_text() -> None:
    assert ENDPOINTS.keys() == NEEDS.keys()
    documented = set(
        re.findall(r"^### (\w+) (/\S*)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    )
    assert ENDPOINTS.keys() == documented


def test_the_document_has_the_operations_that_are_served() -> None:
    said = document(NEEDS)
    assert said["openapi"].startswith("3.1")
    operations = {(m.upper(), path) for path, kinds in said["paths"].items() for m in kinds}
    assert operations == NEEDS.keys()
    sql = said["paths"]["/v1/sql"]["post"]
    assert sql["x-scope"] == "read"
    assert "application/x-ndjson" in sql["responses"]["200"]["content"]
