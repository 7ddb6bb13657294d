"""Defines what the readers share: rows by column, what is known of a file from outside, what was skipped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any

from gpuwarden.table import place_uuid as uuid_of_place

Value = str | int | float | bool | None
Row = dict[str, Value]

AGENT = "import"
"""`agent_id` of nodes that no agent has told of."""


@dataclass(frozen=True, slots=True)
class ImportedRows:
    """Rows of one table, column by column; timestamps in milliseconds since the epoch."""

    table: str
    columns: dict[str, Any]
    """Lists of values, or Arrow arrays."""

    @classmethod
    def of(cls, table: str, rows: Sequence[Row]) -> "ImportedRows":
        """Rows that may lack some of each other's columns."""
        names = {name: None for row in rows for name in row}
        return cls(table, {name: [row.get(name) for row in rows] for name in names})

    @property
    def count(self) -> int:
        """How many rows."""
        return len(next(iter(self.columns.values()), ()))


@dataclass(slots=True)
class ImportedInventory:
    """Rows of `gpus` and `nodes`."""

    gpus: dict[str, Row] = field(default_factory=dict)
    nodes: dict[str, Row] = field(default_factory=dict)

    def add_gpu(self, uuid: str, node: str, values: Mapping[str, Value]) -> None:
        """What is absent now may have been told before."""
        row = self.gpus.setdefault(uuid, {"gpu_uuid": uuid})
        row |= {"node": node, **{name: v for name, v in values.items() if v is not None}}

    def add_node(self, node: str, values: Mapping[str, Value]) -> None:
        """As `add_gpu`."""
        row = self.nodes.setdefault(node, {"node": node, "agent_id": AGENT, "boot_id": AGENT})
        row |= {name: v for name, v in values.items() if v is not None}

    def rows(self) -> Iterator[ImportedRows]:
        """What was gathered."""
        for table, rows in (("nodes", self.nodes), ("gpus", self.gpus)):
            if rows:
                yield ImportedRows.of(table, list(rows.values()))


class UnreadableError(ValueError):
    """A file cannot be imported; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the call, and not the file's content, says about a file."""

    node: str | None = None
    """Where the file does not name a node, or instead of what it names."""
    zone: tzinfo = UTC
    """Of timestamps that have none."""
    at_ms: int | None = None
    """The time of what has no timestamp."""
    at_source: str = "--at"
    """Where `at_ms` is from."""
    fields: tuple[str, ...] = ()
    """Names of the columns of a CSV without a header."""
    table: str | None = None
    """Table of a file with the catalogue's column names."""
    day_first: bool | None = None
    """What 03/04/2026 means: 3 April or March 4; None: neither, it is left out."""

    def node_or(self, named: str | None) -> str:
        """The node's name, `named` being the file's word. Raises UnreadableError."""
        node = self.node or named
        if not node:
            raise UnreadableError("it does not say which node it is from: name it with --node NAME")
        return node

    def at(self) -> int:
        """The time of what has none. Raises UnreadableError."""
        if self.at_ms is None:
            raise UnreadableError("it has no timestamps: say when it was taken with --at TIME")
        return self.at_ms


@dataclass(slots=True)
class Skipped:
    """How often something was left out, and where first."""

    count: int
    line: int


@dataclass(slots=True)
class ImportTally:
    """What was left out of a file and what was assumed."""

    skipped: dict[str, Skipped] = field(default_factory=dict)
    """By reason."""
    unmapped: Counter[str] = field(default_factory=Counter)
    """Values of fields that no column is there for."""
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences on what was assumed, in order, each once."""

    def skip(self, reason: str, line: int, count: int = 1) -> None:
        """Count something that was left out."""
        known = self.skipped.get(reason)
        if known is None:
            self.skipped[reason] = Skipped(count, line)
        else:
            known.count += count

    def note(self, sentence: str) -> None:
        """Say once what was assumed."""
        self.notes[sentence] = None


Reader = Callable[[Iterator[str], Origin, ImportTally], Iterator[ImportedRows]]
"""From the lines of a file, line ends included, to rows. Raises UnreadableError."""


def place_uuid(pci_bus_id: Value, index: Value, node: str) -> str:
    """The identity of a GPU that does not tell its UUID: where it is, "pci-0000:3b:00.0@NODE", or
    its index there.
    """
    if pci_bus_id:
        return uuid_of_place(str(pci_bus_id), node)
    return f"gpu-{0 if index is None else index}@{node}"


def mig_uuid(parent: Value, instance: str) -> str:
    """The identity of a MIG device that does not tell its UUID, as drivers up to 450 made it."""
    return f"MIG-{parent}/{instance}"
