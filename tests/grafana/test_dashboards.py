"""The dashboards are in the model of Grafana's SDK, and keep to what Grafana expects."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.each import each
from tests.grafana.dashboard_queries import (
    BOARDS,
    every,
    panels,
    promql,
    queries,
    variables,
)

from gpuwarden_dashboards.grafana.links import dashboard_url

register_default_plugins()
SCHEMA_VERSION = 42


def lost(given: Any, read: Any, path: str = "") -> list[str]:
    """Paths of what is not in a document that was read, or is another there."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [
            each
            for key, value in given.items()
            for each in lost(value, read.get(key), f"{path}.{key}")
        ]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        pairs = enumerate(zip(given, read, strict=True))
        return [each for at, pair in pairs for each in lost(*pair, f"{path}[{at}]")]
    return [] if given == read else [path]


@each("board", BOARDS)
def test_the_model_of_the_sdk_has_all_that_is_in_a_dashboard(board: str) -> None:
    read = Dashboard.from_json(json.loads(json.dumps(BOARDS[board])))
    assert lost(BOARDS[board], json.loads(json.dumps(read, cls=JSONEncoder))) == []


@each("board", BOARDS)
def test_a_dashboard_keeps_to_grafanas_schema(board: str) -> None:
    document = BOARDS[board]
    assert document["schemaVersion"] == SCHEMA_VERSION
    assert re.fullmatch(r"[\w-]{8,40}", document["uid"])
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids)
    reference = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(board):
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs), panel["title"]
        for of in [panel, *panel["targets"]]:
            assert of["datasource"] == reference, panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["type"] == "table" or defaults["unit"], panel["title"]
    for variable in variables(board).values():
        assert variable["datasource"] == reference
    titles = Counter((panel["title"], panel["type"]) for panel in panels(board))
    assert max(titles.values()) == 1


def test_uids_and_titles_are_unique() -> None:
    for name in ("uid", "title"):
        assert len({document[name] for document in BOARDS.values()}) == len(BOARDS)


@each("board", BOARDS)
def test_every_variable_that_is_used_is_defined_and_every_one_is_used(board: str) -> None:
    document = BOARDS[board]
    defined = {one["name"] for one in document["templating"]["list"]}
    text = json.dumps({**document, "templating": [v["query"] for v in variables(board).values()]})
    used = set(re.findall(r"\$\{?([a-z]\w*)", text))
    assert used == defined


def links(document: Any) -> list[str]:
    if isinstance(document, dict):
        own = [document["url"]] if isinstance(document.get("url"), str) else []
        return own + [url for value in document.values() for url in links(value)]
    if isinstance(document, list):
        return [url for value in document for url in links(value)]
    return []


PAGES = (
    r"/", r"/nodes/X", r"/nodes/X\?gpu=X", r"/gpus/X", r"/jobs/X", r"/users/X", r"/money\?by=job", r"/money",
    r"/incidents", r"/incidents/X", r"/alerts", r"/collector",
)  # fmt: skip
"""Routes of the collector's pages; X: any name."""


def test_links_lead_to_dashboards_with_their_variables_or_to_pages() -> None:
    uids = {document["uid"]: board for board, document in BOARDS.items()}
    for board, document in BOARDS.items():
        found = [url for url in links(document) if url]
        assert found, board
        for url in found:
            if url.startswith("${page}"):
                path = re.sub(r"\$\{[^}]*\}", "X", url.removeprefix("${page}"))
                assert any(re.fullmatch(one, path) for one in PAGES), url
                continue
            to = uids[url.split("?")[0].removeprefix("/d/")]
            given = set(re.findall(r"&var-(\w+)=", url))
            assert given <= set(variables(to)), url
            # One without a value for all of them shows nothing of the row that was chosen.
            alone = set(variables(to)) - set(every(to))
            assert alone <= given, url


def test_every_query_in_promql_is_one_for_prometheus_too(tmp_path: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (Debian: prometheus)")
    asked = [one for one in queries() if not one.is_variable]
    values = {"node": "n1", "gpu": "0", "user": ".*", "job": ".*", "pod": ".*"}
    rules = [
        {"record": f"panel:{number}", "expr": promql(one.text, values)}
        for number, one in enumerate(asked)
    ]
    file = tmp_path / "panels.json"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_pages_of_the_collector_link_to_dashboards_that_are_there() -> None:
    uids = {document["uid"]: board for board, document in BOARDS.items()}
    for name, given in (
        ("node", {"node"}),
        ("gpu", {"node", "gpu"}),
        ("job", {"user", "job", "pod"}),
    ):
        url = dashboard_url("https://grafana.example", name, **dict.fromkeys(given, "x"))
        assert given <= set(variables(uids[urlsplit(url).path.removeprefix("/d/")]))
