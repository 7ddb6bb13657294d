"""Lists nodes with the time that they are billed until, and forgets those that left: `gpuwarden nodes`."""

import argparse
from urllib.parse import quote

from gpuwarden.waste import FORGOTTEN_AFTER_DAYS
from gpuwarden_cli.output import render
from gpuwarden_client.http import CallError, ask, call

_NODES = f"""
WITH boards AS (
    SELECT
        node, count(*) AS gpus, sum(usd_per_hour) AS usd_per_hour,
        max(last_seen_at + to_seconds(coalesce(billed_silent_s, {FORGOTTEN_AFTER_DAYS * 86_400})))
            AS billed_until
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
    n.agent_version, n.simulated
FROM nodes n LEFT JOIN boards b USING (node)
ORDER BY n.node
"""


def nodes_list(args: argparse.Namespace) -> int:
    """`gpuwarden nodes list`."""
    answer = ask(_NODES, url=args.url)
    if not answer.rows and args.format == "table":
        print("No node has sent data yet.")
        return 0
    print(render(answer.columns, answer.rows, args.format), end="")
    return 0


def nodes_forget(args: argparse.Namespace) -> int:
    """`gpuwarden nodes forget NODE...`: exit code 1 if one of them could not be."""
    failed = 0
    for node in args.nodes:
        try:
            call("DELETE", f"/v1/nodes/{quote(node, safe='')}", url=args.url)
        except CallError as error:
            failed += 1
            print(f"{node}: {error}")
        else:
            print(f"{node} is forgotten: it is billed until it was last heard of")
    return 1 if failed else 0
