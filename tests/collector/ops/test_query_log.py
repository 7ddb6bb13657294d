"""Of `query_log` an admin reads every row, a reader those of its own token, whatever it asks."""

import asyncio
from typing import Any

import aiohttp
import psycopg
import pytest

from gpuwarden.access import Scope, Token
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry, scram_of

SECRET = "SELECT 'hunter2' AS of_ada"
OWN = "SELECT 'of bob'"


@pytest.fixture
def give(data_dir: Any, clock: Any) -> Any:
    def given(scope: Scope, comment: str) -> Token:
        token = Token.new(scope)
        scram = scram_of(token)
        entry = TokenEntry(token.id, scope, token.digest, clock.now(), comment=comment, scram=scram)
        edit(data_dir / NAME, lambda store: (store.with_entry(entry), None))
        return token

    return given


async def asked(url: str, token: Token, sql: str) -> Any:
    headers = {"Authorization": f"Bearer {token.text}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url + "/v1/sql", data=sql) as answer,
    ):
        return await answer.json()


async def texts(url: str, token: Token, sql: str = "SELECT sql FROM query_log") -> set[str]:
    found = await asked(url, token, sql)
    return {row[0] for row in found["rows"]}


@pytest.fixture
async def fleet(start: Any, give: Any) -> Any:
    """A collector that ada and bob have asked something, who have the same comment; and an admin."""
    ada, bob = give(Scope.READ, "reader"), give(Scope.READ, "reader")
    admin = give(Scope.ADMIN, "admin")
    async with start(postgres_port=0, require_tokens=True) as collector:
        await asked(collector.url, ada, SECRET)
        await asked(collector.url, bob, OWN)
        async with asyncio.timeout(20):
            found: set[str] = set()
            while not {SECRET, OWN} <= found:
                await asyncio.sleep(0.02)
                found = await texts(collector.url, admin)
        yield collector, bob, admin


async def test_a_reader_reads_its_own_rows_and_none_of_others(fleet: Any) -> None:
    collector, bob, admin = fleet
    url = collector.url
    assert {SECRET, OWN} <= await texts(url, admin)
    for sql in (
        "SELECT sql FROM query_log",
        "FROM (SELECT l.sql FROM gpuwarden.main.query_log AS l)",
        "WITH w AS (FROM QUERY_LOG) SELECT sql FROM w UNION SELECT sql FROM query_log q",
        "SELECT (SELECT max(sql) FROM query_log WHERE sql <> outer_text) FROM (SELECT sql AS outer_text FROM query_log)",
        "SELECT unnest(list(sql)) FROM main.query_log",
    ):
        found = await texts(url, bob, sql)
        assert found, sql
        assert SECRET not in found, sql
    assert OWN in await texts(url, bob)
    sql = "WITH query_log AS (SELECT 1) FROM query_log"
    assert "a table has that name" in (await asked(url, bob, sql))["error"]
    described = await asked(url, bob, "DESCRIBE query_log")
    assert "token" in {row[0] for row in described["rows"]}
    # Nor does an error of a condition tell of rows of others.
    wrong = (
        "SELECT 1 FROM query_log WHERE sql::INTEGER > 0 AND address LIKE '1%' AND sql LIKE '%ada'"
    )
    assert "hunter2" in (await asked(url, admin, wrong))["error"]  # so that it would tell
    assert (await asked(url, bob, wrong))["rows"] == []
    for sql in (
        "SUMMARIZE SELECT sql FROM query_log",
        "EXPLAIN ANALYZE SELECT max(sql::INTEGER) FROM query_log",
        "SUMMARIZE SELECT sql::INTEGER FROM query_log",
        "SELECT sum(sql::INTEGER) FROM query_log GROUP BY sql HAVING min(sql::INTEGER) > 1",
    ):
        assert "hunter2" not in str(await asked(url, bob, sql)), sql
    host, port = collector.postgres
    connection = await psycopg.AsyncConnection.connect(
        host=host, port=port, user=bob.id, password=bob.text, dbname="gpuwarden", autocommit=True
    )
    async with connection:
        cursor = await connection.execute(
            "SELECT sql FROM public.query_log WHERE sql <> %s", ("x",)
        )
        found = {row[0] for row in await cursor.fetchall()}
        assert OWN in found
        assert SECRET not in found
        with pytest.raises(psycopg.Error) as caught:
            await connection.execute("EXPLAIN ANALYZE SELECT max(sql::INTEGER) FROM query_log")
        assert "hunter2" not in str(caught.value)
