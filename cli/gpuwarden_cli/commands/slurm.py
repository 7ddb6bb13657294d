"""Installs prolog and epilog of a Slurm node: `gpuwarden slurm install|summarize`.

`summarize` is in `gpuwarden_cli.slurm.summarize`.
"""

import argparse
import os
import shutil
from contextlib import suppress
from pathlib import Path

from gpuwarden.lifecycle import StartError
from gpuwarden_cli.parser import Commands, add_command, add_group
from gpuwarden_cli.slurm import summarize
from gpuwarden_cli.slurm.install import (
    CONFIGS,
    NOTES,
    SlurmFile,
    SlurmHost,
    missing_files,
    missing_lines,
    parse_config,
    wanted_files,
)

GROUP = "gpuwarden"


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(
        commands, "slurm", "connect a Slurm node to gpuwarden, and summarize ended jobs"
    )
    parser = add_command(
        group, "install", _install, "write prolog and epilog of a Slurm node, and show the lines of slurm.conf",
        "The scripts note each job's start and end for the agent. They never wait and never fail a job.",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="show the steps, change nothing")
    summarize.add_flags(add_command(
        group, "summarize", summarize.run, "write what ended jobs used into their AdminComment, and mail it",
        "Needs sacct and sacctmgr, and the rights of a Slurm operator. A job that has a comment keeps it.",
    ))  # fmt: skip


def seen_host(root: Path = Path("/"), config: str | None = None) -> SlurmHost:
    """Slurm's files on this host; `config`: path of slurm.conf (default: the usual places)."""
    named = config or os.environ.get("SLURM_CONF")
    path = next(
        (p for p in ([named] if named else CONFIGS) if (root / p.lstrip("/")).is_file()), None
    )
    text = (root / path.lstrip("/")).read_text(errors="replace") if path else ""
    host = SlurmHost(path, parse_config(text))
    found = {}
    for file in wanted_files(host):
        with suppress(OSError):
            found[file.path] = (root / file.path.lstrip("/")).read_text(errors="replace")
    return SlurmHost(path, host.config, found, (root / NOTES.lstrip("/")).is_dir())


def _install(args: argparse.Namespace) -> int:
    host = seen_host()
    files = missing_files(host)
    for file in files:
        print(f"write  {file.path} ({file.mode:04o})")
        if not args.dry_run:
            _write(file)
    if not host.has_notes:
        print(f"make   {NOTES} (2750 root:{GROUP})")
        if not args.dry_run:
            _make_notes(Path(NOTES))
    if not files and host.has_notes:
        print("nothing to do: the scripts are up to date")
    lines = missing_lines(host)
    if lines:
        print(f"\nslurm.conf ({host.config_path or 'not found here'}) of all nodes needs:\n")
        print("\n".join(lines))
        print("\nthen: scontrol reconfigure, and systemctl restart gpuwarden-agent")
    return 0


def _write(file: SlurmFile) -> None:
    path = Path(file.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.new")
        scratch.write_text(file.text)
        scratch.chmod(file.mode)
        scratch.replace(path)
    except OSError as error:
        raise StartError(f"{file.path}: {error.strerror}; run it as root") from error


def _make_notes(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o750)
        shutil.chown(folder, group=GROUP)
        folder.chmod(0o2750)
    except LookupError as error:
        folder.rmdir()
        raise StartError(f"there is no group {GROUP}: install the agent first") from error
    except OSError as error:
        raise StartError(f"{folder}: {error.strerror}; run it as root") from error
