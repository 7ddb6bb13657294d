"""Calls a collector over HTTP with a token; every failure is a CallError of one line."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from urllib.error import HTTPError
    from urllib.request import Request

    from gpuwarden.access import Token

DEFAULT_URL = "http://127.0.0.1:8750"


class CallError(Exception):
    """The collector refused or did not answer; the message is one line that says what to do."""


class RefusedError(CallError):
    """The collector refused the request: a wrong query, or something that does not exist."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Rows of a query as the collector's JSON has them: timestamps are ISO 8601 texts."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
    types: Sequence[str] = ()
    """DuckDB's types of the columns."""


CUT_TAIL_BYTES = 65_536
"""Bytes at the end of an answer that say whether it is truncated."""


def is_cut(headers: Mapping[str, str], tail: bytes) -> bool:
    """Whether rows in a format other than JSON are truncated: by a header, or by the end of a long answer."""
    from gpuwarden.query import TRUNCATED

    said = headers.get("Gpuwarden-Truncated")
    return TRUNCATED.encode() in tail if said is None else said == "true"


def timestamp_param(instant: datetime) -> dict[str, str]:
    """An aware instant as `POST /v1/sql` takes a parameter."""
    return {"timestamp": instant.astimezone(UTC).isoformat()}


def collector_url() -> str:
    """The collector that GPUWARDEN_URL names, else the one on this machine."""
    return os.environ.get("GPUWARDEN_URL") or DEFAULT_URL


def ask(
    sql: str,
    params: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    timeout_s: float = 60,
    row_limit: int | None = None,
) -> QueryAnswer:
    """Rows of one SELECT; `params` as the API takes them. Raises CallError."""
    document: dict[str, Any] = {"sql": sql}
    if params:
        document["params"] = dict(params)
    if row_limit is not None:
        document["row_limit"] = row_limit
    found = call("POST", "/v1/sql", document, url=url, timeout_s=timeout_s)
    columns = [column["name"] for column in found["columns"]]
    types = [column["type"] for column in found["columns"]]
    return QueryAnswer(columns, found["rows"], found["truncated"], types)


@dataclass(frozen=True, slots=True)
class CollectorEndpoint:
    """A collector's address and credentials. Its representation hides the token."""

    url: str
    token: "Token | None" = field(default=None, repr=False)
    ca: str | None = None
    """File of the authority that signed its certificate; None: those of this system."""

    @classmethod
    def of(cls, url: str | None = None, token: str | None = None, ca: str | None = None) -> Self:
        """Defaults come from the environment: GPUWARDEN_URL, GPUWARDEN_TOKEN or GPUWARDEN_TOKEN_FILE,
        GPUWARDEN_CA. Raises CallError."""
        from gpuwarden.access import Token

        base = (url or collector_url()).rstrip("/")
        if not base.startswith(("http://", "https://")):
            name = "url" if url else "GPUWARDEN_URL"
            raise CallError(f"{name} = {base} is not a URL; it must start with http://")
        try:
            known = Token.parse(token) if token else token_of_environment()
        except ValueError as error:
            raise CallError(str(error)) from error
        return cls(base, known, ca or os.environ.get("GPUWARDEN_CA") or None)

    def call(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 60,
    ) -> Any:
        """The API's JSON answer, decoded; None for an empty one. Raises CallError."""
        answer = self.answer(method, path, document, accept="application/json", timeout_s=timeout_s)
        with answer, self.reading(timeout_s):
            body = answer.read()
            return json.loads(body) if body else None

    def answer(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        accept: str,
        timeout_s: float = 60,
    ) -> Any:
        """An answer with its body unread, as `urlopen` gives it. Raises CallError."""
        # Imported here: every command loads this module, an agent's too.
        from urllib.request import Request

        request = Request(
            f"{self.url}{path}",
            data=None if document is None else json.dumps(document).encode(),
            method=method,
            headers={"Content-Type": "application/json", "Accept": accept},
        )
        with self.reading(timeout_s):
            return self.opened(request, timeout_s)

    def opened(self, request: "Request", timeout_s: float) -> Any:
        """As `urlopen`, with token and `ca`. Raises CallError for a `ca` that cannot be read."""
        import ssl

        from gpuwarden.http_client import opener

        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token.text}")
        context = None
        if request.type == "https":
            try:
                context = ssl.create_default_context(cafile=self.ca)
            except OSError as error:
                raise CallError(f"GPUWARDEN_CA = {self.ca}: no readable certificate") from error
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        return opener(context).open(request, timeout=timeout_s)

    @contextmanager
    def reading(self, timeout_s: float) -> Iterator[None]:
        """Turns errors of the request and of reading its answer into CallError."""
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError

        try:
            yield
        except CallError:
            raise
        except HTTPError as error:
            raise RefusedError(_refusal(error)) from error
        except TimeoutError as error:
            raise CallError(f"{self.url} did not answer within {timeout_s:.0f} s") from error
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            if (certificate := _certificate_error(reason)) is not None:
                raise CallError(f"{self.url}: {certificate}") from error
            raise CallError(
                f"no collector answers at {self.url} ({_plain(reason)}): start one with `gpuwarden up`,"
                " or set GPUWARDEN_URL"
            ) from error
        except (ValueError, HTTPException) as error:
            raise CallError(f"{self.url} does not answer like a gpuwarden collector") from error


def call(
    method: str,
    path: str,
    document: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    timeout_s: float = 60,
) -> Any:
    """As `CollectorEndpoint.call`, with the environment's token. Raises CallError."""
    return CollectorEndpoint.of(url).call(method, path, document, timeout_s=timeout_s)


def token_of_environment() -> "Token | None":
    """The token in GPUWARDEN_TOKEN, or in the file that GPUWARDEN_TOKEN_FILE names. Raises ValueError."""
    from gpuwarden.access import Token, read_token

    if text := os.environ.get("GPUWARDEN_TOKEN", "").strip():
        try:
            return Token.parse(text)
        except ValueError as error:
            raise ValueError(f"GPUWARDEN_TOKEN: {error}") from error
    if path := os.environ.get("GPUWARDEN_TOKEN_FILE"):
        return read_token(Path(path))
    return None


def _certificate_error(reason: object) -> str | None:
    """The error of the collector's certificate; None: the error is another one."""
    message = getattr(reason, "verify_message", None)
    if message is None:
        return None
    return (
        f"its certificate is refused: {message}: set GPUWARDEN_CA to the file of its authority, or renew"
        " it on the collector's host (`gpuwarden collector init --renew`)"
    )


def _refusal(error: "HTTPError") -> str:
    from gpuwarden.untrusted_text import printable
    from gpuwarden.wire import error_sentence

    if 300 <= error.code < 400:
        location = printable(error.headers.get("Location", ""))[:200]
        return f"{error.url} redirects to {location!r}, which is not followed: set GPUWARDEN_URL"
    return error_sentence(error.read()) or f"{error.url} answered {error.code} {error.reason}"


def _plain(reason: object) -> str:
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return text[:1].lower() + text[1:]
