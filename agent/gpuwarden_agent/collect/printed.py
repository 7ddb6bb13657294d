"""Reads values out of the JSON that vendors' tools print: pure. What is not a value is absent.

Tools print numbers with units, as "48 %" or "49152MiB", and "N/A" for what they cannot read.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([^\d\s].{0,15})?", re.ASCII)
MIB = {"": 2.0**20, "mib": 2.0**20, "gib": 2.0**30, "kib": 2.0**10}
"""Factors to bytes of the units of memory; a number alone is MiB."""
BYTES = {"": 1.0, "b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
PERCENT = {"": 1.0, "%": 1.0}
CELSIUS = {"": 1.0, "c": 1.0, "°c": 1.0, "℃": 1.0}
WATTS = {"": 1.0, "w": 1.0, "mw": 1e-3}


def json_list(text: str) -> Sequence[Any]:
    """A JSON list. Raises ValueError."""
    value = _json(text)
    if not isinstance(value, list):
        raise ValueError("it is not a JSON list")  # noqa: TRY004  # of text
    return value


def json_object(text: str) -> Mapping[str, Any]:
    """A JSON object. Raises ValueError."""
    value = _json(text)
    if not isinstance(value, Mapping):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  # of text
    return value


def named(entry: object, *names: str) -> object:
    """What is at the end of the names, in inner objects; None: nothing. Case and outer blanks do not count."""
    found = entry
    for name in names:
        if not isinstance(found, Mapping):
            return None
        keys = {str(key).strip().lower(): key for key in found}
        key = keys.get(name.lower())
        found = None if key is None else found[key]
    return found


def amount(value: object, units: Mapping[str, float]) -> float | None:
    """A number from 0 on in the catalogue's unit; None: none, an impossible one, or of another unit."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        factor = units.get("") if 0 <= value < 1e15 and math.isfinite(value) else None
        return None if factor is None else float(value) * factor
    found = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    factor = units.get((found[2] or "").strip().lower())
    return None if factor is None else float(found[1]) * factor


def word(value: object) -> str | None:
    """A text that says something; None: none, or the tool's words for absent."""
    text = value.strip() if isinstance(value, str) else ""
    return (
        None if text.lower() in ("", "n/a", "[n/a]", "unknown", "none", "not supported") else text
    )


def index(value: object) -> int | None:
    """A device's number, also where it is a text; None: none."""
    number = amount(value, {"": 1.0})
    return None if number is None or number != int(number) or number > 1 << 20 else int(number)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
