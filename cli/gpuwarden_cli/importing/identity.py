"""Says which GPU each line of nvidia-smi's CSV is about, also where a line does not tell its UUID."""

from collections.abc import Iterable
from typing import NamedTuple

from gpuwarden_cli.importing.model import Value, place_uuid


class Told(NamedTuple):
    """What a line says of its GPU; `gpu` is the index."""

    node: str
    uuid: str | None
    pci_bus_id: Value
    gpu: Value


class Identities:
    """The GPUs of one file, as far as it has been read."""

    def __init__(self) -> None:
        self._uuids: dict[tuple[str, Value], str] = {}

    def learn(self, told: Told) -> None:
        """Remember where a GPU is: a GPU that is lost no longer says who it is."""
        if told.uuid:
            for place in (told.pci_bus_id, told.gpu):
                if place is not None:
                    self._uuids[told.node, place] = told.uuid

    def uuids(self, lines: Iterable[Told], *, is_only: bool) -> list[str | None]:
        """UUIDs, or what stands for them; None where a line names no GPU.

        `is_only` says that no line can, as the file has no field for it: all are of one GPU.
        """
        held = list(lines)
        for told in held:
            self.learn(told)
        return [told.uuid or self._stand_in(told, is_only) for told in held]

    def _stand_in(self, told: Told, is_only: bool) -> str | None:
        places = [place for place in (told.pci_bus_id, told.gpu) if place is not None]
        if not places and not is_only:
            return None
        known = (self._uuids.get((told.node, place)) for place in places)
        return next(filter(None, known), None) or place_uuid(told.pci_bus_id, told.gpu, told.node)
