"""Installs and checks prolog and epilog of a Slurm node: `gpuwarden slurm install|uninstall|status|summarize`.

`summarize` is in `gpuwarden_cli.slurm.summarize`.
"""

import argparse
import grp
import os
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

from gpuwarden.doctor import FAIL, OK, WARN, Check
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.commands.doctor import show_checks
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group
from gpuwarden_cli.slurm import summarize
from gpuwarden_cli.slurm.install import (
    CONFIGS,
    NOTES,
    PARTS,
    STUB,
    SlurmFile,
    SlurmHost,
    missing_files,
    missing_lines,
    needed_stubs,
    parse_config,
    script_path,
    wanted_files,
)

PING_TIMEOUT_S = 10.0
GROUP = "gpuwarden"


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(
        commands, "slurm", "connect a Slurm node to gpuwarden, and summarize ended jobs"
    )
    made = add_command(
        group, "install", _install, "write prolog and epilog of a Slurm node, and show the lines of slurm.conf",
        "The scripts note each job's start and end for the agent. They never wait and never fail a job.",
    )  # fmt: skip
    made.add_argument("--dry-run", action="store_true", help="show the steps, change nothing")
    made = add_command(group, "uninstall", _uninstall, "remove what `slurm install` wrote")
    made.add_argument("--dry-run", action="store_true", help="show the steps, change nothing")
    made = add_command(
        group, "status", _status, "check scripts, slurm.conf and notes of this node",
        "Exits with 1 if something is missing.",
    )  # fmt: skip
    add_format(made)
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
    alone = {part for part in PARTS if not _others(root, host, part)}
    has_notes = (root / NOTES.lstrip("/")).is_dir()
    return SlurmHost(path, host.config, found, has_notes, frozenset(alone))


def _others(root: Path, host: SlurmHost, part: str) -> set[Path]:
    """Scripts that slurm.conf names besides ours."""
    patterns = [
        value.lstrip("/") for value in host.config.get(part.lower(), ()) if value[:1] == "/"
    ]
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return found - {root / script_path(part, host).lstrip("/")}


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


def _uninstall(args: argparse.Namespace) -> int:
    host = seen_host()
    stubs = {file.path: file for file in needed_stubs(host)}
    for path, text in host.files.items():
        if path in stubs:
            if text != STUB:
                print(f"write  {path}: replaced by a script that does nothing")
                if not args.dry_run:
                    _write(stubs[path])
            continue
        print(f"remove {path}")
        if not args.dry_run:
            try:
                Path(path).unlink()
            except OSError as error:
                raise StartError(f"{path}: {error.strerror}; run it as root") from error
    if host.has_notes:
        print(f"remove {NOTES}")
        if not args.dry_run:
            shutil.rmtree(NOTES, ignore_errors=True)
    if stubs:
        print(
            f"\n{host.config_path} still names {', '.join(stubs)}, and Slurm fails every job where it finds"
            " nothing: take the lines out on all nodes, then scontrol reconfigure, then uninstall again"
        )
    elif not host.files and not host.has_notes:
        print("nothing to do: it is not installed")
    return 0


def _status(args: argparse.Namespace) -> int:
    return show_checks(examine(seen_host(), Path(NOTES)), args.format)


def examine(host: SlurmHost, notes: Path) -> list[Check]:
    """Checks of slurm.conf, scripts, notes and the controller."""
    checks = []
    if host.config_path is None:
        checks.append(Check("slurm.conf", WARN, "not found here", "set SLURM_CONF to its path"))
    lines = missing_lines(host) if host.config_path else []
    if lines:
        checks.append(
            Check(
                "slurm.conf",
                FAIL,
                f"{host.config_path} lacks: {'; '.join(lines)}",
                "add it on all nodes, then scontrol reconfigure",
            )
        )
    elif host.config_path:
        checks.append(Check("slurm.conf", OK, f"{host.config_path} runs both scripts", ""))
    missing = [file.path for file in missing_files(host)]
    if missing:
        checks.append(
            Check(
                "scripts",
                FAIL,
                f"missing or others: {', '.join(missing)}",
                "gpuwarden slurm install",
            )
        )
    else:
        checks.append(Check("scripts", OK, "prolog and epilog are this version's", ""))
    checks.append(_notes_check(notes))
    checks.append(_controller_check())
    return checks


def _notes_check(notes: Path) -> Check:
    try:
        found = notes.stat()
        names = os.listdir(notes)
    except OSError as error:
        return Check(
            "notes", FAIL, f"{notes}: {error.strerror}", "gpuwarden slurm install, as root"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Check(
            "notes", FAIL, f"{notes}: others than root may write there", f"chmod 2750 {notes}"
        )
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    if group != GROUP:
        return Check(
            "notes",
            FAIL,
            f"{notes} is of group {group}: the agent may not read it",
            f"chgrp {GROUP} {notes}",
        )
    ended = {name.removesuffix(".end") for name in names if name.endswith(".end")}
    running = {name for name in names if name.isdigit()} - ended
    return Check("notes", OK, f"{len(running)} jobs run, {len(ended)} ended lately", "")


def _controller_check() -> Check:
    command = shutil.which("scontrol")
    if command is None:
        return Check("controller", WARN, "scontrol is not here", "")
    try:
        done = subprocess.run(
            [command, "ping"], capture_output=True, text=True, timeout=PING_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("controller", WARN, f"no answer within {PING_TIMEOUT_S:g} s", "")
    said = " ".join((done.stdout or done.stderr).split())
    return Check("controller", OK if " UP" in said else WARN, said, "")
