"""Gathers what a file says about nodes and GPUs themselves, until its end: the last value counts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuwarden_cli.importing.model import ImportedRows, Row, Value

AGENT = "import"
"""`agent_id` of nodes that no agent has told of."""


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
