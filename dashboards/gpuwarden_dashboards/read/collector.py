"""Reads the state of collectors and agents: versions, lag, coverage, losses, disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.query import Querier, Record, query_all
from gpuwarden_dashboards.read.fleet import SILENT_AFTER

AGENTS_MAX = 100
PRICES_MAX = 30
BEHIND_S = 30.0
COVERED_PERCENT = 99.0
STATES = {
    "all": "all",
    "silent": "not reporting",
    "behind": f"behind by {BEHIND_S:.0f} s or more",
    "gaps": f"coverage below {COVERED_PERCENT:.0f} %",
    "losses": "rows or batches lost today",
    "old": "another version than the collector",
}
"""Filters of the list of agents."""
_LOSSES = ("rows_dropped", "batches_dropped", "batches_refused", "spool_failed", "spool_set_aside")
_COLLECTORS = """
SELECT * FROM collector_samples WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY
QUALIFY row_number() OVER (PARTITION BY collector ORDER BY ts DESC) = 1 ORDER BY host, collector
"""
_DAY = """
SELECT collector, sum(batches) AS batches, sum(refused_batches) AS refused_batches,
    sum(commit_failures) AS commit_failures, sum(task_failures) AS task_failures,
    max(ingest_lag_seconds) AS ingest_lag_seconds
FROM collector_samples WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY GROUP BY collector
"""
_NODES = """
SELECT n.node, n.agent_version, n.backend, n.labels, n.simulated, n.last_seen_at, h.ts AS newest_at
FROM nodes n LEFT JOIN nodes_now h USING (node)
WHERE n.unbilled_from IS NULL OR n.unbilled_until IS NOT NULL
"""
_NEWEST = """
SELECT node, max(ts) AS newest_at FROM host_1m WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY GROUP BY node
"""
_COVERAGE = """
SELECT node, sum(expected)::BIGINT AS expected, sum(taken)::BIGINT AS taken, sum(missed)::BIGINT AS missed,
    sum(skipped)::BIGINT AS skipped, sum(late)::BIGINT AS late, sum(failed)::BIGINT AS failed
FROM coverage WHERE ts > $now::TIMESTAMP - INTERVAL 10 MINUTE GROUP BY node
"""
_LOST = f"""
SELECT node, string_agg(DISTINCT kind, ', ' ORDER BY kind) AS kinds, arg_max(message, ts) AS message
FROM events WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY AND kind IN ({", ".join(f"'{k}'" for k in _LOSSES)})
GROUP BY node
"""
_PRICES = f"""
SELECT model, usd_per_hour, price_basis, count(*) AS gpus FROM gpus
WHERE mig_instance IS NULL AND replaced_by IS NULL GROUP BY model, usd_per_hour, price_basis
ORDER BY usd_per_hour NULLS FIRST, gpus DESC, model LIMIT {PRICES_MAX}
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, from the collector's tables."""

    node: str
    version: str | None
    backend: str | None
    labels: Mapping[str, str]
    simulated: bool
    last_seen_at: datetime | None
    is_silent: bool
    lag_s: float | None
    """Age of its newest sample in the collector; None: none of the last day."""
    coverage_percent: float | None
    """Share of the readings due in the last ten minutes that became samples; None: unknown."""
    missing: Mapping[str, int]
    """Readings that did not, by reason: missed, skipped, late, failed."""
    losses: str | None
    """Kinds of its events of the last day about lost rows."""
    loss: str | None
    """Message of the newest such event."""


@dataclass(frozen=True, slots=True)
class CollectorState:
    """State of all collectors and agents."""

    now: datetime
    collectors: Sequence[Record]
    """Newest sample of each collector; `day` has the sums of its last day."""
    versions: Sequence[tuple[str, int]]
    """Number of agents by version, most first."""
    counts: Mapping[str, int]
    """Number of agents by one of STATES."""
    agents: Sequence[Agent]
    """The agents that match, worst first."""
    found: int
    """How many match."""
    prices: Sequence[Record] = ()
    """Prices of GPUs by model, with where each comes from; first those that have none."""


async def read_collector(
    querier: Querier, now: datetime, state: str = "all", words: Sequence[str] = ()
) -> CollectorState:
    """Read it; `state`: one of STATES; `words`: each must be in an agent's name, version or labels. Raises
    QueryError."""
    asked = [(_COLLECTORS, {"now": now}), (_DAY, {"now": now}), (_NODES, None)]
    asked += [(sql, {"now": now}) for sql in (_NEWEST, _COVERAGE, _LOST)]
    asked += [(_PRICES, None)]
    collectors, day, nodes, newest, coverage, lost, prices = (
        result.records() for result in await query_all(querier, asked)
    )
    days = {one["collector"]: one for one in day}
    agents = agents_of(nodes, newest, coverage, lost, now)
    current = collectors[0]["version"] if collectors else None
    counts = {name: sum(is_in(one, name, current) for one in agents) for name in STATES}
    versions: dict[str, int] = {}
    for one in agents:
        versions[one.version or "unknown"] = versions.get(one.version or "unknown", 0) + 1
    asked_for = [
        one
        for one in agents
        if is_in(one, state, current) and all(word in text_of(one) for word in words)
    ]
    asked_for.sort(key=badness)
    return CollectorState(
        now,
        [{**one, "day": days[one["collector"]]} for one in collectors],
        sorted(versions.items(), key=lambda one: -one[1]),
        counts,
        asked_for[:AGENTS_MAX],
        len(asked_for),
        prices,
    )


def agents_of(
    nodes: Sequence[Record],
    newest: Sequence[Record],
    coverage: Sequence[Record],
    lost: Sequence[Record],
    now: datetime,
) -> list[Agent]:
    """The agents, from rows of the queries above."""
    minutes = {one["node"]: one["newest_at"] for one in newest}
    covered = {one["node"]: one for one in coverage}
    losses = {one["node"]: one for one in lost}
    found = []
    for one in nodes:
        node, seen = one["node"], one["last_seen_at"]
        newest_at = one["newest_at"] or minutes.get(node)
        cover, loss = covered.get(node), losses.get(node)
        found.append(
            Agent(
                node,
                one["agent_version"],
                one["backend"],
                one["labels"] or {},
                one["simulated"],
                seen,
                seen is None or now - seen > SILENT_AFTER,
                max(0.0, (now - newest_at).total_seconds()) if newest_at else None,
                100 * cover["taken"] / cover["expected"] if cover and cover["expected"] else None,
                {k: cover[k] for k in ("missed", "skipped", "late", "failed") if cover[k]}
                if cover
                else {},
                loss["kinds"] if loss else None,
                loss["message"] if loss else None,
            )
        )
    return found


def is_in(agent: Agent, state: str, current: str | None) -> bool:
    """Whether an agent is in a state of STATES; `current`: the collector's version."""
    match state:
        case "silent":
            return agent.is_silent
        case "behind":
            return not agent.is_silent and (agent.lag_s is None or agent.lag_s >= BEHIND_S)
        case "gaps":
            return agent.coverage_percent is not None and agent.coverage_percent < COVERED_PERCENT
        case "losses":
            return agent.losses is not None
        case "old":
            return agent.version != current
        case _:
            return True


def badness(agent: Agent) -> tuple[Any, ...]:
    """Sort key, worst first: agents that lost rows, silent ones, late ones, those with gaps, then by name."""
    lag_s = 1e12 if agent.lag_s is None else agent.lag_s
    return (
        agent.losses is None,
        not agent.is_silent,
        -(lag_s if lag_s >= BEHIND_S else 0.0),
        100.0 if agent.coverage_percent is None else agent.coverage_percent,
        agent.node,
    )


def text_of(agent: Agent) -> str:
    """Text that the filter searches, in lower case."""
    labels = (f"{name}={value}" for name, value in agent.labels.items())
    return " ".join((agent.node, agent.version or "", agent.backend or "", *labels)).lower()
