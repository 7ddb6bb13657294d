"""Finds problems of an installation and prints their remedies: `gpuwarden doctor`, `agent doctor`, `collector
doctor`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwarden import logs
from gpuwarden.clock import SystemClock
from gpuwarden.doctor import FAIL, Check, worst
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format

if TYPE_CHECKING:
    from gpuwarden_agent.doctor import CallCost
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_collector.settings import CollectorSettings

CALL_COLUMNS = ("call", "reading", "source", "supported", "code", "p50 ms", "p99 ms", "tier")
CHECK_COLUMNS = ("check", "status", "finding")
PARTS = ("collector", "agent")
ETC, OPT = Path("/etc/gpuwarden"), Path("/opt/gpuwarden")
"""Folders of an installation: settings, and virtual environments."""


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    parser = add_command(
        commands, "doctor", run_here, "find problems of this installation, and how to fix them",
        "Runs `agent doctor` and `collector doctor`, for the parts with settings in /etc/gpuwarden. Exits with 1 when"
        " a check fails.",
    )  # fmt: skip
    add_format(parser)


def run_here(args: argparse.Namespace, *, etc: Path = ETC, opt: Path = OPT) -> int:
    """Run the doctor of each part that is installed here; 1 when a check fails.

    Each runs in its own environment, as neither has the packages of the other. Raises StartError.
    """
    here = {part: etc / f"{part}.toml" for part in PARTS if (etc / f"{part}.toml").exists()}
    if not here:
        raise StartError(
            f"neither part is installed here ({etc} has no settings of either); for one that runs in another way:"
            " `gpuwarden agent doctor` or `gpuwarden collector doctor`, with its --config"
        )
    code, documents = 0, {}
    for part, config in here.items():
        command = opt / part / "bin" / "gpuwarden"
        start = [str(command)] if command.exists() else [sys.argv[0]]
        argv = [*start, part, "doctor", "--config", str(config), "--format", args.format]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
        code = max(code, done.returncode)
        if args.format == "json":
            documents[part] = _document(part, done)
        else:
            print(f"{part}\n{done.stdout}")
    if documents:
        print(json.dumps(documents, ensure_ascii=False, indent=2))
    return code


def _document(part: str, done: "subprocess.CompletedProcess[str]") -> Any:
    try:
        return json.loads(done.stdout)
    except ValueError:
        check = Check(part, FAIL, f"its doctor ended with {done.returncode} and said nothing", "")
        return {"checks": [asdict(check)]}


def run_collector_doctor(settings: "CollectorSettings", config: Path | None, form: str) -> int:
    """Check the collector and its host and print; 1 when a check fails."""
    from gpuwarden_collector.doctor import examine

    # A problem becomes a line of the table; the log would repeat it.
    logs.setup("critical")
    return show_checks(examine(settings, SystemClock(), config), form)


def show_checks(checks: Sequence[Check], form: str) -> int:
    """Print checks; the exit code: 1 where one fails."""
    if form == "json":
        made = {"checks": [asdict(check) for check in checks]}
        print(json.dumps(made, ensure_ascii=False, indent=2))
    else:
        width = terminal_width() if form == "table" else None
        print(render(CHECK_COLUMNS, _check_cells(checks), form, width=width), end="")
    return 1 if worst(checks) == FAIL else 0


def run_doctor(settings: "AgentSettings", form: str) -> int:
    """Check a GPU host and print; 1 when a check fails."""
    from gpuwarden_agent.doctor import check_host, examine
    from gpuwarden_cli.composition.agent import sources_of

    logs.setup("critical")
    clock = SystemClock()
    sources = sources_of(settings)
    probes = sources.probes
    print(f"gpuwarden agent: {sources.message}", file=sys.stderr)
    try:
        calls, answered = examine(probes, clock)
    finally:
        for probe in probes:
            probe.close()
    has_nvidia = any(probe.name == "kmsg" for probe in probes) or Path("/dev/nvidiactl").exists()
    checks = [*answered, *check_host(settings, clock, has_nvidia=has_nvidia)]
    print(rendered(checks, calls, form), end="")
    return 1 if worst(checks) == FAIL else 0


def rendered(checks: Sequence[Check], calls: "Sequence[CallCost]", form: str) -> str:
    """Checks and driver calls; CSV has the calls alone."""
    if form == "json":
        made = {
            "checks": [asdict(check) for check in checks],
            "calls": [{"source": call.source, **asdict(call.report)} for call in calls],
        }
        return json.dumps(made, ensure_ascii=False, indent=2) + "\n"
    cells = [_call_cells(call) for call in calls]
    if form == "csv":
        return render(CALL_COLUMNS, cells, form)
    found = render(CHECK_COLUMNS, _check_cells(checks), form, width=terminal_width())
    return f"{found}\n{render(CALL_COLUMNS, cells, form)}"


def _check_cells(checks: Sequence[Check]) -> list[list[object]]:
    """Cells of checks. The remedy follows the finding, as a column of its own would be mostly empty."""
    return [
        [c.name, c.status, c.finding + (f"; do: {c.remedy}" if c.remedy else "")] for c in checks
    ]


def _call_cells(call: "CallCost") -> list[object]:
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
