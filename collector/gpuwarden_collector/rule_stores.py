"""Stores alerts, silences, incidents, diagnoses and cases of policies: implements the contract's stores with the writer and
SQL queries.

Rows are durable when a `save` method returns. A statement cannot update a row twice, so only the last of several states
of a row is written.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from gpuwarden.alert import Alert, AlertState, Consequence, Severity, Silence, matcher_of
from gpuwarden.clock import Clock
from gpuwarden.diagnosis import Bottleneck, Diagnosis, Evidence
from gpuwarden.incident import Incident, IncidentAlert, IncidentState
from gpuwarden.query import Querier
from gpuwarden.schema import ALERTS, DIAGNOSES, INCIDENT_ALERTS, INCIDENTS, POLICY_CASES, SILENCES
from gpuwarden.table import Table
from gpuwarden.waste import CAUSES
from gpuwarden_collector.ingest.late_rows import LATE_SCHEMA
from gpuwarden_collector.ingest.writer import WRITE_ERRORS, Writer
from gpuwarden_collector.ops.audit import Audit
from gpuwarden_collector.storage.commit import Changes
from gpuwarden_collector.storage.schemas import arrow_schema

log = logging.getLogger(__name__)

_SCHEMAS = {
    table.name: arrow_schema(table.columns)
    for table in (ALERTS, SILENCES, INCIDENTS, INCIDENT_ALERTS, DIAGNOSES, POLICY_CASES)
}
_ROWS_MAX = 100_000
_HOUR = timedelta(hours=1)
_HOURS_BACK_MAX = 72


def _table(table: Table, rows: Iterable[Mapping[str, Any]]) -> Any:
    return pa.Table.from_pylist([*rows], schema=_SCHEMAS[table.name])


def _json(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels), ensure_ascii=False, sort_keys=True)


_ALERT_FIELDS = tuple(field.name for field in fields(Alert))
_ALERTS_SQL = (
    f"SELECT {', '.join(_ALERT_FIELDS)} "
    "FROM alerts WHERE {condition} ORDER BY active_at, fingerprint"
)
_ACTIVE_SQL = _ALERTS_SQL.format(condition="state IN ('pending', 'firing')")
_RESOLVED_SQL = _ALERTS_SQL.format(condition="fired_at IS NOT NULL AND resolved_at > $since")
_SILENCES_SQL = "FROM silences WHERE ends_at > $since ORDER BY starts_at, id"


class SqlAlertStore:
    """Implements AlertStore."""

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
        latest = {(a.fingerprint, a.active_at): a for a in alerts}
        if latest:
            rows = _table(ALERTS, map(_alert_row, latest.values()))
            late = backdated_windows(list(latest.values()))
            await self._writer.write(Changes(upserted={ALERTS.name: rows}, late=late))

    async def silences(self) -> Sequence[Silence]:
        return await self.silences_since(self._clock.now())

    async def silences_since(self, since: datetime) -> Sequence[Silence]:
        result = await self._querier.query(_SILENCES_SQL, {"since": since}, row_limit=_ROWS_MAX)
        return [_silence(record) for record in result.records()]

    async def save_silences(self, silences: Sequence[Silence]) -> None:
        latest = {silence.id: silence for silence in silences}
        if latest:
            rows = _table(SILENCES, map(_silence_row, latest.values()))
            await self._writer.write(Changes(upserted={SILENCES.name: rows}))


def backdated_windows(alerts: Sequence[Alert]) -> Any | None:
    """Hours of nodes that must be rolled up again, because waste alerts that fire now began in them; None: none."""
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


def _alert_row(alert: Alert) -> dict[str, Any]:
    gpu = alert.labels.get("gpu")
    return {name: getattr(alert, name) for name in _ALERT_FIELDS} | {
        "severity": alert.severity.value,
        "consequence": alert.consequence.value,
        "state": alert.state.value,
        "labels": _json(alert.labels),
        "node": alert.labels.get("node"),
        "gpu": int(gpu) if gpu is not None and gpu.isdigit() else None,
        "gpu_uuid": alert.labels.get("gpu_uuid"),
    }


def _alert(record: dict[str, Any]) -> Alert:
    return Alert(
        **{
            **record,
            "severity": Severity(record["severity"]),
            "consequence": Consequence(record["consequence"]),
            "state": AlertState(record["state"]),
        }
    )


def _silence_row(silence: Silence) -> dict[str, Any]:
    matchers = json.dumps([str(m) for m in silence.matchers], ensure_ascii=False)
    return {f.name: getattr(silence, f.name) for f in fields(Silence)} | {"matchers": matchers}


def _silence(record: dict[str, Any]) -> Silence:
    matchers = tuple(matcher_of(text) for text in record["matchers"])
    return Silence(**{**record, "matchers": matchers})


_LATELY = "(state = 'open' OR resolved_at > $since)"
_INCIDENTS_SQL = f"FROM incidents WHERE {_LATELY} ORDER BY opened_at, id"
_MEMBERS_SQL = (
    f"FROM incident_alerts WHERE incident IN (SELECT id FROM incidents WHERE {_LATELY}) "
    "ORDER BY joined_at, fingerprint"
)
_FIELDS = {field.name for field in fields(Incident)} - {"members"}


class SqlIncidentStore:
    """Implements IncidentStore."""

    def __init__(self, writer: Writer, querier: Querier) -> None:
        self._writer = writer
        self._querier = querier

    async def incidents_since(self, resolved_after: datetime) -> Sequence[Incident]:
        since = {"since": resolved_after}
        alerts = await self._querier.query(_MEMBERS_SQL, since, row_limit=_ROWS_MAX)
        members: dict[str, dict[str, IncidentAlert]] = {}
        for record in alerts.records():
            member = _member(record)
            members.setdefault(record["incident"], {})[member.fingerprint] = member
        found = await self._querier.query(_INCIDENTS_SQL, since, row_limit=_ROWS_MAX)
        return [_incident(record, members.get(record["id"], {})) for record in found.records()]

    async def save_incidents(self, incidents: Sequence[Incident]) -> None:
        latest = {incident.id: incident for incident in incidents}.values()
        if latest:
            alerts = [_member_row(i, member) for i in latest for member in i.members.values()]
            rows = {
                INCIDENTS.name: _table(INCIDENTS, map(_incident_row, latest)),
                INCIDENT_ALERTS.name: _table(INCIDENT_ALERTS, alerts),
            }
            await self._writer.write(Changes(upserted=rows))


def _incident_row(incident: Incident) -> dict[str, Any]:
    return {name: getattr(incident, name) for name in _FIELDS} | {
        "state": incident.state.value,
        "severity": incident.severity.value,
        "consequence": incident.consequence.value,
        "labels": _json(incident.labels),
        "alerts": len(incident.members),
        "firing": len(incident.firing),
    }


def _member_row(incident: Incident, member: IncidentAlert) -> dict[str, Any]:
    row = {field.name: getattr(member, field.name) for field in fields(IncidentAlert)}
    return row | {"incident": incident.id, "labels": _json(member.labels)}


def _incident(record: dict[str, Any], members: dict[str, IncidentAlert]) -> Incident:
    known = {name: record[name] for name in _FIELDS}
    return Incident(
        **known
        | {
            "state": IncidentState(record["state"]),
            "severity": Severity(record["severity"]),
            "consequence": Consequence(record["consequence"]),
            "members": members,
        }
    )


def _member(record: dict[str, Any]) -> IncidentAlert:
    known = {field.name: record[field.name] for field in fields(IncidentAlert)}
    return IncidentAlert(**known)


class SqlPolicyRecords:
    """Writes what policies do: rows of the audit, and their cases."""

    def __init__(self, writer: Writer, audit: Audit) -> None:
        self._writer = writer
        self._audit = audit

    async def note(self, notes: Sequence[tuple[str, str, str]]) -> bool:
        """Write actions: name, target and details; whether they are on disk."""
        return await self._audit.note_own(notes)

    async def save_cases(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Insert or replace rows of `policy_cases`; whether they are on disk."""
        try:
            await self._writer.write(
                Changes(upserted={POLICY_CASES.name: _table(POLICY_CASES, rows)})
            )
        except WRITE_ERRORS as error:
            log.error("cases of policies are not listed", extra={"reason": str(error)})
            return False
        return True


_OPEN_SQL = f"SELECT {', '.join(DIAGNOSES.names)} FROM diagnoses WHERE ended_at IS NULL ORDER BY began_at, subject"


class SqlDiagnosisStore:
    """Implements DiagnosisStore."""

    def __init__(self, writer: Writer, querier: Querier) -> None:
        self._writer = writer
        self._querier = querier

    async def open_diagnoses(self) -> Sequence[Diagnosis]:
        result = await self._querier.query(_OPEN_SQL, row_limit=_ROWS_MAX)
        return [_diagnosis(record) for record in result.records()]

    async def save_diagnoses(self, diagnoses: Sequence[Diagnosis]) -> None:
        latest = {(d.subject, d.began_at): d for d in diagnoses}
        if latest:
            rows = _table(DIAGNOSES, map(diagnosis_row, latest.values()))
            await self._writer.write(Changes(upserted={DIAGNOSES.name: rows}))


def diagnosis_row(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as a row of its table."""
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
