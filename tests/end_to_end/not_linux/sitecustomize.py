"""Makes an interpreter take this host for a Mac: what `sys.platform` says, and what modules lack there.

On PYTHONPATH of a process, and so of all that it starts. Libraries that ask which system it is when
they are imported are imported before: they are of this one.
"""

import os
import signal
import socket
import sys
import sysconfig
from importlib import import_module

for _name in (
    "asyncio",
    "ctypes.util",
    "multiprocessing",
    "subprocess",
    "urllib.request",
    "psutil",
):
    import_module(_name)
sysconfig.get_config_vars()

_LINUX_ALONE = {
    os: "copy_file_range eventfd fdatasync memfd_create O_PATH O_TMPFILE pidfd_open posix_fadvise"
    " posix_fallocate sched_getaffinity sched_setaffinity setns splice unshare",
    signal: "pidfd_send_signal SIGRTMIN",
    socket: "AF_NETLINK AF_PACKET MSG_CMSG_CLOEXEC SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK",
}
for _module, _names in _LINUX_ALONE.items():
    for _name in _names.split():
        if hasattr(_module, _name):
            delattr(_module, _name)
sys.platform = "darwin"
