"""Stores a group of batches durably: first updates of the state file, then one frame with all rows.

The frame alone decides whether a batch is stored. After a kill between the two, the state file has true
inventory and alerts of a batch that was not acknowledged; the agent sends it again with the same content.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_collector.storage.errors import RowsRefusedError
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS
from gpuwarden_collector.storage.segment import SCHEMAS, BatchKey, Frame
from gpuwarden_collector.storage.segment_log import FrameLog
from gpuwarden_collector.storage.state import Writing


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The content of one commit. Tables are Arrow tables in the stored column order."""

    appended: Mapping[str, Any] = field(default_factory=dict)
    """Rows of sample tables, events and rollups."""
    batches: Sequence[BatchKey] = ()
    """Identities of the batches in `appended`."""
    progress: Mapping[str, datetime] | None = None
    """Progress of rollups with the rows in `appended`, naive UTC."""
    upserted: Mapping[str, Any] = field(default_factory=dict)
    """Rows of nodes, gpus and alerts, replaced by primary key."""
    doubtful: Any | None = None
    """Batches in `appended` that another collector may hold too (see `resent.py`)."""
    late: Any | None = None
    """Windows (`node`, `ts`) with rows in `appended`, to be rolled up again."""
    heard: Mapping[str, set[str]] = field(default_factory=dict)
    """Keys of nodes and gpus whose last_seen_at becomes `heard_at`."""
    heard_at: datetime | None = None
    forget_ledger_before: datetime | None = None


def commit(log: FrameLog, changes: Changes) -> None:
    """Write and sync all changes. A failed commit may be repeated as a whole.

    Raises RowsRefusedError when the store can never take the rows, StoreUnavailableError otherwise.
    """
    tables = {n: _stored(n, rows) for n, rows in changes.appended.items() if rows.num_rows}
    if (
        changes.upserted
        or changes.doubtful is not None
        or changes.late is not None
        or changes.heard
        or changes.forget_ledger_before is not None
    ):
        with log.state.writing() as writing:
            _write_state(writing, changes, log.segment_number)
    if tables or changes.batches or changes.progress is not None:
        until = changes.progress
        progress = None if until is None else {name: at.isoformat() for name, at in until.items()}
        log.append(Frame(tables, changes.batches, progress))


def _write_state(writing: Writing, changes: Changes, segment: int) -> None:
    for name, rows in changes.upserted.items():
        writing.upsert(name, rows)
    if changes.doubtful is not None:
        writing.add_doubtful(segment, changes.doubtful)
    if changes.late is not None:
        writing.add_late(changes.late)
    if changes.heard_at is not None:
        for name, keys in changes.heard.items():
            writing.see(name, keys, changes.heard_at)
    if changes.forget_ledger_before is not None:
        writing.forget_ledger(changes.forget_ledger_before)


def _stored(name: str, rows: Any) -> Any:
    """Rows in the stored types: instants in microseconds. Raises RowsRefusedError for rows that the lake would
    refuse."""
    try:
        stored = _cast(name, rows)
    except MemoryError:
        raise  # Arrow's own kind too: the rows are not at fault
    except (pa.ArrowException, KeyError) as error:
        raise RowsRefusedError(f"{name}: {error}") from error
    for column in stored_columns(TABLES[name]):
        if column.required and stored[column.name].null_count:
            raise RowsRefusedError(f"{name}.{column.name} must have a value in every row")
    return stored


def _cast(name: str, rows: Any) -> Any:
    """As `Table.cast`, but without a call of Arrow for each column that has its type already."""
    schema = SCHEMAS[name]
    if name not in STORED_SCHEMAS or not rows.schema.equals(STORED_SCHEMAS[name]):
        return rows.select(schema.names).cast(schema)
    for place, field_ in _INSTANTS[name]:
        rows = rows.set_column(place, field_, rows.column(place).cast(field_.type))
    return rows.replace_schema_metadata(None)


_INSTANTS = {
    name: [(n, f) for n, f in enumerate(schema) if pa.types.is_timestamp(f.type)]
    for name, schema in SCHEMAS.items()
}


def naive(instant: datetime | None) -> datetime | None:
    """An instant without its time zone, as the store has it."""
    return instant.replace(tzinfo=None) if instant else None


class WriterStopped(Exception):  # noqa: N818  an expected outcome
    """The writer has stopped."""


class UpkeepWriter(Protocol):
    """The writer's methods for sealing, rollups and maintenance; each may raise as `Writer.do`."""

    async def freeze(self) -> None: ...
    async def save(self) -> None: ...
    async def write(self, changes: Changes) -> None: ...
    async def close_windows(self, until: datetime) -> None: ...
    async def forget_silent(self, before: datetime) -> Mapping[str, int]: ...
