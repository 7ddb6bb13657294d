"""Confines a query process by the kernel: only its own files, no network, no other processes.

SQL is checked before it runs, and DuckDB itself stays within the lake's folder; this protects against faults
in either. It cannot be undone, and holds for all later threads and processes. On a kernel without one of the
mechanisms (Landlock needs Linux 5.13, its network rules 6.7) the others are used. Sources:

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
"""Versions of Landlock, with the number of rights known from that version on."""
_TCP = 0b11
"""Bind and connect, from version 4 on."""
_SCOPES = 0b11
"""Abstract sockets and signals reach only confined processes, from version 6 on."""

_FILTER_MODE = 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
_ABSENT = 0x00050000 | errno.ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in `struct seccomp_data`; of an argument the lower half, which is all that these calls read."""
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_OF_OTHER_ABI = 0x40000000
"""Numbers from here on are of the x32 interface."""
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
"""Allowed for the process itself: the C library uses them to abort and to signal threads."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Needs:
    """Files and network that a process needs after it is confined."""

    readable: tuple[Path, ...]
    """Files, and folders with all their content."""
    writable: tuple[Path, ...]
    """The same; in a folder files may be created and removed."""
    network: bool
    executable: tuple[Path, ...] = ()
    """Programs that it may run, of those that `confine_files` confines."""


def confine_files(needs: Needs) -> frozenset[str]:
    """As `confine`, for a process that runs the programs of `needs.executable`: it and they run no other program, and write
    nothing else. System calls and signals are not restricted."""
    if sys.platform != "linux":
        return frozenset()
    in_force = set()
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        in_force.add("no_new_privileges")
    if _confine_paths(needs, scoped=False):
        in_force.add("landlock")
    return frozenset(in_force)


def loaders() -> tuple[Path, ...]:
    """What the kernel runs to load a program's libraries."""
    folders = (Path("/lib64"), Path("/lib"))
    return tuple(found.resolve() for folder in folders for found in sorted(folder.glob("ld-*.so*")))


def runs_with(program: Path) -> tuple[Path, ...]:
    """A program, and the one that a script names in its first line. Raises OSError."""
    with program.open("rb") as file:
        line = file.readline(256)
    words = line[2:].split() if line.startswith(b"#!") else []
    return (program, *(Path(word.decode()).resolve() for word in words[:1]))


def confine(needs: Needs) -> frozenset[str]:
    """Give up all other rights permanently; the mechanisms in force: no_new_privileges, landlock, seccomp.

    Call it before threads are started: running threads are not confined.
    """
    if sys.platform != "linux":
        return frozenset()
    in_force = set()
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        in_force.add("no_new_privileges")
    if _confine_paths(needs):
        in_force.add("landlock")
    if _refuse_calls(network=needs.network):
        in_force.add("seccomp")
    return frozenset(in_force)


def end_with_parent(name: str, parent: int) -> None:
    """Let the kernel kill this process when the thread that forked it ends, and set its name."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(1)


def installation() -> tuple[Path, ...]:
    """Files that Python and this process's libraries read while they run."""
    paths = {Path(p) for p in (*sys.path, *sysconfig.get_paths().values())}
    # Leave out the working directory, which may be on the path.
    left_out = {Path("/")}
    with suppress(RuntimeError):  # a user of a container has no home
        left_out.add(Path.home())
    paths = {p for p in paths if p.is_absolute()} - left_out
    system = "/lib /lib64 /usr/lib /usr/lib64 /usr/share/zoneinfo /etc/localtime /proc/self /sys/fs/cgroup /dev/urandom"
    return (*sorted(paths), *(Path(p) for p in system.split()), Path(os.devnull))


def landlock_version() -> int:
    """Landlock's version in the running kernel; 0: it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def _confine_paths(needs: Needs, *, scoped: bool = True) -> bool:
    version = landlock_version()
    if not version:
        return False
    rights = (1 << max(bits for since, bits in _RIGHTS if version >= since)) - 1
    tcp = _TCP if version >= 4 and not needs.network else 0
    scopes = _SCOPES if version >= 6 and scoped else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("QQQ", rights, tcp, scopes)[:size]
    rules = int(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0))
    if rules < 0:
        return False
    try:
        reading = _READ | _READ_DIR
        changing = _WRITE | _TRUNCATE | _MAKE_FILE | _MAKE_DIR | _REMOVE_FILE | _REMOVE_DIR
        _allow(rules, needs.readable, reading & rights)
        _allow(rules, needs.writable, (reading | changing) & rights)
        _allow(rules, needs.executable, (_READ | _EXECUTE) & rights)
        return int(_libc.syscall(_RESTRICT_SELF, rules, 0)) == 0
    finally:
        os.close(rules)


def _allow(rules: int, paths: Iterable[Path], rights: int) -> None:
    if sys.platform != "linux":
        return
    for path in paths:
        with suppress(OSError):  # a missing file is not needed
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
    # For each step: its name if others jump to it, its operation, jump targets if true and if false ("": next), value.
    steps = [
        ("", _LOAD, "", "", _ARCHITECTURE_AT),
        ("", _EQUAL, "", "refuse", architecture),
        ("", _LOAD, "", "", _NUMBER_AT),
        ("", _AT_LEAST, "refuse", "", _OF_OTHER_ABI),
        *(("", _EQUAL, "refuse", "", number) for number in refused),
        *(("", _EQUAL, "of itself", "", found[column]) for found in _SIGNALS.values()),
        ("", _EQUAL, "thread", "", _CLONE[column]),
        # Its flags are in memory, which a filter cannot read. The C library then calls `clone`.
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
        # A jump gives the number of steps to skip.
        struct.pack("=HBBI", does, *(places[to] - at - 1 if to else 0 for to in (yes, no)), value)
        for at, (_, does, yes, no, value) in enumerate(steps)
    )
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(buffer))
    return int(_libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, program, 0, 0)) == 0
