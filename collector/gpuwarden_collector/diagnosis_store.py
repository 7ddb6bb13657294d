"""The `diagnoses` table: `gpuwarden.diagnosis.DiagnosisStore` on the writer and a reader."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from gpuwarden.diagnosis import Bottleneck, Diagnosis, Evidence
from gpuwarden.query import Querier
from gpuwarden.schema import DIAGNOSES
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.storage.commit import Changes
from gpuwarden_collector.storage.schemas import arrow_schema

_SCHEMA = arrow_schema(DIAGNOSES.columns)
_ROWS_MAX = 100_000
_OPEN_SQL = f"SELECT {', '.join(DIAGNOSES.names)} FROM diagnoses WHERE ended_at IS NULL ORDER BY began_at, subject"


class SqlDiagnosisStore:
    """Diagnoses are written like batches, by the one writer, and durable when the call returns."""

    def __init__(self, writer: Writer, querier: Querier) -> None:
        self._writer = writer
        self._querier = querier

    async def open_diagnoses(self) -> Sequence[Diagnosis]:
        result = await self._querier.query(_OPEN_SQL, row_limit=_ROWS_MAX)
        return [_diagnosis(record) for record in result.records()]

    async def save_diagnoses(self, diagnoses: Sequence[Diagnosis]) -> None:
        # One statement cannot update a row twice, so the last of several states counts.
        latest = {(d.subject, d.began_at): d for d in diagnoses}
        if latest:
            rows = pa.Table.from_pylist([row_of(d) for d in latest.values()], schema=_SCHEMA)
            await self._writer.write(Changes(upserted={DIAGNOSES.name: rows}))


def row_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """As the table has it."""
    row = {name: getattr(diagnosis, name) for name in DIAGNOSES.names}
    return row | {
        "bottleneck": diagnosis.bottleneck.value,
        "evidence": json.dumps([asdict(e) for e in diagnosis.evidence], ensure_ascii=False),
        "misses": json.dumps(list(diagnosis.misses), ensure_ascii=False),
    }


def _diagnosis(record: dict[str, Any]) -> Diagnosis:
    try:
        bottleneck = Bottleneck(record["bottleneck"])
    except ValueError:  # written by a newer version
        bottleneck = Bottleneck.UNKNOWN
    return Diagnosis(
        **{
            **record,
            "bottleneck": bottleneck,
            "evidence": tuple(Evidence(**line) for line in json.loads(record["evidence"])),
            "misses": tuple(json.loads(record["misses"])),
        }
    )
