"""The host as an install finds it, and the steps carried out on it."""

import contextlib
import fcntl
import grp
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuwarden_installer import plan
from gpuwarden_installer.plan import InstalledState, Link, Refused, Remove, Run, Step, Unpack, Write

LOCK = Path("/run/gpuwarden-installer.lock")
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
    """What there is of this part. Raises Refused where the host cannot have it."""
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
    )


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
    """What the service said itself; systemctl only says that it failed."""
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
    """Make the virtual environment `folder` of the wheels in `archive`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Without pip: Debian has it in a package of its own, and nobody is to add to this environment.
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(archive) as bundle:
            names = [name for name in bundle.namelist() if name.startswith("wheels/")]
            bundle.extractall(scratch, names)
            _keep_installer(bundle, folder / "installer")
        for wheel in sorted(Path(scratch, "wheels").iterdir()):
            install_wheel(wheel, folder)
    compiling = [str(folder / "bin/python"), "-m", "compileall", "-q", "-j", "0"]
    # What packages bring for testing themselves is never imported, and is a third of it.
    compiling += ["-x", "/tests/", str(folder)]
    subprocess.run(compiling, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    (folder / MARK).write_text(f"{version}\n")


def install_wheel(wheel: Path, folder: Path) -> None:
    """Lay out one wheel, which must be what its own record says."""
    from installer import install
    from installer.destinations import SchemeDictionaryDestination
    from installer.exceptions import InstallerError
    from installer.sources import WheelFile

    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    schemes = {
        "purelib": str(site),
        "platlib": str(site),
        "scripts": str(folder / "bin"),
        "headers": str(folder / "include"),
        "data": str(folder),
    }
    destination = SchemeDictionaryDestination(schemes, str(folder / "bin/python"), "posix")
    try:
        with WheelFile.open(wheel) as source:
            source.validate_record()
            install(source, destination, {"INSTALLER": b"gpuwarden"})
    except (InstallerError, zipfile.BadZipFile) as error:
        raise Failed(f"{wheel.name}: {error}: the bundle is damaged, fetch it again") from error


def _keep_installer(bundle: zipfile.ZipFile, folder: Path) -> None:
    """The installer without wheels stays on the host, to roll back and uninstall."""
    own = ("__main__.py", "manifest.json", "gpuwarden_installer/")
    bundle.extractall(folder, [name for name in bundle.namelist() if name.startswith(own)])
