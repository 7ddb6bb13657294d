"""Detects the format of a file by its content, and reads it."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuwarden_importing import (
    amd_smi,
    catalogue,
    dcgm,
    kernel_log,
    monitor,
    rocm,
    smi_csv,
    smi_text,
    smi_xml,
)
from gpuwarden_importing.cells import split
from gpuwarden_importing.model import ImportTally, Origin, Reader, TableRow, UnreadableError
from gpuwarden_importing.sources import STDIN, LogSource

_PARQUET = b"PAR1"
PARQUET_BYTES_MAX = 2 * 1024**3
"""Largest Parquet file from a pipe or an archive, as it must be held in memory."""
_AMD_GPU = re.compile(r'"gpu(?:_data)?"\s*:\s*(?:\d+\s*,|\[)')
_AMD_WORD = re.compile(
    r'"(?:gfx|gfx_\w+|umc_activity|socket_power|power_usage|asic|bdf|xcp|vram|\w+_vram|vram_\w+|max_power'
    r'|total_energy_consumption|hotspot|hotspot_temperature)"\s*:'
)
_DCGM = re.compile(r"^\s*(?:#\s*(?:HELP|TYPE)\s+)?DCGM_[A-Z0-9_]+[\s{]", re.MULTILINE)


_Mark = Callable[[list[str], str], bool]
"""Whether lines, and the same as one text, have what only one format has."""


def _any(*shapes: Callable[[str], object]) -> _Mark:
    """Whether a line has one of the shapes."""
    return lambda head, _text: any(shape(line) for line in head for shape in shapes)


def _in(*words: str | re.Pattern[str]) -> _Mark:
    """Whether all are in the text."""
    return lambda _head, text: all(re.search(word, text) for word in words)


READERS: dict[str, Reader] = {
    "nvidia-smi CSV": smi_csv.read,
    "nvidia-smi XML": smi_xml.read,
    "nvidia-smi -q": smi_text.read_query,
    "nvidia-smi text": smi_text.read_pages,
    "dmon or pmon": monitor.read,
    "rocm-smi JSON": rocm.read,
    "amd-smi JSON": amd_smi.read,
    "dcgm-exporter text": dcgm.read,
    "kernel log": kernel_log.read,
    "fabric manager log": kernel_log.read_fabric_manager,
    "CSV of a table": catalogue.read_csv,
}
_MARKS: dict[str, _Mark] = {
    "nvidia-smi XML": _in(r"<nvidia_smi_log[\s>]"),
    "nvidia-smi -q": _in(smi_text.QUERY),
    "nvidia-smi text": _any(
        smi_text.TABLE.search,
        smi_text.GPU_LINE.match,
        smi_text.LISTED.match,
        smi_text.TOPOLOGY.match,
    ),
    "dmon or pmon": _any(monitor.columns_of),
    "rocm-smi JSON": _in(r'"card\d{1,4}"\s*:'),
    "amd-smi JSON": _in(_AMD_GPU, _AMD_WORD),
    "dcgm-exporter text": _in(_DCGM),
    "kernel log": lambda head, _text: kernel_log.is_kernel_log(head),
    "fabric manager log": _any(kernel_log.FABRIC_LINE.match),
}
"""Marks of all formats but CSV, whose headers `_csv_format` tells apart."""

_OTHERS: tuple[tuple[str, str, str], ...] = (
    (r"^nvidia-bug-report\.sh|Start of NVIDIA bug report", "a bug report of NVIDIA", "the kernel's log (journalctl -k) and `nvidia-smi -q -x`"),
    (r"^.*,.*(?:\.aip\b|\bHL-[23]\d\d)", "hl-smi CSV", "the agent, which reads hl-smi"),
    (r"^device,.*\(", "CSV of rocm-smi", "`rocm-smi -a --json`"),
    (r"^(timestamp,)?gpu,", "CSV of amd-smi", "`amd-smi metric --json`"),
    (r'"resultType"\s*:', "JSON of Prometheus", "text of dcgm-exporter"),
    (r"^nvidia_smi_\w+(\{| )", "text of nvidia_gpu_exporter", "`nvidia-smi --query-gpu=... --format=csv --loop`"),
    (r"^(amd_gpu_|gpu_\w+\{[^}]*gpu_id=)", "text of AMD's exporter", "`amd-smi metric --json`"),
    (r"^(gpuwarden_\w+)(\{| )", "text of the agent's /metrics", "its collector, which has the rows (`gpuwarden sql`)"),
    (r"^# (HELP|TYPE) |^\w+\{[^}]*\} [\d.eE+-]+", "Prometheus text without a metric of DCGM", "text of dcgm-exporter"),
    (r"^\[\d+\] .+\|\s*\d+.?C,", "gpustat", "`nvidia-smi --query-gpu=timestamp,uuid,... --format=csv`"),
    (r'"query_time"\s*:.*|"gpus"\s*:\s*\[\s*\{\s*"index"', "JSON of gpustat", "`nvidia-smi --query-gpu=timestamp,uuid,... --format=csv`"),
    (r'"device_name"\s*:.*"gpu_clock"|"device_name"\s*:', "JSON of nvtop", "`nvidia-smi --query-gpu=timestamp,uuid,... --format=csv`"),
    (r"^\d+, \w+(Util|Clk|Pwr|Temp)\w*\s*,|^\d+\s*,\s*(gpuUtil|memUtil|pwrDraw|temp)\b", "nvidia-smi stats", "`nvidia-smi dmon -o DT`"),
    (r"^=+ ROCm System Management Interface|^=+ Concise Info", "the table of rocm-smi", "`rocm-smi -a --json`"),
    (r"^\| AMD-SMI |^GPU: \d+\s*$", "text of amd-smi for people", "`amd-smi metric --json`"),
    (r"^\+-+\+\n\| (JOB|GPU) (STATISTICS|ID)|Successfully retrieved statistics", "dcgmi stats", "`dcgmi dmon`"),
    (r"^GPU\s+BDF|nvidia-smi vgpu", "a table of vGPUs", "`nvidia-smi -q -x`"),
    (r"rec:dgn|Successfully ran diagnostic", "dcgmi diag", "the kernel's log, for what failed"),
    (r"^SQLite format 3", "a report of Nsight Systems or another SQLite file", "`nvidia-smi --query-gpu` beside the job"),
)  # fmt: skip
"""Formats without a reader: pattern, name, and the format to use instead."""


def _instead(text: str) -> str | None:
    """A sentence on a known format without a reader; None: unknown."""
    for shape, name, instead in _OTHERS:
        if re.search(shape, text, re.MULTILINE):
            return f"it is {name}, which cannot be imported: use {instead}"
    return None


_NOT_OURS = re.compile("|".join(shape for shape, _, _ in _OTHERS[:2]), re.MULTILINE)
"""Formats without a reader that have words of others."""


def _csv_format(head: list[str]) -> str | None:
    """The format of a header; None: none. Raises UnreadableError."""
    first = next((line for line in head if line.strip()), "").lstrip("\ufeff")
    is_smi = bool(smi_csv.layout_of(first, is_first=True)) or any(map(smi_csv.layout_of, head))
    if not catalogue.is_header(first):
        return "nvidia-smi CSV" if is_smi else None
    names = {cell.strip().strip('"') for cell in split(first, ",")}
    of_smi, of_table = smi_csv.own_names(names), catalogue.own_names(names)
    if is_smi and bool(of_smi) == bool(of_table):
        raise UnreadableError(
            "it may be nvidia-smi CSV or CSV of a table: say which with --fields or --table"
        )
    return "nvidia-smi CSV" if of_smi else "CSV of a table"


def format_of(head: list[str], origin: Origin) -> str | None:
    """The format of a file that begins with these lines; None: unknown. Raises UnreadableError."""
    text = "\n".join(head)
    if _NOT_OURS.search(text):
        return None
    names = [name for name, mark in _MARKS.items() if mark(head, text)]
    if origin.fields or origin.table:
        names = names or ["nvidia-smi CSV" if origin.fields else "CSV of a table"]
    elif (csv := _csv_format(head)) is not None:
        names.append(csv)
    if len(names) > 1:
        raise UnreadableError(f"it may be {' or '.join(names)}: put each in a file of its own")
    if not names and any(map(smi_csv.looks_headless, head[:20])):
        raise UnreadableError("it has no header: name its columns with --fields, as in --query-gpu")
    return names[0] if names else None


def read(
    source: LogSource, path: Path, origin: Origin, tally: ImportTally
) -> tuple[str, Iterator[TableRow]]:
    """The format, and an iterator of rows. Raises UnreadableError, also during iteration."""
    if source.head.startswith(_PARQUET):
        return "Parquet", _parquet(source, path, origin, tally)
    found = format_of(source.head_lines(), origin)
    if found is None:
        if not source.head.strip():
            raise UnreadableError("it is empty, or damaged")
        instead = _instead("\n".join(source.head_lines()[:500]))
        raise UnreadableError(instead or "unknown format: docs/import.md lists the formats")
    return found, READERS[found](source.lines(), origin, tally)


def _parquet(
    source: LogSource, path: Path, origin: Origin, tally: ImportTally
) -> Iterator[TableRow]:
    if path != STDIN and _begins_with(path, _PARQUET):
        yield from catalogue.read_parquet(path, origin, tally)
        return
    content = source.stream.read(PARQUET_BYTES_MAX + 1)
    if len(content) > PARQUET_BYTES_MAX:
        raise UnreadableError("it is too large to be read from a pipe or an archive: unpack it")
    yield from catalogue.read_parquet(io.BytesIO(content), origin, tally)


def _begins_with(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark
