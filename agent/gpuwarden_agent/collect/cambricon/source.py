"""Reads Cambricon MLU cards by `cnmon info -j`, which writes a file into the folder where it runs."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.cambricon.reports import MluCard, parse_cards
from gpuwarden_agent.collect.files import listed
from gpuwarden_agent.collect.tools import OUTPUT_BYTES_MAX, output_of
from gpuwarden_agent.probe import ProbeError

PREFIX = "cambricon_dev"
"""Of device files."""
FILE = "cnmon_info.json"
FOLDER = "/usr/local/neuware/bin"
"""Where Cambricon's packages put the tool."""
LIMIT_S = 4.0


def find(host: Host) -> "CambriconSource | None":
    """The source; None where no card is, or the tool is not installed."""
    count = sum(
        name.startswith(PREFIX) and name.removeprefix(PREFIX).isdecimal()
        for name in listed(host.dev)
    )
    tool = host.which("cnmon") or host.which(f"{FOLDER}/cnmon")
    return CambriconSource(host.node, count, tool) if count and tool else None


class CambriconSource:
    """All MLU cards of the host."""

    vendor = "cambricon"
    kind = "npu"
    backend = "cambricon"
    tells_processes = False
    # Each reading starts the tool.
    tables: Mapping[str, int] = {"gpu_samples": 5, "gpu_detail_samples": 10}

    def __init__(self, node: str, count: int, tool: str) -> None:
        self.count = count
        self.named = counted(count, "Cambricon MLU")
        self._node = node
        self._tool = tool

    def describe(self) -> Sequence[Accelerator]:
        """Cards with inventory. Raises ProbeError."""
        return [Accelerator(self._uuid(card), card.inventory) for card in self._cards()]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Cards with rows. Raises ProbeError."""
        found = []
        for card in self._cards():
            rows = {"gpu_samples": [card.sample], "gpu_detail_samples": [card.detail]}
            found.append(
                Accelerator(self._uuid(card), rows={table: rows[table] for table in tables})
            )
        return found

    def driver_version(self) -> str | None:
        """None: the file does not have it."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def _cards(self) -> list[MluCard]:
        with tempfile.TemporaryDirectory(prefix="gpuwarden-cnmon-") as folder:
            output_of((self._tool, "info", "-j"), LIMIT_S, folder=folder)
            try:
                with (Path(folder) / FILE).open("rb") as file:
                    text = file.read(OUTPUT_BYTES_MAX).decode(errors="replace")
            except OSError as error:
                raise ProbeError(f"cnmon info -j wrote no {FILE}: {error.strerror}") from error
        try:
            cards = parse_cards(text)
        except ValueError as error:
            raise ProbeError(f"the {FILE} of cnmon cannot be read: {error}") from error
        if not cards:
            raise ProbeError("cnmon lists no card")
        return cards

    def _uuid(self, card: MluCard) -> str:
        if card.uuid is None:
            return f"MLU-{self._node}-{card.number}"
        return card.uuid if card.uuid.startswith("MLU-") else f"MLU-{card.uuid}"
