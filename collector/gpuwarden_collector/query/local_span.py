"""Judges by its plan whether a query needs more than the rows that are beside the lake; pure.

DuckDB puts conditions that every row of a table must meet into the scan of that table, also those that a
view or a join has, with the values of parameters. So a scan without a lower bound of `ts` may need rows
of any time.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

_BOUND = re.compile(r"ts>=?'([^']+)'::TIMESTAMP(?:_NS|_MS)?")
_SCAN = "ARROW_SCAN"


def earliest_of(plan: str) -> datetime | None:
    """From when the rows are that a query reads of segments, by its plan as JSON; None: of any time."""
    found = [_lower_bound(scan) for scan in _scans(json.loads(plan))]
    if not found:
        return datetime.max  # noqa: DTZ901  naive, as the store has instants
    return None if None in found else min(at for at in found if at is not None)


def _scans(plan: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(plan, list):
        for node in plan:
            yield from _scans(node)
    elif isinstance(plan, dict):
        if str(plan.get("name", "")).strip() == _SCAN:
            yield plan
        yield from _scans(plan.get("children", []))


def _lower_bound(scan: Mapping[str, Any]) -> datetime | None:
    said = (scan.get("extra_info") or {}).get("Filters") or []
    conditions = [said] if isinstance(said, str) else [str(one) for one in said]
    # What is joined by OR, or only helps to skip rows (`optional: ...`), bounds nothing.
    parts = [part for text in conditions if " OR " not in text for part in text.split(" AND ")]
    bounds = [match[1] for part in parts if (match := _BOUND.fullmatch(part.strip())) is not None]
    try:
        return max((datetime.fromisoformat(text) for text in bounds), default=None)
    except ValueError:
        return None
