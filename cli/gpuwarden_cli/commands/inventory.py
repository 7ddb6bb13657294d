"""Lists and shows GPUs, jobs and users, now and over a period: `gpuwarden gpus|jobs|users list|show`.

`nodes.py` does the same for nodes.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuwarden.clock import SystemClock
from gpuwarden.durations import instant_before
from gpuwarden.rollups import IDLE_BELOW_PERCENT
from gpuwarden_cli.commands.sql import SQL_FORMATS, show_answer
from gpuwarden_cli.output import render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group, add_since, add_url
from gpuwarden_client.http import CallError, ask, timestamp_param

GPU_STATES = ("busy", "idle_held", "allocated_idle", "free", "unknown", "silent")
GPUS = f"""
WITH held AS (
    SELECT gpu_uuid, string_agg(DISTINCT "user", ', ') AS "user", string_agg(DISTINCT job, ', ') AS job,
        sum(processes) AS processes
    FROM gpu_holders_now GROUP BY gpu_uuid
)
SELECT
    g.node, g.gpu, g.model,
    CASE
        WHEN s.gpu_uuid IS NULL THEN 'silent'
        WHEN s.util_percent IS NULL THEN 'unknown'
        WHEN s.util_percent >= {IDLE_BELOW_PERCENT:g} THEN 'busy'
        WHEN h.processes > 0 THEN 'idle_held'
        WHEN h.gpu_uuid IS NOT NULL THEN 'allocated_idle'
        ELSE 'free'
    END AS state,
    round(s.util_percent, 1) AS util_percent, round(s.memory_used_bytes / 1024^3, 1) AS memory_used_gib,
    round(s.power_watts) AS power_watts, s.temperature_celsius, h."user", h.job,
    round(g.usd_per_hour, 2) AS usd_per_hour, g.gpu_uuid, g.pci_bus_id, g.serial, g.last_seen_at, g.simulated
FROM gpus g
JOIN nodes n USING (node)
LEFT JOIN gpus_now s USING (gpu_uuid)
LEFT JOIN held h USING (gpu_uuid)
WHERE g.replaced_by IS NULL AND n.forgotten_at IS NULL
"""
_OVER_TIME = """
WITH held AS (
    SELECT h.{key} AS {key}, {others}, count(DISTINCT h.gpu_uuid) AS gpus, count(DISTINCT h.node) AS nodes,
        round(avg(s.util_percent), 1) AS util_percent, min(h.started_at) AS started_at,
        list(DISTINCT h.node) AS on_nodes, list(DISTINCT h.model) AS models
    FROM gpu_holders_now h LEFT JOIN gpus_now s USING (gpu_uuid)
    WHERE h.{key} IS NOT NULL GROUP BY h.{key}
),
used AS (
    SELECT {key}, {others}, round(sum(gpu_hours), 2) AS gpu_hours,
        round(100 * sum(busy_hours) / sum(gpu_hours), 1) AS busy_percent, round(sum(wasted_hours), 2) AS wasted_hours,
        round(sum(usd), 2) AS usd, round(sum(wasted_usd), 2) AS wasted_usd, round(sum(energy_kwh), 2) AS energy_kwh,
        list(DISTINCT node) AS on_nodes, list(DISTINCT model) AS models
    FROM gpu_usage WHERE {key} IS NOT NULL AND ts > $since::TIMESTAMP - INTERVAL 1 HOUR GROUP BY {key}
)
SELECT
    {key}, {shown}, if(h.gpus IS NULL, 'ended', 'running') AS state, coalesce(h.gpus, 0) AS gpus,
    coalesce(h.nodes, 0) AS nodes, h.util_percent, u.gpu_hours, u.busy_percent, u.wasted_hours, u.usd, u.wasted_usd,
    u.energy_kwh, h.started_at, list_distinct(list_concat(h.on_nodes, u.on_nodes)) AS on_nodes,
    list_distinct(list_concat(h.models, u.models)) AS models
FROM held h FULL JOIN used u USING ({key})
"""
JOBS = _OVER_TIME.format(
    key="job", others='max("user") AS "user"', shown='coalesce(h."user", u."user") AS "user"'
)
USERS = _OVER_TIME.format(
    key='"user"',
    others="count(DISTINCT job) AS jobs, list(DISTINCT job) AS job_names",
    shown="coalesce(h.jobs, 0) AS jobs_now, list_distinct(list_concat(h.job_names, u.job_names)) AS jobs",
)
OVER_STATES = ("running", "ended", "all")
_LABELLED = "node IN (SELECT node FROM node_labels WHERE label = ${name} AND value = ${value})"
MODEL_PATTERN = "'%' || replace(replace($model, '*', '%'), '?', '_') || '%'"
OF_MODEL = f"len(list_filter(models, m -> m ILIKE {MODEL_PATTERN})) > 0"
"""Condition on the column `models`, a list."""
_FILTERS = {
    "node": "node GLOB $node",
    "model": f"model ILIKE {MODEL_PATTERN}",
    "user": '"user" IS NOT NULL AND list_contains(string_split("user", \', \'), $user)',
    "job": "job IS NOT NULL AND list_contains(string_split(job, ', '), $job)",
}
_FILTERS_OVER_TIME = {
    **_FILTERS,
    "node": "len(list_filter(on_nodes, n -> n GLOB $node)) > 0",
    "model": OF_MODEL,
    "job": "list_contains(jobs, $job)",
}


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "gpus", "list and show GPUs")
    made = add_command(group, "list", gpus_list, "list GPUs: state, load and holder of each now")
    filters(made, "node", "model", "user", "job")
    made.add_argument("--state", choices=GPU_STATES, help="in this state")
    add_url(made)
    text = "show a GPU: inventory, holders, alerts, hours and link errors"
    add_show(group, gpus_show, "gpu", text)
    for name, listed, shown, others in (
        ("job", jobs_list, jobs_show, ("node", "model", "user")),
        ("user", users_list, users_show, ("node", "model", "job")),
    ):
        group = add_group(commands, f"{name}s", f"list and show {name}s")
        made = add_command(
            group, "list", listed, f"list {name}s: GPUs now, hours and dollars of a time"
        )
        filters(made, *others)
        made.add_argument("--state", choices=OVER_STATES, default="running", help="default running")
        add_since(made, "1d")
        add_url(made)
        add_show(group, shown, name, f"show a {name}: GPUs, alerts and hours")


def add_show(
    group: Commands, run: Callable[[argparse.Namespace], int], what: str, text: str
) -> None:
    """Add the command `show` of a node, GPU, job or user."""
    made = add_command(group, "show", run, text)
    named = {"gpu": "NODE/INDEX, or its UUID or the beginning of it"}.get(what, "its name")
    made.add_argument(what, metavar=what.upper(), help=named)
    add_since(made, "1d")
    add_format(made, ("table", "json"))
    add_url(made)


def filters(made: argparse.ArgumentParser, *names: str) -> None:
    """Add the named filter flags, --label and --format."""
    texts = {
        "node": ("NODE", "of this node; * and ? are wildcards"),
        "model": ("MODEL", "of a model with this in its name; * and ? are wildcards"),
        "user": ("USER", "of this user"),
        "job": ("JOB", "of this job"),
    }
    for name in names:
        metavar, text = texts[name]
        made.add_argument(f"--{name}", metavar=metavar, help=text)
    made.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE",
        help="of nodes with this label; may be repeated",
    )  # fmt: skip
    add_format(made, SQL_FORMATS)


def chosen(
    args: argparse.Namespace, known: Mapping[str, str], labelled: str = _LABELLED
) -> tuple[str, dict[str, Any]]:
    """SQL condition of the filter flags, and its parameters. Raises ValueError."""
    params: dict[str, Any] = {
        name: value for name in known if (value := getattr(args, name, None)) is not None
    }
    conditions = [f"({known[name]})" for name in params]
    for number, text in enumerate(args.label):
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"--label {text} is not NAME=VALUE, such as rack=r12")
        params |= {f"label{number}": name, f"value{number}": value}
        conditions.append(labelled.format(name=f"label{number}", value=f"value{number}"))
    return " AND ".join(conditions) or "true", params


def show_list(
    args: argparse.Namespace, sql: str, params: Mapping[str, Any], shown: str, nothing: str
) -> int:
    """Print rows: in a table the columns `shown`, or `nothing` when there are no rows; in other formats all columns."""
    if args.format != "table":
        show_answer(sql, dict(params), args.format, args.url)
        return 0
    answer = ask(sql, params, url=args.url)
    if not answer.rows:
        print(nothing)
        return 0
    names = [name for name in shown.split() if name in answer.columns]
    places = [answer.columns.index(name) for name in names]
    # Leave out columns without values.
    kept = [
        (name, at)
        for name, at in zip(names, places, strict=True)
        if any(row[at] is not None for row in answer.rows)
    ]
    rows = [[row[at] for _, at in kept] for row in answer.rows]
    print(render([name for name, _ in kept], rows, "table", width=terminal_width()), end="")
    return 0


def gpus_list(args: argparse.Namespace) -> int:
    """Run `gpuwarden gpus list`."""
    condition, params = chosen(args, _FILTERS)
    if args.state is not None:
        condition += f" AND state = '{args.state}'"
    sql = f"SELECT * FROM ({GPUS}) WHERE {condition} ORDER BY node, gpu"
    shown = "node gpu model state util_percent memory_used_gib power_watts temperature_celsius user job usd_per_hour"
    return show_list(args, sql, params, shown, "No GPU is like that.")


def jobs_list(args: argparse.Namespace) -> int:
    """Run `gpuwarden jobs list`."""
    shown = (
        "job user state gpus nodes util_percent gpu_hours busy_percent wasted_hours usd started_at"
    )
    return _over_time(
        args, JOBS, shown, {k: v for k, v in _FILTERS_OVER_TIME.items() if k != "job"}
    )


def users_list(args: argparse.Namespace) -> int:
    """Run `gpuwarden users list`."""
    shown = "user state gpus nodes jobs_now util_percent gpu_hours busy_percent wasted_hours usd wasted_usd"
    return _over_time(
        args, USERS, shown, {k: v for k, v in _FILTERS_OVER_TIME.items() if k != "user"}
    )


def _over_time(args: argparse.Namespace, sql: str, shown: str, known: Mapping[str, str]) -> int:
    of_nodes = "list_has_any(on_nodes, (SELECT list(node) FROM node_labels WHERE label = ${name} AND value = ${value}))"
    condition, params = chosen(args, known, of_nodes)
    if args.state != "all":
        condition += f" AND state = '{args.state}'"
    params["since"] = since_param(args.since)
    query = (
        f"SELECT * FROM ({sql}) WHERE {condition} ORDER BY state DESC, gpu_hours DESC NULLS LAST, 1"
    )
    nothing = f"None is {args.state}." if args.state != "all" else "There was none in that time."
    return show_list(args, query, params, shown, nothing)


def since_param(text: str) -> dict[str, str]:
    """The begin of `--since 1d` as a query parameter. Raises ValueError."""
    return timestamp_param(instant_before(SystemClock().now(), text, "--since"))


Part = tuple[str, str]
"""Title and SELECT of a part of `show`."""


def show_parts(
    args: argparse.Namespace,
    head: Mapping[str, Any],
    parts: Sequence[Part],
    params: Mapping[str, Any],
) -> int:
    """Print the facts, then each part that has rows; or all as one JSON object."""
    answers = [(title, ask(sql, params, url=args.url)) for title, sql in parts]
    if args.format == "json":
        found = {
            title.replace(" ", "_"): [dict(zip(a.columns, row, strict=True)) for row in a.rows]
            for title, a in answers
        }
        print(render([*head, *found], [[*head.values(), *found.values()]], "json"), end="")
        return 0
    known = [[name, value] for name, value in head.items() if value is not None]
    table = render(
        ["", ""], [[name, _said(value)] for name, value in known], "table", width=terminal_width()
    )
    print("\n".join(table.splitlines()[2:]))
    for title, answer in answers:
        if answer.rows:
            print(f"\n{title.upper()}")
            print(render(answer.columns, answer.rows, "table", width=terminal_width()), end="")
    return 0


def _said(value: Any) -> str:
    """A value as a table shows it, in a column of mixed types."""
    return render([""], [[value]], "table").splitlines()[2].strip()


def one_row(sql: str, params: Mapping[str, Any], url: str | None, nothing: str) -> dict[str, Any]:
    """The only row of a query. Raises CallError with `nothing` when there is none."""
    answer = ask(sql, params, url=url)
    if not answer.rows:
        raise CallError(nothing)
    if len(answer.rows) > 1:
        places = ", ".join("/".join(str(cell) for cell in row[:2]) for row in answer.rows[:5])
        raise CallError(f"there are {len(answer.rows)} of that name: {places}")
    return dict(zip(answer.columns, answer.rows[0], strict=True))


ALERTS_OF: Callable[[str], str] = """
SELECT severity, state, rule, summary, round(usd_so_far, 2) AS usd_so_far, began_at FROM alerts_now
WHERE {} ORDER BY state, began_at
""".format
HOURS_OF: Callable[[str], str] = """
SELECT label, round(sum(gpu_hours), 2) AS gpu_hours, round(sum(usd), 2) AS usd, round(sum(energy_kwh), 2) AS energy_kwh
FROM waste WHERE ts > $since::TIMESTAMP - INTERVAL 1 HOUR AND {} GROUP BY label ORDER BY gpu_hours DESC
""".format
HOLDERS_OF: Callable[[str], str] = """
SELECT h.node, h.gpu, h."user", h.job, h.scheduler, h.processes, round(h.gpu_memory_bytes / 1024^3, 1) AS memory_gib,
    round(s.util_percent, 1) AS util_percent, round(s.power_watts) AS power_watts, h.started_at
FROM gpu_holders_now h LEFT JOIN gpus_now s USING (gpu_uuid) WHERE {} ORDER BY h.node, h.gpu, h.job
""".format
VERDICTS_OF: Callable[[str], str] = """
SELECT node, gpu, job, bottleneck, summary, advice, began_at FROM diagnoses WHERE ended_at IS NULL AND {}
ORDER BY node, gpu
""".format


def gpus_show(args: argparse.Namespace) -> int:
    """Run `gpuwarden gpus show GPU`."""
    found = gpu_named(args.gpu, args.url)
    inventory = one_row(
        "SELECT * FROM gpus WHERE gpu_uuid = $gpu", {"gpu": found["gpu_uuid"]}, args.url, ""
    )
    head = {**found, **{k: v for k, v in inventory.items() if k not in found and k != "peers"}}
    uuid = "gpu_uuid = $gpu"
    parts = [
        ("held by", HOLDERS_OF("h." + uuid)),
        ("diagnosis", VERDICTS_OF("subject = $gpu")),
        ("alerts", ALERTS_OF(uuid)),
        ("hours", HOURS_OF(uuid)),
        ("links that erred", ("SELECT ts, link_type, link, error, errors FROM link_errors "
         f"WHERE {uuid} ORDER BY ts, link, error")),
    ]  # fmt: skip
    return show_parts(
        args, head, parts, {"gpu": found["gpu_uuid"], "since": since_param(args.since)}
    )


def gpu_named(name: str, url: str | None) -> dict[str, Any]:
    """The GPU with a UUID, the beginning of one, or NODE/INDEX. Raises CallError."""
    sql = (
        f"SELECT * FROM ({GPUS}) WHERE format('{{}}/{{}}', node, gpu) = $gpu "
        "OR (length($gpu) >= 4 AND starts_with(lower(gpu_uuid), lower($gpu)))"
    )
    nothing = (
        f"there is no GPU {name}; write NODE/INDEX or its UUID: `gpuwarden gpus list` has them"
    )
    return one_row(sql, {"gpu": name}, url, nothing)


_SLURM = """
SELECT account, qos, "partition", reservation, state, node_list, time_limit_seconds, started_at, ended_at
FROM slurm_jobs WHERE slurm_job_id = $job
"""


def jobs_show(args: argparse.Namespace) -> int:
    """Run `gpuwarden jobs show JOB`."""
    params = {"job": args.job, "since": since_param(args.since)}
    nothing = f"there is no job {args.job} since {args.since}; `gpuwarden jobs list --state all` has their names"
    head = one_row(f"SELECT * FROM ({JOBS}) WHERE job = $job", params, args.url, nothing)
    of = "job = $job"
    parts = [
        ("slurm", _SLURM),
        ("gpus now", HOLDERS_OF(f"h.{of}")),
        ("diagnosis", VERDICTS_OF("job IN ($job, 'Slurm job ' || $job)")),
        ("alerts", ALERTS_OF("fingerprint IN (SELECT fingerprint FROM alerts_now WHERE gpu_uuid IN "
                             f"(SELECT gpu_uuid FROM gpu_holders_now WHERE {of}))")),
        ("hours", HOURS_OF(of)),
    ]  # fmt: skip
    return show_parts(args, head, parts, params)


def users_show(args: argparse.Namespace) -> int:
    """Run `gpuwarden users show USER`."""
    params = {"user": args.user, "since": since_param(args.since)}
    nothing = f"there is no user {args.user} since {args.since}; `gpuwarden users list --state all` has their names"
    head = one_row(f'SELECT * FROM ({USERS}) WHERE "user" = $user', params, args.url, nothing)
    of = '"user" = $user'
    parts = [
        ("gpus now", HOLDERS_OF(f"h.{of}")),
        ("jobs", ("SELECT job, state, gpus, util_percent, gpu_hours, busy_percent, usd, wasted_usd, started_at "
         f"FROM ({JOBS}) WHERE {of} ORDER BY state DESC, gpu_hours DESC NULLS LAST")),
        ("alerts", ALERTS_OF("owner = $user")),
        ("hours", HOURS_OF(of)),
    ]  # fmt: skip
    return show_parts(args, head, parts, params)
