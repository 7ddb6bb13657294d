"""Talks to a collector for commands that ask one question and end."""

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from urllib.error import HTTPError

DEFAULT_URL = "http://127.0.0.1:8750"


class CallError(Exception):
    """The collector refused or did not answer; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a query as the collector's JSON has them: timestamps are ISO 8601 texts."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool


def collector_url() -> str:
    """The collector that GPUWARDEN_URL names, else the one on this machine."""
    return os.environ.get("GPUWARDEN_URL") or DEFAULT_URL


def ask(sql: str, *, url: str | None = None, timeout_s: float = 60) -> Answer:
    """Rows of one SELECT. Raises CallError."""
    # Imported by who asks: the parser loads this module for every command, an agent's as well.
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    base = (url or collector_url()).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise CallError(f"GPUWARDEN_URL = {base} is not a URL; it must start with http://")
    request = Request(
        f"{base}/v1/sql",
        data=json.dumps({"sql": sql}).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/json"},
    )
    try:
        with urlopen(request, timeout=timeout_s) as answer:
            document = json.load(answer)
    except HTTPError as error:
        raise CallError(_refusal(error)) from error
    except TimeoutError as error:
        raise CallError(f"{base} gave no answer within {timeout_s:.0f} s") from error
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise CallError(
            f"no collector answers at {base} ({_plain(reason)}): start one with `gpuwarden up`,"
            " or set GPUWARDEN_URL"
        ) from error
    except ValueError as error:
        raise CallError(f"{base} does not answer like a gpuwarden collector") from error
    columns = [column["name"] for column in document["columns"]]
    return Answer(columns, document["rows"], document["truncated"])


def _refusal(error: "HTTPError") -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answered {error.code} {error.reason}"


def _plain(reason: object) -> str:
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return text[:1].lower() + text[1:]
