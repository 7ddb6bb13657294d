"""Messages are the same however their bytes are cut, and what is none is refused at once."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_postgres import messages
from gpuwarden_postgres.messages import (
    Bind,
    CancelRequest,
    CloseMessage,
    Describe,
    EncryptionRequest,
    Execute,
    FlushMessage,
    Message,
    MessageReader,
    Parse,
    Password,
    ProtocolError,
    QueryMessage,
    Startup,
    Sync,
    Terminate,
)

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(-(2**31), 2**31 - 1)
FORMATS = st.lists(st.integers(0, 1), max_size=3)
VALUES = st.lists(st.none() | st.binary(max_size=20), max_size=5)


@st.composite
def binds(draw: Any) -> Bind:
    values = draw(VALUES)
    formats = draw(st.sampled_from([[], [1], [0] * len(values), [1] * len(values)]))
    return Bind(draw(TEXTS), draw(TEXTS), tuple(formats), tuple(values), tuple(draw(FORMATS)))


MESSAGES = st.one_of(
    st.builds(QueryMessage, TEXTS),
    st.builds(Parse, TEXTS, TEXTS, st.lists(INTS, max_size=4).map(tuple)),
    binds(),
    st.builds(Describe, st.booleans(), TEXTS),
    st.builds(CloseMessage, st.booleans(), TEXTS),
    st.builds(Execute, TEXTS, st.integers(0, 2**31 - 1)),
    st.builds(Password, st.binary(max_size=20)),
    *map(st.just, (Sync(), FlushMessage(), Terminate())),
)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def shorts(*values: int) -> bytes:
    return struct.pack(f"!{len(values)}h", *values)


def named(message: Describe | CloseMessage) -> bytes:
    return (b"P" if message.is_portal else b"S") + text(message.name)


def encoded(message: Message) -> bytes:
    """As a client sends it."""
    match message:
        case QueryMessage(sql):
            return messages.message(b"Q", text(sql))
        case Parse(name, sql, types):
            body = text(name) + text(sql) + shorts(len(types))
            return messages.message(b"P", body + struct.pack(f"!{len(types)}i", *types))
        case Bind():
            body = text(message.portal) + text(message.statement)
            body += shorts(len(message.formats), *message.formats) + shorts(len(message.values))
            for value in message.values:
                body += struct.pack("!i", -1 if value is None else len(value)) + (value or b"")
            body += shorts(len(message.result_formats), *message.result_formats)
            return messages.message(b"B", body)
        case Describe():
            return messages.message(b"D", named(message))
        case CloseMessage():
            return messages.message(b"C", named(message))
        case Execute(portal, rows_max):
            return messages.message(b"E", text(portal) + struct.pack("!i", rows_max))
        case Password(content):
            return messages.message(b"p", content)
        case _:
            kinds = {Sync: b"S", FlushMessage: b"H", Terminate: b"X"}
            return messages.message(kinds[type(message)])


def startup(code: int, body: bytes = b"") -> bytes:
    return struct.pack("!ii", len(body) + 8, code) + body


BEGIN = startup(196_608, b"user\0me\0database\0x\0\0")


def started() -> MessageReader:
    reader = MessageReader()
    reader.feed(BEGIN)
    assert reader.next() == Startup(0, {"user": "me", "database": "x"})
    reader.bytes_max = messages.MESSAGE_BYTES_MAX
    return reader


def taken(reader: MessageReader) -> list[Message]:
    found = []
    while (message := reader.next()) is not None:
        found.append(message)
    return found


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 30), max_size=20))
def test_messages_do_not_depend_on_how_their_bytes_are_cut(
    sent: list[Message], cuts: list[int]
) -> None:
    data, reader, found = b"".join(map(encoded, sent)), started(), []
    for cut in [*cuts, len(data)]:
        reader.feed(data[:cut])
        data = data[cut:]
        found += taken(reader)
    assert found == sent
    assert reader.buffered_bytes == 0


@given(st.binary(max_size=200), st.booleans())
def test_rubbish_is_refused_and_nothing_worse(data: bytes, is_started: bool) -> None:
    reader = started() if is_started else MessageReader()
    reader.feed(data)
    try:
        taken(reader)
    except ProtocolError:
        return
    assert reader.buffered_bytes <= len(data)


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.data())
def test_a_damaged_message_is_refused_and_nothing_worse(sent: list[Message], data: Any) -> None:
    raw = bytearray(b"".join(map(encoded, sent)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reader = started()
    reader.feed(bytes(raw))
    try:
        taken(reader)
    except ProtocolError:
        return


@pytest.mark.parametrize(
    ("data", "is_started"),
    [
        (struct.pack("!i", 2**31 - 1), False),
        (struct.pack("!i", 10_001), False),
        (struct.pack("!i", -1), False),
        (b"Q" + struct.pack("!i", 2**30), True),
        (b"Q" + struct.pack("!i", 3), True),
        (b"\x01", True),
        (messages.message(b"B", b"\0\0" + shorts(0, 32_767)), True),
        (messages.message(b"B", b"\0\0" + shorts(-1)), True),
        (messages.message(b"Q", b"\xff\0"), True),
        (messages.message(b"Q", b"select 1"), True),
        (messages.message(b"S", b"x"), True),
        (startup(131_072), False),
        (startup(80_877_102, b"\0\0\0\1"), False),
        (startup(80_877_103, b"x"), False),
    ],
)
def test_what_is_none_is_refused_before_it_is_whole(data: bytes, is_started: bool) -> None:
    reader = started() if is_started else MessageReader()
    reader.feed(data)
    with pytest.raises(ProtocolError):
        reader.next()


def test_what_may_come_before_a_session() -> None:
    reader = MessageReader()
    reader.feed(startup(80_877_104) + startup(80_877_103) + startup(80_877_102, b"\0\0\0\7key!"))
    assert taken(reader) == [
        EncryptionRequest(False),
        EncryptionRequest(True),
        CancelRequest(7, b"key!"),
    ]


@given(st.lists(st.lists(st.none() | st.binary(max_size=9), max_size=3), max_size=9), st.data())
def test_rows_are_taken_in_any_portions(rows: list[list[bytes | None]], data: Any) -> None:
    body = memoryview(b"".join(messages.data_row(row) for row in rows))
    at, counts = 0, []
    while at < len(body):
        at, count = messages.split_rows(body, at, data.draw(st.integers(1, 4)))
        counts.append(count)
    assert sum(counts) == len(rows)
    assert messages.split_rows(body, 0, 0) == (len(body), len(rows))
