"""Does acts by the site's own webhook or command.

Their address and path are settings of the actor; a collector cannot name others.
"""

import json
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path

from gpuwarden.http_client import opener
from gpuwarden_cli.actor.acts import Act, ActError, run_program

TIMEOUT_S = 60.0


class SiteWebhook:
    """A URL that gets the act as JSON, and answers 2xx when it is done."""

    kinds = frozenset({"call_webhook"})

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        """`token_file`: sent as a bearer token."""
        self._url = url
        self._token_file = token_file
        self._answered: set[str] = set()

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`: nothing can be asked before."""
        return None

    def do(self, act: Act) -> None:
        """As of `Scheduler`. The act's id is the header Idempotency-Key."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": act.id}
        _post(self._url, headers | _bearer(self._token_file), json_of(act))
        self._answered.add(act.id)

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`: whether this process was answered."""
        return act.id in self._answered


class SiteCommand:
    """A program that gets the act as JSON on its standard input, and ends with 0 when it is done. No shell."""

    kinds = frozenset({"run_command"})

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: set[str] = set()

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`: nothing can be asked before."""
        return None

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        run_program([str(self._path)], self._path.name, timeout_s=TIMEOUT_S, stdin=json_of(act))
        self._done.add(act.id)

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`: whether it ended with 0 in this process' life."""
        return act.id in self._done


def json_of(act: Act) -> bytes:
    """The act for a program of the site."""
    return json.dumps({**asdict(act), "by": act.by.isoformat()}).encode()


def _bearer(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return {"Authorization": f"Bearer {path.read_text().strip()}"}
    except (OSError, UnicodeDecodeError) as error:
        raise ActError(f"{path} cannot be read: {error}") from error


def _post(url: str, headers: dict[str, str], body: bytes) -> None:
    """Send the body and expect 2xx. Raises ActError."""
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with opener().open(request, timeout=TIMEOUT_S):
            return
    except urllib.error.HTTPError as error:
        with error:
            said = " ".join(error.read(500).decode("utf-8", "replace").split())
        raise ActError(f"POST was answered with {error.code}: {said[:200]}") from error
    except (OSError, ValueError) as error:
        raise ActError(f"POST was not answered: {error}") from error
