"""What the collector offers to a front for queries beside HTTP, such as PostgreSQL's protocol.

A `Front` listens in the collector's process. It lets clients in by `FrontAccess` and runs their SQL by `Queries`. In query
processes its `Dialect` translates the SQL and encodes the rows. The collector imports no front: it is given one when it
is put together, and query processes import its dialect by name.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from gpuwarden.access import Denied, Scope
from gpuwarden_collector.query.allowed_names import TABLE_FUNCTIONS, TABLES
from gpuwarden_collector.query.encode import joined, json_column
from gpuwarden_collector.query.guard import SQL_CHARACTERS_MAX, nodes_of

__all__ = [
    "SQL_CHARACTERS_MAX",
    "TABLES",
    "TABLE_FUNCTIONS",
    "CatalogEngine",
    "Description",
    "Dialect",
    "Encoder",
    "Ending",
    "Front",
    "FrontAccess",
    "FrontStats",
    "Queries",
    "QuerySource",
    "RowStream",
    "Translation",
    "TypedValue",
    "joined",
    "json_column",
    "nodes_of",
]


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A parameter's value that has this DuckDB type, whatever it looks like."""

    value: Any
    sql_type: str


@dataclass(frozen=True, slots=True)
class Description:
    """What a query returns, and the types of its parameters as far as they are known."""

    names: Sequence[str]
    types: Sequence[str]
    parameters: Mapping[str, str]
    """By name; "": any type fits."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of the rows when all are encoded."""

    rows: int
    truncated: bool
    elapsed_s: float
    is_own_limit: bool = False
    """The client chose the number of rows, so that forms without a place for `truncated` may leave it out."""


class Encoder(Protocol):
    """Encodes the rows of one answer."""

    batch_bytes: int
    """Rows of about so many bytes are encoded together."""

    def begin(self) -> bytes:
        """What comes before the rows. Raises QueryError."""
        ...

    def rows(self, data: Any) -> bytes:
        """Some rows, an Arrow table. Raises QueryError."""
        ...

    def end(self, ending: Ending) -> bytes:
        """What comes after them."""
        ...


class QuerySource(Protocol):
    """What a query reads."""

    def cursor(self) -> AbstractContextManager[Any]:
        """A DuckDB cursor, outside of a transaction. Raises StoreUnavailableError."""
        ...

    def begin(self, cursor: Any, names: Iterable[str] | None = None) -> None:
        """Begin a transaction that sees the store at one moment. Raises StoreUnavailableError."""
        ...


class CatalogEngine(Protocol):
    """What a dialect's catalogue is built on."""

    def new_cursor(self) -> Any:
        """A DuckDB cursor that no other query uses."""
        ...

    def begin(self, cursor: Any, names: Iterable[str] | None = None) -> None:
        """As of QuerySource."""
        ...


@dataclass(frozen=True, slots=True)
class Translation:
    """What a dialect did to a SELECT."""

    is_changed: bool = False
    is_catalog: bool = False
    """It reads the dialect's own catalogue."""
    listed: frozenset[str] = frozenset()
    """Parameters that are lists, which a client may send as a text."""


class Dialect(Protocol):
    """Another server's SQL, in one query process."""

    tables: frozenset[str]
    functions: frozenset[str]
    """Those of its catalogue, which queries may use beside the public ones."""

    def text(self, sql: str) -> str:
        """The SQL as DuckDB can parse it."""
        ...

    def translate(self, select: Any, source: str) -> Translation:
        """Change the syntax tree of a SELECT, of the text `source`, into one that DuckDB answers."""
        ...

    def parameter_types(
        self, selects: Sequence[Any], columns: Mapping[str, str]
    ) -> Mapping[str, str]:
        """DuckDB types of parameters; `columns`: types of public columns by name."""
        ...

    def sample(self, sql_type: str) -> TypedValue | str:
        """A value of a type, to describe a query with; "" where the type is not known."""
        ...

    def list_of(self, text: str) -> list[Any]:
        """A list that a client sent as a text. Raises ValueError."""
        ...

    def catalog_type(self, sql_type: str, *, is_parameter: bool) -> str:
        """The type of a column or parameter of a query of the catalogue."""
        ...

    def catalog(self, engine: CatalogEngine) -> QuerySource:
        """Public tables, and the catalogue beside them."""
        ...

    def encoder(self, form: str, schema: Any, types: Sequence[str]) -> Encoder:
        """`form`: as its front asked for."""
        ...

    def described(self, found: Description) -> bytes:
        """The answer to a form that ends with `-describe`."""
        ...


class RowStream(Protocol):
    """The rows of a query as they come, encoded."""

    @property
    def rows(self) -> int:
        """How many there are, once all have come."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether there are more than its limit, once all have come."""
        ...

    async def whole(self) -> bytes | bytearray:
        """The next part, which ends between two rows; empty: all have come. Raises QueryError."""
        ...


class Queries(Protocol):
    """Runs queries of clients: in turn with all others, and each is logged."""

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
        """`grant`: what `FrontAccess.judged` gave; None: no tokens are required. Leaving early ends the query.
        Raises QueryError."""
        ...


class FrontAccess(Protocol):
    """Who may query."""

    @property
    def asks_tokens(self) -> bool:
        """Whether clients need a token."""
        ...

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """None: connections are not encrypted."""
        ...

    def is_guessing(self, client: str) -> bool:
        """Whether this address has sent too many wrong tokens lately."""
        ...

    def scram_of(self, name: str) -> str | None:
        """SCRAM verifier of the token with this id; None: there is none."""
        ...

    def judged(self, token: str, need: Scope, client: str) -> "object | Denied":
        """A grant, if the token is enough."""
        ...

    def judged_as(self, name: str, need: Scope, client: str, *, is_it: bool) -> "object | Denied":
        """As `judged`, for the token with this id; `is_it`: the client has proved that it has it."""
        ...

    def withdrawn(self, grant: Any) -> Denied | None:
        """Why a client with this grant may not go on; None: it may."""
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
"""Listens on host and port until the block is left, with sessions as tasks of the group; gives the address.
Raises StartError."""


@dataclass(frozen=True, slots=True)
class Front:
    """A protocol that clients query by, beside HTTP."""

    dialect: str
    """Its name, such as `postgres`."""
    dialect_class: str
    """Where query processes import it from: `module:class`."""
    listening: Listening
