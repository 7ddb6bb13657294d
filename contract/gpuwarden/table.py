"""Defines tables and columns, and the columns that many tables share."""

from dataclasses import dataclass

from gpuwarden.metrics import Type


@dataclass(frozen=True, slots=True)
class Column:
    """A column: type, meaning, and whether every row must have a value.

    `nested`: its type in SQL, if that is a map or list; the value is sent and stored as a text, its JSON.
    """

    name: str
    type: Type
    meaning: str
    required: bool = False
    limits: tuple[float, float] | None = None
    nested: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table: one row per `row`, identified by `key`."""

    name: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column with that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)


LIST, MAP = "VARCHAR[]", "MAP(VARCHAR, VARCHAR)"
TS = Column("ts", Type.TIMESTAMP, "Tick that the sample belongs to, UTC.", required=True)
NODE = Column("node", Type.STRING, "Name of the node: one machine running an agent.", required=True)
GPU = Column("gpu", Type.INT32, "Index on the node, for people; the UUID is the identity.")
GPU_UUID = Column("gpu_uuid", Type.STRING, "Identity of the GPU (or MIG device).", required=True)
MIG = Column(
    "mig_instance",
    Type.STRING,
    "MIG device: GPU instance/compute instance; partition of an AMD GPU: mode/number (cpx/3). NULL: whole GPU.",
)
SIMULATED = Column("simulated", Type.BOOL, "True where a simulator made the row.", required=True)


def place_uuid(pci_bus_id: str, node: str) -> str:
    """The `gpu_uuid` of an NVIDIA GPU with an unknown UUID: "pci-0000:3b:00.0@NODE"."""
    return f"pci-{pci_bus_id}@{node}"
