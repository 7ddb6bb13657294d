"""One node sends the largest and the smallest numbers, and scripts as texts, in every column: pages, rules and diagnosis
of all continue, and no browser runs its texts."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from tests.end_to_end.conftest import World
from tests.end_to_end.test_pages import CHROMIUM, browsing

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, TABLE_KEY, BatchId, headers_of
from gpuwarden_collector.http.openapi import PATH
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS

pytestmark = pytest.mark.slow

BITS = {Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
OBJECT = '{"team": "x\'%", "rack": "\\"<script>"}'
SCRIPT = (
    "javascript:pwned=1//<img src=x onerror=pwned=1 data-pwned>"
    "\"'><svg onload=pwned=1 data-pwned>"
    "</textarea></title></script><script data-pwned>pwned=1</script>"
)
TEMPLATE = "`${pwned=1}{{pwned=1}}"
SCRIPTS = (SCRIPT, TEMPLATE)
"""Wherever a page shows a text that is not escaped, one of them becomes an element or runs: `PLACES`."""
EVIL_NODES = [f"evil-{number}" for number in range(len(SCRIPTS))]
PLACES = (
    "<p>{}</p>",
    "<p title='{}'></p>",
    '<p title="{}"></p>',
    "<a href='{}'></a>",
    "<textarea>{}</textarea>",
    "<title>{}</title>",
    "<svg><text>{}</text></svg>",
    "<script>const text = '{}'</script>",
    "<script>const text = `{}`</script>",
)
SECONDS = 40
SHOWN_LEAST = 12


def extreme(column: Column, *, largest: bool, script: str | None = None) -> Any:
    match column.type:
        case Type.STRING:
            if column.name in ("labels", "pod_labels", "peers", "details"):
                return OBJECT if script is None else json.dumps({"team": script, script: script})
            return script or ("<script>'\"%{}" if largest else "0")
        case Type.BOOL:
            return largest
        case Type.TIMESTAMP:
            return int(time.time() * 1000) - 60_000 if largest else 0
        case Type.FLOAT32 | Type.FLOAT64:
            kind = np.finfo(np.float32 if column.type is Type.FLOAT32 else np.float64)
            least, most = column.limits or (-float(kind.max), float(kind.max))
            return min(most, float(kind.max)) if largest else max(least, -float(kind.max))
        case _:
            reach = 2 ** (BITS[column.type] - 1)
            least, most = column.limits or (-reach, reach - 1)
            return int(min(most, reach - 1)) if largest else int(max(least, -reach))


def body(node: str, now_ms: int, *, is_evil: bool, script: str | None = None) -> bytes:
    """All tables of a node with two GPUs, for the last `SECONDS`; `script`: what its texts are."""
    sink = pa.BufferOutputStream()
    for name, table in WIRE_TABLES.items():
        rows = []
        for second in range(SECONDS if "ts" in table.names else 1):
            for gpu in range(2):
                row = {
                    c.name: extreme(c, largest=(second + gpu) % 2 == 0, script=script)
                    if is_evil or c.required
                    else None
                    for c in table.columns
                }
                own = {
                    "ts": now_ms - 1000 * second, "node": node, "gpu": gpu, "gpu_uuid": f"GPU-{node}-{gpu}",
                    "agent_id": node, "boot_id": "b", "mig_instance": None, "parent_gpu_uuid": None,
                    "simulated": False, "util_percent": 50.0, "kind": "xid", "severity": "critical",
                    "pid": gpu + 1, "link": gpu, "device": f"mlx5_{gpu}", "port": 1,
                }  # fmt: skip
                row |= {k: v for k, v in own.items() if k in row}
                rows.append(row)
        if "gpu_uuid" not in table.names:
            rows = rows[::2]
        schema = WIRE_SCHEMAS[name].with_metadata({TABLE_KEY: name})
        ints = pa.schema(
            [f.with_type(pa.int64()) if pa.types.is_timestamp(f.type) else f for f in schema]
        )
        data = pa.Table.from_pylist(rows, ints).cast(schema.remove_metadata())
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(data.replace_schema_metadata(schema.metadata))
    return bytes(sink.getvalue())


def fetched(url: str, content: bytes | None = None, headers: Any = ()) -> tuple[int, bytes]:
    request = urllib.request.Request(url, content, dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def send(world: World, agent: str, sequence: int, content: bytes, *, is_taken: bool = True) -> None:
    headers = {"Content-Type": CONTENT_TYPE, **headers_of(BatchId(agent, "b", sequence))}
    status, said = fetched(world.url + INGEST_PATH, content, headers)
    assert status == (204 if is_taken else 422), (agent, said)


def test_pages_rules_and_diagnosis_go_on(world: World) -> None:
    collector = world.collector()
    for sequence in (1, 2):
        now_ms = int(time.time() * 1000) - (2 - sequence) * 1000 * SECONDS
        for node in ("good", "evil"):
            send(world, node, sequence, body(node, now_ms, is_evil=node == "evil"))
    diagnosed = diagnoses(world)
    _, document = fetched(world.url + PATH)
    failed = {}
    for path, operations in json.loads(document)["paths"].items():
        if "get" not in operations:
            continue
        for name in ("evil", "good"):
            address = path
            while "{" in address:
                first, _, rest = address.partition("{")
                address = f"{first}{name}{rest.partition('}')[2]}"
            query = "?node=evil&gpu=0" if path.startswith("/v1/") else ""
            status, said = fetched(world.url + address + query)
            if status >= 500:
                failed[address] = (status, said[:200])
    assert not failed

    def judged() -> bool:
        rules = json.loads(fetched(f"{world.url}/v1/rules")[1])["rules"]
        return sum(rule["state"] != "unknown" for rule in rules) > len(rules) - 12

    world.wait_for(judged, "rules were evaluated", collector)
    # One that began after the last batch, and ended.
    world.wait_for(
        lambda: diagnoses(world) >= diagnosed + 2, "it was diagnosed", collector, within_s=240
    )
    metrics = fetched(f"{world.url}/metrics")[1].decode()
    wrong = [
        line
        for line in metrics.splitlines()
        if "failures_total" in line and not line.startswith("#") and not line.endswith(" 0.0")
    ]
    assert not wrong, "\n".join(wrong) + collector.output[-3000:]
    assert "error" not in collector.output.lower(), collector.output[-3000:]


def diagnoses(world: World) -> int:
    """How many of the fleet have begun."""
    metrics = fetched(f"{world.url}/metrics")[1].decode()
    (count,) = re.findall(r"(?m)^gpuwarden_diagnosis_looks_total (\S+)$", metrics)
    return int(float(count))


def addresses(world: World, uuids: list[str]) -> Iterator[str]:
    """Of all pages, with whatever names texts have."""
    _, document = fetched(world.url + PATH)
    for path, operations in json.loads(document)["paths"].items():
        content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "text/html" not in content:
            continue
        prefix, parameter, _ = path.partition("{")
        if not parameter:
            yield path
            continue
        for name in uuids if prefix == "/gpus/" else (*SCRIPTS, *EVIL_NODES):
            yield prefix + quote(name, safe="")
    yield from (f"/sql?q={quote(one)}" for one in SCRIPTS)
    yield f"/sql?q={quote('SELECT * FROM events LIMIT 50')}"
    yield f"/?q={quote(SCRIPTS[0])}"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.timeout(600)
def test_no_page_runs_a_text_of_a_node(world: World) -> None:
    collector = world.collector()
    now_ms = int(time.time() * 1000)
    for node, script in zip(EVIL_NODES, SCRIPTS, strict=True):
        as_name = body(script, now_ms, is_evil=True, script=script)
        send(world, node, 1, as_name, is_taken=False)
        send(world, node, 2, body(node, now_ms, is_evil=True, script=script))
    world.wait_for(
        lambda: world.one("SELECT count(*) FROM alerts_now") or 0, "rules fire", collector
    )
    uuids = [row[0] for row in world.ask("SELECT gpu_uuid FROM gpus")]
    incidents = [row[0] for row in world.ask("SELECT id FROM incidents")]
    assert len(uuids) >= 2 * len(SCRIPTS)
    pages, shown = 0, 0
    # Without the policy that keeps scripts out: texts must not even become elements.
    with browsing(world.url, bypass_csp=True) as (page, said):
        for place in PLACES:
            page.goto("about:blank")
            page.set_content("".join(place.replace("{}", script) for script in SCRIPTS))
            page.wait_for_timeout(10)
            assert is_pwned(page), f"{place} shows no text that runs"
        said.clear()
        for address in [*addresses(world, uuids), *(f"/incidents/{one}" for one in incidents)]:
            page.goto(world.url + address)
            page.wait_for_timeout(100)
            assert not is_pwned(page), address
            pages += 1
            shown += "pwned=1" in page.locator("body").inner_text()
    print(f"{pages} pages, {shown} with texts of the node")
    assert [one for one in said if "Failed to load resource" not in one] == []
    assert shown > SHOWN_LEAST, "texts of the node are on the pages"


def is_pwned(page: Any) -> bool:
    """Whether a text has run, or became an element."""
    return bool(
        page.evaluate("typeof pwned") != "undefined"
        or page.locator("[data-pwned]").count()
        or page.locator("a[href^='javascript:' i]").count()
    )
