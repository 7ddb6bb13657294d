"""Reads Rebellions NPUs by `rbln-smi --json`."""

from collections.abc import Collection, Mapping, Sequence

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import listed
from gpuwarden_agent.collect.rebellions.reports import RblnNpu, RblnReport, parse_report
from gpuwarden_agent.collect.tools import output_of
from gpuwarden_agent.probe import ProbeError

PREFIX = "rbln"
"""Of device files."""
TOOLS = ("rbln-smi", "rbln-stat")
LIMIT_S = 4.0


def find(host: Host) -> "RebellionsSource | None":
    """The source; None where no NPU is, or no tool is installed."""
    count = sum(
        name.startswith(PREFIX) and name.removeprefix(PREFIX).isdecimal()
        for name in listed(host.dev)
    )
    tool = next((path for name in TOOLS if (path := host.which(name))), None)
    return RebellionsSource(host.node, count, tool) if count and tool else None


class RebellionsSource:
    """All Rebellions NPUs of the host."""

    vendor = "rebellions"
    kind = "npu"
    backend = "rebellions"
    tells_processes = True
    # Each reading starts the tool.
    tables: Mapping[str, int] = {"gpu_samples": 5}

    def __init__(self, node: str, count: int, tool: str) -> None:
        self.count = count
        self.named = counted(count, "Rebellions NPU")
        self._node = node
        self._tool = tool
        self._driver_version: str | None = None

    def describe(self) -> Sequence[Accelerator]:
        """NPUs with inventory. Raises ProbeError."""
        report = self._report()
        self._driver_version = report.driver_version
        return [Accelerator(self._uuid(npu), npu.inventory) for npu in report.npus]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """NPUs with rows and processes. Raises ProbeError."""
        return [
            Accelerator(
                self._uuid(npu),
                rows={table: [npu.sample] for table in tables},
                processes=npu.processes,
            )
            for npu in self._report().npus
        ]

    def driver_version(self) -> str | None:
        """Version of the driver."""
        return self._driver_version

    def close(self) -> None:
        """Nothing is open."""

    def _report(self) -> RblnReport:
        text = output_of((self._tool, "--json"), LIMIT_S)
        try:
            report = parse_report(text)
        except ValueError as error:
            raise ProbeError(f"the output of rbln-smi cannot be read: {error}") from error
        if not report.npus:
            raise ProbeError("rbln-smi lists no NPU")
        return report

    def _uuid(self, npu: RblnNpu) -> str:
        return f"RBLN-{npu.uuid or f'{self._node}-{npu.number}'}"
