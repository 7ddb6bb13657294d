"""The host as an install finds it, and the steps carried out on it."""

import contextlib
import fcntl
import grp
import json
import os
import pwd
import shutil
import subprocess
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuwarden_installer import plan
from gpuwarden_installer.plan import InstalledState, Link, Refused, Remove, Run, Step, Unpack, Write

LOCK = Path("/run/gpuwarden-installer.lock")
COMMANDS = {
    # Isolated: PYTHONPATH and PYTHONHOME of a user are for another Python.
    "gpuwarden": """\
#!{folder}/bin/python3 -I
import sys

from gpuwarden_cli.main import main

sys.exit(main())
""",
    "gpuwarden-installer": """\
#!/bin/sh
exec {folder}/bin/python3 -IB {folder}/installer "$@"
""",
}
MARK = ".complete"
"""A file with the version; written last, so a folder without it was not completed."""


class Failed(Exception):
    """A step did not succeed. The message is one line: which, why, and what to do."""


@contextlib.contextmanager
def alone(lock: Path = LOCK) -> Iterator[None]:
    """No other install runs meanwhile. Raises Refused where one does."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another install runs on this host: wait until it is done") from None
        yield


def look(part: str) -> InstalledState:
    """The installed state of this part. Raises Refused where the host cannot have it."""
    try:
        return _look(part)
    except PermissionError as error:
        raise Refused(f"{error.filename}: only root may look: run it with sudo") from error


def _look(part: str) -> InstalledState:
    if not shutil.which("systemctl") or not Path("/run/systemd/system").is_dir():
        raise Refused("this host does not run systemd: run `gpuwarden` from its wheel instead")
    paths = (plan.SYSUSERS, plan.TMPFILES, plan.COMMAND, plan.unit_of(part), plan.settings_of(part))
    links = (plan.COMMAND, plan.link_of(part), plan.previous_link_of(part))
    folders = [p for p in Path(plan.OPT).glob(f"{part}-*") if p.is_dir() and not p.is_symlink()]
    other = next(name for name in plan.STATE if name != part)
    return InstalledState(
        files={p: Path(p).read_text() for p in paths if Path(p).is_file()},
        links={p: os.readlink(p) for p in links if Path(p).is_symlink()},
        folders={str(p): (p / MARK).read_text().strip() for p in folders if (p / MARK).exists()},
        unfinished=tuple(str(p) for p in folders if not (p / MARK).exists()),
        has_user=_has_user(),
        has_other_part=Path(plan.unit_of(other)).exists(),
        is_enabled=_is_unit("is-enabled", part),
        is_active=_is_unit("is-active", part),
        free_bytes=_free_bytes(Path(plan.OPT)),
    )


def _free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _has_user() -> bool:
    try:
        pwd.getpwnam(plan.USER)
    except KeyError:
        return False
    return True


def _is_unit(question: str, part: str) -> bool:
    argv = ["systemctl", "--quiet", question, f"gpuwarden-{part}.service"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def carry_out(steps: Sequence[Step], archive: Path, version: str) -> None:
    """Print each step and do it. Raises Failed at the first that does not succeed."""
    for step in steps:
        print(step, flush=True)
        try:
            match step:
                case Write():
                    _write(step)
                case Run():
                    _run(step)
                case Unpack():
                    unpack(archive, Path(step.folder), version)
                case Link():
                    _link(step)
                case Remove():
                    _remove(Path(step.path))
        except OSError as error:
            raise Failed(f"{step}: {error.strerror or error}") from error


def _write(step: Write) -> None:
    path = Path(step.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(step.text)
    os.chown(new, 0, grp.getgrnam(step.group).gr_gid)
    new.chmod(step.mode)
    new.replace(path)


def _run(step: Run) -> None:
    done = subprocess.run(step.argv, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1] if said else f"it exited with {done.returncode}"
        if step.argv[:2] == ("systemctl", "restart"):
            why = _last_words(step.argv[2])
        raise Failed(f"{step}: {why}".replace("run    ", "", 1))


def _last_words(unit: str) -> str:
    """The last lines of the service's own log; systemctl only says that it failed."""
    argv = ["journalctl", "--unit", unit, "--lines=50", "--output=cat", "--no-pager"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    own = [line for line in said if line.startswith("gpuwarden: ")]
    return own[-1] if own else f"see `journalctl -u {unit}`"


def _link(step: Link) -> None:
    path = Path(step.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(step.target)
    new.replace(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path, version: str) -> None:
    """Make `folder` of the archives in the bundle: Python, packages, commands."""
    with zipfile.ZipFile(archive) as bundle:
        manifest = json.loads(bundle.read("manifest.json"))
        folder.mkdir(parents=True)
        if manifest["carried"]:
            _extract(bundle, "python.tar.xz", folder)
        else:
            # Without pip: Debian has it in a package of its own, and nobody is to add to this environment.
            venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        site = folder / "lib" / f"python{manifest['python']}" / "site-packages"
        for name in ("packages.tar.xz", "gpuwarden.tar.xz"):
            _extract(bundle, name, site)
        # The installer without the archives stays on the host, to roll back and uninstall.
        own = ("__main__.py", "manifest.json", "gpuwarden_installer/")
        bundle.extractall(
            folder / "installer", [name for name in bundle.namelist() if name.startswith(own)]
        )
    for name, text in COMMANDS.items():
        command = folder / "bin" / name
        command.write_text(text.format(folder=folder))
        command.chmod(0o755)
    compiling = [str(folder / "bin/python3"), "-I", "-m", "compileall", "-q", "-j", "0"]
    compiling += [str(folder)]
    subprocess.run(compiling, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    (folder / MARK).write_text(f"{version}\n")


def _extract(bundle: zipfile.ZipFile, name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with bundle.open(name) as held, tarfile.open(fileobj=held, mode="r|xz") as tar:
        tar.extractall(folder)
