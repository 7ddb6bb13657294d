"""Asks the kubelet which container has which devices: its pod-resources socket, List of version 1.

The one gRPC call needs HTTP/2 and five messages; a gRPC library would take more memory than the
rest of the agent. h2 is imported at the first call, so that other hosts do not load it.
"""

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
METHOD = "/v1.PodResourcesLister/List"
TIMEOUT_S = 1.5
"""For the whole call: below the deadline of a probe's reading."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""The kubelet's own limit."""
OK, DEADLINE_EXCEEDED, UNIMPLEMENTED = 0, 4, 12
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of Protocol Buffers."""
VARINT_BYTES_MAX = 10


class PodResourcesError(Exception):
    """The kubelet gave no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Devices of one resource that a container has."""

    namespace: str
    pod: str
    container: str
    resource: str
    """As in a pod's limits: nvidia.com/gpu; of a resource claim its driver: gpu.nvidia.com."""
    ids: tuple[str, ...]
    """As the device plugin, or the driver, named them."""


def parse_list(answer: bytes) -> list[ContainerDevices]:
    """Parse a ListPodResourcesResponse. Raises ValueError for other bytes."""
    found = []
    for pod in submessages(answer, 1):
        name, namespace = string(pod, 1), string(pod, 2)
        for container in submessages(pod, 3):
            of = (namespace, name, string(container, 1))
            found += [
                ContainerDevices(*of, string(given, 1), tuple(strings(given, 2)))
                for given in submessages(container, 2)
            ]
            found += [
                ContainerDevices(*of, string(claimed, 2), (string(claimed, 4),))
                for claim in submessages(container, 5)
                for claimed in submessages(claim, 4)
            ]
    return found


def list_devices(
    path: Path, monotonic: Callable[[], float], timeout_s: float = TIMEOUT_S
) -> list[ContainerDevices]:
    """Ask the kubelet. Raises PodResourcesError."""
    until = monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            return parse_list(_call(connection, METHOD, lambda: until - monotonic()))
    except TimeoutError as error:
        raise PodResourcesError(f"{path}: no answer within {timeout_s:g} s") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PodResourcesError(f"{path}: {reason}") from error


def _call(connection: socket.socket, method: str, left_s: Callable[[], float]) -> bytes:
    """One gRPC call with an empty request. Raises OSError, ValueError and PodResourcesError."""
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
    http.send_data(stream, bytes(5), end_stream=True)  # not compressed, 0 bytes long
    answer = _Answer()
    try:
        while not answer.is_whole:
            connection.sendall(http.data_to_send())
            remaining_s = left_s()
            if remaining_s <= 0:
                raise TimeoutError
            connection.settimeout(remaining_s)
            received = connection.recv(65536)
            if not received:
                raise PodResourcesError("the kubelet hung up")
            for event in http.receive_data(received):
                answer.take(event, http)
    except H2Error as error:
        raise ValueError(f"no HTTP/2: {error}") from error
    return answer.message()


class _Answer:
    """The received part of a gRPC answer."""

    def __init__(self) -> None:
        self.is_whole = False
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def take(self, event: Any, http: Any) -> None:
        """An event of the only stream. Raises PodResourcesError."""
        from h2 import events

        match event:
            case events.ResponseReceived() | events.TrailersReceived():
                self._headers |= {str(name): str(value) for name, value in event.headers or ()}
            case events.DataReceived():
                self._body += event.data or b""
                if len(self._body) > ANSWER_BYTES_MAX:
                    raise PodResourcesError("the kubelet's answer is too long")
                http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case events.StreamEnded():
                self.is_whole = True
            case events.StreamReset() | events.ConnectionTerminated():
                raise PodResourcesError(f"the kubelet broke off: {event.error_code}")

    def message(self) -> bytes:
        """The only message. Raises ValueError and PodResourcesError."""
        status = self._headers.get("grpc-status", "")
        if status != str(OK):
            raise PodResourcesError(_refusal(status, self._headers))
        if len(self._body) < 5 or self._body[0]:
            raise ValueError("no gRPC message, or a compressed one")
        size = int.from_bytes(self._body[1:5])
        if len(self._body) != 5 + size:
            raise ValueError("gRPC message cut short")
        return bytes(self._body[5:])


def _refusal(status: str, headers: Mapping[str, str]) -> str:
    if status == str(UNIMPLEMENTED):
        return "the kubelet is older than 1.20: it has no List of version 1"
    if status == str(DEADLINE_EXCEEDED):
        return "no answer within the time that we gave it"
    said = unquote(headers.get("grpc-message", "")) or f"HTTP {headers.get(':status', '?')}"
    return f"the kubelet refused: {said} (gRPC status {status or 'missing'})"


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
