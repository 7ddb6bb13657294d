"""Defines acts, and how one is done: looked at, done, and checked; runs the programs that do them."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


class ActError(Exception):
    """The act was not done, or it is not known whether; one line for people."""


@dataclass(frozen=True, slots=True)
class Act:
    """One act that a collector asks for."""

    id: str
    kind: str
    node: str
    username: str
    """Whose job it is; empty: not known."""
    job: str
    by: datetime
    """Until when it must be done and reported."""
    policy: str = ""
    summary: str = ""
    """What is wrong, in a sentence."""
    gpu_uuid: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Act":
        """Read the API's JSON. Raises ActError."""
        try:
            texts = [document[name] for name in ("id", "act", "node", "username", "job", "by")]
            if not all(isinstance(text, str) and len(text) <= 500 for text in texts):
                raise TypeError("not texts")
            name, kind, node, username, job, by = texts
            more = [document.get(name, "") for name in ("policy", "summary", "gpu_uuid")]
            if not all(isinstance(text, str) and len(text) <= 5_000 for text in more):
                raise TypeError("not texts")
            found = cls(name, kind, node, username, job, datetime.fromisoformat(by), *more)
        except (KeyError, TypeError, ValueError) as error:
            raise ActError(f"the collector's act cannot be read: {error}") from error
        if not name.isalnum() or found.by.tzinfo is None:
            raise ActError("the collector's act has a wrong id or time")
        return found


class Scheduler(Protocol):
    """Does acts of some kinds."""

    kinds: frozenset[str]

    def look(self, act: Act) -> str | None:
        """What is there before the act; a text: it is done already. Raises ActError where it must not be done."""
        ...

    def do(self, act: Act) -> None:
        """Do it. Raises ActError."""
        ...

    def is_done(self, act: Act) -> bool:
        """Whether it is done. Raises ActError where that is not known."""
        ...


def run_program(
    argv: Sequence[str], named: str, *, timeout_s: float, stdin: bytes = b"", remedy: str = ""
) -> str:
    """What a program prints, if it ends with 0; no shell. `named`: as errors name it; `remedy`: where it cannot run.

    Raises ActError.
    """
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ActError(f"{named} did not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise ActError(f"{argv[0]} cannot run: {error.strerror}{remedy}") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).decode("utf-8", "replace").split())
        raise ActError(f"{named}: {said[:300] or f'exit {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")
