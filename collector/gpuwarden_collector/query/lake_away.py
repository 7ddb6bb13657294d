"""Refuses queries that need rows which only the lake has, while its catalogue cannot be read."""

from collections.abc import Collection
from datetime import datetime

from gpuwarden.idleness import IDLE_1M
from gpuwarden.query import LakeAwayError
from gpuwarden.rollups import ROLLUPS
from gpuwarden.waste import WASTE_1H

_AWAY = "the lake's catalogue cannot be read now, and the query needs {}, which only the lake has"
_ROLLED_UP = {*ROLLUPS, IDLE_1M.name, WASTE_1H.table.name}


def refuse_rollups(names: Collection[str]) -> None:
    """Raise LakeAwayError for a query of rollups: segments never hold all of them. `names`: tables that it reads."""
    if _ROLLED_UP.intersection(names):
        raise LakeAwayError(_AWAY.format("rollups"))


def refuse_before(since: datetime | None, earliest: datetime | None) -> None:
    """Raise LakeAwayError for a query that may need rows outside of the segments. `since`: `Engine.local_since`;
    `earliest`: the first instant that it reads (naive UTC); None: unknown."""
    if since is None:
        raise LakeAwayError(_AWAY.format("rows"))
    if earliest is None or earliest < since:
        raise LakeAwayError(_AWAY.format(f"rows before {since:%Y-%m-%d %H:%M:%S} UTC"))
