"""Confines a query process by the kernel: no files but its own, no network, no other processes.

SQL is judged before it runs and DuckDB itself keeps to the lake's folder; this is for a fault in either.
It cannot be taken back, and holds for all threads and processes that come after. A kernel without it
(Landlock is of Linux 5.13, its network rules of 6.7) gets the rest. Sources:

- Landlock: https://docs.kernel.org/userspace-api/landlock.html and include/uapi/linux/landlock.h
- seccomp: https://docs.kernel.org/userspace-api/seccomp_filter.html and include/uapi/linux/seccomp.h
- numbers of system calls: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from platform import machine

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE, _READ, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_TRUNCATE = 1 << 14
_FILE_RIGHTS = _EXECUTE | _WRITE | _READ | _TRUNCATE
_RIGHTS = ((1, 13), (2, 14), (3, 15), (5, 16))
"""How many rights a version of Landlock knows, from that version on."""
_TCP = 0b11
"""Bind and connect, from version 4 on."""
_SCOPES = 0b11
"""Abstract sockets and signals stay within, from version 6 on."""

_FILTER_MODE = 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
_ABSENT = 0x00050000 | errno.ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Where `struct seccomp_data` has them; of an argument the lower half, which is all that these calls read."""
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_OF_OTHER_ABI = 0x40000000
"""From here on, numbers are of x86's third interface."""
_REFUSED = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kill": (62, 129),
    "tkill": (200, 130),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "keyctl": (250, 219),
}
_FORKS = (57, 58)
"""`fork` and `vfork`, which only x86_64 has; the C library calls `clone`."""
_SOCKET = (41, 198)
_CLONE, _CLONE3 = (56, 220), (435, 435)
_CLONE_THREAD = 0x00010000
_SIGNALS = {"tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}
"""Allowed towards the process itself: the C library aborts and signals threads by them."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a process goes on needing."""

    readable: tuple[Path, ...]
    """Files, and folders with what is beneath them."""
    writable: tuple[Path, ...]
    """The same; in a folder files may be made and removed."""
    network: bool


def confine(needs: Needs) -> frozenset[str]:
    """Give up all else, for good; what the kernel holds to: no_new_privileges, landlock, seccomp.

    Before threads are started: those that run stay as they are.
    """
    if sys.platform != "linux":
        return frozenset()
    held = set()
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        held.add("no_new_privileges")
    if _confine_paths(needs):
        held.add("landlock")
    if _refuse_calls(network=needs.network):
        held.add("seccomp")
    return frozenset(held)


def end_with_parent(name: str, parent: int) -> None:
    """Be killed when the thread that forked this process ends, and have a name among processes."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def installation() -> tuple[Path, ...]:
    """What Python and the libraries of this process read as they run."""
    paths = {Path(p) for p in (*sys.path, *sysconfig.get_paths().values())}
    # Where a process was started is on the path, and may be anywhere.
    paths = {p for p in paths if p.is_absolute() and p not in (Path("/"), Path.home())}
    system = "/lib /lib64 /usr/lib /usr/lib64 /usr/share/zoneinfo /etc/localtime /proc/self /sys/fs/cgroup /dev/urandom"
    return (*sorted(paths), *(Path(p) for p in system.split()), Path(os.devnull))


def landlock_version() -> int:
    """Of the running kernel; 0: it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def _confine_paths(needs: Needs) -> bool:
    version = landlock_version()
    if not version:
        return False
    rights = (1 << max(bits for since, bits in _RIGHTS if version >= since)) - 1
    tcp = _TCP if version >= 4 and not needs.network else 0
    scopes = _SCOPES if version >= 6 else 0
    said = struct.pack("QQQ", rights, tcp, scopes)[
        : 24 if version >= 6 else 16 if version >= 4 else 8
    ]
    rules = int(_libc.syscall(_CREATE_RULESET, said, ctypes.c_size_t(len(said)), 0))
    if rules < 0:
        return False
    try:
        reading = _READ | _READ_DIR
        changing = _WRITE | _TRUNCATE | _MAKE_FILE | _MAKE_DIR | _REMOVE_FILE | _REMOVE_DIR
        _allow(rules, needs.readable, reading & rights)
        _allow(rules, needs.writable, (reading | changing) & rights)
        return int(_libc.syscall(_RESTRICT_SELF, rules, 0)) == 0
    finally:
        os.close(rules)


def _allow(rules: int, paths: Iterable[Path], rights: int) -> None:
    if sys.platform != "linux":
        return
    for path in paths:
        with suppress(OSError):  # what is not there is not needed
            number = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                is_folder = stat.S_ISDIR(os.fstat(number).st_mode)
                given = rights if is_folder else rights & _FILE_RIGHTS
                rule = struct.pack("=Qi", given, number)
                _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0)
            finally:
                os.close(number)


def _refuse_calls(*, network: bool) -> bool:
    architecture, column = _ARCHITECTURES.get(machine(), (0, 0))
    if not architecture:
        return False
    refused = [found[column] for found in _REFUSED.values()]
    if column == 0:
        refused += _FORKS
    if not network:
        refused.append(_SOCKET[column])
    # Of each step: its name where others go to it, what it does, where to if it holds and if not; "": on.
    steps = [
        ("", _LOAD, "", "", _ARCHITECTURE_AT),
        ("", _EQUAL, "", "refuse", architecture),
        ("", _LOAD, "", "", _NUMBER_AT),
        ("", _AT_LEAST, "refuse", "", _OF_OTHER_ABI),
        *(("", _EQUAL, "refuse", "", number) for number in refused),
        *(("", _EQUAL, "of itself", "", found[column]) for found in _SIGNALS.values()),
        ("", _EQUAL, "thread", "", _CLONE[column]),
        # Its flags are in memory, which no filter reads. The C library then calls `clone`.
        ("", _EQUAL, "absent", "allow", _CLONE3[column]),
        ("of itself", _LOAD, "", "", _FIRST_ARGUMENT_AT),
        ("", _EQUAL, "allow", "refuse", os.getpid()),
        ("thread", _LOAD, "", "", _FIRST_ARGUMENT_AT),
        ("", _HAS, "allow", "refuse", _CLONE_THREAD),
        ("allow", _RETURN, "", "", _ALLOW),
        ("refuse", _RETURN, "", "", _REFUSE),
        ("absent", _RETURN, "", "", _ABSENT),
    ]
    places = {name: at for at, (name, *_) in enumerate(steps) if name}
    code = b"".join(
        # A jump says how many steps to pass over.
        struct.pack("=HBBI", does, *(places[to] - at - 1 if to else 0 for to in (yes, no)), value)
        for at, (_, does, yes, no, value) in enumerate(steps)
    )
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held))
    return int(_libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, program, 0, 0)) == 0
