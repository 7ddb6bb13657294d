"""A querier over a real DuckDB in memory with the public tables and views.

`waste` has only hours that are rolled up: DuckDB takes a fifth of a second to plan those that are not, for each query.
Pages with the whole view are in tests/test_money.py.
"""

from datetime import UTC, datetime

import duckdb
import pytest

from gpuwarden.query import QueryError, Result
from gpuwarden.schema import public_views
from gpuwarden_rules.testing import MemoryDatabase


class MemoryQuerier:
    """Runs SQL on a DuckDB in memory; TIMESTAMPs come back aware, as the port promises."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self.db = db

    async def query(self, sql, params=None, *, timeout_s=None, row_limit=None) -> Result:
        try:
            cursor = self.db.execute(sql, params or {})
        except duckdb.Error as error:
            raise QueryError(str(error)) from error
        rows = [tuple(self._aware(value) for value in row) for row in cursor.fetchall()]
        names = [column[0] for column in cursor.description]
        return Result(names, [str(column[1]) for column in cursor.description], rows)

    @staticmethod
    def _aware(value):
        return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


(_WASTE,) = (view.sql for view in public_views() if view.name == "waste")
ROLLED_UP = f"CREATE OR REPLACE VIEW waste AS {_WASTE.partition('FROM (')[0]} FROM waste_1h w"


@pytest.fixture
def querier():
    made = MemoryDatabase()
    made.execute(ROLLED_UP)
    yield MemoryQuerier(made.connection)
    made.close()
