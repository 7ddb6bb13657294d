"""Reads FuriosaAI RNGD cards by `furiosa-smi info` and `furiosa-smi status`."""

from collections.abc import Collection, Mapping, Sequence

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import listed
from gpuwarden_agent.collect.furiosa.reports import FuriosaNpu, parse_npus
from gpuwarden_agent.collect.tools import output_of
from gpuwarden_agent.probe import ProbeError

LIMIT_S = 2.0
"""For each of two calls."""


def find(host: Host) -> "FuriosaSource | None":
    """The source; None where no card is, or the tool is not installed."""
    count = sum(name.startswith("rngd!npu") for name in listed(host.sys / "class/rngd_mgmt"))
    tool = host.which("furiosa-smi")
    return FuriosaSource(host.node, count, tool) if count and tool else None


class FuriosaSource:
    """All FuriosaAI cards of the host."""

    vendor = "furiosa"
    kind = "npu"
    backend = "furiosa"
    tells_processes = False
    # Each reading starts the tool twice.
    tables: Mapping[str, int] = {"gpu_samples": 5}

    def __init__(self, node: str, count: int, tool: str) -> None:
        self.count = count
        self.named = counted(count, "FuriosaAI NPU")
        self._node = node
        self._tool = tool

    def describe(self) -> Sequence[Accelerator]:
        """Cards with inventory. Raises ProbeError."""
        return [Accelerator(self._uuid(npu), npu.inventory) for npu in self._npus()]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Cards with rows. Raises ProbeError."""
        return [
            Accelerator(self._uuid(npu), rows={table: [npu.sample] for table in tables})
            for npu in self._npus()
        ]

    def driver_version(self) -> str | None:
        """None: neither output has it."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def _npus(self) -> list[FuriosaNpu]:
        info, status = (
            output_of((self._tool, name, "--format", "json"), LIMIT_S)
            for name in ("info", "status")
        )
        try:
            npus = parse_npus(info, status)
        except ValueError as error:
            raise ProbeError(f"the output of furiosa-smi cannot be read: {error}") from error
        if not npus:
            raise ProbeError("furiosa-smi lists no card")
        return npus

    def _uuid(self, npu: FuriosaNpu) -> str:
        return f"FURIOSA-{npu.uuid or f'{self._node}-{npu.name}'}"
