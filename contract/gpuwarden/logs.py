"""Logging: `key=value` text on stderr, or a JSON object a line.

Levels by consequence. ERROR: data lost or an operator is needed. WARNING: degraded, nothing lost.
INFO: life cycle, a handful an hour. DEBUG: every cycle. Messages are constant; what varies goes
into `extra`. journald adds time and unit itself, so the text form has a time only on a terminal.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[^\s\"=]+\Z")


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed in `extra`."""
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.match(text) else json.dumps(text, ensure_ascii=False)


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
        text = f"{when}{record.levelname.lower()} {part}: {record.getMessage()}"
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in fields(record).items())
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return text + pairs + trace


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

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
        return json.dumps(entry, default=str, ensure_ascii=False)


def setup(level: str = "info", form: str = "text") -> None:
    """Send the log to stderr. `level`: debug, info, warning, error; `form`: text or json."""
    handler = logging.StreamHandler(sys.stderr)
    with_time = sys.stderr.isatty()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(with_time=with_time))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("aiohttp.access", "apscheduler"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
