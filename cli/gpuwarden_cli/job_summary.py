"""Formats a job report: as text, as notes on what to change, and as a comment in Slurm's accounting.

The comment has the form of jobstats (https://github.com/PrincetonUniversity/jobstats, docs/setup/summaries.md):
"JS1:" and base64 of gzipped JSON. A Slurm whose sacctmgr turns comments into lower case (22.05) cannot keep
base64; for it the same bytes are "gw1:" and base32 in lower case. Pure functions.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any

from gpuwarden.job_phases import shares
from gpuwarden.progress import sentence
from gpuwarden.roofline import roofline_record
from gpuwarden.sizes import size_text
from gpuwarden_cli.job_report import JobReport

JS1, LOWER = "JS1:", "gw1:"
SHORT_S = 60.0
"""A shorter job has no useful figures: its comment is "JS1:Short"."""
COMMENT_MAX = 60_000
"""Bytes: the column of Slurm's database takes 65,535."""
WIDTH = 80
BAR = 40
PHASES_MAX = 12
"""Most phases in the text."""
IDLE_PERCENT = 1.0
"""A GPU that never exceeded this utilization was not used."""
LOW_GPU, LOW_CPU, LOW_MEMORY, LOW_TIME = 0.15, 0.2, 0.2, 0.2
"""Shares below which a note is made."""


def summary(report: JobReport) -> dict[str, Any]:
    """The job's figures in the format of jobstats, without values that were not measured."""
    nodes: dict[str, Any] = {}
    for node in report.nodes:
        part: dict[str, Any] = {
            "total_time": None if node.cpu_seconds is None else round(node.cpu_seconds, 1),
            "cpus": node.cpus,
            "used_memory": node.memory_used_bytes,
            "total_memory": node.memory_limit_bytes,
        }
        names = [str(gpu.gpu if gpu.gpu is not None else gpu.gpu_uuid) for gpu in node.gpus]
        for key, values in (
            ("gpu_utilization", [_rounded(gpu.util_percent) for gpu in node.gpus]),
            ("gpu_used_memory", [gpu.memory_used_bytes for gpu in node.gpus]),
            ("gpu_total_memory", [gpu.memory_total_bytes for gpu in node.gpus]),
        ):
            known = {n: v for n, v in zip(names, values, strict=True) if v is not None}
            part[key] = known or None
        nodes[node.node] = {key: value for key, value in part.items() if value is not None}
    return {"nodes": nodes, "total_time": round(report.seconds), "gpus": len(report.gpus)}


def comment(report: JobReport, *, keeps_case: bool = True) -> str:
    """Text for the job's AdminComment. `keeps_case`: Slurm keeps capital letters."""
    prefix = JS1 if keeps_case else LOWER
    if report.seconds < SHORT_S:
        return f"{prefix}{'Short' if keeps_case else 'short'}"
    text = json.dumps(summary(report), separators=(",", ":"), sort_keys=True)
    packed = gzip.compress(text.encode(), mtime=0)
    if keeps_case:
        made = prefix + base64.b64encode(packed).decode()
    else:
        made = prefix + base64.b32encode(packed).decode().lower().rstrip("=")
    return made if len(made) <= COMMENT_MAX else f"{prefix}{'None' if keeps_case else 'none'}"


def parse_comment(text: str) -> dict[str, Any] | None:
    """The figures in a comment; None: it has none. Raises ValueError for a damaged comment."""
    if text.lower() in ("", "js1:short", "js1:none", "gw1:short", "gw1:none"):
        return None
    try:
        if text.startswith(JS1):
            packed = base64.b64decode(text.removeprefix(JS1), validate=True)
        elif text.startswith(LOWER):
            body = text.removeprefix(LOWER).upper()
            packed = base64.b32decode(body + "=" * (-len(body) % 8))
        else:
            return None
        found = json.loads(gzip.decompress(packed))
    except (OSError, EOFError) as error:
        raise ValueError(f"not a summary of a job: {error}") from error
    return found if isinstance(found, dict) else None


def notes(report: JobReport) -> list[str]:
    """Advice for the owner, most important first."""
    return [
        *_gpu_notes(report),
        *_verdict_notes(report),
        *_host_notes(report),
        *_time_notes(report),
    ]


def _gpu_notes(report: JobReport) -> Iterator[str]:
    measured = [gpu for gpu in report.gpus if gpu.util_percent_max is not None]
    unused = [gpu for gpu in measured if (gpu.util_percent_max or 0) < IDLE_PERCENT]
    if report.seconds < SHORT_S:
        return
    if unused and len(unused) == len(measured):
        yield "No GPU was used. If the program needs none, do not ask for any; else see whether it finds CUDA."
        return
    if unused:
        yield (
            f"{len(unused)} of {len(measured)} GPUs were never used. Ask for {len(measured) - len(unused)}, or have the"
            " program use all of them."
        )
    share = report.gpu_share
    if not unused and share is not None and share < LOW_GPU:
        yield f"The GPUs were used for {share:.0%} of the time only. A smaller GPU, or a part of one (MIG), may do."


def _verdict_notes(report: JobReport) -> Iterator[str]:
    for verdict in report.verdicts:
        if verdict.advice and report.seconds:
            share = min(1.0, verdict.seconds / report.seconds)
            yield f"{verdict.summary} ({share:.0%} of the time) {verdict.advice}"


def _host_notes(report: JobReport) -> Iterator[str]:
    if report.seconds < SHORT_S:
        return
    cpus = sum(node.cpus or 0 for node in report.nodes)
    cpu = report.cpu_share
    if cpu is not None and cpu < LOW_CPU and cpus > max(1, len(report.gpus)):
        yield f"{cpu:.0%} of {cpus} CPUs were used: about {max(1, round(cpu * cpus + 0.5))} would do."
    memory = report.memory_share
    limit = sum(node.memory_limit_bytes or 0 for node in report.nodes)
    if memory is not None and memory < LOW_MEMORY and limit > 16 * 2**30:
        yield f"{memory:.0%} of {size_text(limit)} of memory were used: others wait for what is left."
    elif memory is not None and memory > 0.95:
        yield f"{memory:.0%} of {size_text(limit)} of memory were used: a little more, and it is killed. Ask for more."


def _time_notes(report: JobReport) -> Iterator[str]:
    limit_s = report.facts.get("time_limit_seconds")
    if report.is_over and limit_s and SHORT_S < report.seconds < LOW_TIME * limit_s:
        yield f"It ran for {_span(report.seconds)} of {_span(limit_s)}: with a shorter time limit it may start earlier."


def screen(report: JobReport) -> str:
    """The report as text, in lines of at most 80 characters."""
    lines = [_ruled("Job report"), *_head(report), "", _ruled("Utilization")]
    lines += [
        _bar("CPU", report.cpu_share),
        _bar("CPU memory", report.memory_share),
        _bar("GPU", report.gpu_share),
        _bar("GPU memory", report.gpu_memory_share),
    ]
    lines += [*_phase_lines(report), *_bound_lines(report)]
    lines += ["", _ruled("Per node")]
    for node in report.nodes:
        lines += _node_lines(report, node)
    if not report.nodes:
        lines += ["  No sample of it is stored."]
    said = notes(report)
    if said:
        lines += ["", _ruled("Notes")]
        for note in said:
            lines += wrap(note, WIDTH, initial_indent="  * ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _head(report: JobReport) -> list[str]:
    facts = report.facts
    user = "/".join(str(facts[k]) for k in ("username", "account") if facts.get(k))
    queue = "/".join(str(facts[k]) for k in ("qos", "partition") if facts.get(k))
    limit_s = facts.get("time_limit_seconds")
    code = facts.get("exit_code")
    state = str(facts.get("state") or ("ended" if report.is_over else "running"))
    cost = "" if report.usd is None else f"${report.usd:,.2f}"
    if report.wasted_usd:
        cost += f", of which ${report.wasted_usd:,.2f} wasted"
    pairs: list[tuple[str, str | None]] = [
        ("Job", report.job),
        ("Name", facts.get("job_name")),
        ("User/account", user or None),
        ("QOS/partition", queue or None),
        ("Reservation", facts.get("reservation")),
        ("State", state.upper() + (f", exit code {code}" if code else "")),
        ("Nodes", facts.get("node_list")),
        ("CPUs", _text(facts.get("cpus"))),
        ("GPUs", _text(facts.get("gpus"))),
        ("Started", f"{report.begin:%Y-%m-%d %H:%M:%S} UTC"),
        ("Run time", _span(report.seconds) + ("" if report.is_over else ", it runs")),
        ("Time limit", _span(limit_s) if limit_s else None),
        ("GPU hours", None if report.gpu_hours is None else f"{report.gpu_hours:.2f}"),
        ("Cost", cost or None),
    ]
    return [f"  {name:>14}: {value}" for name, value in pairs if value]


def _phase_lines(report: JobReport) -> list[str]:
    """Time by phase, and then the first phases with their evidence."""
    if not report.phases:
        return []
    lines = ["", _ruled("Phases")]
    found = shares(report.phases)
    whole = sum(found.values())
    lines += [
        f"  {phase:<12} {_span(seconds):>12}{_percent(seconds / whole)}"
        for phase, seconds in found.items()
    ]
    lines.append("")
    for one in report.phases[:PHASES_MAX]:
        said = (
            f"{one.begin:%m-%d %H:%M:%S}  {one.phase}: {one.evidence} ({one.confidence:.0%} sure)"
        )
        lines += wrap(said, WIDTH, initial_indent="  ", subsequent_indent=" " * 18)
    if len(report.phases) > PHASES_MAX:
        lines.append(f"  and {len(report.phases) - PHASES_MAX} more: --format json has all")
    if report.missing:
        lines += wrap(f"Not reported: {', '.join(report.missing)}.", WIDTH, initial_indent="  ", subsequent_indent="  ")  # fmt: skip
    return lines


def _bound_lines(report: JobReport) -> list[str]:
    """What bounds it, and what it reported of its progress."""
    lines = []
    if report.rooflines:
        lines += ["", _ruled("What bounds it")]
        for one in report.rooflines:
            model = f"{one.reading.model}: " if len(report.rooflines) > 1 else ""
            lines += wrap(f"{model}{one.sentence}", WIDTH, initial_indent="  ", subsequent_indent="  ")  # fmt: skip
            for roof in one.roofs:
                percent = "   –  " if roof.percent is None else f"{roof.percent:4.0f} %"
                said = f"{roof.name:<8} {percent}  {roof.words}"
                lines += wrap(said, WIDTH, initial_indent="  ", subsequent_indent=" " * 19)
    if report.progress:
        lines += ["", _ruled("Tokens and steps")]
        for reported in report.progress:
            lines += wrap(sentence(reported), WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def _node_lines(report: JobReport, node: Any) -> list[str]:
    lines = [f"  {node.node}"]
    if node.cpu_seconds is not None:
        had = f" of {node.cpus} CPUs" if node.cpus else ""
        share = (
            node.cpu_seconds / (node.cpus * report.seconds)
            if node.cpus and report.seconds
            else None
        )
        lines.append(f"    CPU         {_span(node.cpu_seconds)} of CPU time{had}{_percent(share)}")
    if node.memory_used_bytes is not None:
        limit = node.memory_limit_bytes
        of = f" of {size_text(limit)}" if limit else ""
        lines.append(
            f"    CPU memory  {size_text(node.memory_used_bytes)}{of}{_percent(node.memory_used_bytes / limit if limit else None)}"
        )
    for gpu in node.gpus:
        name = f"GPU {gpu.gpu if gpu.gpu is not None else gpu.gpu_uuid}"
        util = "not measured" if gpu.util_percent is None else f"{gpu.util_percent:5.1f} %"
        memory = (
            "" if gpu.memory_used_bytes is None else f", memory {size_text(gpu.memory_used_bytes)}"
        )
        total = (
            f" of {size_text(gpu.memory_total_bytes)}" if memory and gpu.memory_total_bytes else ""
        )
        power = "" if gpu.power_watts is None else f", {gpu.power_watts:.0f} W"
        lines.append(f"    {name:<11} {util}{memory}{total}{power}")
    return lines


def _ruled(title: str) -> str:
    return f"{title} {'─' * (WIDTH - len(title) - 1)}"


def _bar(name: str, share: float | None) -> str:
    if share is None:
        return f"  {name:<12} not measured"
    filled = round(min(1.0, share) * BAR)
    return f"  {name:<12} [{'|' * filled}{' ' * (BAR - filled)} {100 * share:4.0f} %]"


def _percent(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%})"


def _span(seconds: float) -> str:
    """ "2-03:04:05", "3:04:05", "0:04:05"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (
        f"{days}-{hour:02d}:{minute:02d}:{second:02d}"
        if days
        else f"{hour}:{minute:02d}:{second:02d}"
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def record(report: JobReport) -> dict[str, Any]:
    """The report as a dictionary for JSON."""
    facts = {k: v.isoformat() if isinstance(v, datetime) else v for k, v in report.facts.items()}
    used: Sequence[tuple[str, float | None]] = (
        ("cpu", report.cpu_share), ("memory", report.memory_share),
        ("gpu", report.gpu_share), ("gpu_memory", report.gpu_memory_share),
    )  # fmt: skip
    return {
        "job": report.job,
        "facts": facts,
        "seconds": report.seconds,
        "shares": {name: None if share is None else round(share, 4) for name, share in used},
        "summary": summary(report),
        "gpu_hours": report.gpu_hours,
        "usd": report.usd,
        "wasted_usd": report.wasted_usd,
        "phases": [
            {
                "phase": str(one.phase),
                "begin": one.begin.isoformat(),
                "end": one.end.isoformat(),
                "confidence": one.confidence,
                "evidence": one.evidence,
            }
            for one in report.phases
        ],
        "not_reported": list(report.missing),
        "progress": [dict(one.record()) for one in report.progress],
        "bounds": [dict(roofline_record(one)) for one in report.rooflines],
        "notes": notes(report),
    }
