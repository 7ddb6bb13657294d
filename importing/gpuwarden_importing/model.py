"""Defines the types of readers: rows, origin of a file, inventory, and what was skipped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from gpuwarden.node_name import NodeNameError, check_node_name
from gpuwarden.table import place_uuid as uuid_of_place

Value = str | int | float | bool | None
Row = dict[str, Value]
TableRow = tuple[str, Row]
"""A table's name and a row of it; timestamps in milliseconds since the epoch."""

AGENT = "import"
"""`agent_id` of nodes that no agent has reported."""


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

    def rows(self) -> Iterator[TableRow]:
        """The rows of both tables."""
        yield from (("nodes", row) for row in self.nodes.values())
        yield from (("gpus", row) for row in self.gpus.values())


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
        try:
            return check_node_name(node)
        except NodeNameError as error:
            raise UnreadableError(str(error)) from error

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
    """Counts by reason, of what the file says and the store does not get."""
    ignored: dict[str, Skipped] = field(default_factory=dict)
    """Counts by reason, of what has no row: lines of a kernel log without an Xid, a row that comes twice."""
    unmapped: Counter[str] = field(default_factory=Counter)
    """Number of values by field that has no column."""
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences on assumptions, in order, each once."""

    def skip(self, reason: str, line: int, count: int = 1) -> None:
        """Count an item that is lost."""
        self.skipped.setdefault(reason, Skipped(0, line)).count += count

    def ignore(self, reason: str, line: int) -> None:
        """Count an item that has no row."""
        self.ignored.setdefault(reason, Skipped(0, line)).count += 1

    def note(self, sentence: str) -> None:
        """Add a sentence on an assumption."""
        self.notes[sentence] = None


Reader = Callable[[Iterator[str], Origin, ImportTally], Iterator[TableRow]]
"""Reads the lines of a file, with line ends, to rows. Raises UnreadableError."""


def place_uuid(pci_bus_id: Value, index: Value, node: str) -> str:
    """Identity of a GPU without a UUID: its place "pci-0000:3b:00.0@NODE", or its index."""
    if pci_bus_id:
        return uuid_of_place(str(pci_bus_id), node)
    return f"gpu-{0 if index is None else index}@{node}"


def mig_uuid(parent: Value, instance: str) -> str:
    """Identity of a MIG device without a UUID, in the form of drivers up to 450."""
    return f"MIG-{parent}/{instance}"
