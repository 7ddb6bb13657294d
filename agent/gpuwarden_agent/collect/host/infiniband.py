"""Reads InfiniBand, RoCE and EFA ports from /sys/class/infiniband: no library, no privilege.

Every port is a row, also one without a link: a loose cable must not look like a port that does not
exist. The files are those of the kernel's Documentation/ABI/stable/sysfs-class-infiniband; each driver
has some of them. Where they mislead:

- Counters of old adapters have 32 bits and stop at the highest value. A full counter of data or
  packets would look like no traffic, so it is absent. Full error counters, some of 4, 8 or 16 bits,
  are kept: there were at least so many errors.
- A port without a link keeps its old or possible rate, so it is absent.
- On Ethernet, bytes and packets are those of RDMA only.
"""

import errno
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.files import NOT_THERE, DeviceFiles, listed
from gpuwarden_agent.probe import HostedProbe, Reading, Row, Value

SYS = Path("/sys")
TABLE = "infiniband_samples"
WORD_BYTES = 4
"""The unit of port_xmit_data and port_rcv_data."""
FULL = (1 << 32) - 1
_NOT_THERE = NOT_THERE | {errno.ENOTDIR, errno.EINVAL}

_NUMBERED = re.compile(r"\s*\d+:\s*(\S.*?)\s*")
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?) Gb/sec\b.*", re.DOTALL)
_LINK_UP = "LinkUp"

_TRAFFIC = {
    "tx_bytes_total": ("counters/port_xmit_data", "hw_counters/tx_bytes"),
    "rx_bytes_total": ("counters/port_rcv_data", "hw_counters/rx_bytes"),
    "tx_packets_total": ("counters/port_xmit_packets", "hw_counters/tx_pkts"),
    "rx_packets_total": ("counters/port_rcv_packets", "hw_counters/rx_pkts"),
    "tx_waits_total": ("counters/port_xmit_wait",),
}
"""Column to its file, and to the file of drivers that count in bytes (EFA, bnxt_re)."""

_ERRORS = {
    "tx_discards_total": "counters/port_xmit_discards",
    "rx_errors_total": "counters/port_rcv_errors",
    "symbol_errors_total": "counters/symbol_error",
    "local_integrity_errors_total": "counters/local_link_integrity_errors",
    "buffer_overruns_total": "counters/excessive_buffer_overrun_errors",
    "out_of_sequence_total": "hw_counters/out_of_sequence",
    "ack_timeouts_total": "hw_counters/local_ack_timeout_err",
    "roce_slow_restarts_total": "hw_counters/roce_slow_restart",
}
_LINK = {
    "link_downed_total": "counters/link_downed",
    "link_recoveries_total": "counters/link_error_recovery",
}
"""Files that are also read for a port without a link; a host may have hundreds of such ports."""


def parse_state(text: str) -> str:
    """ "4: ACTIVE" as "active", "5: ACTIVE_DEFER" as "active_defer"."""
    return parse_physical_state(text).lower()


def parse_physical_state(text: str) -> str:
    """ "5: LinkUp" as "LinkUp"."""
    found = _NUMBERED.fullmatch(text)
    if not found:
        raise ValueError(f"not a state: {text[:40]!r}")
    return found[1]


def parse_rate(text: str) -> float:
    """Bits a second of "400 Gb/sec (4X NDR)"."""
    found = _RATE.fullmatch(text)
    if not found:
        raise ValueError(f"not a rate: {text[:40]!r}")
    return float(found[1]) * 1e9


def parse_count(text: str) -> int | None:
    """A counter; None if the driver does not have it ("N/A (no PMA)")."""
    word = text.strip()
    if word.startswith("N/A"):
        return None
    if not (word.isascii() and word.isdecimal()) or len(word) > 20:
        raise ValueError(f"not a counter: {text[:40]!r}")
    return int(word)


def parse_numa_node(text: str) -> int | None:
    """A NUMA node; None: the platform has none (-1)."""
    return None if text.strip() == "-1" else parse_count(text)


def parse_word(text: str) -> str | None:
    """A name; None: empty."""
    return text.strip() or None


def infiniband_probe(sys: Path = SYS) -> "InfiniBandProbe | None":
    """The probe of this host's ports; None if no driver of such an adapter is loaded."""
    probe = InfiniBandProbe(sys)
    return probe if probe.is_there() else None


class InfiniBandProbe(HostedProbe):
    """Reads all ports of the node."""

    name = "infiniband"
    tables: Mapping[str, int] = {TABLE: 10}

    def __init__(self, sys: Path = SYS) -> None:
        self._files = DeviceFiles({"probe": self.name}, _NOT_THERE)
        self.failed = self._files.failed
        """Failed readings by "FILE: WHY"."""
        self._folder = sys / "class/infiniband"

    def is_there(self) -> bool:
        """Whether the kernel has such adapters."""
        return self._folder.is_dir()

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        if due is not None and TABLE not in due:
            return {}
        return {TABLE: [self._row(device, port) for device, port in self._ports()]}

    def _ports(self) -> Iterator[tuple[str, int]]:
        for device in sorted(listed(self._folder), key=_natural):
            ports = [port for port in listed(self._folder / device / "ports") if port.isdecimal()]
            yield from ((device, port) for port in sorted(map(int, ports)))

    def _row(self, device: str, port: int) -> Row:
        folder = self._folder / device / "ports" / str(port)
        state = self._files.read(folder / "state", parse_state)
        physical_state = self._files.read(folder / "phys_state", parse_physical_state)
        values: dict[str, Value] = {
            "device": device,
            "port": port,
            "link_layer": self._files.read(folder / "link_layer", parse_word),
            "state": state,
            "physical_state": physical_state,
            "numa_node": self._files.read(
                self._folder / device / "device/numa_node", parse_numa_node
            ),
        }
        files = dict(_LINK)
        if physical_state == _LINK_UP or (physical_state is None and state == "active"):
            values["rate_bits_per_second"] = self._files.read(folder / "rate", parse_rate)
            values |= {column: self._traffic(folder, *files) for column, files in _TRAFFIC.items()}
            files |= _ERRORS
        values |= {
            column: self._files.read(folder / file, parse_count) for column, file in files.items()
        }
        return coerce(TABLE, values)

    def _traffic(self, folder: Path, file: str, in_bytes: str | None = None) -> int | None:
        count = self._files.read(folder / file, parse_count)
        if count == FULL:
            return None
        if count is None:
            return self._files.read(folder / in_bytes, parse_count) if in_bytes else None
        return count * WORD_BYTES if file.endswith("_data") else count


def _natural(name: str) -> tuple[str, int, str]:
    """mlx5_10 after mlx5_9."""
    found = re.fullmatch(r"(.*?)(\d{1,9})", name)
    return (found[1], int(found[2]), name) if found else (name, -1, name)
