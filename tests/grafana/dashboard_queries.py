"""Reads the queries of the dashboards, and puts values where Grafana puts those of its variables."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden_dashboards.grafana.boards import boards

URL = "https://collector.example:8750"
BOARDS: dict[str, Any] = {board.name: json.loads(json.dumps(board.json(URL))) for board in boards()}


@dataclass(frozen=True, slots=True)
class AskedQuery:
    """A query of a panel or variable."""

    board: str
    where: str
    text: str
    """With Grafana's variables."""
    is_instant: bool
    is_variable: bool = False

    @property
    def name(self) -> str:
        return f"{self.board}: {self.where}"


def panels(board: str) -> list[Any]:
    """Panels without titles of rows."""
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


def queries() -> Iterator[AskedQuery]:
    """All queries of the dashboards."""
    for board in BOARDS:
        for panel in panels(board):
            for target in panel["targets"]:
                where = f"{panel['title']} {target['refId']} ({panel['type']})"
                yield AskedQuery(board, where, target["expr"], target["instant"])
        for name, variable in variables(board).items():
            yield AskedQuery(board, f"variable {name}", variable["query"]["query"], True, True)


def variables(board: str) -> Mapping[str, Any]:
    """Variables whose values the data source gives."""
    found = BOARDS[board]["templating"]["list"]
    return {one["name"]: one for one in found if one["type"] == "query"}


def every(board: str) -> dict[str, str]:
    """What stands for all values of those variables that may have it."""
    return {name: one["allValue"] for name, one in variables(board).items() if one["includeAll"]}


def promql(text: str, values: Mapping[str, str], *, span: str = "3h") -> str:
    """As Grafana's Prometheus data source fills it in for a step of a minute."""
    for name, value in (("rate_interval", "1m"), ("interval", "1m"), ("range", span)):
        text = text.replace(f"$__{name}", value)
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)
