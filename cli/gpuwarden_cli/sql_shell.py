r"""Runs the SQL shell: `gpuwarden sql` without a query. Statements end in a semicolon; `\?` lists commands.

`Shell` keeps the settings of a session and turns each entry into text. Input, history, completion and the pager are
separate.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from sqlite3 import complete_statement
from typing import Any

from gpuwarden.comments import column_comments, table_comments
from gpuwarden.durations import seconds_of
from gpuwarden_cli.output import ROW_FORMATS, render, terminal_width, without_colour
from gpuwarden_client.http import CallError, QueryAnswer, RefusedError

PROMPT, PROMPT_MORE = "gpuwarden> ", "      ...> "
HELP = r"""\d             list tables and views
\d TABLE       columns of a table: type, meaning
\format FORM   table, json, ndjson, csv or markdown
\timing        show or hide the time of each query
\watch 2s      run the last query repeatedly, until Ctrl-C
\q             quit (also Ctrl-D)
A query ends with a semicolon; Ctrl-C drops what is typed, or ends the query that runs.
"""
KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY ALL", "ORDER BY", "LIMIT", "HAVING", "QUALIFY", "WITH", "JOIN",
    "LEFT JOIN", "USING", "ASOF JOIN", "INTERVAL", "DISTINCT", "FILTER", "OVER", "PARTITION BY", "DESCRIBE",
    "SUMMARIZE", "EXPLAIN", "SHOW TABLES", "avg(", "sum(", "count(*)", "max(", "min(", "quantile_cont(",
    "time_bucket(", "date_trunc(", "arg_max(", "round(", "now()",
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Ask = Callable[[str], QueryAnswer]


class Quit(Exception):  # noqa: N818  an outcome, not a fault
    """The user quits."""


@dataclass
class Shell:
    """A session; `enter` takes a statement or a command and gives text to print."""

    ask: Ask
    clock: Callable[[], float] = time.monotonic
    form: str = "table"
    is_timed: bool = True
    last: str = ""
    """The query that `\\watch` runs again."""
    watch_s: float | None = field(default=None)
    r"""Set by `\watch`: `run_shell` then repeats `last` at this interval."""

    def enter(self, entry: str) -> str:
        """Output of an entry. Raises CallError, Quit."""
        text = entry.strip()
        if text.startswith("\\"):
            return self._command(text)
        self.last = text.rstrip(";").strip()
        return self.run() if self.last else ""

    def run(self) -> str:
        """Run the last query; its output. Raises CallError."""
        began_s = self.clock()
        answer = self.ask(self.last)
        took_s = self.clock() - began_s
        text = render(answer.columns, answer.rows, self.form, width=terminal_width())
        if self.form != "table":
            return text
        rows = len(answer.rows)
        said = f"{rows:,} row{'s' * (rows != 1)}" + (
            ", and more were cut" if answer.truncated else ""
        )
        return f"{text}{said}" + (f", {1000 * took_s:.0f} ms\n" if self.is_timed else "\n")

    def _command(self, text: str) -> str:
        name, _, rest = text.rstrip(";").partition(" ")
        rest = rest.strip()
        match name:
            case "\\q" | "\\quit":
                raise Quit
            case "\\?" | "\\h" | "\\help":
                return HELP
            case "\\d" | "\\dt" if rest:
                return _columns_of(rest, self)
            case "\\d" | "\\dt":
                listed = [[name, meaning] for name, meaning in table_comments().items()]
                return render(["table", "meaning"], listed, "table", width=terminal_width())
            case "\\timing":
                self.is_timed = not self.is_timed
                return f"timing is {'on' if self.is_timed else 'off'}\n"
            case "\\format" if rest in ROW_FORMATS:
                self.form = rest
                return ""
            case "\\format":
                raise CallError(f"\\format is one of {', '.join(ROW_FORMATS)}")
            case "\\watch":
                seconds = seconds_of(rest or "2s")
                if not seconds or not self.last:
                    raise CallError(
                        "\\watch takes a duration, such as 2s, and runs the query before it"
                    )
                self.watch_s = seconds
                return ""
            case _:
                raise CallError(f"{name} is not a command; \\? lists them")


_COLUMNS = """
SELECT column_name AS "column", data_type AS type, comment AS meaning FROM duckdb_columns()
WHERE table_name = '{}' ORDER BY column_index
"""


def _columns_of(name: str, shell: Shell) -> str:
    """Columns of a table or view with their meanings. Raises CallError."""
    known = table_comments()
    if name.lower() not in known:
        raise CallError(no_such_table(name, known))
    answer = shell.ask(_COLUMNS.format(name.lower()))
    rows = render(answer.columns, answer.rows, "table", width=terminal_width())
    return f"{known[name.lower()]}\n\n{rows}"


def no_such_table(name: str, known: Iterable[str]) -> str:
    """A line that suggests the nearest name."""
    near = get_close_matches(name.lower(), known, n=1)
    hint = f"is it {near[0]}? " if near else ""
    return f"there is no table {name}; {hint}SHOW TABLES and \\d list them"


def words() -> dict[str, str]:
    """Words for completion, with their meanings."""
    found = dict.fromkeys(KEYWORDS, "")
    for columns in column_comments().values():
        for column, comment in columns.items():
            found.setdefault(column, comment)
    return {**found, **table_comments()}


def is_whole(entry: str) -> bool:
    """Whether an entry is complete: a command, empty, or ended by a semicolon outside quotes and comments."""
    text = entry.strip()
    return not text or text.startswith("\\") or complete_statement(text)


def entries(read: Callable[[str], str]) -> Iterator[str]:
    """Complete entries from `read`, which raises EOFError at the end, and KeyboardInterrupt to drop the entry."""
    lines: list[str] = []
    while True:
        try:
            lines.append(read(PROMPT_MORE if lines else PROMPT))
        except KeyboardInterrupt:
            lines.clear()
            continue
        except EOFError:
            return
        entry = "\n".join(lines)
        if is_whole(entry):
            lines.clear()
            if entry.strip():
                yield entry


def run_shell(ask: Ask, url: str) -> int:
    """Read and run entries until the user quits."""
    shell = Shell(ask)
    print(f"Fleet SQL at {url} (read only). \\? for help, \\q to leave.")
    for entry in entries(_reader()):
        try:
            shown(shell.enter(entry))
            while shell.watch_s is not None:
                watch(shell, shell.watch_s)
        except CallError as error:
            print(f"gpuwarden: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print()
        except Quit:
            break
        finally:
            shell.watch_s = None
    return 0


def watch(shell: Shell, every_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Run the last query at an interval until Ctrl-C, also while the collector is away. Raises RefusedError."""
    from shutil import get_terminal_size

    while True:
        try:
            text = shell.run()
        except RefusedError:
            raise
        except CallError as error:
            text = f"gpuwarden: {error}\n"
        if sys.stdout.isatty():
            lines = text.splitlines(keepends=True)
            room = get_terminal_size().lines - 2
            more = len(lines) - room
            cut = [*lines[: room - 1], f"… {more + 1:,} more lines\n"] if more > 0 else lines
            print("\x1b[H\x1b[2J" + "".join(cut), end="")
        else:
            print(text, end="")
        print(f"every {every_s:g} s; Ctrl-C ends", flush=True)
        sleep(every_s)


def shown(text: str) -> None:
    """Print the text, with a pager when it does not fit the screen."""
    from shutil import get_terminal_size, which

    size = get_terminal_size()
    plain = without_colour(text)
    widest = max(map(len, plain.splitlines()), default=0)
    is_large = plain.count("\n") >= size.lines or widest > size.columns
    pager = os.environ.get("PAGER") or ("less -S" if which("less") else "")
    if not (is_large and pager and sys.stdout.isatty()):
        print(text, end="")
        return
    if not pager.startswith("less"):
        text = plain  # other pagers may print the escape codes
    try:
        # As psql does: less quits at once if the text fits one screen.
        environment = {**os.environ, "LESS": os.environ.get("LESS", "FRX")}
        subprocess.run(shlex.split(pager), input=text, text=True, env=environment, check=False)
    except (OSError, ValueError):
        print(text, end="")


def _reader() -> Callable[[str], str]:
    """A function that reads a line, with history and completion if prompt_toolkit is installed."""
    if not sys.stdin.isatty():
        return lambda prompt: input()
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
    except ImportError:
        import readline  # noqa: F401  gives input() its line editing

        return input
    return PromptSession(
        history=FileHistory(str(_history_file())), completer=completer(), complete_while_typing=True
    ).prompt


def completer() -> Any:
    """Completes tables, columns, functions and keywords, with their meanings."""
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    known = sorted(words().items(), key=lambda item: (item[0].lower(), item[0]))

    class SqlCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterator[Completion]:
            typed = document.get_word_before_cursor(pattern=_WORD)
            if not typed:
                return
            for name, meaning in known:
                if name.lower().startswith(typed.lower()):
                    yield Completion(name, -len(typed), display_meta=meaning[:80])

    return SqlCompleter()


def _history_file() -> Path:
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuwarden"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return Path(os.devnull)
    return folder / "sql_history"
