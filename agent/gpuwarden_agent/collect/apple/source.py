"""Reads the GPU of a Mac with Apple silicon.

`macmon` runs as a child and prints a line a second, without privilege; `system_profiler` has the
computer's UUID. The GPU uses the host's memory: it has none of its own.
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from gpuwarden_agent.collect.accelerators import Accelerator, Host
from gpuwarden_agent.collect.apple.reports import (
    Mac,
    MacReport,
    model_of,
    parse_mac,
    parse_report,
)
from gpuwarden_agent.collect.tools import LineTool, output_of
from gpuwarden_agent.probe import ProbeError

log = logging.getLogger(__name__)

FOLDERS = ("/opt/homebrew/bin", "/usr/local/bin", "/opt/local/bin")
"""Where Homebrew and MacPorts put tools: services of launchd do not have them on PATH."""
LIMIT_S = 4.0
"""For each tool that is asked once. Both run at the start, and a Mac answers within one second."""
AGE_S_MAX = 4.0
"""A line older than this is none: macmon prints one a second."""


def find(host: Host) -> "AppleSource | None":
    """The source; None where macmon is not installed."""
    if host.platform != "darwin":
        return None
    places = ("macmon", *(f"{folder}/macmon" for folder in FOLDERS))
    tool = next((path for place in places if (path := host.which(place))), None)
    if tool is None:
        log.warning("this Mac's GPU is not read: macmon is not installed (brew install macmon)")
        return None
    return AppleSource(host, tool)


class AppleSource:
    """The GPU of this Mac."""

    vendor = "apple"
    kind = "gpu"
    backend = "apple"
    named = "1 Apple GPU"
    count = 1
    tells_processes = False
    tables: Mapping[str, int] = {"gpu_samples": 1}

    def __init__(self, host: Host, tool: str) -> None:
        self._tool = tool
        self._profiler = host.which("system_profiler") or "/usr/sbin/system_profiler"
        self._clock = host.clock
        self._monitor = LineTool((tool, "-i", "1000", "pipe", "--soc-info"), host.clock)
        self._mac: Mac | None = None
        self._first: tuple[float, MacReport] | None = None
        """When macmon was asked once, and its answer."""
        self._has_told = False

    def describe(self) -> Sequence[Accelerator]:
        """The GPU with its model. Raises ProbeError."""
        mac = self._identity()
        once = output_of((self._tool, "-i", "200", "pipe", "-s", "1", "--soc-info"), LIMIT_S)
        report = self._parsed(once)
        self._first = self._clock.monotonic(), report
        inventory = {
            "model": model_of(report.chip or mac.chip, report.gpu_cores),
            "sm_clock_max_mhz": report.clock_max_mhz,
        }
        return [Accelerator(f"APPLE-{mac.uuid}", inventory)]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """The GPU with macmon's newest line. Raises ProbeError."""
        mac = self._identity()
        sample = self._newest().sample
        return [Accelerator(f"APPLE-{mac.uuid}", rows={table: [sample] for table in tables})]

    def driver_version(self) -> str | None:
        """None: the driver is a part of macOS."""
        return None

    def close(self) -> None:
        """End macmon."""
        self._monitor.close()

    def _newest(self) -> MacReport:
        try:
            line = self._monitor.newest(AGE_S_MAX)
        except ProbeError:
            # macmon needs a second for its first line; until then the answer of the start is the newest.
            if self._first is None or self._clock.monotonic() - self._first[0] > AGE_S_MAX:
                raise
            return self._first[1]
        return self._parsed(line)

    def _parsed(self, line: str) -> MacReport:
        try:
            report = parse_report(line)
        except ValueError as error:
            raise ProbeError(f"a line of macmon cannot be read: {error}") from error
        if report.is_old and not self._has_told:
            self._has_told = True
            log.warning("macmon is older than 0.8: it does not tell the GPU's utilization")
        return report

    def _identity(self) -> Mac:
        if self._mac is None:
            text = output_of((self._profiler, "-json", "SPHardwareDataType"), LIMIT_S)
            try:
                self._mac = parse_mac(text)
            except ValueError as error:
                raise ProbeError(
                    f"the output of system_profiler cannot be read: {error}"
                ) from error
        return self._mac
