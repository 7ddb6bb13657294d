"""Listens for PostgreSQL's clients, authenticates them with the collector's tokens, and runs their sessions.

Before it is authenticated, a client may send little and take only seconds. The number of clients is limited,
and so is the memory for rows of all of them.
"""

import asyncio
import errno
import logging
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from gpuwarden.access import Denied, Scope
from gpuwarden.lifecycle import StartError
from gpuwarden.scram import MECHANISM, Exchange, ScramError, Verifier
from gpuwarden_collector.query.port import FrontAccess, FrontStats, Queries, RowStream, TypedValue
from gpuwarden_postgres import errors, messages
from gpuwarden_postgres.connection import Connection, ConnectionEnded
from gpuwarden_postgres.messages import ProtocolError
from gpuwarden_postgres.session import Session
from gpuwarden_postgres.statements import StatementError

log = logging.getLogger(__name__)

BULK_ROWS_MAX = 1_000_000_000
"""Row limit that a cursor or COPY requests: as many rows as an export may have."""
_BYTES_A_SECOND = 1024 * 1024
_CLOSE_S = 2.0
_KEEPALIVE_S = 60


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of clients."""

    connections_max: int = 100
    """Authenticated clients; more get an error."""
    unauthenticated_max: int = 50
    """Clients that are not authenticated yet; more are disconnected without an answer."""
    login_s: float = 10.0
    send_s: float = 30.0
    """Longest time for a client to receive data, as over HTTP."""
    held_bytes_max: int = 256 * 1024 * 1024
    """Memory for waiting rows of all clients."""
    idle_s: float = 300.0
    """Longest time that a client may leave rows waiting."""
    query_idle_s: float = 60.0
    """The same while a query waits too, which keeps its process busy."""


class _Refused(Exception):  # noqa: N818  an outcome
    """The client gets an error, and the connection ends."""

    def __init__(self, sqlstate: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.fields = errors.fields(sqlstate, message, hint=hint, severity="FATAL")


class PostgresServer:
    """Holds the clients, by the number that they cancel with."""

    def __init__(
        self, queries: Queries, access: FrontAccess, stats: FrontStats, limits: Limits | None = None
    ) -> None:
        self.queries = queries
        self.access = access
        self._stats = stats
        self.limits = limits or Limits()
        self._clients: dict[int, _Client] = {}
        self._numbers = 0
        self.held_bytes = 0

    @asynccontextmanager
    async def listening(
        self, host: str, port: int, group: asyncio.TaskGroup
    ) -> AsyncIterator[tuple[str, int]]:
        """Listen within the block; the address and port. `group`: runs the sessions. Raises StartError."""
        loop = asyncio.get_running_loop()

        def connected(connection: Connection) -> None:
            self._begin(connection, group)

        try:
            server = await loop.create_server(
                lambda: Connection(connected), host, port, backlog=128
            )
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        for listener in server.sockets:
            _keep_alive(listener)
        try:
            yield server.sockets[0].getsockname()[:2]
        finally:
            server.close()
            for client in [*self._clients.values()]:
                if client.task is not None:
                    client.task.cancel()

    def _begin(self, connection: Connection, group: asyncio.TaskGroup) -> None:
        unauthenticated = sum(not client.is_known for client in self._clients.values())
        if unauthenticated >= self.limits.unauthenticated_max:
            self._stats.denied["postgres_busy"] += 1
            connection.abort()
            return
        self._numbers = self._numbers % (2**31 - 1) + 1
        while self._numbers in self._clients:
            self._numbers += 1
        client = _Client(self, connection, self._numbers)
        self._clients[client.number] = client
        task = group.create_task(self._serve(client), name=f"postgres {client.number}")
        client.task = task

        def gone() -> None:
            task.cancel()

        connection.gone = gone

    async def _serve(self, client: "_Client") -> None:
        try:
            await client.serve()
        except _Refused as refused:
            client.write(messages.error(refused.fields))
        except ProtocolError as error:
            self._stats.malformed_requests += 1
            client.write(messages.error(errors.fields("08P01", str(error), severity="FATAL")))
        except ConnectionEnded:
            pass
        except asyncio.CancelledError:  # the client has disconnected, or the collector stops
            what = "the collector stops"
            client.write(messages.error(errors.fields("57P01", what, severity="FATAL")))
        except Exception:
            # As over HTTP: a bug that a client triggers only ends its connection.
            self._stats.request_failures += 1
            log.exception(
                "a connection of PostgreSQL failed", extra={"client": client.connection.client}
            )
            what = "internal error; see the collector's log"
            client.write(messages.error(errors.fields("XX000", what, severity="FATAL")))
        finally:
            del self._clients[client.number]
            await client.close()
            await client.connection.close(_CLOSE_S)

    def cancel(self, request: messages.CancelRequest) -> None:
        """Interrupt the query of a client, if the key is right."""
        client = self._clients.get(request.pid)
        if client is not None and secrets.compare_digest(client.secret, request.secret):
            client.cancel_query()

    @property
    def known(self) -> int:
        """Number of authenticated clients."""
        return sum(client.is_known for client in self._clients.values())


class _Asked:
    """A client's query, as `RunningQuery` of its session. It ends with its last row or an error."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._stream: RowStream | None = None
        self.rows = 0
        self.truncated = False

    async def begin(self, query: AbstractAsyncContextManager[RowStream]) -> None:
        """Wait for its turn and first rows. Raises QueryError."""
        self._stream = await self._stack.enter_async_context(query)

    @property
    def is_open(self) -> bool:
        """Whether it occupies a query process."""
        return self._stream is not None

    async def take(self) -> bytes | bytearray:
        """The next messages; empty: all have come. Raises QueryError."""
        stream = self._stream
        if stream is None:
            return b""
        try:
            found = await stream.whole()
        except BaseException as error:
            self._stream = None
            # The query's context manager logs the error.
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise
        if not found:
            self.rows, self.truncated = stream.rows, stream.truncated
            await self.close()
        return found

    async def close(self) -> None:
        """Interrupt the query, if it runs."""
        self._stream = None
        await self._stack.aclose()


class _Client:
    """A client's connection."""

    def __init__(self, server: PostgresServer, connection: Connection, number: int) -> None:
        self._server = server
        self._limits = server.limits
        self.connection = connection
        self.number = number
        self.secret = secrets.token_bytes(4)
        self.task: asyncio.Task[None] | None = None
        self.is_known = False
        self._grant: object | None = None
        self._running: asyncio.Timeout | None = None
        self._asked: list[_Asked] = []
        self._session: Session | None = None
        self._held_bytes = 0

    async def serve(self) -> None:
        """Authenticate the client, and answer it until it disconnects. Raises the error that ends it."""
        try:
            async with asyncio.timeout(self._limits.login_s):
                startup = await self._startup()
                if startup is None:
                    return
                await self._authenticate(startup.parameters.get("user", ""))
        except TimeoutError:
            return
        if self._server.known >= self._limits.connections_max:
            raise _Refused("53300", "too many clients", "try again later")
        self.is_known = True
        self.write(messages.AUTHENTICATED)
        self.connection.reader.bytes_max = messages.MESSAGE_BYTES_MAX
        self._session = Session(self._ask, self, startup.parameters)
        try:
            self._session.greet()
        except StatementError as error:
            raise _Refused(error.sqlstate, str(error), error.hint) from error
        self.write(messages.backend_key(self.number, self.secret))
        self._session.ready()
        while not isinstance(message := await self._next(), messages.Terminate):
            denied = self._server.access.withdrawn(self._grant)
            if denied is not None:
                raise _Refused("28000", denied.reason)
            await self._session.answer(message)

    async def _next(self) -> messages.Message:
        """The next message. While rows or a query wait, the client must not be idle for long."""
        self._asked = [asked for asked in self._asked if asked.is_open]
        held_s = self._limits.idle_s if self._held_bytes else None
        idle_s = self._limits.query_idle_s if self._asked else held_s
        try:
            async with asyncio.timeout(idle_s):
                return await self.connection.next()
        except TimeoutError as error:
            what = f"rows were not taken for {idle_s:g} s"
            raise _Refused("25P03", what, "FETCH without pauses, or with a LIMIT") from error

    async def _startup(self) -> messages.Startup | None:
        """The startup message; None: the client only sent a cancel request. Raises ProtocolError, ConnectionEnded,
        _Refused."""
        context = self._server.access.ssl_context
        for _ in range(3):  # GSSAPI, TLS, and the startup message
            message = await self.connection.next()
            match message:
                case messages.EncryptionRequest(is_tls=True) if context is not None:
                    if self.connection.has_tls:
                        raise ProtocolError("TLS within TLS")
                    await self.connection.start_tls(context, self._limits.login_s)
                case messages.EncryptionRequest():
                    self.write(messages.NO_TLS)
                case messages.CancelRequest():
                    self._server.cancel(message)
                    return None
                case messages.Startup():
                    if context is not None and not self.connection.has_tls:
                        raise _Refused("28000", "this collector requires TLS", "sslmode=require")
                    self._negotiate(message)
                    return message
                case _:
                    break
        raise ProtocolError("a startup message was expected")

    def _negotiate(self, startup: messages.Startup) -> None:
        if "replication" in startup.parameters:
            raise _Refused("0A000", "replication is not supported")
        unknown = [name for name in startup.parameters if name.startswith("_pq_.")]
        if startup.minor or unknown:
            self.write(messages.negotiate(unknown))

    async def _authenticate(self, user: str) -> None:
        """Check the client's token. Raises _Refused."""
        access = self._server.access
        if not access.asks_tokens:
            return
        if access.is_guessing(self.connection.client):
            raise _Refused(
                "28P01", "this address has sent too many wrong tokens", "try again in a minute"
            )
        scram = access.scram_of(user)
        if scram is None:
            self.write(messages.ASK_PASSWORD)
            token = (await self._password()).removesuffix(b"\0").decode("latin-1")
            verdict = access.judged(token, Scope.READ, self.connection.client)
        else:
            verdict = await self._scram(user, Verifier.parse(scram))
        if isinstance(verdict, Denied):
            raise _Refused("42501" if verdict.status == 403 else "28P01", verdict.reason)
        self._grant = verdict

    async def _scram(self, user: str, verifier: Verifier) -> object | Denied:
        """Authenticate by SCRAM, without sending the token. Raises _Refused."""
        exchange = Exchange(verifier, secrets.token_urlsafe(18))
        self.write(messages.ask_sasl([MECHANISM]))
        try:
            self.write(messages.sasl_continue(exchange.first(await self._password())))
            final = exchange.final(await self._password())
        except ScramError as error:
            raise _Refused("08P01", str(error)) from error
        if final is not None:
            self.write(messages.sasl_final(final))
        client = self.connection.client
        return self._server.access.judged_as(user, Scope.READ, client, is_it=final is not None)

    async def _password(self) -> bytes:
        message = await self.connection.next()
        if not isinstance(message, messages.Password):
            raise ProtocolError("a password was expected")
        return message.content

    async def _ask(
        self,
        form: str,
        sql: str,
        params: Mapping[str, TypedValue],
        timeout_s: float | None,
        *,
        is_bulk: bool,
    ) -> _Asked:
        """Start a query of the session, as `Ask`."""
        bound = {
            name: p if p.sql_type and p.value is not None else p.value for name, p in params.items()
        }
        row_limit = BULK_ROWS_MAX if is_bulk else None
        asked = _Asked()
        await asked.begin(
            self._server.queries.run(
                form,
                sql,
                bound,
                grant=self._grant,
                address=self.connection.client,
                timeout_s=timeout_s,
                row_limit=row_limit,
                dialect="postgres",
            )
        )
        self._asked.append(asked)
        return asked

    @asynccontextmanager
    async def cancellable(self) -> AsyncIterator[None]:
        """Raise TimeoutError within the block when the client cancels."""
        try:
            async with asyncio.timeout(None) as self._running:
                yield
        finally:
            self._running = None

    def cancel_query(self) -> None:
        """Interrupt the running query, if there is one."""
        if self._running is not None:
            self._running.reschedule(asyncio.get_running_loop().time())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        self.connection.write(data)

    async def drain(self) -> None:
        """Wait until the client has read most bytes. Raises ConnectionEnded for a client that reads none."""
        try:
            async with asyncio.timeout(self._limits.send_s):
                await self.connection.drain()
        except TimeoutError as error:
            log.info(
                "disconnected a client that did not read its rows in time",
                extra={"client": self.connection.client, "limit_s": self._limits.send_s},
            )
            self.connection.abort()
            raise ConnectionEnded from error

    @asynccontextmanager
    async def sending(self, size: int) -> AsyncIterator[None]:
        """Limit the time for sending that many bytes. Raises ConnectionEnded for a client that is too slow."""
        try:
            async with asyncio.timeout(self._limits.send_s + size / _BYTES_A_SECOND):
                yield
        except TimeoutError as error:
            log.info(
                "disconnected a client that read its rows too slowly",
                extra={"client": self.connection.client},
            )
            self.connection.abort()
            raise ConnectionEnded from error

    def hold(self, size: int) -> bool:
        """Reserve memory for rows; False: none is left."""
        if self._server.held_bytes and self._server.held_bytes + size > self._limits.held_bytes_max:
            return False
        self._server.held_bytes += size
        self._held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Free reserved memory."""
        self._server.held_bytes -= size
        self._held_bytes -= size

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()


def _keep_alive(listener: socket.socket) -> None:
    """Let the system detect that a client's machine is gone; accepted connections inherit it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S // 4)


def _cannot_listen(host: str, port: int, error: OSError) -> StartError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return StartError(f"{where} is in use by another process: choose another postgres_port")
    if error.errno == errno.EACCES:
        return StartError(
            f"{where} is not allowed for this user: choose a postgres_port above 1023"
        )
    what = error.strerror or error
    return StartError(
        f"cannot listen on {where} for PostgreSQL: {what}: choose another postgres_port"
    )
