"""Shortens rows to JSON that fits a language model, and reports what was cut."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from gpuwarden.clock import iso_text
from gpuwarden.query import Result

BYTES_MAX = 60_000
"""Largest size of the rows of an answer: about 20,000 tokens."""
TEXT_MAX = 1_000
"""Longest text, in characters."""


def limited_rows(result: Result, rows_max: int) -> dict[str, Any]:
    """Columns and rows, at most `rows_max` and BYTES_MAX; `cut` is a sentence if rows are missing."""
    rows: list[list[Any]] = []
    room, is_cut = BYTES_MAX, result.truncated
    for row in result.rows:
        shown = [json_value(value) for value in row]
        room -= len(json.dumps(shown, ensure_ascii=False).encode()) + 1
        if len(rows) == rows_max or (room < 0 and rows):
            is_cut = True
            break
        rows.append(shown)
    found: dict[str, Any] = {
        "columns": [
            {"name": name, "type": kind}
            for name, kind in zip(result.columns, result.types, strict=True)
        ],
        "rows": rows,
        "row_count": len(rows),
    }
    if is_cut:
        found["cut"] = (
            f"There are more rows than the {len(rows)} shown. Aggregate, filter, or select fewer columns;"
            " do not take these rows for all."
        )
    return found


def json_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A row by column name, without NULLs."""
    return {name: json_value(value) for name, value in record.items() if value is not None}


def limited_records(records: Sequence[Mapping[str, Any]], most: int) -> dict[str, Any]:
    """The first `most` rows by column name, and the number of all."""
    return {
        "rows": [json_record(record) for record in records[:most]],
        "row_count": min(len(records), most),
        "rows_in_all": len(records),
    }


def json_value(value: Any) -> Any:
    """A value as JSON: timestamps in ISO 8601, durations in seconds, long texts cut."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case str():
            left_out = len(value) - TEXT_MAX
            cut = f"… ({left_out} more characters)" if left_out > 0 else ""
            return value[:TEXT_MAX] + cut
        case datetime():
            return iso_text(value if value.tzinfo else value.replace(tzinfo=UTC))
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(name): json_value(one) for name, one in value.items()}
        case list() | tuple() | set():
            return [json_value(one) for one in value]
        case bytes():
            return json_value(value.hex())
        case _:
            return json_value(str(value))
