"""One client's session: statements, portals and transactions, over whoever runs queries.

Nothing can be changed, so a transaction has no effect but the ones that clients see: what it holds open,
and that it refuses statements after an error until it is ended.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gpuwarden.query import QueryError
from gpuwarden_collector.postgres import errors, messages, statements, types
from gpuwarden_collector.postgres.catalog import SETTINGS
from gpuwarden_collector.postgres.statements import (
    Command,
    CommandKind,
    SqlStatement,
    StatementError,
)
from gpuwarden_collector.postgres.types import ParameterValue, ParameterValueError

PREPARED_MAX = 1_000
"""Most statements, and most portals, that a session has at a time."""
PREPARED_BYTES_MAX = 4 * 1024 * 1024
_SENT_BYTES = 256 * 1024
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
"""Settings that a client is told of, as PostgreSQL spells them."""
_FIXED = {
    "client_encoding": ("utf8", "utf-8", "unicode", "sql_ascii", ""),
    "standard_conforming_strings": ("on", "true", "1", "yes"),
    "bytea_output": ("hex",),
    "intervalstyle": ("postgres",),
    "default_transaction_read_only": ("on", "true", "1", "yes"),
    "transaction_read_only": ("on", "true", "1", "yes"),
}
"""Settings of which one value is known."""
_READ_ONLY = frozenset(
    {
        *("in_hot_standby", "integer_datetimes", "is_superuser", "lc_collate", "lc_ctype"),
        *("max_identifier_length", "max_index_keys", "server_encoding", "server_version"),
        *("server_version_num", "session_authorization"),
    }
)


class Answer(Protocol):
    """Encoded rows of a query."""

    @property
    def body(self) -> bytes | bytearray: ...

    @property
    def truncated(self) -> bool: ...


class Ask(Protocol):
    """Runs a query. Raises QueryError; TimeoutError where the client has cancelled it."""

    async def __call__(
        self, form: str, sql: str, params: Mapping[str, ParameterValue], timeout_s: float | None
    ) -> Answer: ...


class ClientPeer(Protocol):
    """The client, and the room that there is for what it has not taken yet."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    async def drain(self) -> None: ...

    def sending(self, size: int) -> AbstractAsyncContextManager[None]:
        """Bounds the time that the client may take for so many bytes."""
        ...

    def hold(self, size: int) -> bool:
        """Take room for rows; False: there is none."""
        ...

    def release(self, size: int) -> None: ...


@dataclass(slots=True)
class Prepared:
    """A statement."""

    statement: SqlStatement | None
    """None: an empty one."""
    command: Command | None
    source: str
    """The text as it was sent."""
    oids: list[int]
    """Of the first parameters; 0: not said."""
    is_described: bool = False
    columns: bytes = b""
    """RowDescription, once it is asked for; empty: no rows."""


@dataclass(slots=True)
class Rows:
    """Rows that are held until they are taken."""

    columns: bytes
    body: memoryview
    truncated: bool
    at: int = 0

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.body)


@dataclass(slots=True)
class Portal:
    """A statement with values; its rows once they are asked for."""

    prepared: Prepared
    params: Mapping[str, ParameterValue]
    formats: Sequence[int]
    rows: Rows | None = None
    taken: int = 0


@dataclass(slots=True)
class _Failure(Exception):  # noqa: N818  an outcome
    """An error that the client is told of."""

    fields: Mapping[str, str] = field(default_factory=dict)


class Session:
    """Answers messages of one client, in their order."""

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
        """Take the client's settings, and tell it of all. Raises StatementError."""
        for name, value in self._startup.items():
            if name.lower() in SETTINGS and name.lower() not in _READ_ONLY:
                self._set(name.lower(), value.strip("'"))  # as asyncpg quotes it
        for name, shown in _REPORTED.items():
            self._peer.write(messages.parameter_status(shown, self._setting(name)))

    def ready(self) -> None:
        """Say that the next statement may come."""
        self._peer.write(messages.ready(self._status))

    async def answer(self, message: messages.Message) -> None:
        """Answer one message."""
        if isinstance(message, messages.Sync):
            self._is_skipping = False
            self._end_implicit()
            self.ready()
        elif isinstance(message, messages.QueryMessage):
            # One that is not of the extended protocol ends what an error has begun.
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
        self._end_implicit()
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
            self._let_go(portal)

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
                    self._close(message)
                case messages.FunctionCall():
                    raise StatementError("0A000", "functions are called in a SELECT here")
                case _:
                    pass  # Flush, and data of a COPY that an error has ended
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
            raise StatementError("42P05", f'the statement "{message.name}" is there already')
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
                "53400", "too many prepared statements", "DEALLOCATE what is not used, or reconnect"
            )

    async def _bind(self, message: messages.Bind) -> None:
        prepared = self._statement(message.statement)
        self._refuse_failed(prepared.command)
        if message.portal and message.portal in self._portals:
            raise StatementError("42P03", f'the portal "{message.portal}" is there already')
        if len(self._portals) >= PREPARED_MAX:
            raise StatementError("53400", "too many portals", "close what is not used, or Sync")
        if 1 in message.formats and len(prepared.oids) < len(message.values):
            await self._described(prepared)  # binary values are nothing without their types
        if sum(len(raw or b"") for raw in message.values) < _FEW_BYTES:
            params = _values(message, prepared.oids)
        else:
            params = await asyncio.to_thread(_values, message, prepared.oids)
        self._let_go(self._portals.pop(message.portal, None))
        self._portals[message.portal] = Portal(prepared, params, message.result_formats)
        self._peer.write(messages.BIND_COMPLETE)

    async def _describe_statement(self, prepared: Prepared) -> None:
        self._refuse_failed(prepared.command)
        await self._described(prepared)
        oids = [oid or types.TEXT.oid for oid in prepared.oids]
        self._peer.write(messages.parameter_description(oids))
        self._peer.write(prepared.columns or messages.NO_DATA)

    async def _described(self, prepared: Prepared) -> None:
        """Have parameters and columns described, once."""
        command = prepared.command
        if prepared.is_described or command is None or prepared.statement is None:
            return
        if command.kind is CommandKind.QUERY:
            said = {str(at + 1): types.sample(oid) for at, oid in enumerate(prepared.oids) if oid}
            answer = await self._query(prepared, "postgres-describe", prepared.statement.sql, said)
            body = memoryview(answer.body)
            end, _ = messages.split_rows(body, 0, 1)
            told = messages.oids_in(bytes(body[:end]))
            said_oids = prepared.oids + [0] * max(0, len(told) - len(prepared.oids))
            told += [0] * (len(said_oids) - len(told))
            prepared.oids = [a or b for a, b in zip(said_oids, told, strict=True)]
            prepared.columns = bytes(body[end:])
        elif command.kind is CommandKind.SHOW:
            prepared.columns = self._shown(command).columns
        elif command.kind is CommandKind.FETCH:
            prepared.columns = self._cursor(command.name).columns
        prepared.is_described = True

    async def _describe_portal(self, portal: Portal, *, is_asked: bool = False) -> None:
        """Have the rows of a portal, which tell what they are."""
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
                    rows = self._cursor(command.name)
                    portal.rows = self._fetched(rows, command.rows_max)
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
        rows = portal.rows
        start = rows.at
        rows.at, count = messages.split_rows(rows.body, rows.at, rows_max)
        portal.taken += count
        await self._send(rows.body[start : rows.at])
        if rows_max and count == rows_max and rows.at < len(rows.body):
            self._peer.write(messages.PORTAL_SUSPENDED)
            return
        if rows.truncated:
            raise _Failure(
                errors.fields(
                    "54000",
                    f"there are more rows than the {portal.taken} that a query may return",
                    hint="add a LIMIT, aggregate, or have query_rows_max raised",
                )
            )
        words = (portal.prepared.statement.tokens if portal.prepared.statement else [])[:1]
        tag = command.tag or "".join(w.word for w in words if w.word == "EXPLAIN") or "SELECT"
        self._peer.write(
            messages.command_complete(tag if tag in ("SHOW", "EXPLAIN") else f"{tag} {count}")
        )

    async def _send(self, body: memoryview) -> None:
        async with self._peer.sending(len(body)):
            for at in range(0, len(body), _SENT_BYTES):
                self._peer.write(body[at : at + _SENT_BYTES])
                await self._peer.drain()

    async def _rows(
        self, prepared: Prepared, form: str, sql: str, params: Mapping[str, ParameterValue]
    ) -> Rows:
        answer = await self._query(prepared, form, sql, params)
        body = memoryview(answer.body)
        end, _ = messages.split_rows(body, 0, 1)
        rows = Rows(bytes(body[:end]), body[end:], answer.truncated)
        if not self._peer.hold(rows.size):
            raise _Failure(
                errors.fields(
                    "53200",
                    "too many rows wait to be taken by their clients",
                    hint="ask again in a moment, or for fewer rows",
                )
            )
        return rows

    async def _query(
        self, prepared: Prepared, form: str, sql: str, params: Mapping[str, ParameterValue]
    ) -> Answer:
        statement, command = prepared.statement, prepared.command
        start = (statement.start if statement else 0) + (command.start if command else 0)
        timeout_ms = self._setting("statement_timeout")
        try:
            return await self._ask(form, sql, params, _seconds(timeout_ms))
        except TimeoutError as error:
            what = "canceling statement due to user request"
            raise _Failure(errors.fields(errors.CANCELLED, what)) from error
        except QueryError as error:
            raise _Failure(errors.of_error(error, start)) from error

    async def _run_command(self, prepared: Prepared, command: Command) -> None:
        """A statement without rows."""
        tag = command.tag
        match command.kind:
            case CommandKind.BEGIN:
                self._status = "T" if self._status == "I" else self._status
            case CommandKind.COMMIT | CommandKind.ROLLBACK:
                tag = "ROLLBACK" if self._status == "E" else tag
                self._end_transaction()
            case CommandKind.SAVEPOINT if self._status == "I":
                raise StatementError("25P01", f"{tag} is for transactions", "BEGIN first")
            case CommandKind.ROLLBACK_TO:
                self._status = "T"
            case CommandKind.SET:
                self._set(command.name, command.value)
            case CommandKind.RESET:
                self._reset(command.name)
            case CommandKind.DISCARD:
                self._reset("")
                self._prepared.clear()
                self._let_all_go()
            case CommandKind.DEALLOCATE:
                self._deallocate(command.name)
            case CommandKind.DECLARE:
                await self._declare(prepared, command)
            case CommandKind.CLOSE:
                self._close_cursor(command.name)
            case CommandKind.COPY:
                await self._copy(prepared, command)
                return
            case _:
                pass
        self._peer.write(messages.command_complete(tag))

    async def _declare(self, prepared: Prepared, command: Command) -> None:
        if self._status == "I":
            raise StatementError("25P01", "a cursor is for a transaction", "BEGIN first")
        if command.name in self._portals:
            raise StatementError("42P03", f'the cursor "{command.name}" is there already')
        if len(self._portals) >= PREPARED_MAX:
            raise StatementError("53400", "too many cursors", "CLOSE what is not used")
        inner = statements.split(command.sql)
        if len(inner) != 1 or statements.command_of(inner[0]).kind is not CommandKind.QUERY:
            raise StatementError("42601", "a cursor is for a query")
        rows = await self._rows(prepared, "postgres:", command.sql, {})
        self._portals[command.name] = Portal(prepared, {}, (), rows)

    def _cursor(self, name: str) -> Rows:
        portal = self._portals.get(name)
        if portal is None or portal.rows is None:
            raise StatementError("34000", f'there is no cursor "{name}"', "DECLARE it first")
        return portal.rows

    def _fetched(self, rows: Rows, rows_max: int) -> Rows:
        start = rows.at
        rows.at, count = messages.split_rows(rows.body, rows.at, rows_max)
        is_end = rows.at == len(rows.body) and (not rows_max or count < rows_max)
        return Rows(rows.columns, rows.body[start : rows.at], rows.truncated and is_end)

    async def _copy(self, prepared: Prepared, command: Command) -> None:
        inner = statements.split(command.sql)
        if len(inner) != 1:
            raise StatementError("42601", "COPY is for one query")
        rows = await self._rows(prepared, "postgres-copy", command.sql, {})
        try:
            self._peer.write(rows.columns)
            await self._send(rows.body)
            if rows.truncated:
                raise _Failure(
                    errors.fields("54000", "there are more rows than a query may return")
                )
            _, count = messages.split_rows(rows.body, 0, 0)
            self._peer.write(messages.COPY_DONE + messages.command_complete(f"COPY {count}"))
        finally:
            self._peer.release(rows.size)

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
        return Rows(columns, memoryview(bytes(rows)), False)

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
            only = f"it is {SETTINGS[name]} here, and nothing else"
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
                what = f"times are shown as {SETTINGS[name]} whatever {name} is"
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

    def _close(self, message: messages.CloseMessage) -> None:
        if message.is_portal:
            self._let_go(self._portals.pop(message.name, None))
        else:
            self._prepared.pop(message.name, None)
        self._peer.write(messages.CLOSE_COMPLETE)

    def _close_cursor(self, name: str) -> None:
        if not name:
            self._let_all_go()
        elif name not in self._portals:
            raise StatementError("34000", f'there is no cursor "{name}"')
        else:
            self._let_go(self._portals.pop(name))

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

    def _end_implicit(self) -> None:
        """Outside of a transaction portals end with the group of messages."""
        if self._status == "I":
            self._let_all_go()

    def _end_transaction(self) -> None:
        self._status = "I"
        self._let_all_go()

    def close(self) -> None:
        """Let go of all that is held."""
        self._let_all_go()

    def _let_all_go(self) -> None:
        portals, self._portals = self._portals, {}
        for portal in portals.values():
            self._let_go(portal)

    def _let_go(self, portal: Portal | None) -> None:
        is_held = portal is not None and portal.rows is not None and portal.prepared.command
        if portal is None or portal.rows is None or not is_held:
            return
        kind = portal.prepared.command.kind if portal.prepared.command else None
        if kind in (CommandKind.QUERY, CommandKind.DECLARE):
            self._peer.release(portal.rows.size)
        portal.rows = None


def _values(message: messages.Bind, oids: Sequence[int]) -> dict[str, ParameterValue]:
    """The values of parameters by name. Raises StatementError."""
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
    """Of statement_timeout; None: no limit of the client's. Raises StatementError."""
    number = setting.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = _UNITS.get(setting.strip()[len(number) :].strip())
    if unit is None or not number.isdecimal() or len(number) > 9:
        raise StatementError("22023", f"statement_timeout cannot be {setting!r}", "such as 30s")
    return int(number) * unit or None
