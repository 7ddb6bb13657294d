"""Has the SQL that reads incidents and their alerts, for commands and assistants."""

from gpuwarden.alert import PLACE_SQL, WORST_FIRST

MARKS = (
    "concat_ws(', ', state, CASE WHEN stale_since IS NOT NULL THEN 'stale'"
    " WHEN unknown_since IS NOT NULL THEN 'unknown' END, regexp_extract(muted, '^\\w+'))"
)
"""SQL expression of an alert's state for people, such as `firing, stale, silenced`."""
_COST_SO_FAR = "round(usd_so_far, 2) AS usd_so_far"
_AGE = "date_diff('second', began_at, coalesce(resolved_at, now()::TIMESTAMP)) AS age_seconds"
_MARKS = MARKS.replace("CASE WHEN stale_since IS NOT NULL THEN 'stale' WHEN", "CASE WHEN")
INCIDENTS_SQL = f"""
SELECT
    id, severity, {_MARKS} AS shown, rule, place, {_AGE}, state, consequence, roots, nodes, alerts, firing,
    alerts - roots AS follows, summary, remedy, labels, round(usd_per_hour, 2) AS usd_per_hour, {_COST_SO_FAR},
    began_at, opened_at, resolved_at, merged_into, owner, muted, unknown_since, root, simulated
FROM incidents
LEFT JOIN incident_costs ON incident = id
WHERE {{condition}}
ORDER BY state <> 'open', {WORST_FIRST}, usd_so_far DESC NULLS LAST, opened_at
"""
"""Incidents for which `condition` holds, the most severe first."""
OF_ALERTS_SQL = """
id IN (SELECT incident FROM incident_alerts WHERE fingerprint IN (SELECT fingerprint FROM alerts WHERE {condition}))
"""
"""Condition on incidents: `condition` holds for one of its alerts."""
MEMBERS_SQL = f"""
SELECT
    left(fingerprint, 8) AS id, CASE WHEN m.cause IS NULL THEN 'root' ELSE 'follows' END AS part,
    severity, {MARKS} AS shown, rule, {PLACE_SQL} AS place, {_AGE}, state, summary,
    round(usd_per_hour, 2) AS usd_per_hour, began_at, fired_at, resolved_at, owner, muted, unknown_since, stale_since,
    fingerprint, m.cause, m.joined_at, m.ended_at
FROM (SELECT fingerprint, active_at, cause, joined_at, ended_at FROM incident_alerts WHERE incident = $id) m
JOIN alerts USING (fingerprint, active_at)
ORDER BY m.ended_at IS NOT NULL, m.cause IS NOT NULL, {WORST_FIRST}, node, gpu
"""
"""Alerts of the incident `$id`."""
