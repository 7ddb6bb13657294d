"""Implements a client's session: statements, portals and transactions.

Rows are sent as they come. For an unfinished portal or cursor the first rows are held, or its query waits. The
server is read-only, so a transaction only keeps portals open, and refuses statements after an error until it
ends.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from gpuwarden.query import QueryError
from gpuwarden_collector.query.port import TypedValue
from gpuwarden_postgres import errors, messages, statements, types
from gpuwarden_postgres.catalog import SETTINGS
from gpuwarden_postgres.statements import (
    Command,
    CommandKind,
    SqlStatement,
    StatementError,
)
from gpuwarden_postgres.types import ParameterValueError

PREPARED_MAX = 1_000
"""Most statements, and most portals, of a session."""
PREPARED_BYTES_MAX = 4 * 1024 * 1024
_SENT_BYTES = 256 * 1024
_HELD_BYTES = 256 * 1024
"""Size of the first rows that are held, so that a small result does not keep its query waiting."""
_FEW_BYTES = 64 * 1024
_REPORTED = {
    "application_name": "application_name",
    "client_encoding": "client_encoding",
    "datestyle": "DateStyle",
    "default_transaction_read_only": "default_transaction_read_only",
    "in_hot_standby": "in_hot_standby",
    "integer_datetimes": "integer_datetimes",
    "intervalstyle": "IntervalStyle",
    "is_superuser": "is_superuser",
    "server_encoding": "server_encoding",
    "server_version": "server_version",
    "session_authorization": "session_authorization",
    "standard_conforming_strings": "standard_conforming_strings",
    "timezone": "TimeZone",
}
"""Settings that are reported to clients, in PostgreSQL's spelling."""
_FIXED = {
    "client_encoding": ("utf8", "utf-8", "unicode", "sql_ascii", ""),
    "standard_conforming_strings": ("on", "true", "1", "yes"),
    "bytea_output": ("hex",),
    "intervalstyle": ("postgres",),
    "default_transaction_read_only": ("on", "true", "1", "yes"),
    "transaction_read_only": ("on", "true", "1", "yes"),
}
"""Settings with one accepted value, in its spellings."""
_READ_ONLY = frozenset(
    {
        *("in_hot_standby", "integer_datetimes", "is_superuser", "lc_collate", "lc_ctype"),
        *("max_identifier_length", "max_index_keys", "server_encoding", "server_version"),
        *("server_version_num", "session_authorization"),
    }
)


class RunningQuery(Protocol):
    """A running query and its encoded rows."""

    @property
    def rows(self) -> int:
        """The number of rows, once all have come."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether rows beyond the limit were cut, once all have come."""
        ...

    async def take(self) -> bytes | bytearray:
        """The next messages, beginning with the row description; empty: all have come. Raises QueryError."""
        ...

    async def close(self) -> None:
        """Interrupt the query, if it runs."""
        ...


class Ask(Protocol):
    """Starts a query. Raises QueryError."""

    async def __call__(
        self,
        form: str,
        sql: str,
        params: Mapping[str, TypedValue],
        timeout_s: float | None,
        *,
        is_bulk: bool,
    ) -> RunningQuery:
        """`is_bulk`: the row limit is that of an export."""
        ...


class ClientPeer(Protocol):
    """The client, and the memory for rows that it has not taken yet."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    async def drain(self) -> None: ...

    def sending(self, size: int) -> AbstractAsyncContextManager[None]:
        """Limit the time that the client may take for that many bytes."""
        ...

    def cancellable(self) -> AbstractAsyncContextManager[None]:
        """Raise TimeoutError within the block when the client cancels."""
        ...

    def hold(self, size: int) -> bool:
        """Reserve memory for rows; False: none is left."""
        ...

    def release(self, size: int) -> None: ...


@dataclass(slots=True)
class Prepared:
    """A prepared statement."""

    statement: SqlStatement | None
    """None: an empty one."""
    command: Command | None
    source: str
    """The original text."""
    oids: list[int]
    """Types of the first parameters; 0: unspecified."""
    is_described: bool = False
    columns: bytes = b""
    """RowDescription, once it was requested; empty: no rows."""


@dataclass(slots=True)
class Rows:
    """Rows that the client has not taken yet, and the query that gives more."""

    columns: bytes
    body: memoryview
    """Whole messages, one for each row."""
    query: RunningQuery | None = None
    """None: all rows have come."""
    total: int = 0
    """Number of rows, once all have come."""
    truncated: bool = False
    at: int = 0
    taken: int = 0
    held: int = 0
    """Reserved memory."""

    async def more(self) -> bool:
        """Take the next rows from the query, if none are left; whether there are any. Raises QueryError."""
        if self.at < len(self.body):
            return True
        if self.query is None:
            return False
        self.body, self.at = memoryview(await self.query.take()), 0
        if not len(self.body):
            await self.end()
        return len(self.body) > 0

    async def end(self) -> None:
        """End the query."""
        query, self.query = self.query, None
        if query is not None:
            self.total, self.truncated = query.rows, query.truncated
            await query.close()


@dataclass(slots=True)
class Portal:
    """A statement with parameter values, and its rows once they are requested."""

    prepared: Prepared
    params: Mapping[str, TypedValue]
    formats: Sequence[int]
    rows: Rows | None = None
    left: int | None = None
    """Rows that a FETCH still has to return; None: all."""


@dataclass(slots=True)
class _Failure(Exception):  # noqa: N818  an outcome
    """An error to report to the client."""

    fields: Mapping[str, str] = field(default_factory=dict)


class Session:
    """Answers the messages of one client, in order."""

    def __init__(self, ask: Ask, peer: ClientPeer, startup: Mapping[str, str]) -> None:
        self._ask = ask
        self._peer = peer
        self._settings: dict[str, str] = {}
        self._prepared: dict[str, Prepared] = {}
        self._portals: dict[str, Portal] = {}
        self._status = "I"
        self._is_skipping = False
        self._startup = startup

    def greet(self) -> None:
        """Apply the client's settings, and report all settings. Raises StatementError."""
        for name, value in self._startup.items():
            if name.lower() in SETTINGS and name.lower() not in _READ_ONLY:
                self._set(name.lower(), value.strip("'"))  # as asyncpg quotes it
        for name, shown in _REPORTED.items():
            self._peer.write(messages.parameter_status(shown, self._setting(name)))

    def ready(self) -> None:
        """Send ReadyForQuery."""
        self._peer.write(messages.ready(self._status))

    async def answer(self, message: messages.Message) -> None:
        """Answer one message."""
        if isinstance(message, messages.Sync):
            self._is_skipping = False
            await self._end_implicit()
            self.ready()
        elif isinstance(message, messages.QueryMessage):
            # A simple query ends the skipping after an error of the extended protocol.
            self._is_skipping = False
            await self._simple(message.sql)
        elif not self._is_skipping:
            await self._extended(message)
        await self._peer.drain()
        await asyncio.sleep(0)  # many small messages must not keep the loop from others

    async def _simple(self, sql: str) -> None:
        try:
            found = await statements.split_soon(sql)
            if not found:
                self._peer.write(messages.EMPTY_QUERY)
            for statement in found:
                await self._run_simple(statement, sql)
        except (StatementError, _Failure) as error:
            self._fail(error if isinstance(error, _Failure) else _Failure(errors.of_error(error)))
        await self._end_implicit()
        self.ready()

    async def _run_simple(self, statement: SqlStatement, source: str) -> None:
        prepared = Prepared(statement, statements.command_of(statement), source, [])
        portal = Portal(prepared, {}, ())
        try:
            await self._describe_portal(portal)
            if portal.rows is not None:
                self._peer.write(portal.rows.columns)
            await self._execute(portal, 0)
        finally:
            await self._release(portal)

    async def _extended(self, message: messages.Message) -> None:
        try:
            match message:
                case messages.Parse():
                    await self._parse(message)
                case messages.Bind():
                    await self._bind(message)
                case messages.Describe(is_portal=True):
                    await self._describe_portal(self._portal(message.name), is_asked=True)
                case messages.Describe():
                    await self._describe_statement(self._statement(message.name))
                case messages.Execute():
                    await self._execute(self._portal(message.portal), message.rows_max)
                case messages.CloseMessage():
                    await self._close(message)
                case messages.FunctionCall():
                    raise StatementError("0A000", "call functions in a SELECT")
                case _:
                    pass  # Flush, and data of a COPY that failed
        except StatementError as error:
            self._is_skipping = True
            self._fail(_Failure(errors.of_error(error)))
        except _Failure as error:
            self._is_skipping = True
            self._fail(error)

    async def _parse(self, message: messages.Parse) -> None:
        found = await statements.split_soon(message.sql)
        if len(found) > 1:
            raise StatementError("42601", "only one statement can be prepared at a time")
        if message.name in self._prepared and message.name:
            raise StatementError("42P05", f'the statement "{message.name}" already exists')
        self._bound_prepared(len(message.sql))
        statement = found[0] if found else None
        command = statements.command_of(statement) if statement else None
        self._refuse_failed(command)
        self._prepared[message.name] = Prepared(
            statement, command, message.sql, list(message.types)
        )
        self._peer.write(messages.PARSE_COMPLETE)

    def _bound_prepared(self, size: int) -> None:
        held = sum(len(prepared.source) for prepared in self._prepared.values())
        if len(self._prepared) >= PREPARED_MAX or held + size > PREPARED_BYTES_MAX:
            raise StatementError(
                "53400", "too many prepared statements", "DEALLOCATE unused ones, or reconnect"
            )

    async def _bind(self, message: messages.Bind) -> None:
        prepared = self._statement(message.statement)
        self._refuse_failed(prepared.command)
        if message.portal and message.portal in self._portals:
            raise StatementError("42P03", f'the portal "{message.portal}" already exists')
        if len(self._portals) >= PREPARED_MAX:
            raise StatementError("53400", "too many portals", "close unused ones, or Sync")
        if 1 in message.formats and len(prepared.oids) < len(message.values):
            await self._described(prepared)  # binary values need their types
        if sum(len(raw or b"") for raw in message.values) < _FEW_BYTES:
            params = _values(message, prepared.oids)
        else:
            params = await asyncio.to_thread(_values, message, prepared.oids)
        await self._release(self._portals.pop(message.portal, None))
        self._portals[message.portal] = Portal(prepared, params, message.result_formats)
        self._peer.write(messages.BIND_COMPLETE)

    async def _describe_statement(self, prepared: Prepared) -> None:
        self._refuse_failed(prepared.command)
        await self._described(prepared)
        oids = [oid or types.TEXT.oid for oid in prepared.oids]
        self._peer.write(messages.parameter_description(oids))
        self._peer.write(prepared.columns or messages.NO_DATA)

    async def _described(self, prepared: Prepared) -> None:
        """Find the types of parameters and columns, once."""
        command = prepared.command
        if prepared.is_described or command is None or prepared.statement is None:
            return
        if command.kind is CommandKind.QUERY:
            oids = prepared.oids
            samples = {str(at + 1): types.sample(oid) for at, oid in enumerate(oids) if oid}
            found = await self._rows(prepared, "postgres-describe", prepared.statement.sql, samples)
            await self._release_rows(found)
            pairs = itertools.zip_longest(oids, messages.oids_in(found.columns), fillvalue=0)
            prepared.oids = [given or inferred for given, inferred in pairs]
            prepared.columns = bytes(found.body)
        elif command.kind is CommandKind.SHOW:
            prepared.columns = self._shown(command).columns
        elif command.kind is CommandKind.FETCH:
            prepared.columns = self._cursor(command.name).columns
        prepared.is_described = True

    async def _describe_portal(self, portal: Portal, *, is_asked: bool = False) -> None:
        """Start the query of a portal, whose rows describe its columns."""
        prepared = portal.prepared
        command = prepared.command
        self._refuse_failed(command)
        if portal.rows is None and command is not None and prepared.statement is not None:
            match command.kind:
                case CommandKind.QUERY:
                    form = "postgres:" + ",".join(map(str, portal.formats))
                    portal.rows = await self._rows(
                        prepared, form, prepared.statement.sql, portal.params
                    )
                case CommandKind.SHOW:
                    portal.rows = self._shown(command)
                case CommandKind.FETCH:
                    portal.rows = self._cursor(command.name)
                    portal.left = command.rows_max or None
                case _:
                    pass
        if is_asked:
            self._peer.write(messages.NO_DATA if portal.rows is None else portal.rows.columns)

    async def _execute(self, portal: Portal, rows_max: int) -> None:
        command = portal.prepared.command
        if command is None:
            self._peer.write(messages.EMPTY_QUERY)
            return
        await self._describe_portal(portal)
        if portal.rows is None:
            await self._run_command(portal.prepared, command)
            return
        count, is_end = await self._send_rows(portal.rows, portal.left, rows_max)
        portal.left = None if portal.left is None else portal.left - count
        if not is_end and portal.left != 0:
            self._peer.write(messages.PORTAL_SUSPENDED)
            return
        if is_end and portal.rows.truncated:
            raise _Failure(_too_many(portal.rows.taken))
        words = (portal.prepared.statement.tokens if portal.prepared.statement else [])[:1]
        tag = command.tag or "".join(w.word for w in words if w.word == "EXPLAIN") or "SELECT"
        self._peer.write(
            messages.command_complete(tag if tag in ("SHOW", "EXPLAIN") else f"{tag} {count}")
        )

    async def _send_rows(self, rows: Rows, left: int | None, rows_max: int) -> tuple[int, bool]:
        """Send the next rows; their number, and whether the end was reached. `left`, `rows_max`: limits; None and 0:
        all."""
        begin, most = (
            rows.taken,
            min((n for n in (left, rows_max or None) if n is not None), default=None),
        )
        async with self._failing():
            while rows.taken - begin != most and await rows.more():
                start = rows.at
                if most is None:
                    rows.at = len(rows.body)
                else:
                    rows.at, count = messages.split_rows(
                        rows.body, start, most - rows.taken + begin
                    )
                    rows.taken += count
                await self._send(rows.body[start : rows.at])
            if most is None:
                rows.taken = rows.total
            # Fewer rows than the limit mean the end.
            is_end = rows.taken - begin != most or (bool(rows_max) and not await rows.more())
        return rows.taken - begin, is_end

    async def _send(self, body: memoryview) -> None:
        async with self._peer.sending(len(body)):
            for at in range(0, len(body), _SENT_BYTES):
                self._peer.write(body[at : at + _SENT_BYTES])
                await self._peer.drain()

    @asynccontextmanager
    async def _failing(self, start: int = 0) -> AsyncIterator[None]:
        """Raise errors of a query as errors for the client. `start`: position of the query in the client's text."""
        try:
            async with self._peer.cancellable():
                yield
        except TimeoutError as error:
            what = "canceling statement due to user request"
            raise _Failure(errors.fields(errors.CANCELLED, what)) from error
        except QueryError as error:
            raise _Failure(errors.of_error(error, start)) from error

    async def _rows(
        self,
        prepared: Prepared,
        form: str,
        sql: str,
        params: Mapping[str, TypedValue],
        *,
        is_bulk: bool = False,
    ) -> Rows:
        statement, command = prepared.statement, prepared.command
        start = (statement.start if statement else 0) + (command.start if command else 0)
        timeout_s = _seconds(self._setting("statement_timeout"))
        async with self._failing(start):
            query = await self._ask(form, sql, params, timeout_s, is_bulk=is_bulk)
            try:
                return await self._begun(query)
            except BaseException:
                await query.close()
                raise

    async def _begun(self, query: RunningQuery) -> Rows:
        """Take the first rows of a query, and end it if these are all."""
        body = bytearray()
        is_all = False
        while len(body) < _HELD_BYTES and not is_all:
            part = await query.take()
            body += part
            is_all = not part
        view = memoryview(body)
        end, _ = messages.split_rows(view, 0, 1)
        rows = Rows(bytes(view[:end]), view[end:], query, held=len(body) - end)
        if not self._peer.hold(rows.held):
            raise _Failure(
                errors.fields(
                    "53200",
                    "too many rows wait for clients to take them",
                    hint="retry in a moment, or select fewer rows",
                )
            )
        if is_all:
            await rows.end()
        return rows

    async def _run_command(self, prepared: Prepared, command: Command) -> None:
        """Run a statement without rows."""
        tag = command.tag
        match command.kind:
            case CommandKind.BEGIN:
                self._status = "T" if self._status == "I" else self._status
            case CommandKind.COMMIT | CommandKind.ROLLBACK:
                tag = "ROLLBACK" if self._status == "E" else tag
                self._status = "I"
                await self.close()
            case CommandKind.SAVEPOINT if self._status == "I":
                raise StatementError("25P01", f"{tag} needs a transaction", "BEGIN first")
            case CommandKind.ROLLBACK_TO:
                self._status = "T"
            case CommandKind.SET:
                self._set(command.name, command.value)
            case CommandKind.RESET:
                self._reset(command.name)
            case CommandKind.DISCARD:
                self._reset("")
                self._prepared.clear()
                await self.close()
            case CommandKind.DEALLOCATE:
                self._deallocate(command.name)
            case CommandKind.DECLARE:
                await self._declare(prepared, command)
            case CommandKind.CLOSE:
                await self._close_cursor(command.name)
            case CommandKind.COPY:
                await self._copy(prepared, command)
                return
            case _:
                pass
        self._peer.write(messages.command_complete(tag))

    async def _declare(self, prepared: Prepared, command: Command) -> None:
        if self._status == "I":
            raise StatementError("25P01", "a cursor needs a transaction", "BEGIN first")
        if command.name in self._portals:
            raise StatementError("42P03", f'the cursor "{command.name}" already exists')
        if len(self._portals) >= PREPARED_MAX:
            raise StatementError("53400", "too many cursors", "CLOSE unused ones")
        inner = statements.split(command.sql)
        if len(inner) != 1 or statements.command_of(inner[0]).kind is not CommandKind.QUERY:
            raise StatementError("42601", "a cursor needs a query")
        rows = await self._rows(prepared, "postgres:", command.sql, {}, is_bulk=True)
        self._portals[command.name] = Portal(prepared, {}, (), rows)

    def _cursor(self, name: str) -> Rows:
        portal = self._portals.get(name)
        if portal is None or portal.rows is None:
            raise StatementError("34000", f'there is no cursor "{name}"', "DECLARE it first")
        return portal.rows

    async def _copy(self, prepared: Prepared, command: Command) -> None:
        inner = statements.split(command.sql)
        if len(inner) != 1:
            raise StatementError("42601", "COPY needs one query")
        rows = await self._rows(prepared, "postgres-copy", command.sql, {}, is_bulk=True)
        try:
            self._peer.write(rows.columns)
            count, _ = await self._send_rows(rows, None, 0)
            if rows.truncated:
                raise _Failure(_too_many(count))
            self._peer.write(messages.COPY_DONE + messages.command_complete(f"COPY {count}"))
        finally:
            await self._release_rows(rows)

    def _shown(self, command: Command) -> Rows:
        names = [command.name] if command.name else sorted(SETTINGS)
        if command.name and command.name not in SETTINGS:
            raise StatementError("42704", f'unrecognized configuration parameter "{command.name}"')
        text = messages.ColumnDescription("", types.TEXT.oid, -1, -1)
        heads = [command.name] if command.name else ["name", "setting", "description"]
        columns = messages.row_description(
            [messages.ColumnDescription(head, text.oid, text.size, text.modifier) for head in heads]
        )
        rows = bytearray()
        for name in names:
            value = self._setting(name).encode()
            rows += messages.data_row([value] if command.name else [name.encode(), value, b""])
        return Rows(columns, memoryview(bytes(rows)), total=len(names))

    def _setting(self, name: str) -> str:
        return self._settings.get(name, SETTINGS[name])

    def _set(self, name: str, value: str | None) -> None:
        if name not in SETTINGS:
            if "." in name:
                return  # an extension's
            raise StatementError("42704", f'unrecognized configuration parameter "{name}"')
        if name in _READ_ONLY:
            raise StatementError("55P02", f'parameter "{name}" cannot be changed')
        if value is not None and name in _FIXED and value.lower() not in _FIXED[name]:
            state = "25006" if "read_only" in name else "22023"
            only = f"the only value is {SETTINGS[name]}"
            raise StatementError(state, f'parameter "{name}" cannot be {json.dumps(value)}', only)
        if name == "statement_timeout" and value is not None:
            _seconds(value)
        if value is None or name in _FIXED:
            self._settings.pop(name, None)
        else:
            self._settings[name] = value
        if name in ("timezone", "datestyle") and value is not None:
            is_own = value.lower() in (
                "utc",
                "etc/utc",
                "gmt",
                "0",
                "iso",
                "iso, mdy",
                "iso, ymd",
                "iso, dmy",
            )
            self._settings.pop(name, None)
            if not is_own:
                what = f"times are always shown as {SETTINGS[name]}, whatever {name} is"
                self._peer.write(messages.notice(errors.fields("01000", what, severity="NOTICE")))
        if name in _REPORTED:
            self._peer.write(messages.parameter_status(_REPORTED[name], self._setting(name)))

    def _reset(self, name: str) -> None:
        for changed in [name] if name else [*self._settings]:
            self._set(changed, None)

    def _deallocate(self, name: str) -> None:
        if not name:
            self._prepared.clear()
        elif self._prepared.pop(name, None) is None:
            raise StatementError("26000", f'there is no statement "{name}"')

    async def _close(self, message: messages.CloseMessage) -> None:
        if message.is_portal:
            await self._release(self._portals.pop(message.name, None))
        else:
            self._prepared.pop(message.name, None)
        self._peer.write(messages.CLOSE_COMPLETE)

    async def _close_cursor(self, name: str) -> None:
        if not name:
            await self.close()
        elif name not in self._portals:
            raise StatementError("34000", f'there is no cursor "{name}"')
        else:
            await self._release(self._portals.pop(name))

    def _statement(self, name: str) -> Prepared:
        found = self._prepared.get(name)
        if found is None:
            raise StatementError("26000", f'there is no statement "{name}"')
        return found

    def _portal(self, name: str) -> Portal:
        found = self._portals.get(name)
        if found is None:
            raise StatementError("34000", f'there is no portal "{name}"')
        return found

    def _refuse_failed(self, command: Command | None) -> None:
        ends = (CommandKind.COMMIT, CommandKind.ROLLBACK, CommandKind.ROLLBACK_TO)
        if self._status == "E" and command is not None and command.kind not in ends:
            raise StatementError(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
                "ROLLBACK",
            )

    def _fail(self, error: _Failure) -> None:
        self._peer.write(messages.error(error.fields))
        if self._status == "T":
            self._status = "E"

    async def _end_implicit(self) -> None:
        """Outside of a transaction portals end with the group of messages."""
        if self._status == "I":
            await self.close()

    async def close(self) -> None:
        """Close all portals."""
        while self._portals:
            await self._release(self._portals.popitem()[1])

    async def _release(self, portal: Portal | None) -> None:
        if portal is None or portal.rows is None:
            return
        rows, portal.rows = portal.rows, None
        command = portal.prepared.command
        if command is None or command.kind is not CommandKind.FETCH:  # its rows are the cursor's
            await self._release_rows(rows)

    async def _release_rows(self, rows: Rows) -> None:
        held, rows.held = rows.held, 0
        self._peer.release(held)
        await rows.end()


def _too_many(taken: int) -> Mapping[str, str]:
    return errors.fields(
        "54000",
        f"there are more rows than the {taken} that a query may return",
        hint="add a LIMIT, aggregate, or declare a cursor or COPY, which may return more",
    )


def _values(message: messages.Bind, oids: Sequence[int]) -> dict[str, TypedValue]:
    """Values of parameters by name. Raises StatementError."""
    found = {}
    for at, raw in enumerate(message.values):
        oid = oids[at] if at < len(oids) else 0
        formats = message.formats
        is_binary = bool(formats[at] if len(formats) > 1 else sum(formats))
        try:
            found[str(at + 1)] = types.parameter(raw, oid, is_binary)
        except ParameterValueError as error:
            raise StatementError(error.sqlstate, f"${at + 1}: {error}") from error
    return found


_UNITS = {"": 0.001, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def _seconds(setting: str) -> float | None:
    """The seconds of statement_timeout; None: no limit. Raises StatementError."""
    number = setting.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = _UNITS.get(setting.strip()[len(number) :].strip())
    if unit is None or not number.isdecimal() or len(number) > 9:
        raise StatementError("22023", f"statement_timeout cannot be {setting!r}", "such as 30s")
    return int(number) * unit or None
