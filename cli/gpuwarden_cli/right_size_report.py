"""Shows what would cost less, for `gpuwarden report right-size`. `gpuwarden.right_size` computes it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuwarden.right_size import RightSize
from gpuwarden_cli.output import counted, render, terminal_width

NOBODY = "(none)"


def asked(username: str | None, job: str | None) -> tuple[str, Mapping[str, Any]]:
    """A condition on processes, and its parameters."""
    conditions, params = ["true"], {}
    if username is not None:
        conditions.append("username = $username")
        params["username"] = username
    if job is not None:
        conditions.append("job = $job")
        params["job"] = job
    return " AND ".join(conditions[1:] or conditions), params


def records(found: Sequence[RightSize]) -> list[Mapping[str, Any]]:
    """For JSON, by job."""
    return [one.record() for one in found]


def grouped(found: Sequence[RightSize], by: str) -> list[dict[str, Any]]:
    """Hours, jobs with advice and dollars by user or model; of each job what saves most."""
    groups: dict[str, dict[str, Any]] = {}
    for one in found:
        name = (one.need.username if by == "username" else one.need.model) or NOBODY
        empty = {by: name, "gpu_hours": 0.0, "jobs": 0, "jobs_with_advice": 0, "usd_a_month": 0.0}
        group = groups.setdefault(name, empty)
        group["gpu_hours"] += one.need.gpu_hours
        group["jobs"] += 1
        if one.best:
            group["jobs_with_advice"] += 1
            group["usd_a_month"] += one.best.usd_a_month
    return sorted(groups.values(), key=lambda group: (-group["usd_a_month"], group[by]))


def screen(
    found: Sequence[RightSize],
    by: str,
    top: int,
    since: datetime,
    until: datetime,
    *,
    with_all: bool,
) -> str:
    """Lines for people: what to use, what it saves, why, and what that assumes."""
    kind = " (simulated)" if found and all(one.need.simulated for one in found) else ""
    lines = [f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC, by {by}{kind}\n\n"]
    advised = [one for one in found if one.best]
    if by != "job":
        lines.append(_groups(grouped(found, by), by, top))
    elif not found:
        lines.append("No process held a whole GPU in that time.\n")
    else:
        for one in advised[:top]:
            lines += _advised(one)
        if len(advised) > top:
            lines.append(f"{counted(len(advised) - top, 'job')} more: --top shows them.\n")
    quiet = [one for one in found if not one.best]
    if quiet and not with_all:
        lines.append(f"{counted(len(quiet), 'job')} without advice: --all says why.\n")
    for one in quiet if with_all else ():
        why = "; ".join(one.missing) or "nothing that is known would cost less"
        lines.append(f"{_name(one)}: no advice: {why}.\n")
    return "".join(lines)


def _groups(groups: Sequence[Mapping[str, Any]], by: str, top: int) -> str:
    rows = [
        [
            group[by],
            round(group["gpu_hours"], 1),
            group["jobs"],
            group["jobs_with_advice"],
            round(group["usd_a_month"], 2),
        ]
        for group in groups[:top]
    ]
    heads = [by, "GPU hours", "jobs", "with advice", "saves $ a month"]
    return render(heads, rows, "table", width=terminal_width())


def _name(one: RightSize) -> str:
    need = one.need
    job = f"job {need.job}" if need.job else "no job"
    return f"{job} of {need.username or 'nobody known'} on {need.gpus} x {need.model or 'unknown model'}"


def _advised(one: RightSize) -> Sequence[str]:
    lines = [f"{_name(one)}, {one.need.gpu_hours:,.1f} GPU hours\n"]
    lines += [
        f"  ${advice.usd_a_month:,.2f} a month: use {advice.use}. Because {advice.why}.\n"
        f"    Assumed: {advice.assumes}\n"
        for advice in one.advice
    ]
    lines += [f"  not judged: {missing}\n" for missing in one.missing]
    return lines
