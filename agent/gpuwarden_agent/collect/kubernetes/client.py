"""Sends requests to a kubelet or an API server over HTTPS, as a service account.

The token is read for each request, because the kubelet replaces it every hour. Redirects are not followed
and proxies of the environment not used, because they would get the token.
"""

import http.client
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 5.0
"""For a whole request."""
ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""A node has at most some hundred pods, of 20 kB each."""
CHUNK_BYTES = 65_536
KUBELET_PORT, API_PORT = 10250, 443

_SERVER = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:/@?#\[\]]+))(?::(\d{1,5}))?")


class KubernetesError(Exception):
    """No answer came; the message says from which server, and why.

    `status`: that of HTTP, if any. `is_tls`: the server's certificate is not trusted.
    """

    def __init__(self, message: str, *, status: int | None = None, is_tls: bool = False) -> None:
        super().__init__(message)
        self.status, self.is_tls = status, is_tls


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int) -> "Server":
        """HOST, HOST:PORT, an address of IPv6 with or without brackets. Raises ValueError."""
        if text.count(":") > 1 and not text.startswith("["):
            text = f"[{text}]"
        found = _SERVER.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a host or host:port")
        return cls(found[1] or found[2], int(found[3] or default_port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Files that Kubernetes gives a pod."""

    folder: Path

    @property
    def is_there(self) -> bool:
        """Whether this process has a service account."""
        return (self.folder / "token").exists()

    def authorization(self) -> str:
        """The header. Raises KubernetesError."""
        path = self.folder / "token"
        try:
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise KubernetesError(
                f"{path}: {getattr(error, 'strerror', None) or 'no text'}"
            ) from error
        if not token or not token.isascii() or not token.isprintable():
            raise KubernetesError(f"{path}: no token")
        return f"Bearer {token}"

    def tls_context(self) -> ssl.SSLContext:
        """Trusts the cluster's authority alone. Raises KubernetesError."""
        path = self.folder / "ca.crt"
        try:
            return ssl.create_default_context(cafile=path)
        except (OSError, ssl.SSLError) as error:
            raise KubernetesError(f"{path}: {error}") from error


class KubernetesClient:
    """A client of one server."""

    def __init__(
        self,
        server: Server,
        account: ServiceAccount,
        monotonic: Callable[[], float],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.server = server
        self._account = account
        self._monotonic = monotonic
        self._timeout_s = timeout_s

    def get(self, path: str, accept: str = "application/json") -> bytes:
        """GET; returns the body of a 200. Raises KubernetesError."""
        until_s = self._monotonic() + self._timeout_s
        headers = {"Authorization": self._account.authorization(), "Accept": accept}
        connection = http.client.HTTPSConnection(
            self.server.host,
            self.server.port,
            timeout=self._timeout_s,
            context=self._account.tls_context(),
        )
        try:
            return self._asked(connection, path, headers, until_s)
        except TimeoutError as error:
            raise self._error(f"no answer within {self._timeout_s:g} s") from error
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is refused: {error.verify_message}"
            raise self._error(why, is_tls=True) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._error(reason) from error
        finally:
            connection.close()

    def _asked(
        self,
        connection: http.client.HTTPSConnection,
        path: str,
        headers: Mapping[str, str],
        until_s: float,
    ) -> bytes:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        if answer.status != 200:
            raise self._error(f"{path}: HTTP {answer.status} {answer.reason}", status=answer.status)
        body = bytearray()
        while chunk := answer.read1(CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise self._error("its answer is too long")
            if self._monotonic() > until_s:
                raise TimeoutError
        if answer.length:
            raise self._error("its answer was cut short")
        return bytes(body)

    def _error(
        self, why: str, *, status: int | None = None, is_tls: bool = False
    ) -> KubernetesError:
        return KubernetesError(f"{self.server}: {why}", status=status, is_tls=is_tls)
