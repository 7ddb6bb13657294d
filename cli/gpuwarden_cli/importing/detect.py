"""Tells by its content which format a file has, and reads it."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuwarden_cli.importing import catalogue, dcgm, kernel_log, smi_csv, smi_xml
from gpuwarden_cli.importing.model import ImportedRows, ImportTally, Origin, Reader, UnreadableError
from gpuwarden_cli.importing.sources import STDIN, LogSource

_PARQUET = b"PAR1"
PARQUET_BYTES_MAX = 2 * 1024**3
"""Largest Parquet file that is taken from a pipe or an archive: it must be held whole."""
_XML = re.compile(r"<nvidia_smi_log[\s>]")
_CARD = re.compile(r'"card\d{1,4}"\s*:')
_DCGM = re.compile(r"\s*(?:#\s*(?:HELP|TYPE)\s+)?DCGM_[A-Z0-9_]+[\s{]")


def _read_rocm(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    # Here, as probes need the packages of a GPU host.
    from gpuwarden_cli.importing import rocm

    return rocm.read(lines, origin, tally)


READERS: dict[str, Reader] = {
    "nvidia-smi CSV": smi_csv.read,
    "nvidia-smi XML": smi_xml.read,
    "rocm-smi JSON": _read_rocm,
    "dcgm-exporter text": dcgm.read,
    "kernel log": kernel_log.read,
    "CSV of a table": catalogue.read_csv,
}


def format_of(head: list[str], origin: Origin) -> str | None:
    """The format whose file begins with these lines; None: none. Raises UnreadableError."""
    text = "\n".join(head)
    if _XML.search(text):
        return "nvidia-smi XML"
    if origin.fields:
        return "nvidia-smi CSV"
    first = next((line for line in head if line.strip()), "").lstrip("\ufeff")
    if "__REALTIME_TIMESTAMP" in text and first.startswith("{"):
        return "kernel log"
    if _CARD.search(text):
        return "rocm-smi JSON"
    if any(_DCGM.match(line) for line in head):
        return "dcgm-exporter text"
    if origin.table or catalogue.is_header(first):
        return "CSV of a table"
    if smi_csv.layout_of(first, is_first=True) or any(map(smi_csv.layout_of, head)):
        return "nvidia-smi CSV"
    if kernel_log.is_kernel_log(head):
        return "kernel log"
    if any(map(smi_csv.looks_headless, head[:20])):
        raise UnreadableError("it has no header: name its columns with --fields, as in --query-gpu")
    return None


def read(
    source: LogSource, path: Path, origin: Origin, tally: ImportTally
) -> tuple[str, Iterator[ImportedRows]]:
    """The format, and the rows. Raises UnreadableError, also while the rows are taken."""
    if source.head.startswith(_PARQUET):
        return "Parquet", _parquet(source, path, origin, tally)
    found = format_of(source.head_lines(), origin)
    if found is None:
        raise UnreadableError(
            "it is empty, or damaged"
            if not source.head.strip()
            else "unknown format: see docs/import.md"
        )
    reader: Callable[..., Iterator[ImportedRows]] = READERS[found]
    return found, reader(source.lines(), origin, tally)


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
