"""The `alerts` table: `gpuwarden.alert.AlertStore` on the writer and a reader."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden.query import Querier
from gpuwarden.schema import ALERTS
from gpuwarden_collector.decode import arrow_schema
from gpuwarden_collector.store.commit import Changes
from gpuwarden_collector.writer import Writer

_SCHEMA = arrow_schema(ALERTS.columns)
_ACTIVE_MAX = 100_000

_ACTIVE_SQL = (
    "SELECT fingerprint, rule, severity, state, labels, summary, remedy, value, usd_per_hour, "
    "began_at, active_at, fired_at, resolved_at, seen_at, simulated "
    "FROM alerts WHERE state IN ('pending', 'firing') ORDER BY active_at, fingerprint"
)


class SqlAlertStore:
    """Alerts are written like batches, by the one writer, and durable when `save` returns."""

    def __init__(self, writer: Writer, querier: Querier) -> None:
        self._writer = writer
        self._querier = querier

    async def active(self) -> Sequence[Alert]:
        result = await self._querier.query(_ACTIVE_SQL, row_limit=_ACTIVE_MAX)
        return [_alert(record) for record in result.records()]

    async def save(self, alerts: Sequence[Alert]) -> None:
        # One statement cannot update a row twice, so the last of several states counts.
        latest = {(a.fingerprint, a.active_at): a for a in alerts}
        if latest:
            rows = pa.Table.from_pylist([_row(a) for a in latest.values()], schema=_SCHEMA)
            await self._writer.write(Changes(upserted={ALERTS.name: rows}))


def _row(alert: Alert) -> dict[str, Any]:
    gpu = alert.labels.get("gpu")
    return {
        "fingerprint": alert.fingerprint,
        "rule": alert.rule,
        "severity": alert.severity.value,
        "state": alert.state.value,
        "node": alert.labels.get("node"),
        "gpu": int(gpu) if gpu is not None and gpu.isdigit() else None,
        "gpu_uuid": alert.labels.get("gpu_uuid"),
        "labels": json.dumps(dict(alert.labels), ensure_ascii=False, sort_keys=True),
        "summary": alert.summary,
        "remedy": alert.remedy,
        "value": alert.value,
        "usd_per_hour": alert.usd_per_hour,
        "began_at": alert.began_at,
        "active_at": alert.active_at,
        "fired_at": alert.fired_at,
        "resolved_at": alert.resolved_at,
        "seen_at": alert.seen_at,
        "simulated": alert.simulated,
    }


def _alert(record: dict[str, Any]) -> Alert:
    return Alert(
        **{
            **record,
            "severity": Severity(record["severity"]),
            "state": AlertState(record["state"]),
            "labels": json.loads(record["labels"]),
        }
    )
