"""Defines the types of readers: rows by column, origin of a file, inventory, and what was skipped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any

from gpuwarden.table import place_uuid as uuid_of_place

Value = str | int | float | bool | None
Row = dict[str, Value]

AGENT = "import"
"""`agent_id` of nodes that no agent has reported."""


@dataclass(frozen=True, slots=True)
class ImportedRows:
    """Rows of one table, column by column; timestamps in milliseconds since the epoch."""

    table: str
    columns: dict[str, Any]
    """Lists of values, or Arrow arrays."""

    @classmethod
    def of(cls, table: str, rows: Sequence[Row]) -> "ImportedRows":
        """Make them of rows with different columns."""
        names = {name: None for row in rows for name in row}
        return cls(table, {name: [row.get(name) for row in rows] for name in names})

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), ()))


@dataclass(slots=True)
class ImportedInventory:
    """Rows of `gpus` and `nodes`."""

    gpus: dict[str, Row] = field(default_factory=dict)
    nodes: dict[str, Row] = field(default_factory=dict)

    def add_gpu(self, uuid: str, node: str, values: Mapping[str, Value]) -> None:
        """Add facts of a GPU; None keeps the earlier value."""
        row = self.gpus.setdefault(uuid, {"gpu_uuid": uuid})
        row |= {"node": node, **{name: v for name, v in values.items() if v is not None}}

    def add_node(self, node: str, values: Mapping[str, Value]) -> None:
        """Add facts of a node; None keeps the earlier value."""
        row = self.nodes.setdefault(node, {"node": node, "agent_id": AGENT, "boot_id": AGENT})
        row |= {name: v for name, v in values.items() if v is not None}

    def rows(self) -> Iterator[ImportedRows]:
        """The rows of both tables."""
        for table, rows in (("nodes", self.nodes), ("gpus", self.gpus)):
            if rows:
                yield ImportedRows.of(table, list(rows.values()))


class UnreadableError(ValueError):
    """A file cannot be imported; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts about a file from the command line."""

    node: str | None = None
    """Node of the file; it overrides names in the file."""
    zone: tzinfo = UTC
    """Zone of timestamps that have none."""
    at_ms: int | None = None
    """Time of rows without a timestamp."""
    at_source: str = "--at"
    """Source of `at_ms`, for notes."""
    fields: tuple[str, ...] = ()
    """Names of the columns of a CSV without a header."""
    table: str | None = None
    """Table of a file with the catalogue's column names."""

    def node_or(self, named: str | None) -> str:
        """The node's name; `named` is the name in the file. Raises UnreadableError."""
        node = self.node or named
        if not node:
            raise UnreadableError("it does not say which node it is from: name it with --node NAME")
        return node

    def at(self) -> int:
        """Time of rows without a timestamp. Raises UnreadableError."""
        if self.at_ms is None:
            raise UnreadableError("it has no timestamps: say when it was taken with --at TIME")
        return self.at_ms


@dataclass(slots=True)
class Skipped:
    """A count of skipped items, and the line of the first."""

    count: int
    line: int


@dataclass(slots=True)
class ImportTally:
    """What was skipped and what was assumed in a file."""

    skipped: dict[str, Skipped] = field(default_factory=dict)
    """Counts by reason."""
    unmapped: Counter[str] = field(default_factory=Counter)
    """Number of values by field that has no column."""
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences on assumptions, in order, each once."""

    def skip(self, reason: str, line: int, count: int = 1) -> None:
        """Count a skipped item."""
        known = self.skipped.get(reason)
        if known is None:
            self.skipped[reason] = Skipped(count, line)
        else:
            known.count += count

    def note(self, sentence: str) -> None:
        """Add a sentence on an assumption."""
        self.notes[sentence] = None


Reader = Callable[[Iterator[str], Origin, ImportTally], Iterator[ImportedRows]]
"""Reads the lines of a file, with line ends, to rows. Raises UnreadableError."""


def place_uuid(pci_bus_id: Value, index: Value, node: str) -> str:
    """Identity of a GPU without a UUID: its place "pci-0000:3b:00.0@NODE", or its index."""
    if pci_bus_id:
        return uuid_of_place(str(pci_bus_id), node)
    return f"gpu-{0 if index is None else index}@{node}"


def mig_uuid(parent: Value, instance: str) -> str:
    """Identity of a MIG device without a UUID, in the form of drivers up to 450."""
    return f"MIG-{parent}/{instance}"
