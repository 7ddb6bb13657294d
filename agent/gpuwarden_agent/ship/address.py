"""Parses the address of a collector."""

import binascii
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"
"""RFC 3986 3.3, and the per cent sign of a path that is quoted already."""


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
