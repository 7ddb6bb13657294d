"""Reads the queries of the committed dashboards, and puts values where Grafana puts those of its variables."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden_dashboards.grafana.provisioning import FOLDER

BOARDS: dict[str, Any] = {
    f"{path.parent.name}/{path.stem}": json.loads(path.read_text())
    for path in sorted(FOLDER.glob("*/*.json"))
}


@dataclass(frozen=True, slots=True)
class AskedQuery:
    """A query of a panel, variable or annotation."""

    board: str
    where: str
    text: str
    """With Grafana's variables."""
    is_instant: bool
    is_variable: bool = False

    @property
    def is_sql(self) -> bool:
        return self.board.startswith("postgresql/")

    @property
    def name(self) -> str:
        return f"{self.board}: {self.where}"


def panels(board: str) -> list[Any]:
    """Panels without titles of rows."""
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


def queries(source: str) -> Iterator[AskedQuery]:
    """All queries of a set of dashboards."""
    for board, document in BOARDS.items():
        if not board.startswith(f"{source}/"):
            continue
        for panel in panels(board):
            for target in panel["targets"]:
                text = target.get("expr") or target["rawSql"]
                is_instant = target.get("instant", target.get("format") == "table")
                yield AskedQuery(
                    board, f"{panel['title']} {target['refId']} ({panel['type']})", text, is_instant
                )
        for variable in variables(board).values():
            query = variable["query"]
            text = query["query"] if isinstance(query, dict) else query
            yield AskedQuery(board, f"variable {variable['name']}", text, True, True)
        for event in document["annotations"].get("list", []):
            yield AskedQuery(board, "events", event["target"]["rawSql"], True)


def variables(board: str) -> Mapping[str, Any]:
    """Variables whose values the data source gives."""
    found = BOARDS[board]["templating"]["list"]
    return {one["name"]: one for one in found if one["type"] == "query"}


def every(board: str) -> dict[str, str | None]:
    """What stands for all values of those variables that may have it."""
    return {
        name: one.get("allValue") for name, one in variables(board).items() if one.get("includeAll")
    }


def promql(text: str, values: Mapping[str, str]) -> str:
    """As Grafana's Prometheus data source fills it in for a step of a minute."""
    for name, value in (("rate_interval", "1m"), ("interval", "1m"), ("range", "3h")):
        text = text.replace(f"$__{name}", value)
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)


def sql(text: str, values: Mapping[str, str], begin: datetime, end: datetime) -> str:
    """As Grafana's PostgreSQL data source fills it in; `values`: text, or SQL in brackets for all values."""
    since, until = (f"'{at:%Y-%m-%dT%H:%M:%S.%f}000Z'" for at in (begin, end))
    text = re.sub(r"\$__timeFilter\(([^)]*)\)", rf"\1 BETWEEN {since} AND {until}", text)
    text = text.replace("$__timeFrom()", since).replace("$__timeTo()", until)
    text = text.replace("$__interval_ms", "60000")
    return re.sub(r"\$\{(\w+):sqlstring\}", lambda found: _sql_text(values[found[1]]), text)


def _sql_text(value: str) -> str:
    if value.startswith("SELECT "):
        return value  # what stands for all values is not quoted
    return "'" + value.replace("'", "''") + "'"
