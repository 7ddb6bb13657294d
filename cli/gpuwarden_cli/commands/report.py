"""Reports money, waste, efficiency, energy, and what a job used: `gpuwarden report money|waste|efficiency|energy|job`.

`gpuwarden.waste_report` and `gpuwarden_cli.job_report` have the SQL.
"""

import argparse
import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuwarden.clock import SystemClock
from gpuwarden.durations import instant_before
from gpuwarden.own import DAYS as OWN_DAYS
from gpuwarden.own import read_own
from gpuwarden.waste_report import BY, NOBODY, asked_sql, energy_report_sql, waste_report_sql
from gpuwarden_cli.output import render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group, add_since, add_url
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_cli.settings import notify_file_of, notify_of
from gpuwarden_client.http import CallError, ask, timestamp_param

TOTAL = "total"

_UNTIL = """
SELECT max(ts) + INTERVAL 1 MINUTE FROM (
    SELECT max(ts) AS ts FROM gpu_1m WHERE ts >= $since::TIMESTAMP
    UNION ALL SELECT max(ts) + INTERVAL 59 MINUTE FROM waste_1h WHERE ts >= $since::TIMESTAMP
)
"""
_EFFICIENCY = """
WITH {asked},
spent AS (
    SELECT
        a.*, h.util_percent_avg AS util, h.sm_active_percent_avg AS sm_active,
        h.tensor_active_percent_avg AS tensor
    FROM asked a LEFT JOIN gpu_1h h USING (gpu_uuid, node, ts)
)
SELECT
    coalesce(by_name, '{nobody}') AS name, grouping(by_name) = 1 AS is_total,
    bool_or(simulated) AS simulated, sum(gpu_hours) AS gpu_hours,
    100 * coalesce(sum(gpu_hours) FILTER (label = 'productive'), 0) / sum(gpu_hours)
        AS productive_percent,
    100 * coalesce(sum(gpu_hours) FILTER (label = 'busy'), 0) / sum(gpu_hours) AS busy_percent,
    {averages},
    sum(energy_kwh) AS energy_kwh, sum(usd) AS usd,
    sum(usd) / nullif(sum(gpu_hours) FILTER (label = 'productive' AND usd IS NOT NULL), 0)
        AS usd_per_productive_hour
FROM spent
GROUP BY GROUPING SETS ((by_name), ())
ORDER BY is_total, gpu_hours DESC, name
"""


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(
        commands, "report", "report money, waste, efficiency, energy, and what a job used"
    )
    for name, run, text in (
        ("waste", waste, "GPU hours by use, and what was wasted"),
        ("efficiency", efficiency, "how busy the GPUs were, and the cost of a productive hour"),
        ("energy", energy, "energy, what it cost, and its carbon dioxide"),
    ):
        made = add_command(group, name, run, text)
        add_flags(made)
        add_format(made)
        add_url(made)
    _add_money(group)
    _add_own(group)
    _add_right_size(group)
    text = "what a job used of CPUs, memory and GPUs on each node, and what to change"
    made = add_command(group, "job", job, text)
    made.add_argument("job", metavar="JOB", help="a Slurm job id, or a pod as namespace/name")
    add_format(made, ("table", "json"))
    add_url(made)


def _add_money(group: Commands) -> None:
    text = "what a time cost, what was wasted, what to do, budgets, incidents: to print or mail"
    made = add_command(
        group, "money", money, text, "The default time is the last whole week, from Monday."
    )
    time = made.add_mutually_exclusive_group()
    time.add_argument("--week", action="store_true", help="the last whole week (default)")
    time.add_argument("--month", action="store_true", help="the last whole month")
    time.add_argument("--begin", metavar="DATE", help="first day, or time, UTC: 2026-03-01")
    made.add_argument(
        "--end", metavar="DATE", help="with --begin: the end, not included (default now)"
    )
    made.add_argument("--by", choices=(*BY, "label"), default="team", help="lines (default team)")
    made.add_argument(
        "--html", type=Path, metavar="FILE", help="write HTML to a file; its print is made for PDF"
    )
    made.add_argument(
        "--mail", metavar="RECEIVER", help="send it now by a receiver of the notification file"
    )
    made.add_argument(
        "--file", type=Path, metavar="FILE", help="of receivers (default: the collector's)"
    )
    made.add_argument("--config", type=Path, metavar="FILE", help="TOML file of the collector")
    add_url(made)


def _add_own(group: Commands) -> None:
    text = (
        "whether owned or rented GPUs cost less, by model, for what was in use in the last 30 days"
    )
    made = add_command(group, "own", own, text)
    add_since(made, f"{OWN_DAYS}d")
    add_format(made)
    add_url(made)


def _add_right_size(group: Commands) -> None:
    text = "jobs that a smaller GPU, a MIG device or spot would do for, and what that saves"
    made = add_command(group, "right-size", right_size, text)
    add_flags(made, ("job", "user", "model"), "job")
    made.add_argument("--user", metavar="NAME", help="jobs of this user alone")
    made.add_argument("--job", metavar="JOB", help="this job alone: Slurm's id, or namespace/name")
    made.add_argument("--all", action="store_true", help="also jobs without advice, and why")
    add_format(made, ("table", "json"))
    add_url(made)


def right_size(args: argparse.Namespace) -> int:
    """Run `gpuwarden report right-size`: what would cost less, by job, user or model."""
    from gpuwarden.right_size import read_right_sizes
    from gpuwarden_cli.right_size_report import asked, grouped, records, screen

    since, until = _window(args)
    mine, params = asked(args.user, args.job)
    querier = RemoteQuerier(args.url)
    found = asyncio.run(read_right_sizes(querier, since, until, mine, params))
    if args.format == "json":
        listed = records(found) if args.by == "job" else grouped(found, args.by)
        print(json.dumps(listed, indent=2, ensure_ascii=False))
    else:
        print(screen(found, args.by, args.top, since, until, with_all=args.all), end="")
    return 0


def own(args: argparse.Namespace) -> int:
    """Run `gpuwarden report own`: what GPUs of each model cost, owned and rented."""
    from gpuwarden_cli.own_report import screen, table

    since, until = _window(args)
    cases = asyncio.run(read_own(RemoteQuerier(args.url), since, until))
    if not cases:
        print(f"No GPU was seen since {since:%Y-%m-%d %H:%M}Z.")
    elif args.format == "json":
        found = [dict(case.record()) for case in cases]
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif args.format == "table":
        print(screen(cases, since, until), end="")
    else:
        print(render(*table(cases), args.format), end="")
    return 0


def money(args: argparse.Namespace) -> int:
    """Run `gpuwarden report money`: print the report of a time, write it as HTML, or send it; 1 when it was not sent."""
    from gpuwarden_cli.money_report import made, sent, span

    now = SystemClock().now()
    begin, end = span(args, now)
    notify = notify_of(notify_file_of(args)) if args.mail is not None else None
    link = notify.style.link if notify else None
    document = asyncio.run(made(RemoteQuerier(args.url), begin, end, args.by, now, link=link))
    if notify is not None:
        is_sent, answer = asyncio.run(sent(notify, args.mail, document, (begin, end)))
        print(f"{document.title}\n{args.mail}: {answer}")
        return 0 if is_sent else 1
    if args.html is None:
        print(document.text, end="")
        return 0
    try:
        args.html.write_text(document.html, encoding="utf-8")
    except OSError as error:
        raise CallError(f"{args.html}: {error.strerror}") from error
    print(f"{document.title}\nwritten to {args.html}")
    return 0


def waste(args: argparse.Namespace) -> int:
    """Run `gpuwarden report waste`: GPU hours by label, and what was wasted."""
    return _report(args, waste_report_sql(args.by), _shown_waste)


def efficiency(args: argparse.Namespace) -> int:
    """Run `gpuwarden report efficiency`: utilization, and the cost of a productive hour."""
    averages = ", ".join(
        f"sum({name} * gpu_hours) / sum(gpu_hours) FILTER ({name} IS NOT NULL) AS {name}_percent"
        for name in ("util", "sm_active", "tensor")
    )
    sql = _EFFICIENCY.format(asked=asked_sql(args.by), nobody=NOBODY, averages=averages)
    return _report(args, sql, _shown_efficiency)


def energy(args: argparse.Namespace) -> int:
    """Run `gpuwarden report energy`: energy, its cost, and its carbon dioxide."""
    return _report(args, energy_report_sql(args.by), _shown_energy)


def job(args: argparse.Namespace) -> int:
    """Run `gpuwarden report job`: what a job used, and what its owner can change."""
    from gpuwarden_cli.job_report import read
    from gpuwarden_cli.job_summary import record, screen

    found = asyncio.run(read(RemoteQuerier(args.url), args.job, SystemClock().now()))
    if found is None:
        raise CallError(
            f"there is no job {args.job}: `gpuwarden jobs list --state all` has their names"
        )
    if args.format == "json":
        print(json.dumps(record(found), indent=2, ensure_ascii=False, default=str))
    else:
        print(screen(found), end="")
    return 0


def _report(args: argparse.Namespace, query: str, shown: Any) -> int:
    since, until = _window(args)
    params = {"since": timestamp_param(since)}
    newest = ask(_UNTIL, params, url=args.url).rows[0][0]
    until = until if newest is None else datetime.fromisoformat(newest).astimezone(UTC)
    answer = ask(query, params, url=args.url, timeout_s=120)
    records = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    groups = [r for r in records if not r["is_total"]]
    if not groups:
        print(f"No GPU was seen since {since:%Y-%m-%d %H:%M}Z.")
        return 0
    if args.format != "table":
        columns = [name for name in answer.columns if name not in ("is_total", "lacks_price")]
        print(render(columns, [[g[c] for c in columns] for g in groups], args.format), end="")
        return 0
    total = {**next(r for r in records if r["is_total"]), "name": TOTAL}
    kind = " (simulated)" if total["simulated"] else ""
    print(f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC, by {args.by}{kind}\n")
    shown(args, groups, total)
    if answer.truncated:
        print(f"\nThe collector stopped at {len(answer.rows):,} rows: the table is not complete.")
    return 0


def _window(args: argparse.Namespace) -> tuple[datetime, datetime]:
    """The period of --since, from the start of an hour to now. Raises ValueError."""
    now = SystemClock().now()
    since = instant_before(now, args.since, "--since")
    return since.replace(minute=0, second=0, microsecond=0), now


Record = Mapping[str, Any]
HOSTS_SQL = """
WITH hosts AS (
    SELECT node, ts, host_power_watts_avg AS watts, cpu_energy_joules_delta AS cpu, dram_energy_joules_delta AS dram
    FROM host_1m WHERE ts > $since::TIMESTAMP
),
gpus AS (
    SELECT node, ts, sum(power_watts_avg) AS watts FROM gpu_1m
    WHERE ts > $since::TIMESTAMP AND mig_instance IS NULL GROUP BY node, ts
)
SELECT count(DISTINCT node) FILTER (h.watts IS NOT NULL), sum(h.watts) / 60e3,
    sum(g.watts) FILTER (h.watts IS NOT NULL) / 60e3, sum(h.cpu) / 3.6e6, sum(h.dram) / 3.6e6
FROM hosts h LEFT JOIN gpus g USING (node, ts)
"""
"""kWh of hosts by minutes: nodes with a meter, what they drew in all, what their GPUs drew of that; CPUs, memory."""
WITHOUT_PRICE_SQL = """
SELECT coalesce(catalogue_model, model, '?') AS name, count(*) AS gpus FROM gpus JOIN nodes USING (node)
WHERE usd_per_hour IS NULL AND parent_gpu_uuid IS NULL AND replaced_by IS NULL AND forgotten_at IS NULL
GROUP BY name ORDER BY gpus DESC, name LIMIT 12
"""
"""Models of GPUs that have no price now."""


def _shown_waste(args: argparse.Namespace, groups: list[Record], total: Record) -> None:
    """Print hours by label; they add up in each line and each column."""
    from gpuwarden.waste import LABELS, TITLES

    labels = [label for label in LABELS if total[label]]
    sums = [*LABELS, "gpu_hours", "usd", "wasted_usd"]
    kept, rest = groups[: args.top], groups[args.top :]
    if rest:
        kept = [*kept, {"name": f"{len(rest)} more", **{n: _sum(rest, n) for n in sums}}]
    titles = [TITLES.get(label, label) for label in labels]
    columns = [args.by, "GPU hours", *titles, "productive %", "cost $", "wasted $"]
    rows = [
        [
            g["name"],
            *(_rounded(g[name]) for name in ("gpu_hours", *labels)),
            _rounded(100 * g["productive"] / g["gpu_hours"]),
            *(_rounded(g[name], 2) for name in ("usd", "wasted_usd")),
        ]
        for g in [*kept, total]
    ]
    print(render(columns, rows, "table", width=terminal_width()), end="")
    if total["lacks_price"]:
        print(f"\n{_without_price(args.url)}")


def _without_price(url: str | None) -> str:
    """Names the models whose hours are not in the dollars, with the line that changes it."""
    models = ask(WITHOUT_PRICE_SQL, url=url).rows
    if not models:  # they had none in that time
        return "Some GPUs had no price then, so these hours are not in the dollars."
    named = ", ".join(f"{model} ({gpus:,})" for model, gpus in models)
    return (
        f"No price, so not in the dollars: {named}. In the file that the collector's prices_file names (docs/money.md):\n"
        f'[[price]]\nmodel = "{models[0][0]}"\nusd_per_hour = 2.50'
    )


def _shown_efficiency(args: argparse.Namespace, groups: list[Record], total: Record) -> None:
    shown = {
        "GPU hours": "gpu_hours",
        "productive %": "productive_percent",
        "busy, not judged %": "busy_percent",
        "util %": "util_percent",
        "SM active %": "sm_active_percent",
        "tensor %": "tensor_percent",
        "kWh": "energy_kwh",
        "cost $": "usd",
        "$ a productive hour": "usd_per_productive_hour",
    }
    rows = [
        [g["name"], *(_rounded(g[name], 2 if "$" in head else 1) for head, name in shown.items())]
        for g in [*groups[: args.top], total]
    ]
    print(render([args.by, *shown], rows, "table", width=terminal_width()), end="")
    if len(groups) > args.top:
        print(f"\n{len(groups) - args.top} more are in the total: --top shows them.")


def _shown_energy(args: argparse.Namespace, groups: list[Record], total: Record) -> None:
    shown = {
        "GPU hours": "gpu_hours",
        "kWh": "energy_kwh",
        "wasted kWh": "wasted_kwh",
        "power $": "energy_usd",
        "CO2 kg": "co2_kg",
    }
    rows = [
        [
            g["name"],
            *(_rounded(g[name], 1 if name == "gpu_hours" else 2) for name in shown.values()),
        ]
        for g in [*groups[: args.top], total]
    ]
    print(render([args.by, *shown], rows, "table", width=terminal_width()), end="")
    if len(groups) > args.top:
        print(f"\n{len(groups) - args.top} more are in the total: --top shows them.")
    if total["measured_percent"] < 99.95:
        print(f"\nPower was measured in {total['measured_percent']:.1f} % of the GPU hours.")
    if total["energy_kwh"] and None in (total["energy_usd"], total["co2_kg"]):
        print("\nThe prices file says what a kWh costs and emits: see docs/money.md.")
    since, _ = _window(args)
    if said := hosts_sentence(
        ask(HOSTS_SQL, {"since": timestamp_param(since)}, url=args.url).rows[0]
    ):
        print(f"\n{said}")


def hosts_sentence(row: Sequence[Any]) -> str | None:
    """What whole nodes drew, beside their GPUs. `row`: that of `HOSTS_SQL`; None: no node tells it."""
    nodes, whole_kwh, gpus_kwh, cpu_kwh, dram_kwh = row
    parts = []
    if whole_kwh:
        share = (
            "" if gpus_kwh is None else f"; its GPUs drew {100 * gpus_kwh / whole_kwh:.0f} % of it"
        )
        measured = "1 node" if nodes == 1 else f"{nodes:,} nodes"
        parts.append(f"{measured} with a meter drew {whole_kwh:,.2f} kWh in all{share}")
    if cpu_kwh:
        memory = "" if not dram_kwh else f", {dram_kwh:,.2f} their memory"
        parts.append(f"CPUs drew {cpu_kwh:,.2f} kWh{memory}, by their counters")
    return (
        None
        if not parts
        else f"Hosts: {'; '.join(parts)}. Not in the table, nor is the PUE of [energy] in kWh."
    )


def _sum(groups: list[Record], name: str) -> float | None:
    known = [g[name] for g in groups if g[name] is not None]
    return sum(known) if known else None


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def add_flags(
    made: argparse.ArgumentParser, by: Collection[str] = BY, default: str = "user"
) -> None:
    """Add the flags of the reports by user, job and so on."""
    add_since(made, "7d")
    made.add_argument("--by", choices=tuple(by), default=default, help=f"lines (default {default})")
    made.add_argument(
        "--top",
        type=_at_least_one,
        default=20,
        metavar="N",
        help="maximum number of lines (default 20)",
    )


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value
