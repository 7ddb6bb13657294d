"""Calls a gRPC method, and reads Protocol Buffers, for services of a few messages.

A gRPC library would take more memory than the rest of the agent. h2 is imported at the first call, so that
other hosts do not load it.
"""

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""The kubelet's own limit."""
OK, DEADLINE_EXCEEDED, UNIMPLEMENTED = 0, 4, 12
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of Protocol Buffers."""
VARINT_BYTES_MAX = 10


class GrpcError(Exception):
    """The service gave no answer; the message says why."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """`status`: that of gRPC; None: the call did not get so far."""
        super().__init__(message)
        self.status = status


def call(
    connection: socket.socket,
    method: str,
    request: bytes,
    left_s: Callable[[], float],
    service: str,
) -> bytes:
    """One call on a new connection; returns the answer's message. `service`: its name in errors.

    Raises OSError (TimeoutError when no time is left), ValueError for another protocol, and GrpcError.
    """
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.exceptions import H2Error

    http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    http.initiate_connection()
    stream = http.get_next_available_stream_id()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", f"{max(1, round(left_s() * 1000))}m"),
    ]
    http.send_headers(stream, headers)
    # Not compressed, and the length.
    http.send_data(stream, b"\0" + len(request).to_bytes(4) + request, end_stream=True)
    answer = _Answer(service)
    try:
        while not answer.is_whole:
            connection.sendall(http.data_to_send())
            remaining_s = left_s()
            if remaining_s <= 0:
                raise TimeoutError
            connection.settimeout(remaining_s)
            received = connection.recv(65536)
            if not received:
                raise GrpcError(f"{service} hung up")
            for event in http.receive_data(received):
                answer.take(event, http)
    except H2Error as error:
        raise ValueError(f"no HTTP/2: {error}") from error
    return answer.message()


class _Answer:
    """The received part of a gRPC answer."""

    def __init__(self, service: str) -> None:
        self.is_whole = False
        self._service = service
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def take(self, event: Any, http: Any) -> None:
        """An event of the only stream. Raises GrpcError."""
        from h2 import events

        match event:
            case events.ResponseReceived() | events.TrailersReceived():
                self._headers |= {str(name): str(value) for name, value in event.headers or ()}
            case events.DataReceived():
                self._body += event.data or b""
                if len(self._body) > ANSWER_BYTES_MAX:
                    raise GrpcError(f"the answer of {self._service} is too long")
                http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case events.StreamEnded():
                self.is_whole = True
            case events.StreamReset() | events.ConnectionTerminated():
                raise GrpcError(f"{self._service} broke off: {event.error_code}")

    def message(self) -> bytes:
        """The only message. Raises ValueError and GrpcError."""
        status = self._headers.get("grpc-status", "")
        if status != str(OK):
            code = int(status) if status.isdecimal() else None
            raise GrpcError(_refusal(self._service, status, self._headers), code)
        if len(self._body) < 5 or self._body[0]:
            raise ValueError("no gRPC message, or a compressed one")
        size = int.from_bytes(self._body[1:5])
        if len(self._body) != 5 + size:
            raise ValueError("gRPC message cut short")
        return bytes(self._body[5:])


def _refusal(service: str, status: str, headers: Mapping[str, str]) -> str:
    if status == str(DEADLINE_EXCEEDED):
        return "no answer within the time that we gave it"
    said = unquote(headers.get("grpc-message", "")) or f"HTTP {headers.get(':status', '?')}"
    return f"{service} refused: {said} (gRPC status {status or 'missing'})"


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


def integer(message: bytes | memoryview, number: int) -> int | None:
    """A signed integer (int32, int64, enum), of several the last; None: not there. Raises ValueError."""
    found = None
    for field, value in fields(message):
        if field == number and isinstance(value, int):
            value &= (1 << 64) - 1
            found = value - (1 << 64) if value >> 63 else value
    return found


def double(message: bytes | memoryview, number: int) -> float | None:
    """A double, of several the last; None: not there. Raises ValueError."""
    found = None
    for field, value in fields(message):
        if field == number and isinstance(value, memoryview) and len(value) == 8:
            (found,) = struct.unpack("<d", value)
    return found


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
