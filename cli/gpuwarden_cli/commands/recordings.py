"""Records readings of the probes to a file: `gpuwarden agent record`."""

import argparse
import asyncio
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden import logs
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import counted

if TYPE_CHECKING:
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_simulator.recordings.recorder import RecordingTally


def seconds(text: str) -> float:
    """A positive number of seconds, for a flag."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a number of seconds above 0")
    return value


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpuwarden agent record`."""
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="the recording: NAME.jsonl.gz"
    )
    parser.add_argument(
        "--duration", type=seconds, metavar="S", help="seconds (default: until Ctrl-C)"
    )
    parser.add_argument(
        "--interval", type=seconds, metavar="S", help="seconds between ticks (default: interval_s)"
    )
    parser.add_argument(
        "--label", default="", metavar="TEXT", help="a note that is stored in the recording"
    )
    parser.add_argument(
        "--without-identity",
        action="store_true",
        help="replace hosts, users, jobs, commands, serial numbers and UUIDs by pseudonyms",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run_record(settings: "AgentSettings", args: argparse.Namespace) -> int:
    """Run `gpuwarden agent record`. Raises StartError."""
    from gpuwarden_agent.settings import TIMING
    from gpuwarden_cli.composition.agent import sources_of
    from gpuwarden_cli.composition.supervision import run_until_signalled
    from gpuwarden_simulator.recordings.pseudonyms import Pseudonyms
    from gpuwarden_simulator.recordings.recorder import Recorder, RecordingFile

    settings = _with_interval(settings, args.interval)
    logs.setup(settings.log_level, settings.log_format)
    sources = sources_of(settings)
    file = RecordingFile(args.output, force=args.force)
    print(
        f"gpuwarden agent: {sources.message}; recording to {args.output}",
        file=sys.stderr,
        flush=True,
    )
    recorder = Recorder(
        settings.node_name,
        sources.probes,
        file,
        SystemClock(),
        interval_ms=settings.interval_ms,
        deadline_s=TIMING.probe_deadline_s,
        label=args.label,
        pseudonyms=Pseudonyms() if args.without_identity else None,
    )
    trouble: OSError | None = None

    async def main(stop: asyncio.Event) -> None:
        nonlocal trouble
        try:
            await recorder.run(stop, args.duration)
        except OSError as error:
            trouble = error

    run_until_signalled(main)
    print(summary(recorder.tally, len(sources.probes), args.output))
    if trouble is None:
        return 0
    print(
        f"gpuwarden: {args.output} cannot be written: {trouble.strerror};"
        f" it is valid up to its first {recorder.tally.bytes_written:,} bytes",
        file=sys.stderr,
    )
    return 1


def _with_interval(settings: "AgentSettings", interval_s: float | None) -> "AgentSettings":
    if interval_s is None:
        return settings
    if not 0.1 <= interval_s <= 60:
        raise StartError(f"--interval {interval_s:g} must be between 0.1 and 60 seconds")
    return replace(settings, interval_s=interval_s)


def summary(tally: "RecordingTally", probes: int, path: Path) -> str:
    """A line on what was recorded."""

    rows = tally.rows.total()
    tables = sum(1 for number in tally.rows.values() if number)
    line = (
        f"{counted(tally.ticks, 'tick')} ({tally.missed:,} missed), {counted(rows, 'row')} of"
        f" {counted(tables, 'table')} from {counted(probes, 'probe')},"
        f" {counted(tally.failed, 'reading')} failed,"
        f" {counted(tally.bytes_written, 'byte')} in {path}"
    )
    if tally.left_out:
        names = ", ".join(sorted(tally.left_out))
        line += f"; {counted(tally.left_out.total(), 'value')} skipped as impossible: {names}"
    return line
