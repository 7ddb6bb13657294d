"""Traces which of our functions run: in this process, and in query processes of a collector started here.

Run as a program this is the fork server of query processes that write what they ran to standard error.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

from tests import unchecked

from gpuwarden_collector import forked
from gpuwarden_collector.processes import forkserver
from gpuwarden_collector.query import worker

ROOT = Path(__file__).parent.parent
MARK = "TRACED "
Step = tuple[str, str]
"""File, from the root of the tree, and function."""


def step_of(code: CodeType) -> Step | None:
    """None: it is not ours."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or "/gpuwarden" not in code.co_filename:
        return None
    return str(path.relative_to(ROOT)), code.co_qualname


class Tracer:
    """Notes calls of our functions, of all threads that begin while it is on and of this one."""

    def __init__(self, stack_at: str = "") -> None:
        """`stack_at`: name of a function of which the callers are noted at each call."""
        self.steps: list[Step] = []
        """In the order of the calls."""
        self.stacks: list[list[Step]] = []
        self._stack_at = stack_at

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (step := step_of(frame.f_code)) is None:
            return
        self.steps.append(step)
        if step[1] == self._stack_at:
            self.stacks.append(callers(frame))


def callers(frame: FrameType | None) -> list[Step]:
    """Our functions that wait for this one, the outermost first."""
    found: list[Step] = []
    while frame is not None:
        if (step := step_of(frame.f_code)) is not None:
            found.append(step)
        frame = frame.f_back
    return found[::-1]


def trace_query_processes() -> None:
    """Have the query processes of this process say what they ran."""
    forkserver._server = forkserver.ForkServer("tests.traced", os.environ.keys())


def _works() -> Mapping[bytes, Callable[[socket.socket], None]]:
    answer = worker._answer

    def traced(*asked: Any) -> Any:
        with Tracer("Reading._run") as tracer:
            found = answer(*asked)
        print(MARK + json.dumps(tracer.stacks[0]), file=sys.stderr, flush=True)
        return found

    worker._answer = traced
    return forked.works()


if __name__ == "__main__":
    unchecked.connect_unchecked()
    forkserver.main(_works)
