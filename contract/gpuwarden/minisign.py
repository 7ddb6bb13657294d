"""Signatures of files as minisign makes them: Ed25519 over BLAKE2b, with a comment that is signed too.

Format: https://jedisct1.github.io/minisign/. `minisign -Vm SHA256SUMS -p release.pub` reads what `sign` writes, and
`verify` what `minisign -Sm` writes. Keys and signatures are those of cryptography, which is imported when needed.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PLAIN, _HASHED = b"Ed", b"ED"
_ID_BYTES, _KEY_BYTES, _SIGNATURE_BYTES = 8, 32, 64
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "


class SignatureError(ValueError):
    """A key or signature is malformed, or of another file; one sentence."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key."""

    id: bytes
    key: bytes

    @classmethod
    def parse(cls, text: str) -> "PublicKey":
        """Parse the line that begins with RW, or a file with a comment before it. Raises SignatureError."""
        lines = [line for line in text.split("\n") if line.strip() and not _is_comment(line)]
        raw = _decoded(lines[0] if len(lines) == 1 else "", "the public key")
        if len(raw) != 2 + _ID_BYTES + _KEY_BYTES or raw[:2] != _PLAIN:
            raise SignatureError(
                "the public key is none of minisign: it is one line that begins with RW"
            )
        return cls(raw[2:10], raw[10:])

    @property
    def text(self) -> str:
        """The key file as minisign writes it."""
        line = base64.b64encode(_PLAIN + self.id + self.key).decode()
        return f"{_UNTRUSTED}minisign public key {self.id[::-1].hex().upper()}\n{line}\n"


def public_key(private: "Ed25519PrivateKey") -> PublicKey:
    """Of a private key; its id is of the key itself, so that it is the same wherever it is made."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return PublicKey(hashlib.blake2b(raw, digest_size=_ID_BYTES).digest(), raw)


def sign(private: "Ed25519PrivateKey", content: bytes, comment: str) -> str:
    """The text of a signature; `comment` is a line that is signed too."""
    key = public_key(private)
    signature = private.sign(hashlib.blake2b(content).digest())
    both = private.sign(signature + comment.encode())
    line = base64.b64encode(_HASHED + key.id + signature).decode()
    return (
        f"{_UNTRUSTED}signature by {key.id[::-1].hex().upper()}\n{line}\n"
        f"{_TRUSTED}{comment}\n{base64.b64encode(both).decode()}\n"
    )


def verify(key: PublicKey, signature: str, content: bytes) -> str:
    """The signed comment of a signature of that content by that key. Raises SignatureError."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    lines = signature.rstrip("\n").split("\n")
    if len(lines) != 4 or not lines[0].startswith(_UNTRUSTED) or not lines[2].startswith(_TRUSTED):
        raise SignatureError("this is not a minisign signature: those have four lines")
    raw, both = _decoded(lines[1], "the signature"), _decoded(lines[3], "the signature")
    if len(raw) != 2 + _ID_BYTES + _SIGNATURE_BYTES or raw[:2] not in (_PLAIN, _HASHED):
        raise SignatureError("the signature has an unknown algorithm")
    if raw[2:10] != key.id:
        raise SignatureError(f"it is signed by another key, {raw[9:1:-1].hex().upper()}")
    signed = hashlib.blake2b(content).digest() if raw[:2] == _HASHED else content
    comment = lines[2].removeprefix(_TRUSTED)
    ed25519 = Ed25519PublicKey.from_public_bytes(key.key)
    try:
        ed25519.verify(raw[10:], signed)
        ed25519.verify(both, raw[10:] + comment.encode())
    except InvalidSignature:
        raise SignatureError(
            "the signature is not of this file: it was changed after it was signed"
        ) from None
    return comment


def _is_comment(line: str) -> bool:
    return line.startswith(_UNTRUSTED)


def _decoded(line: str, what: str) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        raise SignatureError(f"{what} is not from minisign: it is not base64") from None
