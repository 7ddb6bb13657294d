"""The reader of Protocol Buffers against the real writer, and against rubbish."""

import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import DoubleValue, FloatValue, StringValue, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.collect.schedulers.protobuf import fields, string, strings, submessages


@given(st.integers(0, 2**64 - 1))
def test_numbers_are_what_was_written(number: int) -> None:
    assert [v for _, v in fields(UInt64Value(value=number).SerializeToString())] == (
        [number] if number else []
    )


@given(st.text())
def test_strings_are_what_was_written(text: str) -> None:
    assert string(StringValue(value=text).SerializeToString(), 1) == text


def test_messages_within_messages() -> None:
    struct = Struct()
    struct.update({"a": {"b": "c"}, "n": 1.5})
    entries = list(submessages(struct.SerializeToString(), 1))
    assert sorted(string(entry, 1) for entry in entries) == ["a", "n"]


def test_fields_of_fixed_size_are_passed_over() -> None:
    data = DoubleValue(value=2.5).SerializeToString() + FloatValue(value=1.5).SerializeToString()
    assert [len(bytes(value)) for _, value in fields(data)] == [8, 4]  # type: ignore[arg-type]


def test_of_several_strings_the_last_counts() -> None:
    data = StringValue(value="a").SerializeToString() + StringValue(value="b").SerializeToString()
    assert (string(data, 1), strings(data, 1), string(data, 2)) == ("b", ["a", "b"], "")


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x05ab", b"\x08", b"\x09abc", b"\x00\x01", b"\x0b", b"\x08" + b"\xff" * 11],
)
def test_what_is_cut_short_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut short|wire type|too long|number 0"):
        list(fields(data))


@given(st.binary(max_size=60))
def test_rubbish_is_read_or_refused(data: bytes) -> None:
    try:
        list(fields(data))
    except ValueError:
        return
