"""Reads the wire format of Protocol Buffers, as much as a few messages of others need."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10


def fields(message: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values in the order in which they stand; a submessage is its bytes.

    Raises ValueError where the message is cut short or is none.
    """
    data = memoryview(message)
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError("field number 0")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(data) - at:
            raise ValueError("message cut short")
        yield number, data[at : at + size]
        at += size


def submessages(message: bytes | memoryview, number: int) -> Iterator[memoryview]:
    """The values of a repeated field that holds messages or strings. Raises ValueError."""
    for found, value in fields(message):
        if found == number and isinstance(value, memoryview):
            yield value


def strings(message: bytes | memoryview, number: int) -> list[str]:
    """The values of a repeated string. Raises ValueError."""
    return [bytes(value).decode(errors="replace") for value in submessages(message, number)]


def string(message: bytes | memoryview, number: int) -> str:
    """A string; of several the last counts, and none is empty. Raises ValueError."""
    return next(reversed(strings(message, number)), "")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for n in range(VARINT_BYTES_MAX):
        if at + n >= len(data):
            raise ValueError("message cut short")
        byte = data[at + n]
        value |= (byte & 0x7F) << (7 * n)
        if byte < 0x80:
            return value, at + n + 1
    raise ValueError("number too long")
