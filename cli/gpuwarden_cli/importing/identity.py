"""Says which GPU is meant where nvidia-smi does not tell its UUID."""

from collections.abc import Iterable
from typing import NamedTuple

from gpuwarden_cli.importing.model import Value, place_uuid


class ReportedIdentity(NamedTuple):
    """What is said of a GPU; `gpu` is its index."""

    node: str
    uuid: str | None
    pci_bus_id: Value
    gpu: Value


class Identities:
    """The GPUs of one file, as far as it has been read."""

    def __init__(self) -> None:
        self._uuids: dict[tuple[str, Value], str] = {}

    def learn(self, told: ReportedIdentity) -> None:
        """Remember where a GPU is: a GPU that is lost no longer says who it is."""
        if told.uuid:
            for place in (told.pci_bus_id, told.gpu):
                if place is not None:
                    self._uuids[told.node, place] = told.uuid

    def uuids(self, lines: Iterable[ReportedIdentity]) -> list[str | None]:
        """Each as by `uuid`; any of the lines may tell where a GPU is."""
        held = list(lines)
        for told in held:
            self.learn(told)
        return [self.uuid(told) for told in held]

    def uuid(self, told: ReportedIdentity) -> str | None:
        """The GPU's UUID, or what stands for it; None where no GPU is named."""
        if told.uuid:
            return told.uuid
        # An index may have been another GPU's before the machine was started anew; a bus id stays.
        place = told.gpu if told.pci_bus_id is None else told.pci_bus_id
        if place is None:
            return None
        known = self._uuids.get((told.node, place))
        return known or place_uuid(told.pci_bus_id, told.gpu, told.node)
