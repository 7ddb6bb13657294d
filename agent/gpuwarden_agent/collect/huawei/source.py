"""Reads Huawei Ascend NPUs by `npu-smi info`, which takes seconds on a host of many: a thread asks it.

The memory errors of one card are read after each table, so that the pages of all of them, which come
card by card, delay no sample. Numbers of dies, which are the identity, are asked once.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import listed
from gpuwarden_agent.collect.huawei.reports import (
    NpuChip,
    die_of,
    fields_by_chip,
    fields_of,
    health,
    model_of,
    parse_table,
)
from gpuwarden_agent.collect.polling import Poller
from gpuwarden_agent.collect.tools import output_of
from gpuwarden_agent.probe import ProbeError, Value

TOOL_PATHS = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
"""Where the driver's package puts the tool, which services do not always have on PATH."""
LIMIT_S = 8.0
"""For each call of the tool."""
EVERY_S = 1.0
AGE_S_MAX = 10.0
"""A table older than this is none."""
ASKED_AT_ONCE = 4
HEALTH_EVERY_S = 60.0


def find(host: Host) -> "AscendSource | None":
    """The source; None where no device file is, or the tool is not installed."""
    chips = sum(name.startswith("davinci") and name[7:].isdecimal() for name in listed(host.dev))
    places = ("npu-smi", *TOOL_PATHS)
    tool = next((path for place in places if (path := host.which(place))), None)
    return AscendSource(host, chips, tool) if chips and tool else None


class AscendSource:
    """All Ascend chips of the host."""

    vendor = "huawei"
    kind = "npu"
    backend = "ascend"
    tells_processes = True
    tables: Mapping[str, int] = {"gpu_samples": 1, "gpu_health_samples": 60}

    def __init__(self, host: Host, count: int, tool: str) -> None:
        self.count = count
        self.named = counted(count, "Ascend NPU")
        self.failed: dict[str, int] = {}
        """Pages that could not be read, by page and reason."""
        self._host = host
        self._tool = tool
        self._boards: dict[tuple[int, int], Mapping[str, str]] = {}
        """Fields of `-t board` by NPU and chip."""
        self._cards: dict[int, Mapping[str, str]] = {}
        """Fields of `-t board` by NPU."""
        self._health: dict[tuple[int, int], Mapping[str, Value]] = {}
        self._health_at: dict[int, float] = {}
        self._poller = Poller("npu-smi", self._ask, host.clock, EVERY_S)

    def describe(self) -> Sequence[Accelerator]:
        """Chips of the table, with what their boards say. Raises ProbeError."""
        chips = self._poller.newest(AGE_S_MAX)
        self.count = len(chips)
        return [self._described(chip) for chip in chips]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Chips with the newest table. Raises ProbeError."""
        found = []
        for chip in self._poller.newest(AGE_S_MAX):
            errors = self._health.get((chip.npu, chip.chip))
            rows = {"gpu_samples": [chip.sample], "gpu_health_samples": [errors] if errors else []}
            found.append(
                Accelerator(
                    self._uuid(chip),
                    rows={table: rows[table] for table in tables},
                    processes=chip.processes,
                )
            )
        return found

    def driver_version(self) -> str | None:
        """Version of the driver, which is one for all cards."""
        versions = (card.get("Software Version") for card in self._cards.values())
        return next((version for version in versions if version), None)

    def close(self) -> None:
        """End the thread."""
        self._poller.close()

    def _ask(self) -> list[NpuChip]:
        """The table, boards of chips that are new in it, and the memory errors of one card."""
        try:
            chips = parse_table(output_of((self._tool, "info"), LIMIT_S))
        except ValueError as error:
            raise ProbeError(f"the table of npu-smi info cannot be read: {error}") from error
        self._ask_boards(chips)
        self._read_health(sorted({chip.npu for chip in chips}))
        return chips

    def _ask_boards(self, chips: Sequence[NpuChip]) -> None:
        """Ask the boards of chips that were not there before."""
        new_chips = [(c.npu, c.chip) for c in chips if (c.npu, c.chip) not in self._boards]
        new_cards = sorted({npu for npu, _ in new_chips} - self._cards.keys())
        if not new_chips:
            return
        with ThreadPoolExecutor(ASKED_AT_ONCE, "npu-smi") as pool:
            boards = pool.map(lambda key: self._page("board", *key), new_chips)
            cards = pool.map(lambda npu: self._page("board", npu), new_cards)
            # A page that failed is asked no more: the identity of a chip must not change.
            self._boards |= {k: fields_of(t) for k, t in zip(new_chips, boards, strict=True)}
            self._cards |= {npu: fields_of(t) for npu, t in zip(new_cards, cards, strict=True)}

    def _read_health(self, npus: Sequence[int]) -> None:
        """Read the memory errors of the card whose were read longest ago, once a minute."""
        now = self._host.clock.monotonic()
        due = [
            npu for npu in npus if now - self._health_at.get(npu, -HEALTH_EVERY_S) >= HEALTH_EVERY_S
        ]
        if not due:
            return
        npu = min(due, key=lambda npu: self._health_at.get(npu, float("-inf")))
        self._health_at[npu] = now
        by_chip = fields_by_chip(self._page("ecc", npu))
        # Old counters are none: a page that fails leaves nothing behind.
        self._health = {key: errors for key, errors in self._health.items() if key[0] != npu}
        for chip, fields in by_chip.items():
            self._health[npu, chip] = health(fields)

    def _page(self, kind: str, npu: int, chip: int | None = None) -> str:
        """A page of the tool; empty, and counted, where it fails: some cards lack some pages."""
        of_chip = () if chip is None else ("-c", str(chip))
        command = (self._tool, "info", "-t", kind, "-i", str(npu), *of_chip)
        try:
            return output_of(command, LIMIT_S)
        except ProbeError as error:
            reason = f"npu-smi info -t {kind}: {error}"
            self.failed[reason] = self.failed.get(reason, 0) + 1
            return ""

    def _described(self, chip: NpuChip) -> Accelerator:
        board = self._boards[chip.npu, chip.chip]
        card = self._cards.get(chip.npu, {})
        return Accelerator(
            self._uuid(chip),
            {
                "model": model_of(chip.name, board),
                "serial": card.get("Serial Number"),
                "pci_bus_id": chip.bus,
                "vbios_version": board.get("Firmware Version"),
                "memory_total_bytes": chip.sample["memory_total_bytes"],
                "numa_node": self._numa_node(chip),
            },
        )

    def _numa_node(self, chip: NpuChip) -> int | None:
        if chip.bus is None:
            return None
        path: Path = self._host.sys / "bus/pci/devices" / chip.bus / "numa_node"
        try:
            node = int(path.read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _uuid(self, chip: NpuChip) -> str:
        die = die_of(self._boards[chip.npu, chip.chip])
        place = f"{self._host.node}-{chip.bus or f'{chip.npu}-{chip.chip}'}"
        return f"ASCEND-{die or place}"
