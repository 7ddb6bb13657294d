"""Detects the format of a file by its content, and reads it."""

import io
import re
from collections.abc import Iterator
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
from gpuwarden_importing.model import ImportedRows, ImportTally, Origin, Reader, UnreadableError
from gpuwarden_importing.sources import STDIN, LogSource

_PARQUET = b"PAR1"
PARQUET_BYTES_MAX = 2 * 1024**3
"""Largest Parquet file from a pipe or an archive, as it must be held in memory."""
_XML = re.compile(r"<nvidia_smi_log[\s>]")
_CARD = re.compile(r'"card\d{1,4}"\s*:')
_RESULT = re.compile(r'"resultType"\s*:\s*"(?:matrix|vector)"')
_AMD = re.compile(r'"gpu(?:_data)?"\s*:\s*(?:\d+\s*,|\[)')
_AMD_CSV = re.compile(r"(?:timestamp,)?gpu,", re.IGNORECASE)
_DCGM = re.compile(r"\s*(?:#\s*(?:HELP|TYPE)\s+)?DCGM_[A-Z0-9_]+[\s{]")


READERS: dict[str, Reader] = {
    "nvidia-smi CSV": smi_csv.read,
    "nvidia-smi XML": smi_xml.read,
    "nvidia-smi -q": smi_text.read_query,
    "nvidia-smi table": smi_text.read_pages,
    "nvidia-smi -L": smi_text.read_pages,
    "nvidia-smi topo -m": smi_text.read_pages,
    "dmon": monitor.read,
    "pmon": monitor.read,
    "dcgmi dmon": monitor.read,
    "rocm-smi JSON": rocm.read,
    "rocm-smi CSV": rocm.read_csv,
    "amd-smi JSON": amd_smi.read_json,
    "amd-smi CSV": amd_smi.read_csv,
    "dcgm-exporter text": dcgm.read,
    "Prometheus JSON": dcgm.read_answer,
    "kernel log": kernel_log.read,
    "fabric manager log": kernel_log.read_fabric_manager,
    "CSV of a table": catalogue.read_csv,
}

_OTHERS: tuple[tuple[str, str, str], ...] = (
    (r"^nvidia-bug-report\.sh|Start of NVIDIA bug report", "a bug report of NVIDIA", "the kernel's log (journalctl -k) and `nvidia-smi -q -x`"),
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


def format_of(head: list[str], origin: Origin) -> str | None:
    """The format of a file that begins with these lines; None: unknown. Raises UnreadableError."""
    text = "\n".join(head)
    if _XML.search(text):
        return "nvidia-smi XML"
    if origin.fields:
        return "nvidia-smi CSV"
    first = next((line for line in head if line.strip()), "").lstrip("\ufeff")
    if "__REALTIME_TIMESTAMP" in text and first.startswith("{"):
        return "kernel log"
    if smi_text.QUERY in text:
        return "nvidia-smi -q"
    if first.lstrip().startswith(("{", "[")) and (found := _json_format(text)):
        return found
    if _CARD.search(text):
        return "rocm-smi JSON"
    if any(_DCGM.match(line) for line in head):
        return "dcgm-exporter text"
    if found := _page_format(head):
        return found
    if origin.table or catalogue.is_header(first):
        return "CSV of a table"
    if smi_csv.layout_of(first, is_first=True) or any(map(smi_csv.layout_of, head)):
        return "nvidia-smi CSV"
    if any(map(kernel_log.FABRIC_LINE.match, head[:200])):
        return "fabric manager log"
    if kernel_log.is_kernel_log(head):
        return "kernel log"
    if any(map(smi_csv.looks_headless, head[:20])):
        raise UnreadableError("it has no header: name its columns with --fields, as in --query-gpu")
    return None


def _json_format(text: str) -> str | None:
    if '"resultType"' in text and _RESULT.search(text):
        return "Prometheus JSON"
    if _AMD.search(text) and not _CARD.search(text):
        return "amd-smi JSON"
    return None


def _page_format(head: list[str]) -> str | None:
    """The format, of those that NVIDIA's and AMD's tools print as tables."""
    for line in head[:2000]:
        if (columns := monitor.columns_of(line)) is not None:
            return (
                "pmon"
                if "pid" in columns.names
                else "dcgmi dmon"
                if "entity" in columns.names
                else "dmon"
            )
        if smi_text.TABLE.search(line) or smi_text.GPU_LINE.match(line):
            return "nvidia-smi table"
        if smi_text.LISTED.match(line):
            return "nvidia-smi -L"
        if smi_text.TOPOLOGY.match(line):
            return "nvidia-smi topo -m"
        if line.startswith("device,") and not catalogue.is_header(line):
            return "rocm-smi CSV"
        if _AMD_CSV.match(line) and amd_smi.is_header(line) and not catalogue.is_header(line):
            return "amd-smi CSV"
    return None


def read(
    source: LogSource, path: Path, origin: Origin, tally: ImportTally
) -> tuple[str, Iterator[ImportedRows]]:
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
) -> Iterator[ImportedRows]:
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
