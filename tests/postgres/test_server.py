"""Who is admitted, and that nobody can keep the server from others: rubbish, silence, slowness, numbers."""

import asyncio
import os
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme

from gpuwarden.access import Scope, Token
from gpuwarden.clock import ManualClock
from gpuwarden_collector.auth.access_control import AccessControl
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry, scram_of
from gpuwarden_collector.ops.query_log import QueryLog, QueryService
from gpuwarden_collector.query.fair_queue import QueryQueue
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_postgres import messages
from gpuwarden_postgres.server import Limits, PostgresServer

Address = tuple[str, int]
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b"
STARTUP = struct.pack("!ii", 17, 196_608) + b"user\0me\0\0"


async def connected(address: Address, **more: Any) -> psycopg.AsyncConnection[Any]:
    chosen = {"host": address[0], "port": address[1], "user": "me", "dbname": "gpuwarden"}
    return await psycopg.AsyncConnection.connect(**{**chosen, "autocommit": True, **more})


async def answered(address: Address, **more: Any) -> object:
    async with await connected(address, **more) as connection:
        cursor = await connection.execute("SELECT 1")
        return await cursor.fetchone()


async def cancelling(connection: psycopg.AsyncConnection[Any]) -> None:
    await asyncio.sleep(0.2)
    await connection.cancel_safe()


async def said(address: Address, data: bytes, within_s: float = 10) -> bytes:
    """All that the server answers until it closes."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        async with asyncio.timeout(within_s):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.fixture
def give(data_dir: Path, clock: ManualClock) -> Callable[..., Token]:
    """Make a token in the collector's file."""

    def given(scope: Scope, *, has_scram: bool = True, **more: Any) -> Token:
        token = Token.new(scope)
        scram = scram_of(token) if has_scram else None
        entry = TokenEntry(token.id, scope, token.digest, clock.now(), scram=scram, **more)
        edit(data_dir / NAME, lambda store: (store.with_entry(entry), None))
        return token

    return given


async def test_it_listens_only_where_it_is_asked_to(start: Any) -> None:
    async with start() as collector:
        assert collector.postgres is None


async def test_a_token_lets_in_by_scram_or_as_the_password(start: Any, give: Any) -> None:
    kept, shown = give(Scope.READ), give(Scope.ADMIN, has_scram=False)
    ingest = give(Scope.INGEST, node="n1")
    async with start(postgres_port=0, require_tokens=True) as collector:
        address = collector.postgres
        asked = {"require_auth": "scram-sha-256"} if psycopg.pq.version() >= 160_000 else {}
        assert await answered(address, user=kept.id, password=kept.text, **asked) == (1,)
        assert await answered(address, user="anybody", password=shown.text) == (1,)
        assert await answered(address, user=shown.id, password=shown.text) == (1,)
        for wrong in (
            {"user": kept.id, "password": shown.text},
            {"user": "anybody", "password": "guess"},
            {"user": "anybody", "password": kept.text[:-1] + "!"},
            {"user": "anybody"},
        ):
            with pytest.raises(psycopg.OperationalError):
                await answered(address, **wrong)
        with pytest.raises(psycopg.OperationalError, match="has scope ingest, and this needs read"):
            await answered(address, password=ingest.text)
        assert collector.stats.denied["scope"] == 1


async def test_a_token_that_is_revoked_ends_the_session_at_its_next_statement(
    start: Any, give: Any, data_dir: Path
) -> None:
    token = give(Scope.READ)
    async with start(postgres_port=0, require_tokens=True) as collector:
        connection = await connected(collector.postgres, user=token.id, password=token.text)
        await connection.execute("SELECT 1")
        edit(data_dir / NAME, lambda store: (store.revoked([token.id]), None))
        collector.reload()
        with pytest.raises(psycopg.OperationalError, match="unknown or revoked"):
            await connection.execute("SELECT 1")
        await connection.close()


async def test_with_a_certificate_nothing_is_said_in_the_clear(
    start: Any, give: Any, tmp_path: Path
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    cert, key, root = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))
    certificate.private_key_pem.write_to_path(str(key))
    certificate.cert_chain_pems[0].write_to_path(str(cert))
    authority.cert_pem.write_to_path(str(root))
    token = give(Scope.READ)
    async with start(postgres_port=0, require_tokens=True, tls_cert=cert, tls_key=key) as collector:
        address = collector.postgres
        who = {"user": token.id, "password": token.text}
        verified = {"sslmode": "verify-full", "sslrootcert": str(root)}
        assert await answered(address, **who, **verified) == (1,)
        async with await connected(address, **who, **verified) as connection:
            rows = await connection.execute("SELECT repeat('x', 1000) FROM range(5000)")
            assert len(await rows.fetchall()) == 5000
            async with asyncio.TaskGroup() as group:
                group.create_task(cancelling(connection))
                with pytest.raises(psycopg.errors.QueryCanceled):
                    await connection.execute(ENDLESS)
        with pytest.raises(psycopg.OperationalError, match="requires TLS"):
            await answered(address, **who, sslmode="disable")
        # What was put before TLS by somebody in the middle must not count as said within it.
        smuggled = struct.pack("!ii", 8, 80_877_103) + STARTUP
        assert b"bytes before TLS" in await said(address, smuggled)


@asynccontextmanager
async def limited(collector: Any, data_dir: Path, **limits: Any) -> AsyncIterator[Any]:
    """Another server over the collector's querier, with limits of its own."""
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    access = AccessControl(CollectorSettings(data_dir=data_dir), clock, Counter(), 1_024)
    stats, query_log = Stats(), QueryLog("c", collector, clock)
    queries = QueryService(collector.querier, QueryQueue(2), query_log, stats)
    server = PostgresServer(queries, access, stats, Limits(**limits))
    async with (
        asyncio.TaskGroup() as group,
        server.listening("127.0.0.1", 0, group) as address,
    ):
        yield server, address


async def test_rubbish_is_told_and_closed_at_once(address: Address) -> None:
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 100,
        b"\xff" * 100,
        struct.pack("!ii", 2**31 - 1, 196_608),
        struct.pack("!ii", 8, 80_877_103) * 5,
        STARTUP + b"Q" + struct.pack("!i", 2**30),
        STARTUP + b"B\0\0\0\x0a\0\0\0\0\x7f\xff",
        STARTUP + b"\x01",
        STARTUP + os.urandom(5),
    ):
        assert b"08P01" in await said(address, data, within_s=5)
    assert await said(address, struct.pack("!iiii", 16, 80_877_102, 1, 1)) == b""
    replication = b"replication\0true\0\0"
    asked = struct.pack("!ii", len(replication) + 8, 196_608) + replication
    assert b"0A000" in await said(address, asked)
    assert await answered(address) == (1,)


@pytest.mark.slow
async def test_who_says_nothing_is_closed_and_does_not_keep_others_out(
    start: Any, data_dir: Path
) -> None:
    async with (
        start() as collector,
        limited(collector, data_dir, unauthenticated_max=5, login_s=0.5) as (_, address),
    ):
        silent = [await asyncio.open_connection(*address) for _ in range(20)]
        halves = [await asyncio.open_connection(*address) for _ in range(3)]
        for _, writer in halves:
            writer.write(STARTUP[:5])
        async with asyncio.timeout(5):
            for reader, _ in (*silent, *halves):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert await answered(address) == (1,)
        for _, writer in (*silent, *halves):
            writer.close()


async def test_clients_are_bounded_in_number(start: Any, data_dir: Path) -> None:
    async with (
        start() as collector,
        limited(collector, data_dir, connections_max=3) as (_, address),
    ):
        inside = [await connected(address) for _ in range(3)]
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            await connected(address)
        await inside.pop().close()
        assert await answered(address) == (1,)
        for one in inside:
            await one.close()


async def begun(address: Address, sql: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address, limit=1024)
    writer.write(STARTUP + messages.message(b"Q", sql.encode() + b"\0"))
    return reader, writer


@pytest.mark.slow
async def test_who_does_not_take_rows_is_closed_and_keeps_nobody_waiting(
    start: Any, data_dir: Path, eventually: Any
) -> None:
    many = "COPY (SELECT repeat('x', 10000) FROM range(500000)) TO STDOUT"
    async with start() as collector, limited(collector, data_dir, send_s=4) as (server, address):
        _, writer = await begun(address, many)
        await eventually(lambda: len(collector.querier._busy) == 1)
        assert await answered(address) == (1,)
        await eventually(lambda: not collector.querier._busy)
        assert server.known == 0
        assert server.held_bytes == 0
        writer.close()


async def test_beginnings_of_cursors_are_bounded_for_all_clients_together(
    start: Any, data_dir: Path
) -> None:
    few = "CURSOR FOR SELECT repeat('x', 1000) FROM range(100)"
    async with (
        start() as collector,
        limited(collector, data_dir, held_bytes_max=250_000) as (server, address),
        await connected(address, autocommit=False) as one,
        await connected(address, autocommit=False) as other,
    ):
        await one.execute(f"DECLARE a {few}")
        await one.execute(f"DECLARE b {few}")
        with pytest.raises(psycopg.errors.OutOfMemory, match="wait for clients"):
            await other.execute(f"DECLARE c {few}")
        await one.rollback()
        assert server.held_bytes == 0
        await other.rollback()
        await other.execute(f"DECLARE c {few}")


async def test_a_cursor_that_is_left_keeps_neither_its_process_nor_its_rows(
    start: Any, data_dir: Path, eventually: Any
) -> None:
    async with start() as collector:
        for limits, rows in (
            ({"query_idle_s": 0.3, "idle_s": 30}, 1_000_000),
            ({"idle_s": 0.3}, 1_000),
        ):
            async with limited(collector, data_dir, **limits) as (server, address):
                async with await connected(address, autocommit=False) as connection:
                    await connection.execute(f"DECLARE c CURSOR FOR SELECT * FROM range({rows})")
                    assert server.held_bytes > 0
                    assert len(collector.querier._busy) == (rows > 1_000)
                    await asyncio.sleep(0.6)
                    with pytest.raises(psycopg.Error, match="not taken"):
                        await connection.execute("FETCH 1 FROM c")
                await eventually(lambda: not collector.querier._busy)
                assert server.held_bytes == 0


async def test_a_query_ends_with_its_client(start: Any, data_dir: Path, eventually: Any) -> None:
    async with start() as collector, limited(collector, data_dir) as (server, address):
        _, writer = await begun(address, ENDLESS)
        await eventually(lambda: len(collector.querier._busy) == 1)
        writer.transport.abort()
        await eventually(lambda: not collector.querier._busy)
        assert server.known == 0


async def test_the_collector_stops_while_clients_are_connected(start: Any) -> None:
    async with start(postgres_port=0) as collector:
        idle = await connected(collector.postgres)
        _, busy = await begun(collector.postgres, ENDLESS)
        await asyncio.sleep(0.3)
    with pytest.raises(psycopg.OperationalError, match="the collector stops"):
        await idle.execute("SELECT 1")
    await idle.close()
    busy.close()
