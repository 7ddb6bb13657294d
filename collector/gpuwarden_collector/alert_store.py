"""The `alerts` table: `gpuwarden.alert.AlertStore` on the writer and a reader."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from gpuwarden.alert import Alert, AlertState, Consequence, Severity, Silence, matcher_of
from gpuwarden.clock import Clock
from gpuwarden.query import Querier
from gpuwarden.schema import ALERTS, SILENCES
from gpuwarden.waste import CAUSES
from gpuwarden_collector.ingest.late_rows import LATE_SCHEMA
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.storage.commit import Changes
from gpuwarden_collector.storage.schemas import arrow_schema

_SCHEMA = arrow_schema(ALERTS.columns)
_SILENCES_SCHEMA = arrow_schema(SILENCES.columns)
_ROWS_MAX = 100_000
_HOUR = timedelta(hours=1)
_HOURS_BACK_MAX = 72

_ALERTS_SQL = (
    "SELECT fingerprint, rule, severity, consequence, state, labels, summary, remedy, value, usd_per_hour, "
    "began_at, active_at, fired_at, resolved_at, seen_at, simulated, "
    "unknown_since, accounted_usd, accounted_until, owner, muted, stale_since, resolved_reason "
    "FROM alerts WHERE {condition} ORDER BY active_at, fingerprint"
)
_ACTIVE_SQL = _ALERTS_SQL.format(condition="state IN ('pending', 'firing')")
_RESOLVED_SQL = _ALERTS_SQL.format(condition="fired_at IS NOT NULL AND resolved_at > $since")
_SILENCES_SQL = "FROM silences WHERE ends_at > $now ORDER BY starts_at, id"


class SqlAlertStore:
    """Alerts are written like batches, by the one writer, and durable when `save` returns."""

    def __init__(self, writer: Writer, querier: Querier, clock: Clock) -> None:
        self._writer = writer
        self._querier = querier
        self._clock = clock

    async def active(self) -> Sequence[Alert]:
        result = await self._querier.query(_ACTIVE_SQL, row_limit=_ROWS_MAX)
        return [_alert(record) for record in result.records()]

    async def resolved_since(self, since: datetime) -> Sequence[Alert]:
        result = await self._querier.query(_RESOLVED_SQL, {"since": since}, row_limit=_ROWS_MAX)
        return [_alert(record) for record in result.records()]

    async def save(self, alerts: Sequence[Alert]) -> None:
        # One statement cannot update a row twice, so the last of several states counts.
        latest = {(a.fingerprint, a.active_at): a for a in alerts}
        if latest:
            rows = pa.Table.from_pylist([_row(a) for a in latest.values()], schema=_SCHEMA)
            late = backdated_windows(list(latest.values()))
            await self._writer.write(Changes(upserted={ALERTS.name: rows}, late=late))

    async def silences(self) -> Sequence[Silence]:
        now = self._clock.now()
        result = await self._querier.query(_SILENCES_SQL, {"now": now}, row_limit=_ROWS_MAX)
        return [_silence(record) for record in result.records()]

    async def save_silences(self, silences: Sequence[Silence]) -> None:
        latest = {silence.id: silence for silence in silences}
        if latest:
            rows = [_silence_row(silence) for silence in latest.values()]
            table = pa.Table.from_pylist(rows, schema=_SILENCES_SCHEMA)
            await self._writer.write(Changes(upserted={SILENCES.name: table}))


def backdated_windows(alerts: Sequence[Alert]) -> Any | None:
    """Hours of nodes, rolled up before, whose waste alerts that fire now tell of; None: none."""
    found = set()
    for alert in alerts:
        node = alert.labels.get("node")
        if node is None or alert.rule not in CAUSES or alert.fired_at != alert.seen_at:
            continue
        end = alert.seen_at.replace(minute=0, second=0, microsecond=0, tzinfo=None)
        hours = int((alert.seen_at - alert.began_at) / _HOUR) + 1
        begin = alert.began_at.replace(tzinfo=None)
        found |= {
            (node, end - ago * _HOUR)
            for ago in range(1, min(hours, _HOURS_BACK_MAX) + 1)
            if end - ago * _HOUR > begin - _HOUR
        }
    if not found:
        return None
    nodes, hours_of = zip(*sorted(found), strict=True)
    return pa.table([list(nodes), list(hours_of)], schema=LATE_SCHEMA)


def _row(alert: Alert) -> dict[str, Any]:
    gpu = alert.labels.get("gpu")
    return {
        "fingerprint": alert.fingerprint,
        "rule": alert.rule,
        "severity": alert.severity.value,
        "consequence": alert.consequence.value,
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
        "unknown_since": alert.unknown_since,
        "accounted_usd": alert.accounted_usd,
        "accounted_until": alert.accounted_until,
        "owner": alert.owner,
        "muted": alert.muted,
        "stale_since": alert.stale_since,
        "resolved_reason": alert.resolved_reason,
    }


def _alert(record: dict[str, Any]) -> Alert:
    return Alert(
        **{
            **record,
            "severity": Severity(record["severity"]),
            "consequence": Consequence(record["consequence"]),
            "state": AlertState(record["state"]),
            "labels": json.loads(record["labels"]),
        }
    )


def _silence_row(silence: Silence) -> dict[str, Any]:
    return {
        "id": silence.id,
        "matchers": json.dumps([str(m) for m in silence.matchers], ensure_ascii=False),
        "fingerprint": silence.fingerprint,
        "author": silence.author,
        "comment": silence.comment,
        "starts_at": silence.starts_at,
        "ends_at": silence.ends_at,
    }


def _silence(record: dict[str, Any]) -> Silence:
    matchers = tuple(matcher_of(text) for text in json.loads(record["matchers"]))
    return Silence(**{**record, "matchers": matchers})
