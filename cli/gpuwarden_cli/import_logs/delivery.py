"""Sends batches to a collector, and each row once, also when a file is imported again or an import was interrupted.

The identity of a batch is the hash of its rows, and a collector stores each batch once. A log that has grown gives
other batches, so the collector is first asked which of a batch's keys it has.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request

import pyarrow as pa

from gpuwarden.clock import from_ms
from gpuwarden.query import ARROW_TYPE
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, error_sentence, headers_of
from gpuwarden_client.http import CUT_TAIL_BYTES, CallError, CollectorEndpoint, is_cut
from gpuwarden_importing.batches import ImportBatch, digest
from gpuwarden_importing.model import AGENT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_ZSTD: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}
TRIES_MAX = 8
TIMEOUT_S = 120
WAIT_S_MAX = 30
_EVENT_KEY = ("ts", "node", "kind", "message", "details")
"""Columns that identify an event, as its key may repeat."""
_AGAIN_MAX = 3

Key = tuple[object, ...]


@dataclass(slots=True)
class Delivery:
    """Sends batches to one collector."""

    url: str
    wait: Callable[[float], None] = time.sleep
    stored: Counter[str] = field(default_factory=Counter)
    """Stored rows by table."""
    known: Counter[str] = field(default_factory=Counter)
    """Rows by table that the collector had before."""

    def deliver(self, batch: ImportBatch) -> None:
        """Send a batch; it is durable when this returns. Raises CallError."""
        if batch.table in ("nodes", "gpus"):
            self._store(batch, 1)
            self.stored[batch.table] += batch.data.num_rows
            return
        new = self._without_known(batch)
        self.known[batch.table] += batch.data.num_rows - new.data.num_rows
        if not new.data.num_rows:
            return
        # A collector ignores a batch that it stored before, also when the rows have expired since.
        for again in range(1, _AGAIN_MAX + 1):
            self._store(new, again)
            if self._known_keys(ImportBatch(new.table, new.data.slice(0, 1))):
                break
        self.stored[batch.table] += new.data.num_rows

    def _without_known(self, batch: ImportBatch) -> ImportBatch:
        keys = keys_of(batch)
        known = self._known_keys(batch)
        if known is None:
            half = batch.data.num_rows // 2
            if not half:
                raise CallError(
                    f"{self.url} has too many rows with one timestamp to find the new ones"
                )
            halves = (batch.data.slice(0, half), batch.data.slice(half))
            parts = [self._without_known(ImportBatch(batch.table, data)).data for data in halves]
            return ImportBatch(batch.table, pa.concat_tables(parts))
        if not known:
            return batch
        return ImportBatch(
            batch.table, batch.data.filter(pa.array([key not in known for key in keys]))
        )

    def _known_keys(self, batch: ImportBatch) -> set[Key] | None:
        """Keys that the collector has for the batch's nodes and times; None: the answer was cut."""
        names = key_names(batch.table)
        ts = batch.data["ts"].cast(pa.int64()).to_numpy()
        nodes = sorted(set(batch.data["node"].unique().to_pylist()))
        first, last = (
            from_ms(int(v)).isoformat()[:26].replace("+00:00", "") for v in (ts.min(), ts.max())
        )
        sql = (
            f"SELECT {', '.join(names)} FROM {batch.table} WHERE list_contains($nodes, node)"
            f" AND ts BETWEEN TIMESTAMP '{first}' AND TIMESTAMP '{last}'"
        )
        body = json.dumps({"sql": sql, "params": {"nodes": nodes}}).encode()
        answer, headers = self._ask(
            "/v1/sql", body, {"Content-Type": "application/json", "Accept": ARROW_TYPE}
        )
        if is_cut(headers, answer[-CUT_TAIL_BYTES:]):
            return None
        try:
            table = pa.ipc.open_stream(answer).read_all()
        except (pa.ArrowException, OSError) as error:
            raise CallError(f"{self.url} does not answer like a gpuwarden collector") from error
        return set(_keys(table, names))

    def _store(self, batch: ImportBatch, again: int) -> None:
        body = batch.body()
        name = digest(body) + ("" if again == 1 else f".{again}")
        batch_id = BatchId(AGENT, name, 1, is_import=True)
        content = zstd.compress(body, options=_ZSTD)
        self._ask(
            INGEST_PATH,
            content,
            {"Content-Type": CONTENT_TYPE, "Content-Encoding": "zstd"},
            batch_id,
        )

    def _ask(
        self, path: str, body: bytes, headers: dict[str, str], batch_id: BatchId | None = None
    ) -> tuple[bytes, Any]:
        """Body and headers of the answer; retries where that may help. Raises CallError."""
        why = ""
        for number in range(TRIES_MAX):
            sent = headers | (headers_of(batch_id) if batch_id else {})
            request = Request(self.url + path, data=body, headers=sent)
            wait_s = float(min(2**number, WAIT_S_MAX))
            try:
                with CollectorEndpoint.of(self.url).opened(request, TIMEOUT_S) as answer:
                    return answer.read(), answer.headers
            except HTTPError as error:
                why = _said(error)
                if error.code not in (429, 500, 502, 503, 504):
                    raise CallError(f"{self.url} refuses it: {why}") from error
                if (after := error.headers.get("Retry-After", "")).isdecimal():
                    wait_s = float(min(int(after), WAIT_S_MAX))
            except (URLError, OSError) as error:
                reason = getattr(error, "reason", error)
                why = str(getattr(reason, "strerror", None) or reason)
                if number == 0 and isinstance(reason, ConnectionRefusedError):
                    raise CallError(
                        f"no collector answers at {self.url} ({why.lower()}): start one with"
                        " `gpuwarden up`, or name another with --url"
                    ) from error
            if batch_id is not None:
                batch_id = replace(batch_id, is_sent_before=True)
            if number + 1 < TRIES_MAX:
                self.wait(wait_s)
        raise CallError(
            f"{self.url} does not take it ({why}): run the same again later; what is stored is not"
            " stored twice"
        )


def key_names(table: str) -> tuple[str, ...]:
    """The columns that identify a row."""
    return _EVENT_KEY if table == "events" else WIRE_TABLES[table].key


def keys_of(batch: ImportBatch) -> list[Key]:
    """The key of each row."""
    return _keys(batch.data, key_names(batch.table))


def _keys(table: Any, names: tuple[str, ...]) -> list[Key]:
    columns = []
    for name in names:
        if name not in table.schema.names:
            columns.append([None] * table.num_rows)
            continue
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms")).cast(pa.int64())
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


def _said(error: HTTPError) -> str:
    return error_sentence(error.read()) or f"{error.code} {error.reason}"
