"""SCRAM-SHA-256 (RFC 5802, RFC 7677) of the server's side: pure; the nonce is a parameter.

What is stored of a token cannot be used to log in, nor to learn the token.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4_096
"""The least that RFC 7677 allows: a token is random, and cannot be guessed from its hash."""

_STORED = re.compile(
    r"SCRAM-SHA-256\$(\d{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)


class ScramError(ValueError):
    """A message that is not SCRAM's."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What is stored of a password, in PostgreSQL's own form as text."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, salt: bytes | None = None) -> "Verifier":
        """Of an ASCII password."""
        salt = secrets.token_bytes(16) if salt is None else salt
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
        stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
        return cls(ITERATIONS, salt, stored, _hmac(salted, b"Server Key"))

    @classmethod
    def parse(cls, text: str) -> "Verifier":
        """Raises ValueError."""
        found = _STORED.fullmatch(text)
        if found is None:
            raise ValueError("no SCRAM verifier")
        salt, stored, server = (
            base64.b64decode(part, validate=True) for part in found.groups()[1:]
        )
        return cls(int(found[1]), salt, stored, server)

    def __str__(self) -> str:
        parts = (_base64(part) for part in (self.salt, self.stored_key, self.server_key))
        salt, stored, server = parts
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"


class Exchange:
    """One login."""

    def __init__(self, verifier: Verifier, nonce: str) -> None:
        """`nonce`: random, of printable characters but the comma."""
        self._verifier = verifier
        self._nonce = nonce
        self._first = ""

    def first(self, content: bytes) -> bytes:
        """The answer to the client's first message, SASLInitialResponse. Raises ScramError."""
        mechanism, end, rest = content.partition(b"\0")
        if mechanism != MECHANISM.encode() or not end or len(rest) < 4:
            raise ScramError("another mechanism than the one that was offered")
        text = _ascii(rest[4:])
        # Without channel binding: `n`; `y` where the client would, and thinks that the server cannot.
        found = re.fullmatch(r"([ny]),(?:a=[^,]*)?,(n=[^,]*,r=([!-+\--~]{1,256})(?:,.*)?)", text)
        if found is None:
            raise ScramError("a first message that is none of SCRAM-SHA-256")
        self._header = text[: found.start(2)]
        self._nonce = found[3] + self._nonce
        salt = _base64(self._verifier.salt)
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._first = f"{found[2]},{answer}"
        return answer.encode()

    def final(self, content: bytes) -> bytes | None:
        """The answer to the client's last message; None: it does not know the password. Raises ScramError."""
        text = _ascii(content)
        found = re.fullmatch(
            r"(c=([A-Za-z0-9+/=]*),r=([!-+\--~]+)(?:,.*)?),p=([A-Za-z0-9+/=]+)", text
        )
        if found is None:
            raise ScramError("a last message that is none of SCRAM-SHA-256")
        try:
            header, proof = (base64.b64decode(found[at], validate=True) for at in (2, 4))
        except binascii.Error as error:
            raise ScramError("a last message that is none of SCRAM-SHA-256") from error
        if header != self._header.encode() or found[3] != self._nonce or len(proof) != 32:
            raise ScramError("a last message that does not belong to the first")
        signed = f"{self._first},{found[1]}".encode()
        signature = _hmac(self._verifier.stored_key, signed)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            return None
        return b"v=" + _base64(_hmac(self._verifier.server_key, signed)).encode()


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _ascii(content: bytes) -> str:
    # A user's name may be any; it is not looked at, as the startup message has it.
    return content.decode("latin-1")
