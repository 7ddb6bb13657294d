"""Reads output of nvidia-smi for people: `-q`, the table, `-L`, `nvlink -s` and `topo -m`.

`-q` has the facts of `-q -x` in other words: its text becomes the same tree, and is read as that. Layouts were
checked with captures of drivers 590 and 595; there was no capture of older ones, which have `Memory-Usage` and
`GPU-Util` in the same places, and no MIG column before 450.
"""

import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import (
    ImportTally,
    Origin,
    Row,
    TableRow,
    UnreadableError,
    Value,
    mig_uuid,
    place_uuid,
)
from gpuwarden_importing.smi_fields import REASONS
from gpuwarden_importing.smi_xml import SmiDocuments
from gpuwarden_importing.values import (
    DETAILS,
    HEALTH,
    PROCESS_TYPES,
    PROCESSES,
    SAMPLES,
    bus_id,
    converter,
    executable,
    plain,
    pstate,
)

QUERY = "==============NVSMI LOG=============="
TABLE = re.compile(
    r"\|\s*NVIDIA-SMI\b(?:.*?(?:Driver|KMD) Version:\s*(?P<driver>[\w.]+))?"
    r"(?:.*?CUDA (?:UMD )?Version:\s*(?P<cuda>[\w./]+))?"
)
"""The first line of the table. Since driver 610 it says KMD Version and CUDA UMD Version."""
LISTED = re.compile(
    r"GPU (?P<gpu>\d{1,3}): (?P<model>.+?) \(UUID: (?P<uuid>GPU-[0-9a-fA-F-]{36})\)\s*\Z"
)
TOPOLOGY = re.compile(r"\s*(?:\x1b\[4m)?GPU0\b.*(?:CPU Affinity|GPU\d|NIC\d|mlx5_\d)")
LINK = re.compile(
    r"\s+Link (?P<link>\d{1,3}): (?:(?P<speed>[\d.]+) GB/s|(?P<off><inactive>|\S.*))\s*\Z"
)
_GPU = re.compile(r"GPU (?P<bus>[0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*\Z")
_LINE = re.compile(r"(?P<indent>[ \t]*)(?P<key>\S.*?)\s*(?::(?:\s(?P<value>.*))?)?\Z")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_WATTS, _CELSIUS, _PERCENT = (
    converter("watts", "W"),
    converter("celsius", "C"),
    converter("percent", "%"),
)
_BYTES, _COUNT = converter("bytes", "MiB"), converter("count")

_ELSEWHERE = {
    "serial_number": "serial",
    "gpu_uuid": "uuid",
    "mig_mode/current": "mig_mode/current_mig",
    "inforom_version/image_version": "inforom_version/img_version",
    "pci/bus_id": "pci/pci_bus_id",
    "pci/gpu_link_info/pcie_generation/max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "pci/gpu_link_info/pcie_generation/current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pci/gpu_link_info/link_width/max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "pci/gpu_link_info/link_width/current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "pci/replays_since_reset": "pci/replay_counter",
    "pci/replay_number_rollovers": "pci/replay_rollover_counter",
    "utilization/gpu": "utilization/gpu_util",
    "utilization/memory": "utilization/memory_util",
    "utilization/encoder": "utilization/encoder_util",
    "utilization/decoder": "utilization/decoder_util",
    "utilization/jpeg": "utilization/jpeg_util",
    "utilization/ofa": "utilization/ofa_util",
    "ecc_mode/current": "ecc_mode/current_ecc",
    "ecc_mode/pending": "ecc_mode/pending_ecc",
    **{
        f"ecc_errors/{since}/sram_uncorrectable_sec_ded": f"ecc_errors/{since}/sram_uncorrectable_secded"
        for since in ("volatile", "aggregate")
    },
    "retired_pages/single_bit_ecc": "retired_pages/multiple_single_bit_retirement/retired_count",
    "retired_pages/double_bit_ecc": "retired_pages/double_bit_retirement/retired_count",
    "retired_pages/pending_page_blacklist": "retired_pages/pending_blacklist",
    "retired_pages/pending": "retired_pages/pending_retirement",
    "remapped_rows/correctable_error": "remapped_rows/remapped_row_corr",
    "remapped_rows/uncorrectable_error": "remapped_rows/remapped_row_unc",
    "remapped_rows/pending": "remapped_rows/remapped_row_pending",
    "remapped_rows/remapping_failure_occurred": "remapped_rows/remapped_row_failure",
    **{
        f"remapped_rows/bank_remap_availability_histogram/{n}":
            f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{n}"
        for n in ("max", "high", "partial", "low", "none")
    },
    **{
        f"temperature/{said}": f"temperature/{path}"
        for said, path in {
            "gpu_current_temp": "gpu_temp",
            "gpu_t_limit_temp": "gpu_temp_tlimit",
            "gpu_shutdown_temp": "gpu_temp_max_threshold",
            "gpu_slowdown_temp": "gpu_temp_slow_threshold",
            "gpu_max_operating_temp": "gpu_temp_max_gpu_threshold",
            "memory_current_temp": "memory_temp",
            "memory_max_operating_temp": "gpu_temp_max_mem_threshold",
            "gpu_shutdown_t_limit_temp": "gpu_temp_max_tlimit_threshold",
            "gpu_slowdown_t_limit_temp": "gpu_temp_slow_tlimit_threshold",
            "gpu_max_operating_t_limit_temp": "gpu_temp_max_gpu_tlimit_threshold",
            "memory_max_operating_t_limit_temp": "gpu_temp_max_mem_tlimit_threshold",
        }.items()
    },
    "gpu_power_readings/instantaneous_power_draw": "gpu_power_readings/instant_power_draw",
    **{
        f"{group}/{said}": f"{group}/{said[:3] if said == 'memory' else said}_clock"
        for group in ("clocks", "max_clocks")
        for said in ("graphics", "sm", "memory", "video")
    },
    "clocks_event_reasons_counters/sw_power_capping":
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",
    "clocks_event_reasons_counters/hw_power_braking":
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake_slowdown",
    **{
        f"clocks_event_reasons_counters/{name}":
            f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}"
        for name in ("sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown")
    },
}  # fmt: skip
"""Paths of `-q` that differ from `-q -x`; the others are equal in lower case."""
_REASON = re.compile(r"clocks_(?P<kind>event|throttle)_reasons/(?:hw_slowdown/)?(?P<name>\w+)\Z")
_PROCESS = {
    "gpu_instance_id": "gpu_instance_id",
    "compute_instance_id": "compute_instance_id",
    "process_id": "pid",
    "type": "type",
    "name": "process_name",
    "used_gpu_memory": "used_memory",
}


def read_query(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader` of `nvidia-smi -q`, one output or several."""
    file = SmiDocuments(origin, tally)
    for root, line in _documents(lines):
        file.take_root(root, line)
        yield from file.rows()
    yield from file.rest()


def _documents(lines: Iterator[str]) -> Iterator[tuple[ElementTree.Element, int]]:
    """Each output as the tree of `-q -x`, with its first line."""
    root: ElementTree.Element | None = None
    gpu: ElementTree.Element | None = None
    begun = 0
    stack: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if QUERY in line:
            if root is not None:
                yield root, begun
            root, gpu, begun = ElementTree.Element("nvidia_smi_log"), None, number
            continue
        found = _LINE.match(line.rstrip())
        if root is None or found is None:
            continue
        if named := _GPU.match(line):
            gpu, stack = ElementTree.SubElement(root, "gpu", id=named["bus"]), []
            continue
        indent, value = len(found["indent"].expandtabs()), found["value"]
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, _tag(found["key"])))
        into = root if gpu is None else gpu
        if value is None:
            if stack[-1][1] == "mig_device" and gpu is not None:
                devices = gpu.find("mig_devices")
                devices = ElementTree.SubElement(gpu, "mig_devices") if devices is None else devices
                ElementTree.SubElement(devices, "mig_device")
            continue
        _put(into, [tag for _, tag in stack], value.strip())
    if root is not None:
        yield root, begun


def _tag(key: str) -> str:
    return re.sub(r"\W+", "_", key.strip()).strip("_").lower() or "_"


def _put(into: ElementTree.Element, path: list[str], value: str) -> None:
    if path[0] == "processes":
        _put_process(into, path[-1], value)
        return
    if path[0] == "mig_device" and len(path) > 1:
        parts = into.findall("mig_devices/mig_device")
        if not parts:
            return  # before the first GPU
        _set(parts[-1], [tag.removeprefix("shared_") for tag in path[1:]], value)
        return
    joined = "/".join(path)
    if reason := _REASON.match(joined):
        name = {"idle": "gpu_idle"}.get(reason["name"], reason["name"])
        if name in REASONS:
            group = f"clocks_{reason['kind']}_reason"
            joined = f"{group}s/{group}_{name}"
    _set(into, _ELSEWHERE.get(joined, joined).split("/"), value)


def _put_process(gpu: ElementTree.Element, tag: str, value: str) -> None:
    name = _PROCESS.get(tag)
    if name is None:
        return
    listed = gpu.find("processes")
    listed = ElementTree.SubElement(gpu, "processes") if listed is None else listed
    processes = listed.findall("process_info")
    if not processes or processes[-1].find(name) is not None:
        processes.append(ElementTree.SubElement(listed, "process_info"))
    ElementTree.SubElement(processes[-1], name).text = value


def _set(into: ElementTree.Element, path: list[str], value: str) -> None:
    for tag in path[:-1]:
        inner = into.find(tag)
        into = ElementTree.SubElement(into, tag) if inner is None else inner
    if into.find(path[-1]) is None:
        ElementTree.SubElement(into, path[-1]).text = value


GPU_LINE = re.compile(
    r"\|\s+(?P<gpu>\d{1,3})\s+(?P<model>\S.*?)\s+(?P<persistence>On|Off|N/A|WDDM|TCC|MCDM)\s*"
    r"\|\s*(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s+\S+\s*\|\s*(?P<ecc>\S+)\s*\|"
)
_SECOND = re.compile(
    r"\|\s*(?P<fan>N/A|ERR!|\d+%)\s+(?P<temperature>N/A|ERR!|\d+C)\s+(?P<pstate>\S+)"
    r"\s+(?P<power>\S+)\s*/\s*(?P<limit>\S+)\s*\|\s*(?:(?P<used>\S+)\s*/\s*(?P<total>\S+)|Not Supported)\s*"
    r"\|\s*(?P<util>N/A|ERR!|\d+%)"
)
_MIG = re.compile(
    r"\|\s+(?P<gpu>\d{1,3})\s+(?P<gi>\d+)\s+(?P<ci>\d+)\s+\d+\s+\|\s*(?P<used>\d+MiB)\s*/\s*(?P<total>\d+MiB)\s*\|"
)
_RUNS = re.compile(
    r"\|\s+(?P<gpu>\d{1,3})\s+(?:(?P<gi>N/A|\d+)\s+(?P<ci>N/A|\d+)\s+)?(?P<pid>\d{1,10})"
    r"\s+(?P<type>C\+G|M\+C|[CGM])\s+(?P<name>\S.*?)\s+(?P<used>\d+MiB|N/A)\s*\|"
)
_CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d")
_FRAME = re.compile(r"\s*(?:[+|=-]|\Z)")


def read_pages(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader` of the table, `-L`, `nvlink -s` and `topo -m`, in any order in one file."""
    pages = _Pages(origin, tally)
    for number, line in enumerate(lines, 1):
        pages.take(_ANSI.sub("", line.rstrip()), number)
        yield from pages.rows()
    yield from pages.rest()


class _Pages(LogFile):
    """A file with pages of one node."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally, origin.at_ms)
        self._node = origin.node_or(None)
        self._ts_ms: int | None = None
        self._listed: dict[int, str] = {}
        """UUIDs by index, from `-L`."""
        self._uuids: dict[int, str] = {}
        self._buses: dict[int, str] = {}
        self._gpu: int | None = None
        """Index of the GPU in the line before, in the table or a list."""
        self._columns: list[str] = []
        """Columns of `topo -m`."""

    def take(self, line: str, number: int) -> None:
        """Take a line."""
        if driver := TABLE.search(line):
            facts: dict[str, Value] = {
                "driver_version": plain(driver["driver"] or ""),
                "cuda_version": plain(driver["cuda"] or ""),
            }
            self.inventory.add_node(self._node, facts)
        elif found := LISTED.match(line):
            self._gpu = int(found["gpu"])
            self._listed[self._gpu] = self._uuids[self._gpu] = found["uuid"]
            facts = {"gpu": self._gpu, "model": found["model"], "vendor": "nvidia"}
            self.inventory.add_gpu(found["uuid"], self._node, facts)
            self.inventory.add_node(self._node, {})
        elif (found := LINK.match(line)) and self._gpu in self._listed:
            self._take_link(found)
        elif found := GPU_LINE.match(line):
            self._take_first(found, number)
        elif (found := _SECOND.match(line)) and self._gpu is not None:
            self._take_second(found, number)
        elif found := _MIG.match(line):
            self._take_mig(found, number)
        elif found := _RUNS.match(line):
            self._take_process(found, number)
        elif TOPOLOGY.match(line):
            self._columns = [cell.strip() for cell in line.split("\t")]
        elif self._columns and re.match(r"GPU\d+\t", line):
            self._take_topology([cell.strip() for cell in line.split("\t")])
        elif _CLOCK.search(line) and not _FRAME.match(line):
            self._take_time(line, number)
        elif not _FRAME.match(line) and not self._is_legend(line):
            self.tally.skip("other text", number)

    def _is_legend(self, line: str) -> bool:
        return bool(self._columns) or line.startswith(("MIG ", "  MIG "))

    def _take_time(self, line: str, number: int) -> None:
        try:
            self._ts_ms = self.instants.parse(line.strip())
        except ValueError:
            self.tally.skip("other text", number)

    def _at(self) -> int:
        return self.assumed_time() if self._ts_ms is None else self._ts_ms

    def _add(self, table: str, gpu: int, uuid: str, values: Mapping[str, Value]) -> None:
        identity: Row = {"ts": self._at(), "node": self._node, "gpu": gpu, "gpu_uuid": uuid}
        self.add(table, identity | dict(values))

    def _take_link(self, found: re.Match[str]) -> None:
        assert self._gpu is not None
        speed = float(found["speed"]) * 1e9 if found["speed"] else None
        link: Row = {"link_type": "nvlink", "link": int(found["link"]), "active": speed is not None}
        uuid = self._listed[self._gpu]
        self._add("link_samples", self._gpu, uuid, link | {"speed_bytes_per_second": speed})

    def _take_first(self, found: re.Match[str], number: int) -> None:
        gpu = self._gpu = int(found["gpu"])
        bus = self._buses[gpu] = str(bus_id(found["bus"]))
        if gpu not in self._listed:
            self._uuids[gpu] = place_uuid(bus, gpu, self._node)
            self.tally.note("no uuid in the file: the GPU's PCI bus id and its node stand for it")
        facts: Row = {"gpu": gpu, "vendor": "nvidia", "pci_bus_id": bus}
        if not found["model"].endswith("..."):  # the table has cut it
            facts["model"] = found["model"]
        if found["persistence"] in ("On", "Off"):
            facts["persistence_mode"] = found["persistence"] == "On"
        self.inventory.add_gpu(self._uuids[gpu], self._node, facts)
        if found["ecc"].isdecimal():
            count = self.read("ecc", found["ecc"], _COUNT, number)
            self._add(HEALTH, gpu, self._uuids[gpu], {"ecc_uncorrected_volatile_total": count})

    def _take_second(self, found: re.Match[str], number: int) -> None:
        assert self._gpu is not None
        gpu, uuid = self._gpu, self._uuids[self._gpu]
        self._gpu = None
        samples = {
            column: self.read(name, found[name] or "", convert, number)
            for name, column, convert in (
                ("temperature", "temperature_celsius", _CELSIUS),
                ("pstate", "pstate", pstate),
                ("power", "power_watts", _WATTS),
                ("limit", "power_limit_watts", _WATTS),
                ("used", "memory_used_bytes", _BYTES),
                ("total", "memory_total_bytes", _BYTES),
                ("util", "util_percent", _PERCENT),
            )
        }
        self._add(SAMPLES, gpu, uuid, samples)
        if (fan := self.read("fan", found["fan"], _PERCENT, number)) is not None:
            self._add(DETAILS, gpu, uuid, {"fan_percent": fan})
        total = {"memory_total_bytes": samples["memory_total_bytes"]}
        self.inventory.add_gpu(uuid, self._node, total)

    def _take_mig(self, found: re.Match[str], number: int) -> None:
        gpu = int(found["gpu"])
        if gpu not in self._uuids:
            self.tally.skip("a MIG device of a GPU that is not in the table", number)
            return
        instance = f"{found['gi']}/{found['ci']}"
        uuid = mig_uuid(self._uuids[gpu], instance)
        used, total = (self.read(n, found[n], _BYTES, number) for n in ("used", "total"))
        memory = {"memory_used_bytes": used, "memory_total_bytes": total}
        self._add(SAMPLES, gpu, uuid, memory | {"mig_instance": instance})
        facts: Row = {"gpu": gpu, "vendor": "nvidia", "mig_instance": instance}
        facts |= {"parent_gpu_uuid": self._uuids[gpu], "memory_total_bytes": total}
        self.inventory.add_gpu(uuid, self._node, facts)

    def _take_process(self, found: re.Match[str], number: int) -> None:
        gpu = int(found["gpu"])
        if gpu not in self._uuids:
            self.tally.skip("a process of a GPU that is not in the table", number)
            return
        is_part = bool(found["gi"]) and found["gi"] != "N/A"
        instance = f"{found['gi']}/{found['ci']}" if is_part else None
        uuid = self._uuids[gpu] if instance is None else mig_uuid(self._uuids[gpu], instance)
        process: Row = {
            "pid": int(found["pid"]),
            "process_type": PROCESS_TYPES[found["type"]],
            # The table cuts the begin of long paths.
            "process_name": executable(found["name"]),
            "gpu_memory_bytes": self.read("used", found["used"], _BYTES, number),
            "mig_instance": instance,
        }
        self._add(PROCESSES, gpu, uuid, process)

    def _take_topology(self, cells: list[str]) -> None:
        gpu = int(cells[0].removeprefix("GPU"))
        if gpu not in self._uuids:
            raise UnreadableError(
                "topo -m names GPUs by index alone: put `nvidia-smi -L` before it in the same file"
            )
        said = dict(zip(self._columns[1:], cells[1:], strict=False))
        facts: Row = {"cpu_affinity": plain(said.get("CPU Affinity", ""))}
        if (numa := said.get("NUMA Affinity", "")).isdecimal():
            facts["numa_node"] = int(numa[:4])
        self.inventory.add_gpu(self._uuids[gpu], self._node, facts)
