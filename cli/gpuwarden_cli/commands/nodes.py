"""Lists nodes with the end of their billing, shows a node, and forgets nodes: `gpuwarden nodes list|show|forget`."""

import argparse
from urllib.parse import quote

from gpuwarden.waste import FORGOTTEN_AFTER_DAYS
from gpuwarden_cli.commands.inventory import (
    ALERTS_OF,
    GPUS,
    HOURS_OF,
    OF_MODEL,
    VERDICTS_OF,
    add_show,
    chosen,
    filters,
    one_row,
    show_list,
    show_parts,
    since_param,
)
from gpuwarden_cli.parser import Commands, add_command, add_group, add_url
from gpuwarden_client.http import CallError, call

_NODES = f"""
WITH boards AS (
    SELECT
        node, count(*) AS gpus, sum(usd_per_hour) AS usd_per_hour,
        max(last_seen_at + to_seconds(coalesce(billed_silent_s, {FORGOTTEN_AFTER_DAYS * 86_400})))
            AS billed_until,
        list(DISTINCT model ORDER BY model) AS models
    FROM gpus
    WHERE mig_instance IS NULL AND parent_gpu_uuid IS NULL AND replaced_by IS NULL
    GROUP BY node
)
SELECT
    n.node,
    CASE
        WHEN n.forgotten_at IS NOT NULL THEN 'forgotten'
        WHEN n.billed_until IS NOT NULL AND n.billed_from IS NULL THEN 'left'
        WHEN n.last_seen_at > now()::TIMESTAMP - INTERVAL 1 MINUTE THEN 'reports'
        WHEN n.last_seen_at IS NULL THEN 'imported'
        ELSE 'silent'
    END AS state,
    b.gpus, round(b.usd_per_hour, 2) AS usd_per_hour, n.last_seen_at,
    -- While it reports there is no end.
    CASE state
        WHEN 'reports' THEN NULL
        WHEN 'imported' THEN NULL
        WHEN 'silent' THEN b.billed_until
        ELSE n.billed_until
    END AS billed_until,
    n.agent_version, n.simulated, b.models, n.driver_version, n.labels
FROM nodes n LEFT JOIN boards b USING (node)
"""
NODE_STATES = ("reports", "silent", "left", "forgotten", "imported")
_FILTERS = {"node": "node GLOB $node", "model": OF_MODEL}


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "nodes", "list, show and forget nodes")
    made = add_command(
        group, "list", nodes_list, "list nodes: who reports, what they cost, until when they are billed"
    )  # fmt: skip
    filters(made, "node", "model")
    made.add_argument("--state", choices=NODE_STATES, help="in this state")
    add_url(made)
    add_show(group, nodes_show, "node", "show a node: its GPUs, host, alerts and hours")
    made = add_command(
        group, "forget", nodes_forget, "mark nodes as gone",
        "Their billing ends when they last reported, and their alerts end. A node that sends data again is back.",
    )  # fmt: skip
    made.add_argument("nodes", nargs="+", metavar="NODE", help="name of a node that is silent")
    add_url(made)


def nodes_list(args: argparse.Namespace) -> int:
    """Run `gpuwarden nodes list`."""
    condition, params = chosen(args, _FILTERS)
    if args.state is not None:
        condition += f" AND state = '{args.state}'"
    sql = f"SELECT * FROM ({_NODES}) WHERE {condition} ORDER BY node"
    shown = "node state gpus usd_per_hour last_seen_at billed_until agent_version simulated"
    nothing = "No node is like that." if params or args.state else "No node has sent data yet."
    return show_list(args, sql, params, shown, nothing)


def nodes_show(args: argparse.Namespace) -> int:
    """Run `gpuwarden nodes show NODE`."""
    of, params = "node = $node", {"node": args.node, "since": since_param(args.since)}
    nothing = f"there is no node {args.node}; `gpuwarden nodes list` has their names"
    state = one_row(f"SELECT * FROM ({_NODES}) WHERE {of}", params, args.url, nothing)
    node = one_row(
        f"SELECT * EXCLUDE (gpus, labels) FROM nodes WHERE {of}", params, args.url, nothing
    )
    gpus = "gpu, model, state, util_percent, memory_used_gib, power_watts, temperature_celsius"
    parts = [
        ("gpus", f'SELECT {gpus}, "user", job FROM ({GPUS}) WHERE {of} ORDER BY gpu'),
        ("host now", ("SELECT cpu_util_percent, cpu_iowait_percent, memory_available_bytes, tasks_blocked, "
         f"ts FROM nodes_now WHERE {of}")),
        ("diagnosis", VERDICTS_OF(of)),
        ("alerts", ALERTS_OF(of)),
        ("hours", HOURS_OF(of)),
    ]  # fmt: skip
    return show_parts(
        args, {**state, **{k: v for k, v in node.items() if k not in state}}, parts, params
    )


def nodes_forget(args: argparse.Namespace) -> int:
    """Run `gpuwarden nodes forget NODE...`; 1 when a node could not be forgotten."""
    failed = 0
    for node in args.nodes:
        try:
            call("DELETE", f"/v1/nodes/{quote(node, safe='')}", url=args.url)
        except CallError as error:
            failed += 1
            print(f"{node}: {error}")
        else:
            print(f"{node} is forgotten: it is billed until its last sample")
    return 1 if failed else 0
