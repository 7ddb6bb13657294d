"""The JSON document: its shape, and that its values are those of SQL."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.top.fake_source import TOTALS, FakeSource, unreachable

from gpuwarden.clock import SystemClock
from gpuwarden_cli.top import document
from gpuwarden_cli.top.collector import CollectorSource
from gpuwarden_cli.top.document import KEYS, document_of, document_text
from gpuwarden_cli.top.document import TOTALS as TOTALS_KEYS
from gpuwarden_cli.top.request import SourceError
from gpuwarden_rules.testing import MemoryDatabase

CLOCK = SystemClock()


async def made(fleet: MemoryDatabase, node: str | None = None) -> dict[str, Any]:
    found = await document_of(CollectorSource("http://c:8750", fleet), node, CLOCK)
    read = json.loads(document_text(found))
    assert isinstance(read, dict)
    return read


async def test_the_document_has_what_sql_has(fleet: MemoryDatabase) -> None:
    found = await made(fleet)
    assert list(found) == [
        "version", "at", "source", "node", "totals", "nodes", "gpus", "processes", "jobs", "alerts",
    ]  # fmt: skip
    for view, keys in KEYS.items():
        assert all(tuple(row) == tuple(keys) for row in found[view.value])
    newest = (await fleet.query(
        "SELECT gpu_uuid, arg_max(util_percent, ts) AS util_percent, arg_max(power_watts, ts) AS power_watts,"
        " arg_max(memory_used_bytes, ts) AS memory_used_bytes FROM gpu_samples GROUP BY gpu_uuid"
    )).records()  # fmt: skip
    shown = {row["gpu_uuid"]: row for row in found["gpus"]}
    for record in newest:
        assert {key: shown[record["gpu_uuid"]][key] for key in record} == record
    gpus = (await fleet.query("SELECT gpu_uuid, usd_per_hour FROM gpus")).records()
    assert {row["gpu_uuid"]: row["usd_per_hour"] for row in found["gpus"]} == {
        record["gpu_uuid"]: record["usd_per_hour"] for record in gpus
    }
    assert found["totals"]["gpus"] == len(gpus)
    processes = (await fleet.query(
        "SELECT node, pid, gpu_memory_bytes AS memory_bytes, cpu_percent FROM process_samples"
        " QUALIFY row_number() OVER (PARTITION BY gpu_uuid, pid ORDER BY ts DESC) = 1 ORDER BY node"
    )).records()  # fmt: skip
    assert [{key: row[key] for key in processes[0]} for row in found["processes"]] == processes
    alerts = (await fleet.query("SELECT rule FROM alerts_now WHERE state = 'firing'")).records()
    assert sorted(row["rule"] for row in found["alerts"]) == sorted(r["rule"] for r in alerts)
    assert [(job["job"], job["where"]) for job in found["jobs"]] == [("77", ["n0", "n1"])]
    (without,) = (row for row in found["gpus"] if row["gpu_uuid"] == "GPU-n1-1")
    assert without["util_percent"] is None, "absent is null"


async def test_of_one_node_it_has_the_rows_of_that_node(fleet: MemoryDatabase) -> None:
    found = await made(fleet, "n1")
    assert {row["node"] for view in ("nodes", "gpus", "processes") for row in found[view]} == {"n1"}
    assert [job["job"] for job in found["jobs"]] == ["77"]
    assert (await made(fleet, "n2"))["jobs"] == []


async def test_rows_are_read_in_parts_until_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "CHUNK", 7)
    found = await document_of(FakeSource(gpus=24), None, CLOCK)
    assert [row["gpu_uuid"] for row in found["gpus"]] == [f"GPU-{n}" for n in range(24)]
    assert found["totals"]["gpus"] == TOTALS["gpus"]


async def test_no_answer_is_an_error_and_names_cannot_hold_control_characters() -> None:
    source = FakeSource(8)
    source.problem = unreachable()
    with pytest.raises(SourceError, match="no collector answers"):
        await document_of(source, None, CLOCK)
    hostile = FakeSource(8, lambda row: {**row, "username": "a\x1b[31m\u202e\x9b"})
    text = document_text(await document_of(hostile, None, CLOCK))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert json.loads(text)["gpus"][0]["username"] == "a\x1b[31m\u202e\x9b"


def test_the_documentation_has_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs/top.md").read_text()
    for name, keys in {"totals": TOTALS_KEYS, **{view.value: keys for view, keys in KEYS.items()}}.items():  # fmt: skip
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert [key for key in keys if f"`{key}`" not in line] == []
