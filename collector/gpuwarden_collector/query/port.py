"""Defines the interfaces of a front, a protocol for queries besides HTTP, such as PostgreSQL's.

A `Front` listens in the collector's process. It checks clients by `FrontAccess` and runs their SQL by `Queries`. In
query processes its `Dialect` translates the SQL and encodes the rows. The collector imports no front: the composition
passes one in, and query processes import its dialect by name.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from gpuwarden.access import Denied, Scope
from gpuwarden.clock import Clock
from gpuwarden_collector.query.allowed_names import TABLE_FUNCTIONS, TABLES
from gpuwarden_collector.query.encode import chunks, joined, json_column
from gpuwarden_collector.query.guard import SQL_CHARACTERS_MAX, nodes_of

__all__ = [
    "SQL_CHARACTERS_MAX",
    "TABLES",
    "TABLE_FUNCTIONS",
    "BodyAccess",
    "CatalogEngine",
    "Description",
    "Dialect",
    "Encoder",
    "Ending",
    "Front",
    "FrontAccess",
    "FrontStats",
    "HttpFront",
    "HttpFrontContext",
    "Queries",
    "QuerySource",
    "Refusal",
    "RowStream",
    "Translation",
    "TypedValue",
    "chunks",
    "joined",
    "json_column",
    "nodes_of",
]


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A parameter's value with an explicit DuckDB type."""

    value: Any
    sql_type: str


@dataclass(frozen=True, slots=True)
class Description:
    """Columns of a query's result, and the known types of its parameters."""

    names: Sequence[str]
    types: Sequence[str]
    parameters: Mapping[str, str]
    """By name; "": any type fits."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Figures of an answer when all rows are encoded."""

    rows: int
    truncated: bool
    elapsed_s: float
    is_own_limit: bool = False
    """The client chose the row limit, so that formats without a field for `truncated` may omit it."""


class Encoder(Protocol):
    """Encodes the rows of one answer."""

    batch_bytes: int
    """Approximate size of the rows that are encoded together."""

    def begin(self) -> bytes:
        """Encode the part before the rows. Raises QueryError."""
        ...

    def rows(self, data: Any) -> bytes:
        """Encode rows, an Arrow table. Raises QueryError."""
        ...

    def end(self, ending: Ending) -> bytes:
        """Encode the part after the rows."""
        ...


class QuerySource(Protocol):
    """A source of a query's tables."""

    def cursor(self) -> AbstractContextManager[Any]:
        """A DuckDB cursor, outside of a transaction. Raises StoreUnavailableError."""
        ...

    def begin(self, cursor: Any, names: Iterable[str] | None = None) -> None:
        """Begin a transaction that sees one moment of the store. Raises StoreUnavailableError."""
        ...


class CatalogEngine(Protocol):
    """The engine under a dialect's catalogue."""

    def new_cursor(self) -> Any:
        """A DuckDB cursor that no other query uses."""
        ...

    def begin(self, cursor: Any, names: Iterable[str] | None = None) -> None:
        """Begin a transaction that sees one moment of the store. Raises StoreUnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class Translation:
    """The result of translating a SELECT."""

    is_changed: bool = False
    is_catalog: bool = False
    """It reads the dialect's own catalogue."""
    listed: frozenset[str] = frozenset()
    """Parameters that are lists, which a client may send as text."""


class Dialect(Protocol):
    """The SQL of another server, in a query process."""

    tables: frozenset[str]
    functions: frozenset[str]
    """Tables and functions of its catalogue, which queries may use besides the public ones."""

    def text(self, sql: str) -> str:
        """Change the SQL so that DuckDB can parse it."""
        ...

    def translate(self, select: Any, source: str) -> Translation:
        """Change the syntax tree of a SELECT in place, so that DuckDB can run it. `source`: its text."""
        ...

    def parameter_types(
        self, selects: Sequence[Any], columns: Mapping[str, str]
    ) -> Mapping[str, str]:
        """DuckDB types of parameters; `columns`: types of public columns by name."""
        ...

    def sample(self, sql_type: str) -> TypedValue | str:
        """A value of a type, for describing a query; "" if the type is unknown."""
        ...

    def list_of(self, text: str) -> list[Any]:
        """Parse a list that a client sent as text. Raises ValueError."""
        ...

    def catalog_type(self, sql_type: str, *, is_parameter: bool) -> str:
        """The type of a column or parameter of a query of the catalogue."""
        ...

    def catalog(self, engine: CatalogEngine) -> QuerySource:
        """A source of the public tables and the dialect's catalogue."""
        ...

    def encoder(self, form: str, schema: Any, types: Sequence[str]) -> Encoder:
        """The encoder of a format of the front."""
        ...

    def described(self, description: Description) -> bytes:
        """Encode a description, for a format that ends with `-describe`."""
        ...


class RowStream(Protocol):
    """The encoded rows of a query as they come."""

    @property
    def rows(self) -> int:
        """The number of rows, once all have come."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether rows beyond the limit were cut, once all have come."""
        ...

    async def whole(self) -> bytes | bytearray:
        """The next part, which ends with a whole row; empty: all have come. Raises QueryError."""
        ...


class Queries(Protocol):
    """Runs and logs queries of clients, in turn with all others."""

    def run(
        self,
        form: str,
        sql: str,
        params: Mapping[str, Any],
        *,
        grant: Any,
        address: str,
        timeout_s: float | None,
        row_limit: int | None,
        dialect: str,
    ) -> AbstractAsyncContextManager[RowStream]:
        """Run a query; leaving the block early interrupts it. `grant`: the result of `FrontAccess.judged`; None: no
        tokens are required. Raises QueryError."""
        ...


class FrontAccess(Protocol):
    """Access control of a front."""

    @property
    def asks_tokens(self) -> bool:
        """Whether clients need a token."""
        ...

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context; None: connections are not encrypted."""
        ...

    def is_guessing(self, client: str) -> bool:
        """Whether this address has sent too many wrong tokens recently."""
        ...

    def scram_of(self, name: str) -> str | None:
        """The SCRAM verifier of the token with this id; None: there is none."""
        ...

    def judged(self, token: str, need: Scope, client: str) -> "object | Denied":
        """A grant, if the token has the scope."""
        ...

    def judged_as(self, name: str, need: Scope, client: str, *, is_it: bool) -> "object | Denied":
        """A grant for the token with this id; `is_it`: the client has proved that it has the token."""
        ...

    def withdrawn(self, grant: Any) -> Denied | None:
        """The reason why a grant is no longer valid; None: it is valid."""
        ...


class FrontStats(Protocol):
    """Counters of a front."""

    denied: Counter[str]
    malformed_requests: int
    request_failures: int


Listening = Callable[
    [str, int, asyncio.TaskGroup, Queries, FrontAccess, FrontStats],
    AbstractAsyncContextManager[tuple[str, int]],
]
"""Listens on host and port within the block, with sessions as tasks of the group; gives the address. Raises
StartError."""


class Refusal(NamedTuple):
    """Why a request is not taken."""

    status: int
    reason: str
    retry_after_s: int | None = None
    """When to send it again; None: never."""


class BodyAccess(NamedTuple):
    """How a protocol reads bodies of requests: within the collector's bounds of size, memory and time."""

    read: Callable[[Any, int], Awaitable[bytes | Refusal]]
    """Reads the body of a request, up to a number of bytes; call `release` when it is no longer in memory."""
    release: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class HttpFrontContext:
    """What the collector gives a protocol that is served over its HTTP."""

    queries: Queries
    bodies: BodyAccess
    clock: Clock
    grant_of: Callable[[Any], Any]
    """The grant of a request, for `Queries.run`."""
    reader_of: Callable[[Any], str]
    """Equal for requests that may see the same rows."""
    rolled_until: Callable[[], tuple[datetime | None, datetime | None]]
    """Ends of the last minute and hour that are rolled up, naive UTC; None: none is."""
    samples_kept: timedelta
    """How long samples are kept at most."""


@dataclass(frozen=True, slots=True)
class HttpFront:
    """A protocol for queries over HTTP."""

    dialect: str
    """Its name, such as `promql`."""
    dialect_class: str
    """The `module:class` that query processes import."""
    routes: Callable[[HttpFrontContext], Iterable[Any]]
    """aiohttp's routes; their scopes are in `auth/scopes.py`."""


@dataclass(frozen=True, slots=True)
class Front:
    """A protocol for queries besides HTTP."""

    dialect: str
    """Its name, such as `postgres`."""
    dialect_class: str
    """The `module:class` that query processes import."""
    listening: Listening
