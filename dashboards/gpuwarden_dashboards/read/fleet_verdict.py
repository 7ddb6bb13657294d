"""Says in a sentence what is wrong with the fleet, what it costs, and what to do first. Pure."""

from dataclasses import dataclass

from gpuwarden.durations import readable
from gpuwarden.query import Record
from gpuwarden_dashboards.read.fleet import SILENT_AFTER, Trouble
from gpuwarden_dashboards.read.money import HOURS_A_MONTH


@dataclass(frozen=True, slots=True)
class FleetVerdict:
    """What the first page says first."""

    level: str
    """critical, warning, info, good, or "": nothing is known."""
    word: str
    sentence: str
    usd_per_hour: float | None = None
    """What is wasted now; None: nothing, or no price is known."""
    usd_per_month: float | None = None
    """The same over a month, if nothing changes."""
    action: str = ""
    """What to do first."""
    path: str = ""
    """The address of what the action is about."""
    owner: str | None = None
    """Who has to do it; None: unknown."""


def fleet_verdict(trouble: Trouble, totals: Record, unjudged: str | None) -> FleetVerdict:
    """The worst that is known: no data, an incident, an alert, silence; else what idles. `unjudged`: why the absence
    of alerts says nothing."""
    if (absent := _without_data(trouble, totals)) is not None:
        return absent
    wasted = totals["usd_wasted_per_hour"] or None
    cost = (wasted, wasted and wasted * HOURS_A_MONTH)
    if loud := [one for one in trouble.incidents if one["muted"] is None]:
        worst, total = loud[0], loud[0]["loud"]
        what = "1 incident is open" if total == 1 else f"{total:,} incidents are open"
        critical = worst["critical"]
        if total > 1 and critical:
            what += f", {critical:,} critical" if critical < total else ", all critical"
        path = f"/incidents/{worst['id']}"
        return _of(worst, f"{what}. {_first(total)}{worst['summary']}", cost, path)
    if alerts := [one for one in trouble.alerts if one["muted"] is None]:
        worst, total = alerts[0], alerts[0]["loud"]
        what = "1 alert fires" if total == 1 else f"{total:,} alerts fire"
        path = f"/alerts/{worst['fingerprint']}"
        return _of(worst, f"{what}. {_first(total)}{worst['summary']}", cost, path)
    silent = totals["gpus"] - totals["reporting"]
    if silent:
        said = (
            f"{silent:,} of {totals['gpus']:,} GPUs {'does' if silent == 1 else 'do'} not report."
        )
        action = "Check these nodes and their agents."
        path = '/?filter=state="not reporting"'
        return FleetVerdict("warning", "Not reporting", said, *cost, action, path)
    if unjudged:
        return FleetVerdict("", "Not judged", unjudged, *cost)
    return _well(trouble, totals, cost)


def _first(total: int) -> str:
    return "" if total == 1 else "The worst: "


def _of(
    worst: Record, sentence: str, cost: tuple[float | None, float | None], path: str
) -> FleetVerdict:
    level = worst["severity"]
    remedy, owner = worst["remedy"] or "", worst["owner"]
    return FleetVerdict(level, level.capitalize(), sentence, *cost, remedy, path, owner)


def _without_data(trouble: Trouble, totals: Record) -> FleetVerdict | None:
    """The verdict where no GPU sends anything; None: some do."""
    if not totals["nodes"]:
        said = "No host has reported yet. This page fills as soon as the first one does."
        return FleetVerdict("", "No data yet", said)
    if totals["reporting"]:
        return None
    age = None if totals["newest_at"] is None else trouble.now - totals["newest_at"]
    if age is not None and age <= SILENT_AFTER:
        if totals["gpus"]:
            return FleetVerdict("", "Starting", "The first samples of the GPUs are on their way.")
        hosts = "1 host reports" if totals["nodes"] == 1 else f"{totals['nodes']:,} hosts report"
        action = "`gpuwarden doctor` on the host says whether its driver can be read."
        return FleetVerdict("", "No GPU", f"{hosts}, and no GPU was found.", action=action)
    since = "" if age is None else f" for {readable(age.total_seconds())}"
    action = "Check that the agents run (`systemctl status gpuwarden-agent` on a GPU host) and reach this collector."
    said = f"Nothing was received{since}: all readings here are old."
    return FleetVerdict("critical", "No data", said, action=action, path="/collector")


def _well(
    trouble: Trouble, totals: Record, cost: tuple[float | None, float | None]
) -> FleetVerdict:
    said = "1 GPU reports" if totals["gpus"] == 1 else f"All {totals['gpus']:,} GPUs report"
    muted = trouble.incidents[0]["total"] if trouble.incidents else 0
    said += ", and nothing new is wrong" if muted else ", and nothing is wrong"
    if muted:
        said += f": {muted:,} {'incident is' if muted == 1 else 'incidents are'} acknowledged or silenced"
    idle = totals["idle"]
    if not (idle and cost[0]):
        return FleetVerdict("good", "Well", f"{said}.", *cost)
    action = f"{'1 GPU is' if idle == 1 else f'{idle:,} GPUs are'} idle: see who holds them."
    path = "/?filter=state=idle&group=user"
    return FleetVerdict("good", "Well", f"{said}.", *cost, action, path)
