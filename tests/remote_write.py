"""Makes bodies of remote write, as a sender does."""

from typing import Any

import cramjam


def compressed(content: bytes) -> bytes:
    """One Snappy block."""
    return bytes(cramjam.snappy.compress_raw(content))


def encode(message: Any) -> bytes:
    """The body of a request with this message."""
    return compressed(message.SerializeToString())
