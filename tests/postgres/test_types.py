"""Values of parameters, in text and in binary, and numbers as PostgreSQL packs them."""

import struct
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden_collector.query.port import TypedValue
from gpuwarden_postgres import types
from gpuwarden_postgres.types import ParameterValueError, parameter


def naive(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=9) | st.integers().map(Decimal)


@given(DECIMALS.filter(lambda number: abs(number) < Decimal(10) ** 60))
def test_a_number_survives_its_digits_of_base_10000(number: Decimal) -> None:
    assert types.numeric_of(types.numeric_bytes(number)) == number


@each(
    "number, packed",
    [
        ("0", (0, 0, 0, 0)),
        ("1.50", (2, 0, 0, 2, 1, 5000)),
        ("-12345.6789", (3, 1, 0x4000, 4, 1, 2345, 6789)),
        ("0.0001", (1, -1, 0, 4, 1)),
        ("10000", (1, 1, 0, 0, 1)),
        ("NaN", (0, 0, 0xC000, 0)),
    ],
)
def test_numbers_are_packed_as_postgresql_does(number: str, packed: tuple[int, ...]) -> None:
    expected = struct.pack(f"!HhHH{len(packed) - 4}H", *packed)
    assert types.numeric_bytes(Decimal(number)) == expected


@each(
    "oid, raw, value, sql_type",
    [
        (21, "5", 5, "SMALLINT"),
        (20, "-9000000000", -9_000_000_000, "BIGINT"),
        (701, "1e300", 1e300, "DOUBLE"),
        (16, "t", True, "BOOLEAN"),
        (16, "off", False, "BOOLEAN"),
        (17, "\\x00ff", b"\x00\xff", "BLOB"),
        (17, "a\\\\\\001", b"a\\\x01", "BLOB"),
        (25, "5", "5", ""),
        (0, "5", "5", ""),
        (1700, "1.50", Decimal("1.50"), ""),
        (1184, "2026-01-02 03:04:05+02", naive(2026, 1, 2, 1, 4, 5), "TIMESTAMP"),
        (1114, "2026-01-02 03:04:05.5", naive(2026, 1, 2, 3, 4, 5, 500_000), "TIMESTAMP"),
        (1114, "infinity", "infinity", "TIMESTAMP"),
        (1186, "1 day 02:00:00", "1 day 02:00:00", "INTERVAL"),
        (2950, str(UUID(int=7)), UUID(int=7), "UUID"),
        (1007, "{1,NULL,3}", [1, None, 3], "INTEGER[]"),
        (1009, '{a,"b,\\"c",NULL,"NULL",""}', ["a", 'b,"c', None, "NULL", ""], "VARCHAR[]"),
        (1009, "{}", [], "VARCHAR[]"),
        (99_999, "x", "x", ""),
    ],
)
def test_a_text_is_the_value_of_its_type(oid: int, raw: str, value: Any, sql_type: str) -> None:
    assert parameter(raw.encode(), oid, False) == TypedValue(value, sql_type)


@each(
    "oid, raw, value",
    [
        (23, struct.pack("!i", -5), -5),
        (700, struct.pack("!f", 0.5), 0.5),
        (16, b"\1", True),
        (1082, struct.pack("!i", -1), date(1999, 12, 31)),
        (1083, struct.pack("!q", 3_600_000_001), time(1, 0, 0, 1)),
        (1114, struct.pack("!q", 1), naive(2000, 1, 1, 0, 0, 0, 1)),
        (1184, struct.pack("!q", -1_000_000), naive(1999, 12, 31, 23, 59, 59)),
        (1186, struct.pack("!qii", 5, 2, 1), "1 months 2 days 5 microseconds"),
        (2950, UUID(int=7).bytes, UUID(int=7)),
        (3802, b'\1{"a":1}', '{"a":1}'),
        (1700, types.numeric_bytes(Decimal("-1.50")), Decimal("-1.50")),
        (1007, struct.pack("!iiIiiiiI", 1, 1, 23, 2, 1, -1, 4, 9), [None, 9]),
    ],
)
def test_bytes_are_the_value_of_their_type(oid: int, raw: bytes, value: Any) -> None:
    assert parameter(raw, oid, True).value == value


@pytest.mark.parametrize(
    ("oid", "raw", "is_binary", "sqlstate"),
    [
        (23, b"x", False, "22P02"),
        (16, b"maybe", False, "22P02"),
        (23, b"\0", True, "22P03"),
        (1114, struct.pack("!q", 2**62), True, "22P03"),
        (1007, b"{1,{2}}", False, "22P02"),
        (1007, b"{1,2", False, "22P02"),
        (1007, struct.pack("!iiIii", 1, 0, 23, 2**31 - 1, 1), True, "22P03"),
        (1700, struct.pack("!HhHH", 9, 0, 0, 0), True, "22P03"),
        (25, b"a\0b", False, "22021"),
        (25, b"\xff", False, "22P02"),
        (99_999, b"x", True, "0A000"),
    ],
)
def test_what_is_not_of_its_type_is_refused_by_its_sqlstate(
    oid: int, raw: bytes, is_binary: bool, sqlstate: str
) -> None:
    with pytest.raises(ParameterValueError) as refused:
        parameter(raw, oid, is_binary)
    assert refused.value.sqlstate == sqlstate


@given(st.sampled_from([*types.BY_OID, *types.BY_ARRAY_OID]), st.binary(max_size=60), st.booleans())
def test_rubbish_is_a_value_or_refused_and_nothing_worse(
    oid: int, raw: bytes, is_binary: bool
) -> None:
    try:
        parameter(raw, oid, is_binary)
    except ParameterValueError as refused:
        assert refused.sqlstate


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)))
def test_an_array_of_texts_survives_its_text(items: list[str | None]) -> None:
    quoted = [
        "NULL" if i is None else '"' + i.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for i in items
    ]
    assert types.text_array("{" + ",".join(quoted) + "}") == items


def test_an_instant_with_a_zone_is_utc_as_the_tables_have_it() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    instant = datetime(2026, 1, 1, 12, tzinfo=zone)
    expected = instant.astimezone(UTC).replace(tzinfo=None)
    assert parameter(str(instant).encode(), 1184, False).value == expected
