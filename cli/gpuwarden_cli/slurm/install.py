"""Plans the installation of prolog and epilog, as pure functions of slurm.conf and the installed files.

slurm.conf is never changed, as all nodes of a cluster share it. The lines that it lacks are printed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import PurePosixPath

NOTES = "/run/gpuwarden-slurm"
TMPFILES = "/etc/tmpfiles.d/gpuwarden-slurm.conf"
TMPFILES_TEXT = f"""\
# What Slurm's prolog and epilog note for the agent: only root writes, only the agent's group reads.
d {NOTES} 2750 root gpuwarden -
"""
SCRIPT = "60-gpuwarden.sh"
PARTS = ("Prolog", "Epilog")
CONFIGS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
)
"""Usual paths of slurm.conf: of packages, then copies that a controller distributes."""

_LINE = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$")
_ALLOC = frozenset({"alloc", "contain", "nohold", "x11"})
"""PrologFlags with which the prolog runs on every node at allocation."""


@dataclass(frozen=True, slots=True)
class SlurmHost:
    """Slurm's files on a host."""

    config_path: str | None
    """Path of slurm.conf; None: not found."""
    config: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Values by name in lower case."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text by path, of the files that an installation writes."""
    has_notes: bool = False
    """Whether the folder of notes exists."""


@dataclass(frozen=True, slots=True)
class SlurmFile:
    """A file to write."""

    path: str
    text: str
    mode: int


def parse_config(text: str) -> dict[str, list[str]]:
    """Values of slurm.conf by name in lower case; a backslash at the end of a line continues it."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if (told := _LINE.match(re.sub(r"(?<!\\)#.*", "", line))) is not None:
            found.setdefault(told.group(1).lower(), []).append(told.group(2).strip('"'))
    return found


def script_text(part: str) -> str:
    """Text of the prolog or epilog."""
    from importlib.resources import files  # every command loads this module

    return (files("gpuwarden_cli.slurm") / f"{part.lower()}.sh").read_text()


def script_path(part: str, host: SlurmHost) -> str:
    """Path of the script: in the folder that slurm.conf names with a pattern, else beside slurm.conf."""
    for value in host.config.get(part.lower(), ()):
        folder, _, pattern = value.rpartition("/")
        if folder and "*" in pattern and fnmatch(SCRIPT, pattern):
            return f"{folder}/{SCRIPT}"
    folder = "/etc/slurm"
    if host.config_path is not None and host.config_path.startswith("/etc/"):
        folder = str(PurePosixPath(host.config_path).parent)
    return f"{folder}/{part.lower()}.d/{SCRIPT}"


def wanted_files(host: SlurmHost) -> list[SlurmFile]:
    """Files that an installation writes."""
    scripts = [SlurmFile(script_path(part, host), script_text(part), 0o755) for part in PARTS]
    return [*scripts, SlurmFile(TMPFILES, TMPFILES_TEXT, 0o644)]


def names(value: str, path: str) -> bool:
    """Whether a value of Prolog or Epilog matches a script."""
    return value == path or fnmatch(path, value)


def missing_files(host: SlurmHost) -> list[SlurmFile]:
    """Wanted files that are missing or differ."""
    return [file for file in wanted_files(host) if host.files.get(file.path) != file.text]


def missing_lines(host: SlurmHost) -> list[str]:
    """Lines that slurm.conf lacks; a comment where a person must edit a script."""
    lines = []
    for part in PARTS:
        path = script_path(part, host)
        values = [value for value in host.config.get(part.lower(), ()) if value.lower() != "(null)"]
        if any(names(value, path) for value in values):
            continue
        if values:
            lines.append(f"# {values[0]} is the {part} already: add the line `{path}` to it")
        else:
            lines.append(f"{part}={PurePosixPath(path).parent}/*")
    flags = [
        flag for value in host.config.get("prologflags", ()) for flag in value.split(",") if flag
    ]
    if not _ALLOC & {flag.strip().lower() for flag in flags}:
        lines.append(f"PrologFlags={','.join([*flags, 'Alloc'])}")
    return lines
