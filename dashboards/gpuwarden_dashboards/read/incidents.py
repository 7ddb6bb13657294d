"""Reads incidents, their alerts and silences, for the lists and for the page of one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.alert import ALERT_FILTERS, PLACE_SQL, USD_SO_FAR_SQL, WORST_FIRST, matcher_of
from gpuwarden.query import Querier, Record, query_all
from gpuwarden_dashboards.read import usage

LISTED_MAX = 200
MEMBERS_MAX = 300
"""Most alerts on the page of an incident."""
TIMELINE_MAX = 80
SINCE = {"1h": timedelta(hours=1), **usage.SINCE}
"""How long ago listed incidents and alerts may have ended."""
ANY_STAGE = "all"
INCIDENT_STAGES = ("open", "acknowledged", "silenced", "ended", ANY_STAGE)
ALERT_STAGES = ("firing", "acknowledged", "silenced", "pending", "ended", ANY_STAGE)
AROUND = timedelta(minutes=15)
"""What was open within this of a chosen instant is listed."""

_HAS_WORDS = """NOT list_contains(list_transform(string_split(lower($q), ' '), lambda word:
    contains(lower(concat_ws(' ', summary, rule, array_to_string(map_values(labels), ' '), owner)), word)), false)"""
LIST_FILTERS = {
    **ALERT_FILTERS,
    "team": "(coalesce(labels['team'], '') = $team OR node IN (SELECT node FROM nodes WHERE labels['team'] = $team))",
    "q": _HAS_WORDS,
}
"""SQL conditions on `alerts` of the lists, by the name of a filter; `q`: all its words are in the text of an alert."""
_STAGE = """
CASE WHEN state IN ('resolved', 'merged') THEN 'ended' WHEN starts_with(muted, 'acknowledged') THEN 'acknowledged'
    WHEN muted IS NOT NULL THEN 'silenced' ELSE state END AS stage
"""
_CHOSEN_INCIDENTS = f"""
WITH chosen AS (
    SELECT *, {_STAGE} FROM incidents
    WHERE state <> 'merged' AND (state = 'open' OR resolved_at >= $since::TIMESTAMP)
        AND began_at <= $until::TIMESTAMP {{where}}
)
"""
_OF_ALERTS = """id IN (SELECT incident FROM incident_alerts WHERE (fingerprint, active_at) IN
    (SELECT (fingerprint, active_at) FROM alerts WHERE {condition}))"""
_INCIDENTS = f"""
SELECT c.*, i.usd_so_far, c.alerts - c.roots AS follows, count(*) OVER () AS total
FROM chosen c LEFT JOIN incident_costs i ON i.incident = c.id
WHERE $stage IN (stage, 'all')
ORDER BY resolved_at DESC NULLS LAST, {WORST_FIRST}, usd_so_far DESC NULLS LAST, opened_at
LIMIT {LISTED_MAX}
"""
_CHOSEN_ALERTS = f"""
WITH chosen AS (
    SELECT *, {_STAGE}, {PLACE_SQL} AS place, {USD_SO_FAR_SQL} AS usd_so_far FROM alerts
    WHERE (state <> 'resolved' OR fired_at IS NOT NULL AND resolved_at >= $since::TIMESTAMP)
        AND began_at <= $until::TIMESTAMP {{where}}
)
"""
_ALERTS = f"""
SELECT c.*, m.incident, m.cause, count(*) OVER () AS total
FROM chosen c LEFT JOIN (
    SELECT m.fingerprint, m.active_at, max(m.incident) AS incident, arg_max(m.cause, m.incident) AS cause
    FROM incident_alerts m JOIN incidents i ON i.id = m.incident WHERE i.state <> 'merged' GROUP BY ALL
) m USING (fingerprint, active_at)
WHERE $stage IN (stage, 'all')
ORDER BY resolved_at DESC NULLS LAST, {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at
LIMIT {LISTED_MAX}
"""
_STAGES = "SELECT stage, count(*) AS found FROM chosen GROUP BY stage"
_INCIDENT = f"""
SELECT i.*, {_STAGE}, c.usd_so_far FROM incidents i LEFT JOIN incident_costs c ON c.incident = i.id
WHERE i.id = $id
"""
_MEMBERS = f"""
SELECT a.*, {_STAGE}, {PLACE_SQL} AS place, {USD_SO_FAR_SQL} AS usd_so_far, m.cause, m.ended_at, $id AS incident,
    (SELECT any_value(c.rule) FROM incident_alerts c WHERE c.incident = $id AND c.fingerprint = m.cause)
        AS cause_rule,
    count(*) OVER () AS total
FROM (SELECT fingerprint, active_at, cause, ended_at FROM incident_alerts WHERE incident = $id) m
JOIN alerts a USING (fingerprint, active_at)
ORDER BY m.cause IS NOT NULL, m.ended_at IS NOT NULL, {WORST_FIRST}, node, gpu LIMIT {MEMBERS_MAX}
"""
_RACKS = """
SELECT coalesce(n.labels['rack'], g.chassis_serial, g.fabric_cluster_uuid) AS rack,
    list(DISTINCT g.tray ORDER BY g.tray) FILTER (g.tray IS NOT NULL) AS trays
FROM nodes n LEFT JOIN gpus g ON g.node = n.node AND g.replaced_by IS NULL
WHERE n.node IN (SELECT unnest($nodes)) GROUP BY rack HAVING rack IS NOT NULL ORDER BY rack LIMIT 20
"""
_MERGED = "SELECT id, summary FROM incidents WHERE merged_into = $id ORDER BY opened_at LIMIT 50"
_SILENCES = """
SELECT * FROM silences WHERE starts_at < $until::TIMESTAMP AND ends_at > $since::TIMESTAMP AND ends_at > starts_at
ORDER BY starts_at DESC LIMIT 1000
"""
_CASES = """
SELECT policy, act, state, act_at, ended_at, note, fingerprint FROM policy_cases
WHERE fingerprint IN (SELECT unnest($alerts)) AND active_at IN (SELECT unnest($episodes)::TIMESTAMP)
LIMIT 1000
"""
_EPISODES = f"""
SELECT *, {_STAGE}, {PLACE_SQL} AS place, {USD_SO_FAR_SQL} AS usd_so_far, NULL AS cause, NULL AS cause_rule,
    (SELECT max(m.incident) FROM incident_alerts m JOIN incidents i ON i.id = m.incident AND i.state <> 'merged'
     WHERE m.fingerprint = a.fingerprint AND m.active_at = a.active_at) AS incident
FROM alerts a WHERE fingerprint = $fingerprint ORDER BY active_at DESC LIMIT 50
"""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Selection of a list: a stage, and filters by name."""

    stage: str
    since: str
    filters: Mapping[str, str]
    at: datetime | None = None
    """Only what was open around this instant; None: also what ended within `since`."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, and the number of entries in each stage."""

    now: datetime
    chosen: Chosen
    found: Mapping[str, int]
    records: Sequence[Record]

    @property
    def more(self) -> int:
        """Number of entries that the list leaves out."""
        return int(self.records[0]["total"]) - len(self.records) if self.records else 0


@dataclass(frozen=True, slots=True)
class IncidentEvent:
    """An entry of the timeline."""

    at: datetime
    what: str
    severity: str = ""
    fingerprint: str | None = None
    """The alert it concerns; None: the whole incident."""


@dataclass(frozen=True, slots=True)
class Episode:
    """An incident with its alerts, or an alert with its episodes, and the timeline."""

    now: datetime
    subject: Record
    alerts: Sequence[Record]
    timeline: Sequence[IncidentEvent]
    silences: Sequence[Record]
    """Active silences that cover any of its alerts."""
    merged: Sequence[Record] = ()
    racks: Sequence[Record] = ()
    """Racks of its nodes, each with `rack` and `trays`."""

    @property
    def more(self) -> int:
        """Number of alerts that the page leaves out."""
        return int(self.alerts[0].get("total", 0)) - len(self.alerts) if self.alerts else 0


async def read_incidents(querier: Querier, chosen: Chosen, now: datetime) -> Listed:
    """Incidents of a stage, worst first, ended ones newest first. Raises QueryError."""
    of_alerts = [LIST_FILTERS[name] for name in chosen.filters if name not in ("severity", "q")]
    conditions = [_OF_ALERTS.format(condition=" AND ".join(of_alerts))] if of_alerts else []
    if "severity" in chosen.filters:
        conditions.append("severity = $severity")
    if "q" in chosen.filters:
        conditions.append(f"({_HAS_WORDS} OR {_OF_ALERTS.format(condition=_HAS_WORDS)})")
    where = "".join(f" AND {one}" for one in conditions)
    return await _listed(querier, chosen, now, _CHOSEN_INCIDENTS.format(where=where), _INCIDENTS)


async def read_alerts(querier: Querier, chosen: Chosen, now: datetime) -> Listed:
    """Alerts of a stage in the same order. Raises QueryError."""
    where = "".join(f" AND {LIST_FILTERS[name]}" for name in chosen.filters)
    return await _listed(querier, chosen, now, _CHOSEN_ALERTS.format(where=where), _ALERTS)


async def _listed(
    querier: Querier, chosen: Chosen, now: datetime, among: str, listing: str
) -> Listed:
    since = now - SINCE[chosen.since] if chosen.at is None else chosen.at - AROUND
    until = now + SINCE["24h"] if chosen.at is None else chosen.at + AROUND
    params = {**chosen.filters, "since": since, "until": until}
    counts, records = await query_all(
        querier,
        [(among + _STAGES, params), (among + listing, {**params, "stage": chosen.stage})],
    )
    found = dict(counts.rows)
    found[ANY_STAGE] = sum(found.values())
    return Listed(now, chosen, found, records.records())


async def read_incident(querier: Querier, wanted: str, now: datetime) -> Episode | None:
    """The incident with that id; None: there is none. Raises QueryError."""
    asked = (_INCIDENT, _MEMBERS, _MERGED)
    found = await query_all(querier, [(sql, {"id": wanted}) for sql in asked])
    incidents, alerts, merged = (result.records() for result in found)
    if not incidents:
        return None
    incident = incidents[0]
    silences = await _silences(
        querier, alerts, incident["began_at"], incident["resolved_at"] or now
    )
    events = [IncidentEvent(incident["opened_at"], "the incident was opened", incident["severity"])]
    if incident["resolved_at"]:
        into = incident["merged_into"]
        what = f"merged into incident {into}" if into else "the incident was resolved"
        events.append(IncidentEvent(incident["resolved_at"], what))
    events += _of_cases(await _cases(querier, alerts))
    timeline = _timeline([*events, *_of_alerts(alerts), *_of_silences(silences, now)])
    racks = await _racks(querier, alerts)
    return Episode(now, incident, alerts, timeline, _active(silences, now), merged, racks)


async def read_alert(
    querier: Querier, wanted: str, active_at: datetime | None, now: datetime
) -> Episode | None:
    """An alert with all its episodes; its subject is that of `active_at`, else the newest. None: there is
    none. Raises QueryError."""
    episodes = (await querier.query(_EPISODES, {"fingerprint": wanted})).records()
    if not episodes:
        return None
    shown = next((one for one in episodes if one["active_at"] == active_at), episodes[0])
    first = min(one["began_at"] for one in episodes)
    silences = await _silences(querier, episodes, first, now)
    cases = _of_cases(await _cases(querier, episodes))
    timeline = _timeline([*_of_alerts(episodes), *_of_silences(silences, now), *cases])
    active = _active(silences, now)
    return Episode(now, shown, episodes, timeline, active, racks=await _racks(querier, episodes))


async def read_silences(querier: Querier, now: datetime) -> tuple[list[Record], list[Record]]:
    """Active and scheduled silences, and those that ended within 30 days. Raises QueryError."""
    bounds = {"since": now - SINCE["30d"], "until": now + timedelta(days=3660)}
    found = (await querier.query(_SILENCES, bounds)).records()
    alerts = (await querier.query("SELECT * FROM alerts_now")).records()
    for silence in found:
        silence["covered"] = [alert for alert in alerts if _covers(silence, alert)]
        silence["is_future"] = silence["starts_at"] > now
    over = [silence for silence in found if silence["ends_at"] <= now]
    return (
        sorted((one for one in found if one["ends_at"] > now), key=lambda one: one["ends_at"]),
        sorted(over, key=lambda one: one["ends_at"], reverse=True),
    )


async def _racks(querier: Querier, alerts: Sequence[Record]) -> list[Record]:
    nodes = sorted({alert["node"] for alert in alerts if alert["node"]})
    return (await querier.query(_RACKS, {"nodes": nodes})).records() if nodes else []


async def _silences(
    querier: Querier, alerts: Sequence[Record], since: datetime, until: datetime
) -> list[Record]:
    """Silences that covered any of the alerts in a span; each says which, in `covered`."""
    found = (await querier.query(_SILENCES, {"since": since, "until": until})).records()
    for silence in found:
        silence["covered"] = [alert for alert in alerts if _covers(silence, alert)]
    return [silence for silence in found if silence["covered"]]


async def _cases(querier: Querier, alerts: Sequence[Record]) -> list[Record]:
    """What policies did about these episodes of alerts."""
    if not alerts:
        return []
    asked = {
        "alerts": sorted({alert["fingerprint"] for alert in alerts}),
        "episodes": sorted({alert["active_at"] for alert in alerts}),
    }
    return (await querier.query(_CASES, asked)).records()


def _of_cases(cases: Iterable[Record]) -> Iterator[IncidentEvent]:
    for one in cases:
        if one["act_at"] is not None:
            what = f"policy {one['policy']} asked for {one['act']}"
            yield IncidentEvent(one["act_at"], what, "", one["fingerprint"])
        if one["ended_at"] is not None:
            why = f": {one['note']}" if one["note"] else ""
            what = f"policy {one['policy']}, {one['act']}: {one['state'].replace('_', ' ')}{why}"
            yield IncidentEvent(one["ended_at"], what, "", one["fingerprint"])


def _covers(silence: Record, alert: Record) -> bool:
    if silence["fingerprint"] is not None:
        return bool(silence["fingerprint"] == alert["fingerprint"])
    labels = {**alert["labels"], "rule": alert["rule"], "severity": alert["severity"]}
    try:
        return all(matcher_of(text).matches(labels) for text in silence["matchers"])
    except ValueError:
        return False


def _active(silences: Iterable[Record], now: datetime) -> list[Record]:
    return [one for one in silences if one["starts_at"] <= now < one["ends_at"]]


def _of_alerts(alerts: Iterable[Record]) -> Iterator[IncidentEvent]:
    for alert in alerts:
        where = alert["place"] or "fleet"
        name = f"{alert['rule']}, {where}"
        reason = f": {alert['resolved_reason']}" if alert["resolved_reason"] else ""
        for key, what in (
            ("began_at", f"{name}: the condition began, by its samples"),
            ("fired_at", f"{name}: fired: {alert['summary']}"),
            ("unknown_since", f"{name}: unknown whether the condition still holds"),
            ("stale_since", f"{name}: stale, the node sends nothing"),
            ("resolved_at", f"{name}: resolved{reason}"),
        ):
            if alert[key] is not None and (key != "began_at" or alert["cause"] is None):
                severity = alert["severity"] if key == "fired_at" else ""
                yield IncidentEvent(alert[key], what, severity, alert["fingerprint"])


def _of_silences(silences: Iterable[Record], now: datetime) -> Iterator[IncidentEvent]:
    alike: dict[tuple[Any, ...], list[Record]] = {}
    for one in silences:
        # One click on an incident with several roots makes silences that differ in the alert only.
        key = (
            one["starts_at"].replace(microsecond=0),
            one["author"],
            one["comment"],
            not one["matchers"],
        )
        alike.setdefault(key, []).append(one)
    for (_, author, comment, is_acknowledgement), group in alike.items():
        one = group[0]
        alerts = len({alert["fingerprint"] for member in group for alert in member["covered"]})
        what = "acknowledged" if is_acknowledgement else f"silenced ({', '.join(one['matchers'])})"
        many = f", {alerts} alerts" if alerts > 1 else ""
        why = f": {comment}" if comment else ""
        yield IncidentEvent(
            one["starts_at"],
            f"{what} by {author} until {one['ends_at']:%Y-%m-%d %H:%M} UTC{many}{why}",
        )
        if one["ends_at"] <= now:
            verb = "acknowledgement" if is_acknowledgement else "silence"
            yield IncidentEvent(one["ends_at"], f"the {verb} by {author} ended")


def _timeline(events: Iterable[IncidentEvent]) -> list[IncidentEvent]:
    return sorted(events, key=lambda event: event.at, reverse=True)[:TIMELINE_MAX]
