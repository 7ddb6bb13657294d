"""Reads output of the tools of Apple, AWS, Intel, Huawei, Moore Threads, Cambricon, FuriosaAI, Rebellions and
Tenstorrent.

The agent reads the same tools, so its parsers say what a value means (gpuwarden_agent.collect, with the sources of
the formats). Only macmon and tt-smi print times. neuron-monitor says how long a report covers, and the last is of the time of
`--at`; output of the others is one look at the devices, of that time.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuwarden_agent.collect.apple import reports as apple
from gpuwarden_agent.collect.cambricon import reports as cambricon
from gpuwarden_agent.collect.furiosa import reports as furiosa
from gpuwarden_agent.collect.huawei import reports as huawei
from gpuwarden_agent.collect.intel import hl_smi
from gpuwarden_agent.collect.mthreads import reports as mthreads
from gpuwarden_agent.collect.neuron import reports as neuron
from gpuwarden_agent.collect.printed import CELSIUS, WATTS, amount, json_object, named, word
from gpuwarden_agent.collect.rebellions import reports as rebellions
from gpuwarden_agent.probe import Value as Reading
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import (
    ImportedRows,
    ImportTally,
    Origin,
    Reader,
    Row,
    UnreadableError,
    place_uuid,
)
from gpuwarden_importing.values import HEALTH, SAMPLES

REPORT_S = 5.0
"""Length of a report of neuron-monitor that does not tell it, which is that of its default settings."""
BYTES_MAX = 4 << 20
"""A look at the devices of a host is a few kB."""
_NAMES = re.compile(
    r"^(?=.*\bindex\b)(?=.*\b(?:utilization|ecc|temperature)\.)[\w. ]+(?:\[[^\]]*\])?(?:,[\w. ]+(?:\[[^\]]*\])?)+$"
)
_TIME = re.compile(r'"time(?:stamp)?"\s*:\s*"([^"]{1,40})"')


@dataclass(frozen=True, slots=True)
class PrintedDevice:
    """A device in a look."""

    uuid: str | None
    """As the agent names it; None: the tool does not tell it."""
    index: int
    vendor: str
    kind: str
    inventory: Mapping[str, Reading]
    tables: Mapping[str, Mapping[str, Reading]]


def format_of(head: str) -> str | None:
    """The tool that printed this; None: none of these."""
    if re.search(r"\|\s*npu-smi \d", head):
        return "npu-smi info"
    if '"gpu_power"' in head and re.search(r'"gpu_(?:usage|freq_mhz)"', head):
        return "macmon JSON"
    if '"FB Memory Usage"' in head and '"GPU Current Temp"' in head:
        return "mthreads-gmi JSON"
    if '"CnmonInfo"' in head:
        return "cnmon JSON"
    if '"neuron_runtime_data"' in head:
        return "neuron-monitor JSON"
    if '"dev_name"' in head and '"device_uuid"' in head:
        return "furiosa-smi JSON"
    if '"device_info"' in head and '"board_info"' in head:
        return "tt-smi JSON"
    if '"KMD_version"' in head and '"devices"' in head:
        return "rbln-smi JSON"
    lines = (line.strip() for line in head.splitlines()[:50])
    if any(
        _NAMES.match(line) and ".aip" in line or "ecc.errors." in line and _NAMES.match(line)
        for line in lines
    ):
        return "hl-smi CSV"
    return None


def read_macmon(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """Reads lines of `macmon pipe`."""
    log = LogFile(origin, tally)
    node = origin.node_or(None)
    uuid = place_uuid(None, 0, node)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            report = apple.parse_report(line)
        except ValueError as error:
            tally.skip(f"line: {error}", number)
            continue
        found = _TIME.search(line)
        ts_ms = log.time(found[1], number) if found else log.assumed_time()
        if ts_ms is None:
            continue
        model = apple.model_of(report.chip, report.gpu_cores)
        facts: dict[str, Reading] = {
            "gpu": 0,
            "vendor": "apple",
            "kind": "gpu",
            "model": model,
            "sm_clock_max_mhz": report.clock_max_mhz,
        }
        log.inventory.add_node(node, {})
        log.inventory.add_gpu(uuid, node, facts)
        log.add(
            SAMPLES, {"ts": ts_ms, "node": node, "gpu": 0, "gpu_uuid": uuid, **_told(report.sample)}
        )
        if log.is_full:
            yield from log.rows()
    yield from log.rest()


def read_neuron(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """Reads lines of `neuron-monitor`. Raises UnreadableError."""
    log, node = LogFile(origin, tally), origin.node_or(None)
    reports: list[tuple[float, list[tuple[str, Row]]]] = []
    seconds = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            report = json.loads(line)
            devices = neuron.devices_of(report) if isinstance(report, dict) else ()
            uses = neuron.parse_report(line, devices)
        except (ValueError, RecursionError):
            devices = ()
        if not devices:
            tally.skip("line: no report of neuron-monitor that counts its devices", number)
            continue
        log.inventory.add_node(node, neuron.instance_of(report))
        seconds += neuron.period_of(report) or REPORT_S
        rows = [row for device in devices for row in _neuron_rows(log, node, device, uses)]
        reports.append((seconds, rows))
    if not reports:
        raise UnreadableError("it has no report that counts its devices")
    tally.note(
        f"no times: the last report is taken to be of {origin.at_source}, and each to come as long"
        " after the one before as it covers"
    )
    tally.note("devices without an identity are named by place or index, and node")
    for at_s, rows in reports:
        ts_ms = origin.at() - round(1000 * (seconds - at_s))
        for table, row in rows:
            log.add(table, {"ts": ts_ms, **row})
        if log.is_full:
            yield from log.rows()
    yield from log.rest()


def _neuron_rows(
    log: LogFile, node: str, device: neuron.NeuronDevice, uses: Mapping[int, neuron.DeviceUse]
) -> Iterator[tuple[str, Row]]:
    uuid, use = place_uuid(None, device.index, node), uses[device.index]
    facts: Row = {
        "gpu": device.index,
        "vendor": "aws",
        "kind": "npu",
        "model": device.model or "AWS Neuron device",
        "memory_total_bytes": device.memory_bytes,
    }
    log.inventory.add_gpu(uuid, node, facts)
    for table, values in ((SAMPLES, neuron.sample(device, use)), (HEALTH, neuron.health(use))):
        if told := _told(values):
            yield table, {"node": node, "gpu": device.index, "gpu_uuid": uuid, **told}


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """A `Reader` of a tool that prints one look at all devices."""

    parse: Callable[[str], Iterable[PrintedDevice]]
    time: re.Pattern[str] | None = None
    """Its group is the time of the look; None: the tool prints none."""

    def __call__(
        self, lines: Iterator[str], origin: Origin, tally: ImportTally
    ) -> Iterator[ImportedRows]:
        """Rows of the look. Raises UnreadableError."""
        text = ""
        for line in lines:
            text += line
            if len(text) > BYTES_MAX:
                raise UnreadableError(
                    "it is larger than one look at the devices of a host: split it"
                )
        try:
            devices = list(self.parse(text))
        except ValueError as error:
            raise UnreadableError(str(error)) from error
        if not devices:
            raise UnreadableError("it lists no device")
        log, node = LogFile(origin, tally), origin.node_or(None)
        told = self.time.search(text) if self.time else None
        ts_ms = log.time(told[1], 1) if told else log.assumed_time()
        if ts_ms is None:
            return
        log.inventory.add_node(node, {})
        for device in devices:
            uuid = device.uuid or place_uuid(device.inventory.get("pci_bus_id"), device.index, node)
            if device.uuid is None:
                tally.note("devices without an identity are named by place or index, and node")
            names: dict[str, Reading] = {
                "gpu": device.index,
                "vendor": device.vendor,
                "kind": device.kind,
            }
            log.inventory.add_gpu(uuid, node, {**names, **device.inventory})
            for table, values in device.tables.items():
                place: Row = {"ts": ts_ms, "node": node, "gpu": device.index, "gpu_uuid": uuid}
                if known := _told(values):
                    log.add(table, {**place, **known})
        yield from log.rest()


def _told(values: Mapping[str, Reading]) -> dict[str, Reading]:
    return {name: value for name, value in values.items() if value is not None}


def _gaudi(text: str) -> Iterator[PrintedDevice]:
    names = next((line for line in text.splitlines() if _NAMES.match(line.strip())), "")
    asked = [cell.partition("[")[0].strip() for cell in names.split(",")]
    for number, device in enumerate(hl_smi.parse(text, asked)):
        told = device.text("uuid")
        index = device.count("index")
        yield PrintedDevice(
            f"GAUDI-{told}" if told else None,
            number if index is None else index,
            "intel",
            "npu",
            {
                "model": hl_smi.model_of(device.text("name")),
                "serial": device.text("serial"),
                "pci_bus_id": hl_smi.bus_of(device),
                "memory_total_bytes": device.memory("memory.total"),
            },
            {SAMPLES: hl_smi.sample(device), HEALTH: hl_smi.health(device)},
        )


def _ascend(text: str) -> Iterator[PrintedDevice]:
    for index, chip in enumerate(huawei.parse_table(text)):
        facts = {
            "model": huawei.model_of(chip.name, {}),
            "pci_bus_id": chip.bus,
            "memory_total_bytes": chip.sample.get("memory_total_bytes"),
        }
        yield PrintedDevice(None, index, "huawei", "npu", facts, {SAMPLES: chip.sample})


def _furiosa(text: str) -> Iterator[PrintedDevice]:
    """`furiosa-smi info` alone: utilization and memory are in its `status`."""
    for index, npu in enumerate(furiosa.parse_npus(text, "[]")):
        uuid = f"FURIOSA-{npu.uuid}" if npu.uuid else None
        yield PrintedDevice(uuid, index, "furiosa", "npu", npu.inventory, {SAMPLES: npu.sample})


def _mthreads(text: str) -> Iterator[PrintedDevice]:
    for gpu in mthreads.parse_report(text).gpus:
        uuid = f"MTT-{gpu.uuid}" if gpu.uuid else None
        yield PrintedDevice(
            uuid, gpu.number, "mthreads", "gpu", gpu.inventory, {SAMPLES: gpu.sample}
        )


def _cambricon(text: str) -> Iterator[PrintedDevice]:
    for card in cambricon.parse_cards(text):
        uuid = card.uuid and f"MLU-{card.uuid.removeprefix('MLU-')}"
        tables = {SAMPLES: card.sample, "gpu_detail_samples": card.detail}
        yield PrintedDevice(uuid, card.number, "cambricon", "npu", card.inventory, tables)


def _rebellions(text: str) -> Iterator[PrintedDevice]:
    for npu in rebellions.parse_report(text).npus:
        uuid = f"RBLN-{npu.uuid}" if npu.uuid else None
        yield PrintedDevice(
            uuid, npu.number, "rebellions", "npu", npu.inventory, {SAMPLES: npu.sample}
        )


def _tenstorrent(text: str) -> Iterator[PrintedDevice]:
    """`tt-smi -s`. Two chips of a board share its serial number, so their place is the identity.

    Source of the names: snapshots of p100a, p150a, p300c and n300 boards that their users published.
    """
    chips = named(json_object(text), "device_info")
    for index, chip in enumerate(chips if isinstance(chips, list) else ()):
        board, limits, read = (named(chip, part) for part in ("board_info", "limits", "telemetry"))
        kind = word(named(board, "board_type"))
        yield PrintedDevice(
            None, index, "tenstorrent", "npu",
            {
                "model": f"Tenstorrent {kind.split()[0] if kind else 'card'}",
                "serial": word(named(board, "board_id")),
                "pci_bus_id": word(named(board, "bus_id")),
                "vbios_version": word(named(chip, "firmwares", "fw_bundle_version")),
            },
            {
                SAMPLES: {
                    "power_watts": amount(named(read, "power"), WATTS),
                    "power_limit_watts": amount(named(limits, "tdp_limit"), WATTS) or None,
                    "temperature_celsius": amount(named(read, "asic_temperature"), CELSIUS),
                    "sm_clock_mhz": amount(named(read, "aiclk"), {"": 1.0}) or None,
                }
            },
        )  # fmt: skip


READERS: dict[str, Reader] = {
    "macmon JSON": read_macmon,
    "hl-smi CSV": SnapshotReader(_gaudi),
    "npu-smi info": SnapshotReader(_ascend),
    "mthreads-gmi JSON": SnapshotReader(_mthreads),
    "cnmon JSON": SnapshotReader(_cambricon),
    "furiosa-smi JSON": SnapshotReader(_furiosa),
    "neuron-monitor JSON": read_neuron,
    "rbln-smi JSON": SnapshotReader(_rebellions),
    "tt-smi JSON": SnapshotReader(_tenstorrent, _TIME),
}
