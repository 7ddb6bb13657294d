"""Makes the doctor's checks from a running collector's health document (`health.py`); pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuwarden import __version__
from gpuwarden.doctor import FAIL, OK, WARN, Check
from gpuwarden_collector.ingest.writer import QUEUE_BYTES_MAX

LAG_S_MAX = 60.0
"""Rows are five seconds old when an agent sends them; if they are older than this, something is behind."""
QUEUE_MAX = 0.5
COVERAGE_PERCENT_MIN = 90.0
NODE_PERCENT_MIN = 75.0
"""Rules need three quarters of their window."""
MESSAGES_MAX = 100


def health_checks(document: Mapping[str, Any]) -> Iterator[Check]:
    """Checks of versions, lag, fleet, rules and notifications."""
    yield _version(document)
    yield _lag(document["sample"])
    answers = {
        "agents": ("nodes", _agents),
        "versions": ("versions", _versions),
        "coverage": ("coverage", _coverage),
        "clock": ("clocks", _clock),
    }
    for name, (question, judge) in answers.items():
        rows = document[question]
        if isinstance(rows, str):
            yield Check(
                name, WARN, f"the query failed: {rows}", "journalctl -u gpuwarden-collector"
            )
        else:
            yield judge(rows)
    if not document["sample"]["clock_confirmed"]:
        finding = "neither an agent nor the kernel confirms this clock: nothing is dropped by age"
        yield Check("clock", WARN, finding, "run chrony or ntpd here")
    yield _jobs(document["sample"])
    yield _rules(document["sample"], document.get("unjudged"))
    yield _notifications(document["sample"])


def _version(document: Mapping[str, Any]) -> Check:
    runs = document["version"]
    if runs == __version__:
        return Check("version", OK, f"{runs} runs and is installed")
    finding = f"{runs} runs, and {__version__} is installed"
    return Check("version", WARN, finding, "systemctl restart gpuwarden-collector")


def _lag(sample: Mapping[str, Any]) -> Check:
    lag_s, queue = sample["ingest_lag_seconds"], sample["queue_bytes"]
    if queue > QUEUE_MAX * QUEUE_BYTES_MAX:
        finding = f"{queue:,} bytes wait for the writer, of at most {QUEUE_BYTES_MAX:,}"
        return Check(
            "lag", WARN, finding, "give it a faster disk, or another collector (docs/cluster.md)"
        )
    if lag_s is None:
        return Check("lag", OK, "no rows came in the last minute, and none wait")
    if lag_s > LAG_S_MAX:
        finding = f"rows are {lag_s:.0f} s old when they are stored"
        remedy = "wait if agents send their backlog; otherwise check the disk and the clocks"
        return Check("lag", WARN, finding, remedy)
    return Check("lag", OK, f"rows are {max(0.0, lag_s):.0f} s old when they are stored")


def _agents(rows: list[Mapping[str, Any]]) -> Check:
    nodes, silent = rows[0]["nodes"], rows[0]["silent"]
    if not nodes:
        remedy = "set one up on a GPU host: docs/install.md"
        return Check("agents", WARN, "no agent has sent anything for a week", remedy)
    if not silent:
        return Check("agents", OK, f"{nodes} sent within the last minute")
    names = ", ".join(rows[0]["silent_names"]) + (", ..." if silent > 5 else "")
    finding = f"{silent} of {nodes} have sent nothing for a minute: {names}"
    remedy = "on them: `gpuwarden agent doctor --config /etc/gpuwarden/agent.toml`"
    return Check("agents", FAIL if silent == nodes else WARN, finding, remedy)


def _versions(rows: list[Mapping[str, Any]]) -> Check:
    said = ", ".join(f"{row['version']} on {row['nodes']}" for row in rows) or "none"
    newer = [row for row in rows if _numbers(row["version"]) > _numbers(__version__)]
    if newer:
        finding = (
            f"the agent of {newer[0]['example']} is {newer[0]['version']}, this is {__version__}"
        )
        return Check("versions", WARN, finding, "upgrade the collector: upgrade collectors first")
    return Check("versions", OK, f"agents: {said}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _coverage(rows: list[Mapping[str, Any]]) -> Check:
    row = rows[0]
    percent, worst = row["percent"], row["worst_percent"]
    if percent is None or worst is None:
        return Check("coverage", OK, "no agent has reported coverage yet")
    finding = f"{percent:.1f} % of the readings due in the last ten minutes were taken"
    if percent < COVERAGE_PERCENT_MIN or worst < NODE_PERCENT_MIN:
        finding += f"; {row['worst']} has {worst:.0f} %"
        return Check("coverage", WARN, finding, "gpuwarden alerts list; docs/rules/coverage_low.md")
    return Check("coverage", OK, finding)


def _clock(rows: list[Mapping[str, Any]]) -> Check:
    row = rows[0]
    if not row["nodes"]:
        return Check("clock", OK, "there are no samples of agents to compare with")
    if not row["ahead"]:
        return Check("clock", OK, "no agent's samples are in the future")
    ahead = f"by {row['ahead_s']:.0f} s"
    if row["nodes"] > 1 and row["ahead"] > row["nodes"] / 2:
        finding = f"this clock is behind those of {row['ahead']} of {row['nodes']} nodes, {ahead}"
        return Check("clock", WARN, finding, "run chrony or ntpd here")
    finding = f"the clock of {row['example']} is ahead of this one {ahead}"
    return Check("clock", WARN, finding, "run chrony or ntpd on both")


def _jobs(sample: Mapping[str, Any]) -> Check:
    if late := sample.get("late_jobs"):  # an older collector says nothing here
        finding = f"these scheduled jobs do not end: {late}"
        return Check("jobs", WARN, finding, "systemctl restart gpuwarden-collector")
    return Check("jobs", OK, "all scheduled jobs run in time")


def _rules(sample: Mapping[str, Any], unjudged: str | None) -> Check:
    if sample["rules"] is None:
        return Check("rules", WARN, "none run yet", "journalctl -u gpuwarden-collector")
    if sample["rules_failing"]:
        finding = f"of {sample['rules']} these fail: {sample['rules_failing']}"
        return Check("rules", FAIL, finding, "gpuwarden rules list, then gpuwarden rules check")
    if unjudged is not None:
        return Check("rules", WARN, unjudged.removesuffix("."), "journalctl -u gpuwarden-collector")
    return Check("rules", OK, f"{sample['rules']} run")


def _notifications(sample: Mapping[str, Any]) -> Check:
    waiting, failing = sample["messages_waiting"], sample["receivers_failing"]
    if waiting is None:
        return Check("notify", OK, "notifications are off: notify_file is not set")
    if failing:
        finding = f"the last message to {failing} failed; {waiting} wait"
        first = failing.split(", ")[0]
        return Check("notify", FAIL, finding, f"gpuwarden notify test --receiver {first}")
    if waiting > MESSAGES_MAX:
        return Check(
            "notify", WARN, f"{waiting} messages wait", "journalctl -u gpuwarden-collector"
        )
    return Check("notify", OK, f"every receiver takes messages; {waiting} wait")
