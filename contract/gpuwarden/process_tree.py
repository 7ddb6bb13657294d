"""Writes and reads ancestors of a process as one text, and says in words which of its signals matter. Pure functions.

`process_samples` has ancestors as `sshd (811) > bash (814)`, the parent last, and signals as `SIGTERM, SIGINT`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

NO_SIGNALS = "none"
STOPPING = ("SIGTERM", "SIGINT")
"""Signals that ask a process to end. Only SIGTERM is what schedulers and `kill` send."""
_BETWEEN = " > "
_ANCESTOR = re.compile(r"(.*?) \((\d+)\)(?: > |\Z)")
_NOT_IN_NAMES = re.compile(r"[^\x20-\x3d\x3f-\x7e\xa0-\uffff]")


class Ancestor(NamedTuple):
    """A process above another."""

    pid: int
    name: str


def ancestors_text(ancestors: Iterable[Ancestor]) -> str:
    """Ancestors, the parent last, as one text; `>` and control characters in names become `?`."""
    named = ((_NOT_IN_NAMES.sub("?", one.name), one.pid) for one in ancestors)
    return _BETWEEN.join(f"{name} ({pid})" for name, pid in named)


def ancestors_of(text: str | None) -> list[Ancestor]:
    """The ancestors that a text names."""
    return [Ancestor(int(pid), name) for name, pid in _ANCESTOR.findall(text or "")]


def signals_of(text: str | None) -> list[str]:
    """The signals that a text names; those between the two ends of a range stay unnamed."""
    return [] if text in (None, NO_SIGNALS) else str(text).split(", ")


def signal_remarks(process: Mapping[str, Any]) -> list[str]:
    """What a reader must know of the signals of a row of `process_samples`; empty: nothing."""
    pending, blocked, ignored = (
        signals_of(process.get(f"signals_{what}")) for what in ("pending", "blocked", "ignored")
    )
    remarks = []
    waiting = [name for name in pending if name != "SIGCHLD"]
    if waiting and process.get("state") == "D":
        remarks.append(f"{_listed(waiting)} pending, in state D: waits in the kernel")
    elif waiting:
        remarks.append(f"{_listed(waiting)} pending")
    for verb, names in (("ignores", ignored), ("main thread blocks", blocked)):
        if STOPPING[0] in names:
            remarks.append(f"{verb} {_listed([name for name in STOPPING if name in names])}")
    return remarks


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
