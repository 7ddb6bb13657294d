"""`gpuwarden agent doctor`: what the agent can read here, what it costs, what is in its way."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden import logs
from gpuwarden_cli.output import render, terminal_width

if TYPE_CHECKING:
    from gpuwarden_agent.doctor import Call, Check
    from gpuwarden_agent.settings import AgentSettings

CALL_COLUMNS = ("call", "reading", "source", "supported", "code", "p50 ms", "p99 ms", "tier")


def run_doctor(settings: "AgentSettings", form: str) -> int:
    """Examine and print; 1 where samples are lost or do not arrive."""
    from gpuwarden.clock import SystemClock
    from gpuwarden_agent.doctor import FAILED, check_host, examine, worst
    from gpuwarden_cli.services import probes_of

    # What fails becomes a line of the table; the log would say it twice.
    logs.setup("critical")
    clock = SystemClock()
    probes, message = probes_of(settings)
    print(f"gpuwarden agent: {message}", file=sys.stderr)
    try:
        calls, answered = examine(probes, clock)
    finally:
        for probe in probes:
            probe.close()
    has_nvidia = any(probe.name == "kmsg" for probe in probes) or Path("/dev/nvidiactl").exists()
    checks = [*answered, *check_host(settings, clock, has_nvidia=has_nvidia)]
    print(rendered(checks, calls, form), end="")
    return 1 if worst(checks) == FAILED else 0


def rendered(checks: "Sequence[Check]", calls: "Sequence[Call]", form: str) -> str:
    """Both tables for people; JSON has both, CSV the calls alone."""
    if form == "json":
        made = {
            "checks": [asdict(check) for check in checks],
            "calls": [{"source": call.source, **asdict(call.report)} for call in calls],
        }
        return json.dumps(made, ensure_ascii=False, indent=2) + "\n"
    cells = [_call_cells(call) for call in calls]
    if form == "csv":
        return render(CALL_COLUMNS, cells, form)
    rows = [[c.name, c.status, c.finding + (f"; {c.remedy}" if c.remedy else "")] for c in checks]
    found = render(("check", "status", "finding"), rows, form, width=terminal_width())
    return f"{found}\n{render(CALL_COLUMNS, cells, form)}"


def _call_cells(call: "Call") -> list[object]:
    report = call.report
    return [
        report.call,
        report.reading,
        call.source,
        "yes" if report.supported else "no",
        report.code,
        None if report.p50_ms is None else round(report.p50_ms, 3),
        None if report.p99_ms is None else round(report.p99_ms, 3),
        f"{report.tier_s} s",
    ]
