"""The wire format as promised: the golden batch, which never changes, decodes as it always did, and the docs are true."""

import asyncio
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpuwarden.clock import ManualClock, from_ms
from gpuwarden.wire import (
    BODY_BYTES_MAX,
    DECODED_BYTES_MAX,
    ROWS_MAX,
)
from gpuwarden_collector.ingest.admit import NAME_BYTES_MAX, TEXT_BYTES_MAX, checked, window
from gpuwarden_collector.ingest.decode import Decoded, decode
from gpuwarden_collector.ingest.ipc_messages import FRAMES_MAX, MESSAGES_MAX

GOLDEN = Path(__file__).parent / "golden"
WIRE_DOC = Path(__file__).parents[3] / "docs" / "wire.md"
CONNECT_DOC = WIRE_DOC.with_name("connect.md")
TS_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z


def sent_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with timestamps as milliseconds, as the golden file has them."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    rows: list[dict[str, Any]] = pa.table(columns, names=table.schema.names).to_pylist()
    return rows


def test_the_golden_batch_decodes_as_it_always_did() -> None:
    expected = json.loads((GOLDEN / "wire_v1.json").read_text())
    decoded = decode((GOLDEN / "wire_v1.bin").read_bytes(), "zstd")
    assert isinstance(decoded, Decoded)
    assert decoded.tables.keys() == expected["rows"].keys()
    for name, rows in expected["rows"].items():
        # Columns may be added later; those of the golden file keep their names and values.
        got = sent_rows(decoded.tables[name])
        assert [{k: row[k] for k in rows[0]} for row in got] == rows
    assert checked(decoded.tables, window(from_ms(TS_MS), 60, 60)) == decoded.tables


async def test_the_golden_request_is_stored(start: Any, session: Any) -> None:
    golden = json.loads((GOLDEN / "wire_v1.json").read_text())
    body = (GOLDEN / "wire_v1.bin").read_bytes()
    async with start() as collector:
        url = collector.url + "/v1/ingest"
        async with session.post(url, data=body, headers=golden["headers"]) as answer:
            assert (answer.status, await answer.text()) == (204, "")
        for name, rows in golden["rows"].items():
            count = await collector.querier.query(f"SELECT count(*) FROM {name}")
            assert count.rows == [(len(rows),)]


def example_of(page: Path) -> str:
    """The one Python block of a page."""
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 30
    return str(code)


async def run_example(code: str) -> tuple[int | None, str]:
    """Exit code and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_the_example_clients_of_the_docs_send_and_read(
    start: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.step((datetime.now(UTC) - clock.now()).total_seconds())
    async with start() as collector:
        monkeypatch.setenv("GPUWARDEN_URL", collector.url)
        assert await run_example(example_of(WIRE_DOC)) == (0, "204\n")
        result = await collector.querier.query("SELECT node, util_percent FROM gpu_samples")
        assert result.rows == [("node1", 97.0)]
        code, described = await run_example(example_of(CONNECT_DOC))
        assert code == 0
        assert re.search(r"^mean .* 97\.0$", described, re.MULTILINE)


def test_the_docs_name_every_limit() -> None:
    of_bodies = (BODY_BYTES_MAX, DECODED_BYTES_MAX, ROWS_MAX, FRAMES_MAX, MESSAGES_MAX)
    for limit in (*of_bodies, TEXT_BYTES_MAX, NAME_BYTES_MAX):
        assert f"{limit:,}" in WIRE_DOC.read_text()
