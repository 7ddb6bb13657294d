"""Prints one screen after another: for terminals that cannot place a cursor, for pipes and files."""

import asyncio
import sys

from gpuwarden.clock import Clock
from gpuwarden_cli.top.model import (
    AnswerArrived,
    AnswerFailed,
    AskSource,
    Event,
    State,
    Ticked,
    step,
    wait_s,
)
from gpuwarden_cli.top.request import RowSource, SourceError
from gpuwarden_cli.top.screen import KEYS, screen
from gpuwarden_cli.top.text import ascii_only


async def print_screens(source: RowSource, state: State, clock: Clock, *, is_once: bool) -> int:
    """Print screens until cancelled, or one; 1 when that one has no answer. Raises BrokenPipeError."""
    is_ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    broken: BrokenPipeError | None = None
    async with asyncio.TaskGroup() as group:
        running = group.create_task(source.run(), name="source")
        event: Event = Ticked()
        while True:
            state, effects = step(state, event, clock.monotonic())
            asked = next(
                (effect.request for effect in effects if isinstance(effect, AskSource)), None
            )
            if asked is None:
                await asyncio.sleep(wait_s(state, clock.monotonic()) or 0.05)
                event = Ticked()
                continue
            try:
                event = AnswerArrived(asked, await source.ask(asked))
            except SourceError as error:
                event = AnswerFailed(asked, str(error), error.is_refusal)
            state, _ = step(state, event, clock.monotonic())
            try:
                print(_text(state, clock.monotonic(), is_ascii=is_ascii), flush=True)
            except BrokenPipeError as error:
                broken = error  # raised here, it would be inside a group
                break
            if is_once:
                break
            event = Ticked()
        running.cancel()
    if broken is not None:
        raise broken
    return 0 if state.problem is None else 1


def _text(state: State, now_s: float, *, is_ascii: bool) -> str:
    lines = ["".join(span.text for span in line).rstrip() for line in screen(state, now_s)]
    while lines and (not lines[-1] or KEYS.startswith(lines[-1][:20])):
        lines.pop()
    text = "\n".join(lines) + "\n"
    return ascii_only(text) if is_ascii else text
