"""Runs `top` in Textual: turns keys and answers into events of the model, and draws changed lines.

Needs the extra `top`. The terminal is restored in every case: Textual does so on errors, and SIGTERM and SIGHUP end
the application first.
"""

import asyncio
import signal
import sys
import webbrowser
from collections.abc import Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.geometry import Region
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from gpuwarden.clock import Clock
from gpuwarden_cli.browser import has_display
from gpuwarden_cli.top.model import (
    AnswerArrived,
    AnswerFailed,
    AskSource,
    Clicked,
    EndTop,
    Event,
    OpenPage,
    Pressed,
    Resized,
    State,
    Ticked,
    step,
    wait_s,
)
from gpuwarden_cli.top.request import Request, RowSource, SourceError
from gpuwarden_cli.top.screen import screen
from gpuwarden_cli.top.text import Line, ascii_only
from gpuwarden_cli.top.theme import THEMES


def _styles(theme: str) -> Mapping[str, Style]:
    return {
        name: Style(
            color=look.color,
            bold=look.is_bold,
            dim=look.is_dim,
            underline=look.is_underlined,
            reverse=look.is_reversed,
        )
        for name, look in THEMES[theme].items()
    }


class Lines(Widget):
    """The whole screen, line by line."""

    DEFAULT_CSS = (
        "Lines { width: 100%; height: 100%; background: ansi_default; color: ansi_default; }"
    )
    ALLOW_SELECT = False

    def __init__(self, theme: str, *, is_ascii: bool) -> None:
        super().__init__()
        self._is_ascii = is_ascii
        self._theme = theme
        self._styles = _styles(theme)
        self._lines: Sequence[Line] = ()

    @property
    def text(self) -> str:
        """Text of the screen, without styles."""
        return "\n".join("".join(span.text for span in line).rstrip() for line in self._lines)

    def show(self, lines: Sequence[Line], theme: str) -> None:
        """Draw the lines that have changed; all in another theme."""
        before, self._lines = self._lines, lines
        is_other = theme != self._theme
        if is_other:
            self._theme, self._styles = theme, _styles(theme)
        if is_other or len(before) != len(lines):
            self.refresh()
            return
        changed = [y for y, line in enumerate(lines) if line != before[y]]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """A line, for Textual."""
        line = self._lines[y] if y < len(self._lines) else ()
        segments = [
            Segment(
                ascii_only(span.text) if self._is_ascii else span.text, self._styles[span.style]
            )
            for span in line
        ]
        return Strip(segments).adjust_cell_length(self.size.width, Style())


class TopApp(App[None]):
    """`gpuwarden top` on a terminal."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; }"
    BINDINGS = [  # noqa: RUF012  as Textual has it
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, source: RowSource, state: State, clock: Clock) -> None:
        super().__init__(ansi_color=True)
        self._source = source
        self._state = state
        self._clock = clock
        self._timer: Timer | None = None
        encoding = (getattr(sys.__stdout__, "encoding", None) or "utf-8").lower()
        self.lines = Lines(state.theme, is_ascii=not encoding.startswith("utf"))

    @property
    def state(self) -> State:
        """The state that is shown."""
        return self._state

    def compose(self) -> ComposeResult:
        """Make the widget."""
        yield self.lines

    def on_mount(self) -> None:
        """Start the source and draw."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)
        self.run_worker(self._source.run(), name="source", exit_on_error=True)
        self._happened(Resized(self.size.width, self.size.height))

    def on_unmount(self) -> None:
        """Remove the signal handlers."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def on_resize(self, event: events.Resize) -> None:
        """Take the new size of the terminal."""
        self._happened(Resized(event.size.width, event.size.height))

    def on_key(self, event: events.Key) -> None:
        """Take a key."""
        event.stop()
        event.prevent_default()
        self._happened(Pressed(event.key, event.character))

    def on_click(self, event: events.Click) -> None:
        """Take a click."""
        self._happened(Clicked(event.screen_y, event.screen_x))

    def on_mouse_scroll_down(self, _event: events.MouseScrollDown) -> None:
        """Move like the arrow key."""
        self._happened(Pressed("down"))

    def on_mouse_scroll_up(self, _event: events.MouseScrollUp) -> None:
        """Move like the arrow key."""
        self._happened(Pressed("up"))

    def _happened(self, event: Event) -> None:
        now_s = self._clock.monotonic()
        self._state, effects = step(self._state, event, now_s)
        for effect in effects:
            match effect:
                case EndTop():
                    self.exit()
                    return
                case OpenPage(address):
                    if has_display():
                        webbrowser.open(address)
                case AskSource(request):
                    self.run_worker(self._ask(request), name="ask", exit_on_error=True)
        self.lines.show(screen(self._state, now_s), self._state.theme)
        self._wait(now_s)

    def _wait(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if (seconds := wait_s(self._state, now_s)) is not None:
            self._timer = self.set_timer(max(0.02, seconds), lambda: self._happened(Ticked()))

    async def _ask(self, request: Request) -> None:
        try:
            answer = await self._source.ask(request)
        except SourceError as error:
            self._happened(AnswerFailed(request, str(error), error.is_refusal))
        else:
            self._happened(AnswerArrived(request, answer))
