"""Shows why a GPU, job or node is slow, on one screen: `gpuwarden why`.

It measures when it is called, so it can show any instant within the retention of samples.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpuwarden.alert import WORST_FIRST, usd_between
from gpuwarden.clock import SystemClock
from gpuwarden_cli.output import ABSENT, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_url
from gpuwarden_cli.read.diagnosis import Silent, diagnose
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_cli.top.text import sparkline
from gpuwarden_client.http import CallError, call

if TYPE_CHECKING:
    from gpuwarden.diagnosis import Diagnosis
    from gpuwarden.query import Querier
    from gpuwarden_rules.diagnosis.jobs import JobView, Judged

WIDTH = 100
BINS = 60
TIMELINE = timedelta(minutes=30)
EVIDENCE_MAX = 8
MISSING_MAX = 6
ALERTS_MAX = 5
_EVENTS = """
SELECT ts, severity, kind, message FROM events
WHERE ts > $now::TIMESTAMP - INTERVAL 1 DAY AND ts <= $now::TIMESTAMP AND severity <> 'info'
    -- Nor is an Xid left out whose GPU nobody knows.
    AND node = $node AND (gpu_uuid = $gpu_uuid OR gpu_uuid IS NULL OR starts_with(gpu_uuid, 'pci-'))
ORDER BY ts DESC LIMIT 5
"""
_SINCE = """
SELECT min(began_at) AS began_at FROM diagnoses
WHERE subject = $subject AND bottleneck = $bottleneck AND ended_at IS NULL
"""
_ALERTS = f"""
SELECT severity, rule, began_at, usd_per_hour, muted,
    CASE WHEN accounted_until <= $now::TIMESTAMP THEN accounted_usd END AS accounted_usd FROM alerts
WHERE (gpu_uuid = $gpu_uuid OR (node = $node AND (gpu_uuid IS NULL OR starts_with(gpu_uuid, 'pci-'))))
    AND fired_at <= $now::TIMESTAMP AND coalesce(resolved_at > $now::TIMESTAMP, true)
ORDER BY {WORST_FIRST}, began_at, rule
"""
_TIMELINE = """
WITH bins AS (
    SELECT floor(date_diff('millisecond', $begin::TIMESTAMP, ts) * $bins / $span_ms) AS bin, util_percent, NULL AS workers
    FROM gpu_samples
    WHERE gpu_uuid = $gpu_uuid AND ts > $begin::TIMESTAMP AND ts <= $now::TIMESTAMP
    UNION ALL
    SELECT floor(date_diff('millisecond', $begin::TIMESTAMP, ts) * $bins / $span_ms), NULL,
           coalesce(loader_cpu_percent, main_cpu_percent)
    FROM process_samples
    WHERE gpu_uuid = $gpu_uuid AND ts > $begin::TIMESTAMP AND ts <= $now::TIMESTAMP
)
SELECT bin, avg(util_percent) AS util, max(workers) AS cpu FROM bins GROUP BY bin ORDER BY bin
"""


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    parser = add_command(
        commands, "why", why, "show why a GPU, job or node is slow, and what to change",
        "Uses the last two minutes before now, or before --at. Exits with 0 if healthy.",
    )  # fmt: skip
    parser.add_argument(
        "target",
        metavar="GPU|JOB|NODE",
        help="node/0, a GPU's UUID, a node, a Slurm job id, a job's address:port, or a pod",
    )
    parser.add_argument(
        "--at", metavar="INSTANT", help="ISO 8601; UTC without a zone (default now)"
    )
    add_format(parser, ("table", "json"))
    add_url(parser)


def why(args: argparse.Namespace) -> int:
    """Run `gpuwarden why`; 0 when it is healthy, 1 when it is not or cannot be diagnosed."""
    now = _instant(args.at)
    unable = (lambda gpu_uuid: _unable(args.url, gpu_uuid)) if args.at is None else None
    return asyncio.run(tell(RemoteQuerier(args.url), args.target, now, args.format, unable))


def _unable(url: str | None, gpu_uuid: str) -> str | None:
    """Which rules cannot judge a GPU, and what they lack; None: there are none, or the collector has no rules."""
    try:
        found = call("GET", f"/v1/gpus/{quote(gpu_uuid, safe='')}/unable-rules", url=url)
    except CallError:
        return None
    return unable_sentence(found)


def unable_sentence(found: Mapping[str, Any]) -> str | None:
    """`12 of 44 rules cannot judge it, as its source does not tell clocks_event_reasons, ...`; None: all can."""
    lacking = Counter(
        name.partition(".")[2] or name for one in found["unable"] for name in one["missing"]
    )
    if not lacking:
        return None
    named = ", ".join(name for name, _ in lacking.most_common(MISSING_MAX))
    more = f" and {len(lacking) - MISSING_MAX} more" if len(lacking) > MISSING_MAX else ""
    return f"{len(found['unable'])} of {found['rules']} rules cannot judge it, as these are not read: {named}{more}."


def _instant(text: str | None) -> datetime:
    if text is None:
        return SystemClock().now()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--at {text} is not a time; write 2026-01-31T12:00:00Z") from None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


async def tell(
    querier: "Querier",
    target: str,
    now: datetime,
    form: str,
    unable: Callable[[str], str | None] | None = None,
) -> int:
    """Print the diagnosis as of an instant; the exit code. Raises ValueError when the target is unknown. `unable`: says
    which rules cannot judge a GPU; it blocks."""
    found = await diagnose(querier, target, now)
    if form == "json":
        print(json.dumps(found.records(), ensure_ascii=False, indent=2))
    elif not found.judged:
        await _show_silent(querier, found.silent, now)
    elif len(found.judged) == 1:
        await _show_gpu(querier, found.judged[0], found.verdicts[0], now)
        gpu_uuid = found.judged[0].seen.place.gpu_uuid
        if unable is not None and (said := await asyncio.to_thread(unable, gpu_uuid)):
            print()
            _say(said, "")
    else:
        if found.is_job and found.jobs:
            await _show_job(querier, found.jobs[0], found.job_verdicts[0], now)
        _show_table(found.verdicts)
        for one in found.silent:
            print()
            await _show_one_silent(querier, one, now)
    return 0 if found.is_well else 1


async def _show_silent(querier: "Querier", silent: "Sequence[Silent]", now: datetime) -> None:
    for number, one in enumerate(silent):
        if number:
            print()
        await _show_one_silent(querier, one, now)


async def _show_one_silent(querier: "Querier", one: Silent, now: datetime) -> None:
    gpu_uuid = one.gpu["gpu_uuid"] if one.gpu else ""
    print(f"{one.name}\n\n{one.verdict.upper()}")
    _say(one.summary, "  ")
    params = {"node": one.node, "gpu_uuid": gpu_uuid, "now": now}
    events = (await querier.query(_EVENTS, params)).records()
    if events:
        print("\nEvents of the day before")
    for row in events:
        _say(f"{row['severity']:<8}  {row['ts']:%H:%M:%S} {row['kind']}: {row['message']}", "  ")
    await _show_alerts(querier, one.node, gpu_uuid, now)
    if one.advice:
        print("\nWhat to do")
        _say(one.advice, "  ")


async def _show_gpu(
    querier: "Querier", one: "Judged", diagnosis: "Diagnosis", now: datetime
) -> None:
    place = one.seen.place
    model = f" ({place.model})" if place.model else ""
    simulated = ", simulated" if place.simulated else ""
    print(f"GPU {ABSENT if place.gpu is None else place.gpu} of {place.node}{model}{simulated}")
    if place.work:
        owner = f", {place.username}" if place.username and place.username not in place.work else ""
        process = f": {place.process_name}, pid {place.pid}" if place.process_name else ""
        print(f"{place.work}{owner}{process}")
    print()
    await _show_verdict(querier, diagnosis, now)
    await _show_alerts(querier, place.node, place.gpu_uuid, now)
    await _show_timeline(querier, place.gpu_uuid, bool(one.seen.features.workers), now)


async def _show_job(
    querier: "Querier", view: "JobView", diagnosis: "Diagnosis", now: datetime
) -> None:
    nodes = len({rank.seen.place.node for rank in view.ranks})
    where = f" of {nodes} nodes" if nodes > 1 else f" of {view.ranks[0].seen.place.node}"
    print(f"{view.name}: {len(view.ranks)} GPUs{where}")
    if view.efficiency is not None:
        print(f"Efficiency {100 * view.efficiency:.0f} %")
    print()
    await _show_verdict(querier, diagnosis, now)
    shown = view.causes[0] if view.causes else view.ranks[0]
    workers = bool(shown.seen.features.workers)
    await _show_timeline(querier, shown.seen.place.gpu_uuid, workers, now)
    print()


async def _show_verdict(querier: "Querier", diagnosis: "Diagnosis", now: datetime) -> None:
    confidence = f" (confidence {100 * diagnosis.confidence:.0f} %)"
    is_known = diagnosis.confidence > 0
    print(f"{diagnosis.bottleneck.value.upper()}{confidence if is_known else ''}")
    _say(diagnosis.summary, "  ")
    since = await querier.query(
        _SINCE, {"subject": diagnosis.subject, "bottleneck": diagnosis.bottleneck.value}
    )
    began_at = since.rows[0][0] if since.rows else None
    if began_at is not None and began_at < now - timedelta(minutes=1):
        print(f"  Since {began_at:%Y-%m-%d %H:%M} UTC.")
    if diagnosis.usd_per_hour:
        print(f"  It costs ${diagnosis.usd_per_hour:.2f} an hour.")
    if diagnosis.evidence:
        print("\nEvidence")
        for line in diagnosis.evidence[:EVIDENCE_MAX]:
            print(f"  {line.text}")
    if diagnosis.misses:
        print("\nNearest misses")
        for miss in diagnosis.misses:
            _say(miss, "  ")
    if diagnosis.advice:
        print("\nWhat to do")
        _say(diagnosis.advice, "  ")


async def _show_alerts(querier: "Querier", node: str, gpu_uuid: str, now: datetime) -> None:
    """Print firing alerts of the GPU and its node. They may have begun before the window of the diagnosis."""
    from gpuwarden_rules.definition.templates import usd

    params = {"gpu_uuid": gpu_uuid, "node": node, "now": now}
    rows = (await querier.query(_ALERTS, params)).records()
    if rows:
        print("\nAlerts")
    for row in rows[:ALERTS_MAX]:
        cost = row["accounted_usd"]
        if cost is None:
            cost = usd_between(row["usd_per_hour"], row["began_at"], now)
        spent = "" if cost is None else f", {usd(cost)} so far"
        muted = f" (muted: {row['muted']})" if row["muted"] else ""
        print(
            f"  {row['severity']:<8}  {row['rule']} since {row['began_at']:%Y-%m-%d %H:%M} UTC{spent}{muted}"
        )
    if len(rows) > ALERTS_MAX:
        print(f"  and {len(rows) - ALERTS_MAX} more: `gpuwarden alerts list`")


async def _show_timeline(
    querier: "Querier", gpu_uuid: str, has_workers: bool, now: datetime
) -> None:
    params = {
        "gpu_uuid": gpu_uuid,
        "begin": now - TIMELINE,
        "now": now,
        "bins": BINS,
        "span_ms": int(TIMELINE.total_seconds() * 1000),
    }
    rows = (await querier.query(_TIMELINE, params)).rows
    util: list[float | None] = [None] * BINS
    cpu: list[float | None] = [None] * BINS
    for at, busy, core in rows:
        place = min(max(int(at), 0), BINS - 1)
        util[place] = busy if busy is not None else util[place]
        cpu[place] = core if core is not None else cpu[place]
    minutes = int(TIMELINE.total_seconds() // 60)
    print(f"\nLast {minutes} minutes, 0 to 100 %")
    print(f"  GPU         {sparkline(util, 100.0).rstrip()}")
    if any(value is not None for value in cpu):
        print(
            f"  {'workers' if has_workers else 'main thread':<11} {sparkline(cpu, 100.0).rstrip()}"
        )


def _show_table(told: Sequence["Diagnosis"]) -> None:
    columns = ["node", "gpu", "bottleneck", "busy %", "$ an hour", "summary"]
    rows = [
        [
            d.node,
            d.gpu,
            d.bottleneck.value,
            None if d.stall is None else round(100 * (1 - d.stall)),
            None if d.usd_per_hour is None else round(d.usd_per_hour, 2),
            d.summary,
        ]
        for d in told
    ]
    print(render(columns, rows, "table", width=terminal_width()), end="")


def _say(text: str, indent: str) -> None:
    width = (terminal_width() or WIDTH) - len(indent)
    for line in wrap(text, max(width, 40)):
        print(f"{indent}{line}")
