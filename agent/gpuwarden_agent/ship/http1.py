"""Encodes requests and decodes answers of HTTP/1.1 for a client, without I/O."""

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import h11

HEAD_BYTES_MAX = 16 * 1024
"""Limit for an answer's status line and headers, and for the frame of a chunk."""
ANSWER_BYTES_MAX = 4096
"""Kept bytes of an answer's body; a connection with a longer answer is closed."""
PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"
"""RFC 3986 3.3, and the per cent sign of a path that is quoted already."""


class NoAnswerError(Exception):
    """No complete answer came. The message is one line for people, without the address."""


class NoConnectionError(NoAnswerError):
    """No connection was made, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """The address of a collector."""

    host: str
    """As the DNS and certificates know it: letters, digits, or an IP address without brackets."""
    port: int
    is_tls: bool
    path: str = ""
    """Prefix of the paths of its API, quoted, without a slash at its end."""
    authorization: str | None = None
    """The header, from the user and password in the address."""

    @classmethod
    def parse(cls, url: str) -> "HttpAddress":
        """Raises ValueError where the text is not an http or https address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an address of an HTTP server")
        is_tls = parts.scheme == "https"
        credentials = parts.username, parts.password
        return cls(
            _ascii(parts.hostname or ""),
            (443 if is_tls else 80) if parts.port is None else parts.port,
            is_tls,
            quote(parts.path.rstrip("/"), safe=PATH_CHARACTERS),
            None if credentials == (None, None) else _basic(*credentials),
        )

    @property
    def authority(self) -> str:
        """Host and port as the header Host has them."""
        host = self.host
        if ":" in host:
            host = f"[{host.partition('%')[0]}]"  # a zone means something on this host only
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    def shown(self, path: str) -> str:
        """The address of a path for logs: without user and password."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}{path}"


def _ascii(host: str) -> str:
    """Python's IDNA codec costs a MiB of tables, so it is used for non-ASCII names only."""
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    labels = host.removesuffix(".").split(".")
    if not all(0 < len(label) < 64 for label in labels) or not host.isprintable() or " " in host:
        raise ValueError(f"{host!r} is not a name of a host")
    return host


def _basic(user: str | None, password: str | None) -> str:
    """RFC 7617."""
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return "Basic " + binascii.b2a_base64(pair.encode(), newline=False).decode("ascii")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer of a server."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """Its first ANSWER_BYTES_MAX bytes."""


class Http1Codec:
    """The requests and answers of one connection, one after the other.

    `request`, then `receive` until it gives the answer; again where `is_reusable` says so.
    """

    def __init__(self, address: HttpAddress, agent: str) -> None:
        """`agent`: the header User-Agent."""
        self._address = address
        self._standing = [("Host", address.authority), ("User-Agent", agent)]
        if address.authorization is not None:
            self._standing.append(("Authorization", address.authorization))
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._head: h11.Response | None = None
        self._body = bytearray()
        self.has_answer_begun = False
        """Whether a byte of the answer to the last request has come."""

    def request(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return the head of a POST; the caller sends `body` after it, unchanged."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        self._head, self._body, self.has_answer_begun = None, bytearray(), False
        fields = [*self._standing, *headers.items(), ("Content-Length", str(len(body)))]
        target = self._address.path + path
        head = self._http.send(h11.Request(method="POST", target=target, headers=fields))
        self._http.send_with_data_passthrough(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())
        return head or b""

    def receive(self, data: bytes) -> HttpResponse | None:
        """Process received bytes, none at the end of the stream; None: the answer is not complete yet.

        Raises NoAnswerError when the answer cannot become complete.
        """
        self.has_answer_begun = self.has_answer_begun or bool(data)
        if not data and not self.has_answer_begun:
            raise NoAnswerError("the server closed the connection without an answer")
        try:
            self._http.receive_data(data)
            return self._answer()
        except h11.RemoteProtocolError as error:
            if data:
                why = f"what it answers is not HTTP: {error}"
            else:
                why = "the server closed the connection in the middle of its answer"
            raise NoAnswerError(why) from error

    def _answer(self) -> HttpResponse | None:
        while True:
            match self._http.next_event():
                case h11.NEED_DATA:
                    return None
                case h11.Response() as head:
                    self._head = head
                case h11.Data(data=data):
                    self._body += data
                    if len(self._body) > ANSWER_BYTES_MAX:
                        return self._whole()
                case h11.EndOfMessage():
                    return self._whole()
                case h11.InformationalResponse():
                    continue
                case _:
                    raise NoAnswerError("the server closed the connection without an answer")

    def _whole(self) -> HttpResponse:
        assert self._head is not None
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in self._head.headers}
        return HttpResponse(self._head.status_code, headers, bytes(self._body[:ANSWER_BYTES_MAX]))

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can be used for another request after this answer."""
        states = self._http.our_state, self._http.their_state
        return states == (h11.DONE, h11.DONE) and self._http.trailing_data == (b"", False)


def may_ask_again(*, was_kept: bool, has_answer_begun: bool) -> bool:
    """Whether a request whose connection broke is sent once more, over a fresh connection.

    A server may close a kept connection while we write to it. It may then get the request twice,
    which is harmless: a batch has an identity.
    """
    return was_kept and not has_answer_begun
