"""Formats logs: `key=value` text on stderr, or one JSON object per line.

Levels by consequence. ERROR: data lost or an operator is needed. WARNING: degraded, nothing lost.
INFO: life cycle, a handful an hour. DEBUG: every cycle. Messages are constant; values go into
`extra`. journald adds time and unit, so the text has a time on a terminal only. Lines to journald begin with
their priority, for `journalctl -p warning`. Secrets of addresses are masked in all that is written: values, paths, traces.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpuwarden.untrusted_text import escaped_json, printable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRETS = re.compile(
    r"(gw_[a-z]+_[a-z0-9]{12}_|(?:/|%2F)answer(?:/|%2F)|[?&](?:code|state|\w*token|\w*secret|password)=)"
    r"""[^\s&"'\\<>?]+""",
    re.IGNORECASE,
)
"""Tokens, links by which owners answer, what a provider of single sign-on sends, and parameters named after a secret."""
_PLAIN = re.compile(r"[^\s\"=]+\Z")


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The values that the caller passed in `extra`."""
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


def masked(text: str) -> str:
    """The text with the secrets of addresses masked."""
    return _SECRETS.sub(r"\1***", text)


def _quoted(value: object) -> str:
    text = str(value)
    if _PLAIN.match(text) and text.isprintable():
        return text
    return escaped_json(json.dumps(text, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """`level part: message key=value ...`, with the time in front on a terminal."""

    def __init__(self, *, with_time: bool) -> None:
        super().__init__()
        self._with_time = with_time

    def format(self, record: logging.LogRecord) -> str:
        when = ""
        if self._with_time:
            when = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%SZ ")
        part = record.name.split(".")[0].removeprefix("gpuwarden_")
        text = f"{when}{record.levelname.lower()} {part}: {printable(record.getMessage())}"
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in fields(record).items())
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return masked(text + pairs + trace)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return masked(escaped_json(json.dumps(entry, default=str, ensure_ascii=False)))


class JournalFormatter(logging.Formatter):
    """Lines of another formatter after their priority (sd-daemon(3)), which journald removes."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next(p for least, p in _PRIORITIES if record.levelno >= least)
        lines = self._inner.format(record).splitlines()
        return "\n".join(f"<{priority}>{line}" for line in lines)


_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))


def is_journal(file: int, environment: Mapping[str, str]) -> bool:
    """Whether a file descriptor is connected to journald, by JOURNAL_STREAM (systemd.exec(5))."""
    try:
        found = os.fstat(file)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def setup(level: str = "info", form: str = "text") -> None:
    """Send the log to stderr. `level`: debug, info, warning, error; `form`: text or json."""
    handler = logging.StreamHandler(sys.stderr)
    with_time = sys.stderr.isatty()
    formatter = JsonFormatter() if form == "json" else TextFormatter(with_time=with_time)
    to_journal = is_journal(2, os.environ)
    handler.setFormatter(JournalFormatter(formatter) if to_journal else formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("aiohttp.access", "apscheduler"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
