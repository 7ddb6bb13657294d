"""Encodes and decodes messages of PostgreSQL's wire protocol 3, without I/O.

The size of a client's message is limited before it is buffered, and every count in a message is checked
against its bytes.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

STARTUP_BYTES_MAX = 10_000
"""Largest message before the client is authenticated, as in PostgreSQL."""
MESSAGE_BYTES_MAX = 1024 * 1024
PARAMETERS_MAX = 32_767

_INT = struct.Struct("!i")
_SHORT = struct.Struct("!h")
_SSL, _GSS, _CANCEL = 80_877_103, 80_877_104, 80_877_102
_VERSION = 3


class ProtocolError(Exception):
    """The client sent an invalid message; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class EncryptionRequest:
    """Asks for TLS, or for GSSAPI."""

    is_tls: bool


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Asks to end the query of another connection."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class Startup:
    """Begins a session."""

    minor: int
    """Of protocol version 3."""
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Password:
    """A password, or a step of SASL."""

    content: bytes


@dataclass(frozen=True, slots=True)
class QueryMessage:
    """Statements of the simple protocol."""

    sql: str


@dataclass(frozen=True, slots=True)
class Parse:
    """A statement to prepare. `types`: object ids of the first parameters; 0: unspecified."""

    name: str
    sql: str
    types: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """A portal: a statement with values. Formats: 0 text, 1 binary; one for all, or one for each."""

    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    """Asks what a statement or a portal returns."""

    is_portal: bool
    name: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Asks for rows of a portal; `rows_max` 0: all."""

    portal: str
    rows_max: int


@dataclass(frozen=True, slots=True)
class CloseMessage:
    """Closes a statement or a portal."""

    is_portal: bool
    name: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Ends a group of messages, and the skipping after an error."""


@dataclass(frozen=True, slots=True)
class FlushMessage:
    """Asks to send the answers so far."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ends the session."""


@dataclass(frozen=True, slots=True)
class CopyInput:
    """Data of a COPY FROM STDIN, which the server never requests."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Calls a function by its object id."""


StartupMessage = EncryptionRequest | CancelRequest | Startup
Message = (
    StartupMessage
    | Password
    | QueryMessage
    | Parse
    | Bind
    | Describe
    | Execute
    | CloseMessage
    | Sync
    | FlushMessage
    | Terminate
    | CopyInput
    | FunctionCall
)


class MessageReader:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_started = False
        self.bytes_max = STARTUP_BYTES_MAX
        """Largest message; the server raises it after authentication."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were not taken as messages yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> Message | None:
        """The next message; None: it is not complete. Raises ProtocolError."""
        return self._regular() if self._is_started else self._startup()

    def _startup(self) -> StartupMessage | None:
        body = self._taken(0)
        if body is None:
            return None
        code = body.int32()
        if code in (_SSL, _GSS):
            body.end()
            return EncryptionRequest(code == _SSL)
        if code == _CANCEL:
            pid, secret = body.int32(), body.rest()
            if not 4 <= len(secret) <= 256:
                raise ProtocolError("a request to cancel without a key")
            return CancelRequest(pid, secret)
        if code >> 16 != _VERSION:
            raise ProtocolError(f"protocol {code >> 16}.{code & 0xFFFF} is not supported; 3.0 is")
        parameters = {}
        while name := body.text():
            parameters[name] = body.text()
        body.end()
        self._is_started = True
        return Startup(code & 0xFFFF, parameters)

    def _regular(self) -> Message | None:
        body = self._taken(1)
        if body is None:
            return None
        message = _read(body)
        body.end()
        return message

    def _taken(self, kind_bytes: int) -> "_Body | None":
        """The bytes of the next message, with its kind if it has one."""
        buffer = self._buffer
        if kind_bytes and buffer and buffer[0] not in _KINDS:
            raise ProtocolError(f"there is no message of kind {bytes(buffer[:1])!r}")
        if len(buffer) < kind_bytes + 4:
            return None
        (length,) = _INT.unpack_from(buffer, kind_bytes)
        if not 4 <= length <= self.bytes_max:
            raise ProtocolError(f"a message of {length} bytes; most is {self.bytes_max}")
        end = kind_bytes + length
        if len(buffer) < end:
            return None
        body = _Body(chr(buffer[0]) if kind_bytes else "", bytes(buffer[kind_bytes + 4 : end]))
        del buffer[:end]
        return body


class _Body:
    """The content of one message, read from its beginning. All raise ProtocolError."""

    def __init__(self, kind: str, content: bytes) -> None:
        self.kind = kind
        self._content = content
        self._at = 0

    def int16(self) -> int:
        return int(_SHORT.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def count(self, width: int) -> int:
        """The number of items that follow, of at least `width` bytes each."""
        count = self.int16()
        if count < 0:
            count += 1 << 16
        if count > PARAMETERS_MAX or count * width > len(self._content) - self._at:
            raise ProtocolError(f"a message with fewer than its {count} items")
        return count

    def text(self) -> str:
        end = self._content.find(0, self._at)
        if end < 0:
            raise ProtocolError("a text without its end")
        raw = self._content[self._at : end]
        self._at = end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a text that is not UTF-8") from error

    def take(self, size: int) -> bytes:
        part = self._content[self._at : self._at + size]
        if size < 0 or len(part) < size:
            raise ProtocolError("a message that is too short")
        self._at += size
        return part

    def rest(self) -> bytes:
        return self.take(len(self._content) - self._at)

    def end(self) -> None:
        if self._at != len(self._content):
            raise ProtocolError("a message that is too long")


_KINDS: Final = frozenset(b"pQPBDECSHXdcfF")


def _read(body: _Body) -> Message:
    match body.kind:
        case "Q":
            return QueryMessage(body.text())
        case "P":
            name, sql = body.text(), body.text()
            return Parse(name, sql, tuple(body.int32() for _ in range(body.count(4))))
        case "B":
            return _bind(body)
        case "D":
            return Describe(_is_portal(body), body.text())
        case "E":
            return Execute(body.text(), max(0, body.int32()))
        case "C":
            return CloseMessage(_is_portal(body), body.text())
        case "S":
            return Sync()
        case "H":
            return FlushMessage()
        case "X":
            return Terminate()
        case "p":
            return Password(body.rest())
        case "F":
            body.rest()
            return FunctionCall()
        case _:
            body.rest()
            return CopyInput()


def _bind(body: _Body) -> Bind:
    portal, statement = body.text(), body.text()
    formats = _formats(body)
    values: list[bytes | None] = []
    for _ in range(body.count(4)):
        size = body.int32()
        values.append(None if size == -1 else body.take(size))
    if len(formats) not in (0, 1, len(values)):
        raise ProtocolError(f"{len(values)} values, and formats of {len(formats)}")
    return Bind(portal, statement, formats, tuple(values), _formats(body))


def _formats(body: _Body) -> tuple[int, ...]:
    formats = tuple(body.int16() for _ in range(body.count(2)))
    if not {0, 1}.issuperset(formats):
        raise ProtocolError("a format that is neither text nor binary")
    return formats


def _is_portal(body: _Body) -> bool:
    kind = body.take(1)
    if kind not in (b"P", b"S"):
        raise ProtocolError("neither a portal nor a statement")
    return kind == b"P"


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """A column of a result."""

    name: str
    oid: int
    size: int
    modifier: int
    format: int = 0


NO_TLS = b"N"
TLS = b"S"


def message(kind: bytes, content: bytes = b"") -> bytes:
    """Any message of the server."""
    return kind + _INT.pack(len(content) + 4) + content


PARSE_COMPLETE = message(b"1")
BIND_COMPLETE = message(b"2")
CLOSE_COMPLETE = message(b"3")
EMPTY_QUERY = message(b"I")
NO_DATA = message(b"n")
PORTAL_SUSPENDED = message(b"s")
COPY_DONE = message(b"c")
AUTHENTICATED = message(b"R", _INT.pack(0))
ASK_PASSWORD = message(b"R", _INT.pack(3))


def ask_sasl(mechanisms: Iterable[str]) -> bytes:
    """Asks to authenticate by one of these."""
    names = b"".join(_text(name) for name in mechanisms)
    return message(b"R", _INT.pack(10) + names + b"\0")


def sasl_continue(content: bytes) -> bytes:
    """A step of SASL from the server."""
    return message(b"R", _INT.pack(11) + content)


def sasl_final(content: bytes) -> bytes:
    """The last step of SASL from the server."""
    return message(b"R", _INT.pack(12) + content)


def negotiate(unknown: Sequence[str]) -> bytes:
    """Says that the protocol is 3.0, and which of its options are unknown."""
    names = b"".join(_text(name) for name in unknown)
    return message(b"v", _INT.pack(_VERSION << 16) + _INT.pack(len(unknown)) + names)


def parameter_status(name: str, value: str) -> bytes:
    """Reports a setting to the client."""
    return message(b"S", _text(name) + _text(value))


def backend_key(pid: int, secret: bytes) -> bytes:
    """The key with which the client cancels its queries."""
    return message(b"K", _INT.pack(pid) + secret)


def ready(status: str) -> bytes:
    """`I` outside of a transaction, `T` within one, `E` within one that has failed."""
    return message(b"Z", status.encode())


def command_complete(tag: str) -> bytes:
    """The end of a statement."""
    return message(b"C", _text(tag))


def parameter_description(oids: Sequence[int]) -> bytes:
    """Types of a statement's parameters."""
    return message(b"t", _SHORT.pack(len(oids)) + b"".join(map(_oid, oids)))


def row_description(columns: Sequence[ColumnDescription]) -> bytes:
    """The columns of the rows that follow."""
    parts = [_SHORT.pack(len(columns))]
    for c in columns:
        parts += (
            _text(c.name),
            b"\0\0\0\0\0\0",
            _oid(c.oid),
            struct.pack("!hih", c.size, c.modifier, c.format),
        )
    return message(b"T", b"".join(parts))


def data_row(cells: Sequence[bytes | None]) -> bytes:
    """A row."""
    parts = [_SHORT.pack(len(cells))]
    for cell in cells:
        parts += (_INT.pack(-1),) if cell is None else (_INT.pack(len(cell)), cell)
    return message(b"D", b"".join(parts))


def copy_out(columns: int) -> bytes:
    """Says that rows follow as text."""
    return message(b"H", b"\0" + _SHORT.pack(columns) + b"\0\0" * columns)


def error(fields: Mapping[str, str]) -> bytes:
    """An error by PostgreSQL's field letters: S severity, C SQLSTATE, M message, H hint, P position."""
    return _fields(b"E", fields)


def notice(fields: Mapping[str, str]) -> bytes:
    """A notice, by the same letters."""
    return _fields(b"N", fields)


def split_rows(rows: memoryview, start: int, count: int) -> tuple[int, int]:
    """The end of the next `count` messages in `rows` from `start`, and their number. `count` 0: all."""
    at, taken = start, 0
    while at < len(rows) and (count == 0 or taken < count):
        at += 1 + _INT.unpack_from(rows, at + 1)[0]
        taken += 1
    return at, taken


def _fields(kind: bytes, fields: Mapping[str, str]) -> bytes:
    parts = [letter.encode() + _text(value) for letter, value in fields.items()]
    return message(kind, b"".join(parts) + b"\0")


def _oid(oid: int) -> bytes:
    return struct.pack("!I", oid)


def _text(text: str) -> bytes:
    return text.replace("\0", "\ufffd").encode(errors="replace") + b"\0"


def oids_in(description: bytes) -> list[int]:
    """The types in a ParameterDescription."""
    (count,) = _SHORT.unpack_from(description, 5)
    return list(struct.unpack_from(f"!{count}I", description, 7))
