"""Opens a recording and makes the probes that replay it, on one node or on a fleet."""

from collections.abc import Sequence
from pathlib import Path

from gpuwarden.lifecycle import StartError
from gpuwarden_agent.events.kinds import span
from gpuwarden_agent.probe import Probe
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.output import counted
from gpuwarden_simulator.recordings.format import RecordingError
from gpuwarden_simulator.recordings.replay import Play, Recording, ReplayProbe, replay_fleet


def replayed(settings: AgentSettings) -> tuple[list[Probe], str]:
    """The probes of backend "replay", and a line on the recording. Raises StartError."""
    if settings.replay_file is None:
        raise StartError("backend replay needs replay_file: a recording to play")
    recording = open_recording(settings.replay_file)
    play = Play(recording, settings.node_name)
    return [*play.probes()], recording_line(recording)


def replay_nodes(
    path: Path, names: Sequence[str]
) -> tuple[list[tuple[str, list[ReplayProbe]]], str]:
    """Nodes that all replay a recording, and a line on them. Raises StartError."""
    recording = open_recording(path)
    line = f"{recording_line(recording)}; on {counted(len(names), 'node')}"
    return replay_fleet(recording, names), line


def open_recording(path: Path) -> Recording:
    """Open a recording for replay. Raises StartError."""
    try:
        return Recording(path)
    except RecordingError as error:
        raise StartError(str(error)) from error


def recording_line(recording: Recording) -> str:
    """A line on a recording: path, length, node, GPUs, label, and problems."""
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
