"""Names what is above and below a GPU process, and its signals. Pure functions."""

import signal
from collections.abc import Iterator, Sequence
from functools import lru_cache

from gpuwarden.process_tree import NO_SIGNALS, Ancestor
from gpuwarden_agent.collect.processes.procfs import Process, SignalMasks
from gpuwarden_agent.probe import Value

ROOTS = ("slurmstepd", "containerd-shim", "docker-containe", "conmon", "pbs_mom", "sge_shepherd", "sshd", "systemd", "login")  # fmt: skip
"""Beginnings of names of processes that start jobs, containers, sessions and units; what is above is the host's."""
DEPTH_MAX = 8
"""Most ancestors; of more the nearest."""
LOADERS_MAX = 64
_NAMES = {int(one): one.name for one in signal.Signals}
_RT_MIN = int(getattr(signal, "SIGRTMIN", 34))


def up_to_root(above: Sequence[Process]) -> list[Process]:
    """Of the processes above one, its parent first, those up to the root of its job, container or session."""
    found: list[Process] = []
    for process in above[:DEPTH_MAX]:
        found.append(process)
        if process.name.startswith(ROOTS):
            break
    return found


def named_ancestors(above: Sequence[Process]) -> Iterator[Ancestor]:
    """The processes above one, its parent last. A script has the name of its file."""
    for process in reversed(above):
        yield Ancestor(process.pid, process.name)


def pids_text(workers: Sequence[Process]) -> str:
    """Pids of loader workers."""
    return ", ".join(str(pid) for pid in sorted(worker.pid for worker in workers)[:LOADERS_MAX])


def signal_columns(masks: SignalMasks | None) -> dict[str, Value]:
    """Columns of the signals of a process; empty: unknown."""
    if masks is None:
        return {}
    return {
        f"signals_{what}": signal_names(getattr(masks, what))
        for what in ("pending", "blocked", "ignored", "caught")
    }


@lru_cache(maxsize=256)
def signal_names(mask: int) -> str:
    """The signals of a mask: `SIGINT, SIGRTMIN to SIGRTMIN+3`; `none`: there are none."""
    numbers = [bit + 1 for bit in range(mask.bit_length()) if mask >> bit & 1]
    names = [_name(number) for number in numbers if number < _RT_MIN]
    run: list[int] = []
    for number in [*(n for n in numbers if n >= _RT_MIN), 0]:
        if run and number != run[-1] + 1:
            # Runtimes take all of them at once: three or more are one range.
            names += [_name(run[0]) + " to " + _name(run[-1])] if len(run) > 2 else map(_name, run)
            run = []
        run.append(number)
    return ", ".join(names) or NO_SIGNALS


def _name(number: int) -> str:
    if number >= _RT_MIN:
        return "SIGRTMIN" if number == _RT_MIN else f"SIGRTMIN+{number - _RT_MIN}"
    return _NAMES.get(number) or f"SIG{number}"
