"""Reads Moore Threads GPUs by `mthreads-gmi -q --json`."""

from collections.abc import Collection, Mapping, Sequence

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import listed
from gpuwarden_agent.collect.mthreads.reports import MttGpu, MttReport, parse_report
from gpuwarden_agent.collect.tools import output_of
from gpuwarden_agent.probe import ProbeError

PREFIX = "mtgpu."
"""Of device files."""
LIMIT_S = 4.0


def find(host: Host) -> "MooreThreadsSource | None":
    """The source; None where no GPU is, or the tool is not installed."""
    count = sum(
        name.startswith(PREFIX) and name.removeprefix(PREFIX).isdecimal()
        for name in listed(host.dev)
    )
    tool = host.which("mthreads-gmi")
    return MooreThreadsSource(host.node, count, tool) if count and tool else None


class MooreThreadsSource:
    """All Moore Threads GPUs of the host."""

    vendor = "mthreads"
    kind = "gpu"
    backend = "mthreads"
    tells_processes = False
    # Each reading starts the tool.
    tables: Mapping[str, int] = {"gpu_samples": 5}

    def __init__(self, node: str, count: int, tool: str) -> None:
        self.count = count
        self.named = counted(count, "Moore Threads GPU")
        self._node = node
        self._tool = tool
        self._driver_version: str | None = None

    def describe(self) -> Sequence[Accelerator]:
        """GPUs with inventory. Raises ProbeError."""
        report = self._report()
        self._driver_version = report.driver_version
        return [Accelerator(self._uuid(gpu), gpu.inventory) for gpu in report.gpus]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """GPUs with rows. Raises ProbeError."""
        return [
            Accelerator(self._uuid(gpu), rows={table: [gpu.sample] for table in tables})
            for gpu in self._report().gpus
        ]

    def driver_version(self) -> str | None:
        """Version of the driver."""
        return self._driver_version

    def close(self) -> None:
        """Nothing is open."""

    def _report(self) -> MttReport:
        text = output_of((self._tool, "-q", "--json"), LIMIT_S)
        try:
            report = parse_report(text)
        except ValueError as error:
            raise ProbeError(f"the output of mthreads-gmi cannot be read: {error}") from error
        if not report.gpus:
            raise ProbeError("mthreads-gmi lists no GPU")
        return report

    def _uuid(self, gpu: MttGpu) -> str:
        return f"MTT-{gpu.uuid or f'{self._node}-{gpu.number}'}"
