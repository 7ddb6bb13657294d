"""The tables `incidents` and `incident_alerts`: `gpuwarden.incident.IncidentStore` on the writer and a reader."""

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

import pyarrow as pa

from gpuwarden.alert import Consequence, Severity
from gpuwarden.incident import Incident, IncidentAlert, IncidentState
from gpuwarden.query import Querier
from gpuwarden.schema import INCIDENT_ALERTS, INCIDENTS
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.storage.commit import Changes
from gpuwarden_collector.storage.schemas import arrow_schema

_SCHEMA = arrow_schema(INCIDENTS.columns)
_ALERTS_SCHEMA = arrow_schema(INCIDENT_ALERTS.columns)
_ROWS_MAX = 100_000
_LATELY = "(state = 'open' OR resolved_at > $since)"
_SQL = f"FROM incidents WHERE {_LATELY} ORDER BY opened_at, id"
_ALERTS_SQL = (
    f"FROM incident_alerts WHERE incident IN (SELECT id FROM incidents WHERE {_LATELY}) "
    "ORDER BY joined_at, fingerprint"
)
_FIELDS = {field.name for field in fields(Incident)} - {"members"}


class SqlIncidentStore:
    """Incidents are written like batches, by the one writer, and durable when the call returns."""

    def __init__(self, writer: Writer, querier: Querier) -> None:
        self._writer = writer
        self._querier = querier

    async def incidents_since(self, resolved_after: datetime) -> Sequence[Incident]:
        since = {"since": resolved_after}
        alerts = await self._querier.query(_ALERTS_SQL, since, row_limit=_ROWS_MAX)
        members: dict[str, dict[str, IncidentAlert]] = {}
        for record in alerts.records():
            member = _member(record)
            members.setdefault(record["incident"], {})[member.fingerprint] = member
        found = await self._querier.query(_SQL, since, row_limit=_ROWS_MAX)
        return [_incident(record, members.get(record["id"], {})) for record in found.records()]

    async def save_incidents(self, incidents: Sequence[Incident]) -> None:
        # One statement cannot update a row twice, so the last of several states counts.
        latest = {incident.id: incident for incident in incidents}.values()
        if latest:
            alerts = [_member_row(i, member) for i in latest for member in i.members.values()]
            rows = {
                INCIDENTS.name: pa.Table.from_pylist([_row(i) for i in latest], schema=_SCHEMA),
                INCIDENT_ALERTS.name: pa.Table.from_pylist(alerts, schema=_ALERTS_SCHEMA),
            }
            await self._writer.write(Changes(upserted=rows))


def _row(incident: Incident) -> dict[str, Any]:
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
            "labels": json.loads(record["labels"]),
            "members": members,
        }
    )


def _member(record: dict[str, Any]) -> IncidentAlert:
    known = {field.name: record[field.name] for field in fields(IncidentAlert)}
    return IncidentAlert(**known | {"labels": json.loads(record["labels"])})


def _json(labels: Any) -> str:
    return json.dumps(dict(labels), ensure_ascii=False, sort_keys=True)
