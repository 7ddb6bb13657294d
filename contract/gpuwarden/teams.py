"""Defines teams: which rows of the store the readers of one team may see.

A team has nodes, by name or label, and people, by user, Slurm account or Kubernetes namespace. Its readers see all
rows of its nodes; on other nodes those that name its people, and readings of GPUs in the minutes in which its people
held them; and of everything else hourly sums without names (`OTHERS_1H`). `visible_sql` is the whole policy: a table without an entry is not visible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwarden.query import text_sql

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Team:
    """What belongs to a team. Patterns are those of SQL's GLOB: `*`, `?`, `[a-z]`, in which case counts."""

    name: str
    nodes: tuple[str, ...] = ()
    """Patterns of names of nodes."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels of nodes, each with a pattern of its value; one of them is enough."""
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    """Accounts of Slurm."""
    namespaces: tuple[str, ...] = ()
    """Namespaces of Kubernetes."""

    @property
    def has_people(self) -> bool:
        """Whether rows may be the team's on nodes that are not."""
        return bool(self.users or self.accounts or self.namespaces)


OWN_NODES = "own_nodes"
"""Name under which conditions read the team's nodes: `own_nodes_sql`."""
_HELD_MINUTES = "held_minutes"
HOLDERS = ("process_samples", "process_1m", "allocation_samples")
"""Tables that say who held a GPU."""
HELD = frozenset({"gpu_samples", "gpu_detail_samples", "gpu_1m"})
"""Tables with readings of GPUs that others may hold at other times."""

OTHERS_1H = "others_1h"
"""View of the sums of what a team's readers may not see."""

_NODE = "{node}"
_POD = "{node} OR {username} OR {pod}"
_READING = "{node} OR {held}"
_POD_NAMESPACE = "split_part(pod, '/', 1)"
_OPEN, _CLOSED = "true", "false"
_VISIBLE: Mapping[str, str] = {
    "gpu_samples": _READING,
    "gpu_detail_samples": _READING,
    "gpu_health_samples": _NODE,
    "link_samples": _NODE,
    "host_samples": _NODE,
    "infiniband_samples": _NODE,
    "process_samples": _POD,
    "allocation_samples": "{node} OR {username} OR {pod} OR {namespace} OR {team}",
    "progress_samples": _POD,
    "slurm_job_samples": "{node} OR {username} OR {account}",
    # One node, the controller's, reports all others.
    "slurm_node_samples": "slurm_node IN (FROM {own})",
    "coverage": _NODE,
    "events": _NODE,
    "gpu_tests": _NODE,
    "nodes": _NODE,
    "gpus": _NODE,
    "gpu_1m": _READING,
    "gpu_1h": _NODE,
    "host_1m": _NODE,
    # A row says what others did in the hours before it.
    "idle_1m": _NODE,
    "process_1m": _POD,
    "waste_1h": "{node} OR {username} OR {pod} OR {team}",
    "alerts": "{node} OR {owner}",
    # Text, cost and counts of an incident are of all its alerts, its owner is of its roots. A member's row has its newest
    # episode; earlier ones may have been of another owner.
    "incidents": "id IN (SELECT incident FROM main.incident_alerts) AND id NOT IN (SELECT incident"
    " FROM main.incident_alerts WHERE (fingerprint, active_at) NOT IN ({alerts}))"
    " AND id NOT IN (SELECT m.incident FROM main.incident_alerts m JOIN main.alerts a ON a.fingerprint = m.fingerprint"
    " AND a.active_at <= m.active_at AND a.resolved_at >= m.joined_at"
    " WHERE (a.fingerprint, a.active_at) NOT IN ({alerts}))",
    "incident_alerts": "incident IN ({incidents})",
    "annotations": "{node} OR (node IS NULL AND job IS NULL)",
    "diagnoses": "{node} OR {username}",
    "policy_cases": "{node} OR {username} OR {team}",
    "budgets": "(kind = 'team' AND name = {name}) OR (kind = 'username' AND {budget_of})",
    "gpu_offers": _OPEN,
    # Each token reads its own rows.
    "query_log": _OPEN,
    "audit": _OPEN,
    # Matchers name nodes and users of others.
    "silences": _CLOSED,
    "collector_samples": _CLOSED,
}


def visible_sql(team: Team, table: str) -> str:
    """The condition of the rows of a table that the team's readers may see. A table without a rule has none.

    It reads `OWN_NODES`, and where it is of `HELD` what `held_minutes_sql` defines.
    """
    rule = _VISIBLE.get(table, _CLOSED)
    return rule.format(
        node=f"node IN (FROM {OWN_NODES})",
        own=OWN_NODES,
        held=f"(gpu_uuid, date_trunc('minute', ts)) IN (FROM {_HELD_MINUTES})"
        if team.has_people
        else "false",
        alerts=_visible_keys_sql(team, "alerts", "(fingerprint, active_at)")
        if "{alerts}" in rule
        else "",
        incidents=_visible_keys_sql(team, "incidents", "id") if "{incidents}" in rule else "",
        username=_matches("username", team.users),
        budget_of=_matches("name", team.users),
        owner=_matches("owner", team.users),
        account=_matches("account", team.accounts),
        namespace=_matches("namespace", team.namespaces),
        pod=_matches(_POD_NAMESPACE, team.namespaces),
        team=f"coalesce(team = {text_sql(team.name)}, false)",
        name=text_sql(team.name),
    )


def _visible_keys_sql(team: Team, table: str, key: str) -> str:
    return f"SELECT {key} FROM main.{table} WHERE {visible_sql(team, table)}"


def own_nodes_sql(team: Team) -> str:
    """A SELECT of the names of the team's nodes."""
    labels = [_matches(f"labels[{text_sql(key)}]", [value]) for key, value in team.labels]
    return (
        f"SELECT node FROM main.nodes WHERE {' OR '.join([_matches('node', team.nodes), *labels])}"
    )


def held_minutes_sql(team: Team, rows_sql: Mapping[str, str]) -> str:
    """A WITH clause of the GPUs and minutes in which the team's people held them. `rows_sql`: a SELECT of each table
    of `HOLDERS`."""
    held = " UNION ".join(
        f"SELECT gpu_uuid, date_trunc('minute', ts) AS minute FROM ({rows_sql[table]}) "
        f"WHERE gpu_uuid IS NOT NULL AND ({_people_sql(team)})"
        for table in HOLDERS
    )
    return f"WITH {_HELD_MINUTES} AS ({held})"


def _people_sql(team: Team) -> str:
    return f"{_matches('username', team.users)} OR {_matches(_POD_NAMESPACE, team.namespaces)}"


def _matches(value: str, patterns: Sequence[str]) -> str:
    """A condition that is never NULL: whether a value fits one of the patterns."""
    plain = [text_sql(pattern) for pattern in patterns if not _GLOB & set(pattern)]
    found = [f"{value} GLOB {text_sql(pattern)}" for pattern in patterns if _GLOB & set(pattern)]
    if plain:
        found.append(f"{value} IN ({', '.join(plain)})")
    return f"coalesce({' OR '.join(found)}, false)" if found else "false"
