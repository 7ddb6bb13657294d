"""`gpuwarden agent record`, backend "replay", and `gpuwarden simulate --replay`."""

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden import logs
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import counted

if TYPE_CHECKING:
    from gpuwarden_agent.probe import Probe
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_simulator.recordings.recorder import RecordingTally
    from gpuwarden_simulator.recordings.replay import Recording, ReplayProbe


def seconds(text: str) -> float:
    """A positive number of seconds, for a flag."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a number of seconds above 0")
    return value


def add_flags(made: argparse.ArgumentParser) -> None:
    """The flags of `gpuwarden agent record`."""
    made.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="the recording: NAME.jsonl.gz"
    )
    made.add_argument(
        "--duration", type=seconds, metavar="S", help="seconds (default: until Ctrl-C)"
    )
    made.add_argument(
        "--interval", type=seconds, metavar="S", help="seconds between ticks (default: interval_s)"
    )
    made.add_argument(
        "--label", default="", metavar="TEXT", help="a note that is stored in the recording"
    )
    made.add_argument(
        "--without-identity",
        action="store_true",
        help="replace hosts, users, jobs, commands, serial numbers and UUIDs by pseudonyms",
    )
    made.add_argument("--force", action="store_true", help="overwrite an existing file")


def run_record(settings: "AgentSettings", args: argparse.Namespace) -> int:
    """`gpuwarden agent record`. Raises StartError."""
    from gpuwarden_cli.services import probes_of, run_until_signalled
    from gpuwarden_simulator.recordings.pseudonyms import Pseudonyms
    from gpuwarden_simulator.recordings.recorder import Recorder, RecordingFile

    settings = _with_interval(settings, args.interval)
    logs.setup(settings.log_level, settings.log_format)
    probes, message = probes_of(settings)
    file = RecordingFile(args.output, force=args.force)
    print(f"gpuwarden agent: {message}; recording to {args.output}", file=sys.stderr, flush=True)
    recorder = Recorder(
        settings.node_name,
        probes,
        file,
        SystemClock(),
        interval_ms=settings.interval_ms,
        deadline_s=settings.probe_deadline_s,
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
    print(summary(recorder.tally, len(probes), args.output))
    if trouble is None:
        return 0
    print(
        f"gpuwarden: {args.output} takes no more: {trouble.strerror};"
        f" it is good up to its first {recorder.tally.bytes_written:,} bytes",
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
    """What was recorded, in one line."""

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


def replayed(settings: "AgentSettings") -> "tuple[list[Probe], str]":
    """The probes of backend "replay", and a line on what they play. Raises StartError."""
    from gpuwarden_simulator.recordings.replay import Play

    if settings.replay_file is None:
        raise StartError("backend replay needs replay_file: a recording to play")
    recording = open_recording(settings.replay_file)
    play = Play(recording, settings.node_name, is_looped=settings.replay_loop)
    return [*play.probes()], told(recording)


def replay_nodes(
    path: Path, names: Sequence[str]
) -> "tuple[list[tuple[str, list[ReplayProbe]]], str]":
    """A fleet that plays one recording, and a line on it. Raises StartError."""
    from gpuwarden_simulator.recordings.replay import replay_fleet

    recording = open_recording(path)
    line = f"{told(recording)}; on {counted(len(names), 'node')}"
    return replay_fleet(recording, names), line


def open_recording(path: Path) -> "Recording":
    """Open a recording for replay. Raises StartError."""
    from gpuwarden_simulator.recordings.format import RecordingError
    from gpuwarden_simulator.recordings.replay import Recording

    try:
        return Recording(path)
    except RecordingError as error:
        raise StartError(str(error)) from error


def told(recording: "Recording") -> str:
    """One line on a recording: what, whose, how long, and what is not right with it."""
    from gpuwarden_agent.events.kinds import span

    header = recording.header
    gpus = f"{recording.gpus} GPU probe{'' if recording.gpus == 1 else 's'}"
    line = (
        f"replaying {recording.path}: {span(recording.length_ms / 1000)} of {header.node}, {gpus}"
    )
    if header.label:
        line += f", {header.label!r}"
    if not recording.is_whole:
        line += "; it was cut, and is played up to its last whole block"
    if recording.unknown:
        line += f"; unknown to this version and skipped: {', '.join(sorted(recording.unknown))}"
    return line
