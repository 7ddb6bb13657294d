"""A Debian machine with systemd for tests: a container that boots, is driven, reboots and is thrown away.

The root file system is made once with debootstrap and kept in /var/cache; each machine writes to an overlay
of its own, has a network of its own with only the loopback in it, and leaves nothing on this host.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGES = ("systemd", "systemd-sysv", "procps", "iproute2")
BASES = Path("/var/cache/gpuwarden-test")
TOOLS = ("debootstrap", "systemd-nspawn", "nsenter", "mount", "umount")
REBOOTED = 133
"""How systemd-nspawn --keep-unit ends when the container wants to boot again."""


def why_not() -> str | None:
    """What this host lacks for such a machine; None: nothing."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else None


def base(suite: str, packages: tuple[str, ...]) -> Path:
    """The root file system that machines of this kind start from."""
    made = BASES / "-".join((suite, *packages))
    if not made.is_dir():
        BASES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BASES) as scratch:
            root = Path(scratch, "root")
            include = f"--include={','.join(packages)}"
            argv = ["debootstrap", "--variant=minbase", include, suite, str(root)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(
                    f"debootstrap: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
                )
            for archive in root.glob("var/cache/apt/archives/*.deb"):
                archive.unlink()
            root.rename(made)
    return made


class Machine:
    """One container. `run` is a root shell in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = folder / "root"
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Start it and wait until systemd has started everything."""
        argv = [
            "systemd-nspawn", "--quiet", "--boot", f"--directory={self.root}", "--register=no",
            "--keep-unit", "--private-network", "--console=read-only", "--machine=gpuwarden-test",
            "--resolv-conf=off", "--timezone=off", "--link-journal=no",
            # A container may not by default; what our units allow must be tested.
            "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self",
        ]  # fmt: skip
        with (self._folder / "console").open("ab") as console:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        self.wait("systemctl is-system-running | grep -qE 'running|degraded'", 60)

    def reboot(self) -> None:
        """Boot again, as `systemctl reboot` does."""
        assert self._process
        self.run("systemctl reboot", check=False)
        assert self._process.wait(60) == REBOOTED
        self.boot()

    def stop(self) -> None:
        """Power off."""
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._leader():
                self.run("systemctl poweroff", check=False)
            self._process.wait(30)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def run(self, script: str, *, check: bool = True, timeout_s: float = 180) -> str:
        """Standard output and error of a shell script run as root in the machine."""
        leader = self._leader()
        assert leader, (self._folder / "console").read_text(errors="replace")[-2000:]
        argv = ["nsenter", f"--target={leader}", "--all", "/usr/bin/env", "-i", "TERM=dumb",
                "PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "sh", "-c", script]  # fmt: skip
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        output = done.stdout + done.stderr
        assert not check or done.returncode == 0, f"{script}\n{output}"
        return output

    def wait(self, script: str, timeout_s: float = 60) -> None:
        """Until the script succeeds."""
        self.wait_for(lambda: self._succeeds(script), script, timeout_s)

    def wait_for(self, is_so: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        """Until `is_so()`."""
        limit = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < limit, f"not within {timeout_s} s: {what}\n{self.journal()}"
            time.sleep(0.3)

    def journal(self) -> str:
        """The end of what the services said."""
        return self.run("journalctl -u 'gpuwarden-*' -n 40 --no-pager", check=False)

    def _succeeds(self, script: str) -> bool:
        if not self._leader():
            return False
        return self.run(f"({script}) >/dev/null 2>&1 && echo yes", check=False).startswith("yes")

    def _leader(self) -> int | None:
        """Process 1 of the machine, as this host sees it."""
        if self._process is None or self._process.poll() is not None:
            return None
        for children in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                # Until it has its own processes, it is a stub that is about to become process 1.
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                        return int(pid)
        return None


@contextlib.contextmanager
def machine(suite: str = "bookworm", *, has_python: bool = False) -> Iterator[Machine]:
    """A booted Debian, with no Python unless it is asked for, for as long as the block runs."""
    lower = base(suite, (*PACKAGES, "python3") if has_python else PACKAGES)
    with tempfile.TemporaryDirectory(prefix="gpuwarden-machine-", dir="/var/tmp") as name:
        folder = Path(name)
        for part in ("upper", "work", "root"):
            (folder / part).mkdir()
        options = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work"
        root = str(folder / "root")
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
        (folder / "root/etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        made = Machine(folder)
        try:
            made.boot()
            yield made
        finally:
            made.stop()
            subprocess.run(["umount", root], check=True)
