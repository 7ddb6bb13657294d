"""Control groups that hold a job back: CPU quota and read rate, of version 1 and 2. Needs root."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NAME = "gpuwarden-bench"
PERIOD_US = 100_000
GONE_TIMEOUT_S = 3.0


class LimitError(Exception):
    """This machine does not let us limit that; the message says why."""


class Limited:
    """A group of its own for one job, until `remove`."""

    def __init__(
        self, name: str, *, cpu_cores: float | None, read_limit: float | None, disk: str
    ) -> None:
        """`disk`: major:minor of the disk that `read_limit` (bytes a second) is for. Raises LimitError."""
        is_v2 = (ROOT / "cgroup.controllers").exists()
        wanted: dict[str, tuple[str, str]] = {}
        if cpu_cores is not None:
            quota = round(cpu_cores * PERIOD_US)
            wanted["cpu"] = ("cpu.max", f"{quota} {PERIOD_US}") if is_v2 else ("cpu.cfs_quota_us", str(quota))  # fmt: skip
        if read_limit is not None:
            rate = round(read_limit)
            key = "io" if is_v2 else "blkio"
            wanted[key] = ("io.max", f"{disk} rbps={rate}") if is_v2 else ("blkio.throttle.read_bps_device", f"{disk} {rate}")  # fmt: skip
        self._folders = {key: (ROOT if is_v2 else ROOT / key) / f"{NAME}-{name}" for key in wanted}
        self._lifted = {"io": f"{disk} rbps=max", "blkio": f"{disk} 0"}
        self._wanted = wanted
        try:
            if is_v2:
                enable = " ".join(f"+{key}" for key in wanted)
                (ROOT / "cgroup.subtree_control").write_text(enable)
            for folder in self._folders.values():
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise LimitError(f"control groups: {error.strerror} ({error.filename})") from error

    def take(self, pid: int) -> None:
        """Move a process in; what it forks later is in it as well. Raises LimitError."""
        self._write({key: ("cgroup.procs", str(pid)) for key in self._folders})

    def hold(self) -> None:
        """From now on the limits hold. Raises LimitError."""
        self._write(self._wanted)

    def _write(self, texts: Mapping[str, tuple[str, str]]) -> None:
        for key, (name, text) in texts.items():
            try:
                (self._folders[key] / name).write_text(text)
            except OSError as error:
                raise LimitError(f"control group {key}: {error.strerror} ({name})") from error

    def release(self) -> None:
        """Lift what would keep a process from ending: a read in D state waits for its bytes."""
        for key, text in self._lifted.items():
            if key in self._folders:
                with contextlib.suppress(OSError):
                    (self._folders[key] / self._wanted[key][0]).write_text(text)

    def remove(self) -> None:
        """Remove the groups, whose processes were killed and may take a moment to be gone."""
        until_s = time.monotonic() + GONE_TIMEOUT_S
        for folder in self._folders.values():
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > until_s:
                        break
                    time.sleep(0.05)
                else:
                    break


def sweep() -> None:
    """Remove groups that a run left behind which was killed; those in use stay."""
    for folder in (*ROOT.glob(f"{NAME}-*"), *ROOT.glob(f"*/{NAME}-*")):
        with contextlib.suppress(OSError):
            folder.rmdir()


def disk_of(folder: Path) -> str:
    """major:minor of the disk that a folder is on, the whole one where it is on a partition."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    block = Path("/sys/dev/block") / number
    if (block / "partition").exists():
        return (block.resolve().parent / "dev").read_text().strip()
    return number
