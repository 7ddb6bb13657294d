"""Maps DuckDB's types to PostgreSQL's, and decodes parameter values that clients send in text or binary."""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from gpuwarden_collector.query.port import TypedValue

EPOCH_DAYS = 10_957
EPOCH_US = EPOCH_DAYS * 86_400_000_000
"""PostgreSQL counts from 2000-01-01."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class PgType:
    """A type of PostgreSQL."""

    oid: int
    name: str
    array_oid: int
    size: int
    """Bytes of a value; -1: it varies."""
    category: str
    sql: str
    """DuckDB's type of a parameter; "": the query decides."""
    long_name: str = ""
    """The name in format_type() and information_schema, if it differs from `name`."""


BOOL = PgType(16, "bool", 1000, 1, "B", "BOOLEAN", "boolean")
BYTEA = PgType(17, "bytea", 1001, -1, "U", "BLOB")
INT8 = PgType(20, "int8", 1016, 8, "N", "BIGINT", "bigint")
INT2 = PgType(21, "int2", 1005, 2, "N", "SMALLINT", "smallint")
INT4 = PgType(23, "int4", 1007, 4, "N", "INTEGER", "integer")
TEXT = PgType(25, "text", 1009, -1, "S", "")
OID = PgType(26, "oid", 1028, 4, "N", "BIGINT")
JSON = PgType(114, "json", 199, -1, "U", "")
FLOAT4 = PgType(700, "float4", 1021, 4, "N", "FLOAT", "real")
FLOAT8 = PgType(701, "float8", 1022, 8, "N", "DOUBLE", "double precision")
UNKNOWN = PgType(705, "unknown", 0, -2, "X", "")
VARCHAR = PgType(1043, "varchar", 1015, -1, "S", "", "character varying")
DATE = PgType(1082, "date", 1182, 4, "D", "DATE")
TIME = PgType(1083, "time", 1183, 8, "D", "TIME", "time without time zone")
TIMESTAMP = PgType(1114, "timestamp", 1115, 8, "D", "TIMESTAMP", "timestamp without time zone")
TIMESTAMPTZ = PgType(1184, "timestamptz", 1185, 8, "D", "TIMESTAMP", "timestamp with time zone")
INTERVAL = PgType(1186, "interval", 1187, 16, "T", "INTERVAL")
NUMERIC = PgType(1700, "numeric", 1231, -1, "N", "")
UUID_ = PgType(2950, "uuid", 2951, 16, "U", "UUID")
JSONB = PgType(3802, "jsonb", 3807, -1, "U", "")
NAME = PgType(19, "name", 1003, 64, "S", "")
CHAR = PgType(18, "char", 1002, 1, "Z", "", '"char"')
BPCHAR = PgType(1042, "bpchar", 1014, -1, "S", "", "character")

TYPES = (
    *(BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID, JSON, FLOAT4, FLOAT8, UNKNOWN, BPCHAR),
    *(VARCHAR, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, NUMERIC, UUID_, JSONB),
)
BY_OID = {kind.oid: kind for kind in TYPES}
BY_ARRAY_OID = {kind.array_oid: kind for kind in TYPES if kind.array_oid}

_OF_SQL = {
    "BOOLEAN": BOOL,
    "TINYINT": INT2,
    "UTINYINT": INT2,
    "SMALLINT": INT2,
    "USMALLINT": INT4,
    "INTEGER": INT4,
    "UINTEGER": INT8,
    "BIGINT": INT8,
    "UBIGINT": NUMERIC,
    "HUGEINT": NUMERIC,
    "UHUGEINT": NUMERIC,
    "FLOAT": FLOAT4,
    "DOUBLE": FLOAT8,
    "BLOB": BYTEA,
    "DATE": DATE,
    "TIME": TIME,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_S": TIMESTAMP,
    "TIMESTAMP_MS": TIMESTAMP,
    "TIMESTAMP_NS": TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ,
    "INTERVAL": INTERVAL,
    "UUID": UUID_,
    "JSON": JSON,
    "OID": OID,  # UINTEGER in the catalogue
}
_LIST = re.compile(r"(.*)\[\d*\]", re.DOTALL)
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """PostgreSQL's type of a column."""

    kind: PgType
    is_array: bool = False
    modifier: int = -1

    @property
    def oid(self) -> int:
        """Object id of the type."""
        return self.kind.array_oid if self.is_array else self.kind.oid

    @property
    def size(self) -> int:
        """Bytes of a value."""
        return -1 if self.is_array else self.kind.size


def column_type(sql_type: str) -> ColumnType:
    """PostgreSQL's type for DuckDB's: json for a nested type, text for a type that PostgreSQL lacks."""
    if found := _OF_SQL.get(sql_type):
        return ColumnType(found)
    if decimal := _DECIMAL.fullmatch(sql_type):
        width, scale = map(int, decimal.groups())
        return ColumnType(NUMERIC, modifier=(width << 16 | scale) + 4)
    if sql_type.startswith(("STRUCT(", "MAP(", "UNION(")) and sql_type.endswith(")"):
        return ColumnType(JSON)
    if listed := _LIST.fullmatch(sql_type):
        inner = column_type(listed[1])
        is_nested = inner.is_array or (inner.kind is JSON and listed[1] != "JSON")
        return ColumnType(JSON) if is_nested else ColumnType(inner.kind, True)
    return ColumnType(TEXT)


class ParameterValueError(ValueError):
    """A value does not fit its type: a SQLSTATE, and a sentence that does not contain the value."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def parameter(raw: bytes | None, oid: int, is_binary: bool) -> TypedValue:
    """Decode a parameter's value. `oid`: its type; 0: unspecified. Raises ParameterValueError."""
    element = BY_ARRAY_OID.get(oid)
    kind = element or BY_OID.get(oid)
    if kind is None and oid and (is_binary or raw is None):
        raise ParameterValueError(
            "0A000", f"parameters of the type with object id {oid} are not supported"
        )
    kind = kind or TEXT
    sql_type = (kind.sql or "VARCHAR") + "[]" if element else kind.sql
    if raw is None:
        return TypedValue(None, sql_type)
    try:
        value: Any
        if element:
            value = _binary_array(raw) if is_binary else text_array(raw.decode(), element)
        elif is_binary:
            value = _from_binary(raw, kind)
        else:
            value = _from_text(raw.decode(), kind)
    except (ValueError, OverflowError, ArithmeticError, struct.error, IndexError) as error:
        form = "binary" if is_binary else "text"
        what = f"a parameter is not {kind.long_name or kind.name} in {form}"
        raise ParameterValueError("22P03" if is_binary else "22P02", what) from error
    if isinstance(value, str) and "\0" in value:
        raise ParameterValueError("22021", "a parameter has a NUL character: leave it out")
    return TypedValue(value, sql_type)


def _from_text(text: str, kind: PgType) -> Any:
    match kind.name:
        case "int2" | "int4" | "int8" | "oid":
            return int(text)
        case "float4" | "float8":
            return float(text)
        case "numeric":
            return _decimal(text)
        case "bool":
            return _boolean(text)
        case "bytea":
            return bytes.fromhex(text[2:]) if text.startswith("\\x") else _escaped_bytes(text)
        case "timestamp" | "timestamptz":
            return _instant(text)
        case "uuid":
            return UUID(text)
        case _:
            return text


def _decimal(text: str) -> Any:
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise ValueError("no number") from error
    return _bounded(value)


def _bounded(value: Decimal) -> Any:
    """The value as it is, if it fits DuckDB's DECIMAL, else as a float."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        return float(value)
    is_small = len(value.as_tuple().digits) <= 38 and -38 <= exponent <= 0
    return value if is_small else float(value)


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word and any(whole.startswith(word) for whole in ("true", "yes", "on", "1")) and word != "o":
        return True
    if word and any(whole.startswith(word) for whole in ("false", "no", "off", "0")):
        return False
    raise ValueError("neither true nor false")


def _escaped_bytes(text: str) -> bytes:
    found = re.sub(r"\\(\\|[0-3][0-7]{2})", _octal, text)
    return found.encode("latin-1")


def _octal(match: re.Match[str]) -> str:
    return "\\" if match[1] == "\\" else chr(int(match[1], 8))


def _instant(text: str) -> Any:
    """A naive UTC instant; a text that Python cannot parse is left to DuckDB."""
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        return text
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


_BINARY: dict[str, Callable[[bytes], Any]] = {
    "bool": lambda raw: struct.unpack("!?", raw)[0],
    "int2": lambda raw: struct.unpack("!h", raw)[0],
    "int4": lambda raw: struct.unpack("!i", raw)[0],
    "int8": lambda raw: struct.unpack("!q", raw)[0],
    "oid": lambda raw: struct.unpack("!I", raw)[0],
    "float4": lambda raw: struct.unpack("!f", raw)[0],
    "float8": lambda raw: struct.unpack("!d", raw)[0],
    "bytea": bytes,
    "uuid": lambda raw: UUID(bytes=raw),
    "date": lambda raw: date(2000, 1, 1) + timedelta(days=struct.unpack("!i", raw)[0]),
    "time": lambda raw: _time(struct.unpack("!q", raw)[0]),
    "timestamp": lambda raw: _from_epoch(struct.unpack("!q", raw)[0]),
    "timestamptz": lambda raw: _from_epoch(struct.unpack("!q", raw)[0]),
    "interval": lambda raw: _interval(*struct.unpack("!qii", raw)),
    "numeric": lambda raw: _bounded(numeric_of(raw)),
}


def _from_binary(raw: bytes, kind: PgType) -> Any:
    if kind is JSONB:
        if raw[:1] != b"\1":
            raise ValueError("jsonb of another version")
        return raw[1:].decode()
    read = _BINARY.get(kind.name)
    return raw.decode() if read is None else read(raw)


def _from_epoch(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _time(us: int) -> time:
    if not 0 <= us < 86_400_000_000:
        raise ValueError("no time of a day")
    return (_EPOCH + timedelta(microseconds=us)).time()


def _interval(us: int, days: int, months: int) -> str:
    return f"{months} months {days} days {us} microseconds"


_WIDE = Context(prec=1_000)


def numeric_of(raw: bytes) -> Decimal:
    """Decode binary numeric, whose digits have base 10,000. Raises ValueError."""
    count, weight, sign, scale = struct.unpack_from("!HhHH", raw)
    if len(raw) != 8 + 2 * count:
        raise ValueError("digits are missing")
    if sign in (0xC000, 0xD000, 0xF000):
        return Decimal({0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}[sign])
    digits = struct.unpack_from(f"!{count}H", raw, 8)
    if count > 64 or abs(weight) > 64 or scale > 256 or any(digit > 9_999 for digit in digits):
        raise ValueError("more digits than a number has here")
    value: Decimal = Decimal(0)
    for digit in digits:
        value = _WIDE.add(_WIDE.multiply(value, Decimal(10_000)), Decimal(digit))
    value = value.scaleb(4 * (weight + 1 - count), context=_WIDE) if digits else value
    value = value.quantize(Decimal(1).scaleb(-scale), context=_WIDE)
    return value.copy_negate() if sign == 0x4000 else value


def _binary_array(raw: bytes) -> list[Any]:
    """Decode a binary array of one dimension. Raises ValueError."""
    dimensions, _, oid = struct.unpack_from("!iiI", raw)
    element = BY_OID.get(oid)
    if dimensions == 0:
        return []
    if dimensions != 1 or element is None:
        raise ValueError("an array of several dimensions, or of an unknown type")
    (count,) = struct.unpack_from("!i", raw, 12)
    if not 0 <= count <= len(raw) // 4:
        raise ValueError("a count that is not of its items")
    at = 20
    items: list[Any] = []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", raw, at)
        at += 4
        if size == -1:
            items.append(None)
            continue
        if size < 0 or at + size > len(raw):
            raise ValueError("an item that is not there")
        items.append(_from_binary(raw[at : at + size], element))
        at += size
    if at != len(raw):
        raise ValueError("more than its items")
    return items


_ITEM = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*+)"|([^",{}\\]*+(?:\\.[^",{}\\]*+)*+))\s*([,}])', re.DOTALL
)


def text_array(text: str, element: PgType = TEXT) -> list[Any]:
    """Parse an array such as `{1,NULL,"a b"}`. Raises ValueError."""
    text = text.strip()
    if text == "{}":
        return []
    if not text.startswith("{"):
        raise ValueError("no array of one dimension")
    at = 1
    items: list[Any] = []
    while True:
        found = _ITEM.match(text, at)
        if found is None:
            raise ValueError("no array of one dimension")
        quoted, plain, end = found.groups()
        word = (plain or "").strip()
        if quoted is None and not word:
            raise ValueError("an item without a value")
        if quoted is None and word.upper() == "NULL":
            items.append(None)
        else:
            items.append(
                _from_text(
                    re.sub(r"\\(.)", r"\1", word if quoted is None else quoted, flags=re.DOTALL),
                    element,
                )
            )
        at = found.end()
        if end == "}":
            break
    if at != len(text):
        raise ValueError("more behind the array")
    return items


def numeric_bytes(value: Decimal) -> bytes:
    """Encode binary numeric."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return struct.pack("!HhHH", 0, 0, 0xC000, 0)
    scale = max(0, -exponent)
    whole = "".join(map(str, digits)) + "0" * max(0, exponent)
    whole = whole.rjust(scale + 1, "0")
    before, after = whole[: len(whole) - scale], whole[len(whole) - scale :]
    before = before.rjust(-(-len(before) // 4) * 4, "0")
    after = after.ljust(-(-len(after) // 4) * 4, "0")
    groups = [int((before + after)[at : at + 4]) for at in range(0, len(before + after), 4)]
    weight = len(before) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    weight = weight if groups else 0
    head = struct.pack("!HhHH", len(groups), weight, 0x4000 if sign and groups else 0, scale)
    return head + struct.pack(f"!{len(groups)}H", *groups)


SAMPLES: dict[str, Any] = {
    "BOOLEAN": False,
    "SMALLINT": 0,
    "INTEGER": 0,
    "BIGINT": 0,
    "FLOAT": 0.0,
    "DOUBLE": 0.0,
    "BLOB": b"",
    "DATE": date(2000, 1, 1),
    "TIME": time(),
    "TIMESTAMP": _EPOCH,
    "INTERVAL": "0 days",
    "UUID": UUID(int=0),
}
"""A value of each parameter type; NULL would have no type."""


def sample(oid: int) -> TypedValue:
    """A value of a type, for describing a statement before its values are known."""
    if element := BY_ARRAY_OID.get(oid):
        return TypedValue([], (element.sql or "VARCHAR") + "[]")
    sql_type = BY_OID[oid].sql if oid in BY_OID else ""
    if oid == NUMERIC.oid:
        return TypedValue(Decimal(0), "")
    return TypedValue(SAMPLES.get(sql_type), sql_type)
