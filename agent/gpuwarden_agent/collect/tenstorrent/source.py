"""Reads Tenstorrent cards (Wormhole, Blackhole) from files of tt-kmd: no tool is run, which could disturb a job.

Source: docs/sysfs-attributes.md of tenstorrent/tt-kmd (/sys/class/tenstorrent/tenstorrent!N: tt_aiclk, tt_card_type,
tt_serial, tt_asic_id, tt_fw_bundle_ver), and its hwmon sensors. The driver does not know how much a card works, nor how
much of its memory is in use: both are absent, and idleness of such a card is judged by its processes' job alone.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import DeviceFiles, listed, read_text
from gpuwarden_agent.collect.hwmon import HwmonSensors, hwmon_of
from gpuwarden_agent.collect.tpu.chips import owners
from gpuwarden_agent.probe import ProbeError

OWNERS_S = 10.0
"""Between two looks at the open files of all processes, which costs a call for each file."""
_CARD = re.compile(r"tenstorrent!(\d+)")


def find(host: Host) -> "TenstorrentSource | None":
    """The source; None without a card."""
    numbers = sorted(
        int(found[1])
        for name in listed(host.sys / "class/tenstorrent")
        if (found := _CARD.fullmatch(name))
    )
    return TenstorrentSource(host, numbers) if numbers else None


class TenstorrentSource:
    """All Tenstorrent chips that have a device file."""

    vendor = "tenstorrent"
    kind = "npu"
    backend = "tenstorrent"
    tells_processes = True
    tables: Mapping[str, int] = {"gpu_samples": 1}

    def __init__(self, host: Host, numbers: Sequence[int]) -> None:
        self.count = len(numbers)
        self.named = counted(len(numbers), "Tenstorrent chip")
        self._host = host
        self._numbers = numbers
        self._files = {number: DeviceFiles({"tenstorrent": number}) for number in numbers}
        self._uuids: dict[int, str] = {}
        self._owners: dict[str, set[int]] | None = None
        self._owners_at = float("-inf")

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings by "FILE: WHY", of all chips."""
        sums: dict[str, int] = {}
        for files in self._files.values():
            for reason, times in files.failed.items():
                sums[reason] = sums.get(reason, 0) + times
        return sums

    def describe(self) -> Sequence[Accelerator]:
        """Chips by number. The identity of one is that of its ASIC, as a board may have two."""
        found = []
        for number in self._numbers:
            folder = self._folder(number)
            device = (folder / "device").resolve()
            inventory = {
                "model": f"Tenstorrent {_word(folder / 'tt_card_type') or 'card'}",
                "serial": _word(folder / "tt_serial"),
                "pci_bus_id": device.name if ":" in device.name else None,
                "vbios_version": _word(folder / "tt_fw_bundle_ver"),
                "numa_node": self._files[number].read(device / "numa_node", _node),
            }
            found.append(Accelerator(self._uuid(number), inventory))
        return found

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Chips with their readings; one that is being reset is left out. Raises ProbeError when all are."""
        now = self._host.clock.monotonic()
        if now - self._owners_at >= OWNERS_S:
            self._owners_at = now
            self._owners = owners(self._host.proc, {_file(number) for number in self._numbers})
        found = []
        for number in self._numbers:
            files, folder = self._files[number], self._folder(number)
            sensors = HwmonSensors(hwmon_of(folder / "device"), files)
            sample = {
                "sm_clock_mhz": files.read(folder / "tt_aiclk", int),
                "power_watts": sensors.micro("power1_input"),
                "temperature_celsius": sensors.celsius(),
            }
            if all(value is None for value in sample.values()):
                continue
            pids = None if self._owners is None else sorted(self._owners[_file(number)])
            found.append(
                Accelerator(
                    self._uuid(number),
                    rows={table: [sample] for table in tables},
                    processes=None if pids is None else [(pid, None) for pid in pids],
                )
            )
        if not found:
            raise ProbeError(
                "no Tenstorrent chip has readings in /sys: is tt-kmd loaded, and newer than 1.34?"
            )
        return found

    def driver_version(self) -> str | None:
        """Version of the kernel module."""
        return _word(self._host.sys / "module/tenstorrent/version")

    def close(self) -> None:
        """Nothing is open."""

    def _folder(self, number: int) -> Path:
        return self._host.sys / f"class/tenstorrent/tenstorrent!{number}"

    def _uuid(self, number: int) -> str:
        if number not in self._uuids:
            asic = _word(self._folder(number) / "tt_asic_id")
            bus = (self._folder(number) / "device").resolve().name
            self._uuids[number] = f"TT-{asic}" if asic else f"TT-{self._host.node}-{bus}"
        return self._uuids[number]


def _file(number: int) -> str:
    return f"/dev/tenstorrent/{number}"


def _word(path: Path) -> str | None:
    text = (read_text(path) or "").strip()
    return text if text and text.strip("0x") else None


def _node(text: str) -> int | None:
    return int(text) if int(text) >= 0 else None
