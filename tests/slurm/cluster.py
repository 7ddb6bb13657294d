"""A Slurm cluster of one node, or two, for tests: munge, MariaDB, slurmdbd, slurmctld and slurmd of Debian, really running.

The root file system is made once with debootstrap and kept in /var/cache; each cluster writes to an overlay
of its own, has namespaces of its own (mounts, processes, network), and leaves nothing on this host. The
product under test is this checkout, bound into it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.systemd.machine import base

SUITE = "bookworm"
PACKAGES = (
    "slurm-wlm", "slurmdbd", "munge", "mariadb-server", "python3", "procps", "iproute2", "kmod", "curl",
)  # fmt: skip
TOOLS = ("debootstrap", "unshare", "nsenter", "mount", "umount")
REPOSITORY = Path(__file__).parents[2]
PARTS = (
    "contract",
    "agent",
    "simulator",
    "collector",
    "rules",
    "dashboards",
    "client",
    "importing",
    "postgres",
    "prometheus",
    "cli",
)
HOST = "gpunode"
CGROUPS = Path("/sys/fs/cgroup")
HAS_CGROUPS = (CGROUPS / "memory/cgroup.procs").exists()
"""Control groups of version 1, where this host has them: then Slurm measures and constrains its jobs by them."""

SLURM_CONF = f"""\
ClusterName=test
SlurmctldHost={HOST}(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
ProctrackType=proctrack/{"cgroup" if HAS_CGROUPS else "linuxproc"}
TaskPlugin=task/{"cgroup" if HAS_CGROUPS else "none"}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=200
GresTypes=gpu
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,qos
JobAcctGatherType=jobacct_gather/{"cgroup" if HAS_CGROUPS else "linux"}
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.%n.pid
RebootProgram=/reboot.sh
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.%n.log
ReturnToService=2
MailProg=/bin/true
NodeName={HOST} NodeAddr=127.0.0.1 CPUs=8 RealMemory=2000 Gres=gpu:h100:4
PartitionName=batch Nodes={HOST} Default=YES MaxTime=UNLIMITED DefaultTime=30:00 State=UP
"""
SPARE = "spare"
"""The second node, of the same host."""
SPARE_CONF = f"""\
NodeName={SPARE} NodeHostname={HOST} NodeAddr=127.0.0.1 Port=6828 CPUs=2 RealMemory=500
PartitionName=batch Nodes={HOST},{SPARE} Default=YES MaxTime=UNLIMITED DefaultTime=30:00 State=UP
"""
REBOOT = f"""\
#!/bin/sh
# What Slurm sees of a reboot: slurmd ends, and says that its host has booted.
setsid sh -c 'sleep 1; kill $(cat /run/slurmd.{HOST}.pid); sleep 2; slurmd -b -N {HOST}; touch /run/rebooted' </dev/null >/dev/null 2>&1 &
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile=/var/log/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""
UP = f"""\
set -e
hostname {HOST}
ip link set lo up
# Names are resolved only where there is an address beside the loopback's.
ip link add uplink type bridge && ip addr add 192.0.2.1/32 dev uplink && ip link set uplink up
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm 2>/dev/null || mkdir -p /dev/shm
for n in 0 1 2 3; do [ -e /dev/fakegpu$n ] || mknod -m 666 /dev/fakegpu$n c 240 $n; done
mkdir -p /run/munge /run/mysqld /var/spool/slurmctld
chown munge /run/munge; chown mysql /run/mysqld; chown slurm /var/spool/slurmctld
runuser -u munge -- /usr/sbin/munged
mysqld_safe --skip-networking --skip-log-bin >/var/log/mysqld.out 2>&1 &
for n in $(seq 200); do mysqladmin ping >/dev/null 2>&1 && break; sleep 0.1; done
mysql -e "CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED BY 'slurm'; GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
/usr/sbin/slurmdbd
for n in $(seq 100); do sacctmgr -n list cluster >/dev/null 2>&1 && break; sleep 0.1; done
sacctmgr -i add cluster test
sacctmgr -i add account physics
sacctmgr -i add qos high
sacctmgr -i add user ada account=physics qos=normal,high
sacctmgr -i add user root account=physics || true
/usr/sbin/slurmctld
for n in $(seq 100); do scontrol ping | grep -q UP && break; sleep 0.1; done
for node in $(scontrol show hostnames $(sinfo -h -o %N)); do mkdir -p /var/spool/slurmd.$node; /usr/sbin/slurmd -N $node; done
for n in $(seq 100); do [ "$(sinfo -h -N -o %T | sort -u)" = idle ] && break; sleep 0.1; done
touch /run/up
exec sleep infinity
"""


def why_not() -> str | None:
    """What this host lacks for such a cluster; None: nothing."""
    if os.geteuid() != 0:
        return "needs root"
    if sys.version_info[:2] != (3, 11):
        return "needs Python 3.11, which the cluster's Debian has"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else None


class Cluster:
    """One cluster. `run` is a shell in it."""

    def __init__(self, folder: Path, *, has_spare: bool = False) -> None:
        self._folder = folder
        self._has_spare = has_spare
        self.root = folder / "root"
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Write its configuration, and a user for jobs and one for the agent."""
        etc = self.root / "etc"
        (etc / "hosts").write_text(f"127.0.0.1 localhost {HOST}\n")
        nodes, _, partition = SLURM_CONF.rpartition("PartitionName=")
        last = SPARE_CONF if self._has_spare else f"PartitionName={partition}"
        (etc / "slurm/slurm.conf").write_text(nodes + last)
        (self.root / "reboot.sh").write_text(REBOOT)
        (self.root / "reboot.sh").chmod(0o755)
        (etc / "slurm/slurmdbd.conf").write_text(SLURMDBD_CONF)
        (etc / "slurm/gres.conf").write_text(
            f"NodeName={HOST} Name=gpu Type=h100 File=/dev/fakegpu[0-3]\n"
        )
        (etc / "slurm/cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\n"
        )
        (self.root / "up.sh").write_text(UP)
        (self.root / "repository").mkdir()
        site = ":".join(f"/repository/{part}" for part in PARTS)
        wrapper = self.root / "usr/local/bin/gpuwarden"
        wrapper.write_text(
            f"#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={site}:/site"
            ' exec python3 -c "import sys; from gpuwarden_cli.main import main; sys.exit(main())" "$@"\n'
        )
        wrapper.chmod(0o755)
        (self.root / "site").mkdir()
        chroot = ["chroot", str(self.root)]
        for script in (
            "chown slurm /etc/slurm/slurmdbd.conf && chmod 600 /etc/slurm/slurmdbd.conf",
            "useradd -m -u 2001 ada",
            "groupadd -r gpuwarden && useradd -r -g gpuwarden gpuwarden",
            "install -d -o gpuwarden /var/lib/gpuwarden-agent",
        ):
            subprocess.run([*chroot, "sh", "-c", script], check=True)

    def boot(self) -> None:
        """Start it and wait until it takes jobs."""
        mounts = (
            f"mount --make-rprivate / && mount --bind -o ro {REPOSITORY} {self.root}/repository &&"
            f" mount --bind -o ro {Path(pytest.__file__).parents[1]} {self.root}/site &&"
            f" mount -t proc proc {self.root}/proc && mount --rbind /sys {self.root}/sys && exec chroot {self.root} bash /up.sh"
        )
        with (self._folder / "console").open("ab") as console:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "sh", "-c", mounts],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        self.wait("test -e /run/up", 90)

    def stop(self) -> None:
        """End every process of it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
        for folder in sorted(CGROUPS.glob(f"*/slurm_{HOST}/**/"), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def argv(self, script: str, user: str | None = None) -> list[str]:
        """A command of this host that runs a shell script in the cluster."""
        leader = self._leader()
        assert leader, self.console()
        argv = ["nsenter", f"--target={leader}", "--mount", "--pid", "--net", "--uts", "--root", "/usr/bin/env", "-i", "--chdir=/",
                "PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "LC_ALL=C.UTF-8"]  # fmt: skip
        return [*argv, *(["runuser", "-u", user, "--"] if user else []), "sh", "-c", script]

    def run(
        self, script: str, *, user: str | None = None, check: bool = True, timeout_s: float = 60
    ) -> str:
        """Standard output and error of a shell script."""
        done = subprocess.run(
            self.argv(script, user), capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        output = done.stdout + done.stderr
        assert not check or done.returncode == 0, f"{script}\n{output}"
        return output

    def start(self, script: str, log: str, user: str | None = None) -> "subprocess.Popen[bytes]":
        """A program that continues; what it says is in `log` beside the root."""
        with (self._folder / log).open("ab") as said:
            return subprocess.Popen(
                self.argv(f"exec {script}", user),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def said(self, log: str) -> str:
        """The end of what a program said."""
        return (self._folder / log).read_text(errors="replace")[-3000:]

    def wait(self, script: str, timeout_s: float = 60) -> None:
        """Until the script succeeds."""
        self.wait_for(lambda: self._succeeds(script), script, timeout_s)

    def wait_for(self, is_so: Callable[[], bool], what: str, timeout_s: float = 60) -> float:
        """Until `is_so()`; how many seconds it took."""
        began = time.monotonic()
        while not is_so():
            assert time.monotonic() - began < timeout_s, (
                f"not within {timeout_s} s: {what}\n{self.console()}"
            )
            time.sleep(0.2)
        return time.monotonic() - began

    def console(self) -> str:
        """The end of what it said while it started."""
        return (self._folder / "console").read_text(errors="replace")[-2000:]

    def _succeeds(self, script: str) -> bool:
        if not self._leader():
            return False
        return self.run(f"({script}) >/dev/null 2>&1 && echo yes", check=False).startswith("yes")

    def _leader(self) -> int | None:
        """Process 1 of the cluster, as this host sees it, once it is in its root."""
        if self._process is None or self._process.poll() is not None:
            return None
        for children in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/root/up.sh").is_file():
                        return int(pid)
        return None


@contextlib.contextmanager
def cluster(*, has_spare: bool = False) -> Iterator[Cluster]:
    """A cluster that takes jobs, for as long as the block runs; `has_spare`: of two nodes."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-slurm-", dir="/var/tmp") as name:
        folder = Path(name)
        for part in ("upper", "work", "root"):
            (folder / part).mkdir()
        options = f"lowerdir={base(SUITE, PACKAGES)},upperdir={folder}/upper,workdir={folder}/work"
        root = str(folder / "root")
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
        made = Cluster(folder, has_spare=has_spare)
        try:
            made.prepare()
            made.boot()
            yield made
        finally:
            made.stop()
            subprocess.run(["umount", root], check=True)
