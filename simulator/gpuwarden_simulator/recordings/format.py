"""Defines the file format of recordings: the readings of the probes of one node, tick for tick.

A recording is JSON, one object a line, in gzip members one after another (`zcat FILE | head`). Each
member is an independent block of a few seconds, so a file that was cut anywhere (kill -9, full disk,
power) is valid up to its last complete block. The first line is the header. `docs/simulator.md`
describes all lines.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from gpuwarden_agent.probe import Reading

FORMAT = "gpuwarden-recording"
VERSION = 1
_LEVEL = 6
_CHUNK_BYTES = 256 * 1024

BLOCK_BYTES_MAX = 256 * 1024**2
"""Most text in a block; a larger one is not a recording."""


class RecordingError(ValueError):
    """The file is not a recording that can be read; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class RecordedProbe:
    """A probe that was recorded."""

    name: str
    tables: Mapping[str, int]
    """As in `Probe`: tables, and seconds between readings of each."""
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """The header of a recording."""

    gpuwarden: str
    """Version of the agent that recorded."""
    node: str
    started_at: str
    """ISO 8601, UTC."""
    interval_s: float
    label: str
    has_identity: bool
    """False: hosts, users, jobs, commands, serial numbers and UUIDs are pseudonyms."""
    probes: tuple[RecordedProbe, ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of a probe at a tick."""

    ts_ms: int
    probe: str
    rows: Reading


@dataclass(frozen=True, slots=True)
class Described:
    """Inventory rows of a probe; recorded when they change."""

    ts_ms: int
    probe: str
    rows: Reading


@dataclass(frozen=True, slots=True)
class Failure:
    """The probe failed, from this tick until its next samples."""

    ts_ms: int
    probe: str
    kind: str
    """Kind of event, as in ProbeError."""
    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The recorder stopped normally; a recording without it was cut."""

    ts_ms: int
    ticks: int
    missed: int


Entry: TypeAlias = Samples | Described | Failure | Ended


@dataclass(frozen=True, slots=True)
class Block:
    """A complete gzip member of the file."""

    entries: tuple[Entry, ...]
    offset: int
    size_bytes: int
    header: RecordingHeader | None = None
    """In the first block only."""


def encode_block(entries: Sequence[Entry], header: RecordingHeader | None = None) -> bytes:
    """A block; the first one of a file carries the header. Raises ValueError for NaN or infinity."""
    lines: list[dict[str, Any]] = []
    if header is not None:
        lines.append({"format": FORMAT, "version": VERSION, **asdict(header)})
    lines += [_entry_line(entry) for entry in entries]
    text = "".join(
        json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
        for line in lines
    )
    return gzip.compress(text.encode("utf-8", "backslashreplace"), _LEVEL, mtime=0)


def decode_block(data: bytes) -> tuple[tuple[Entry, ...], RecordingHeader | None]:
    """The entries of one block, and the header if it has it. Raises RecordingError."""
    text, used = _unpacked(data, 0)
    if text is None or used != len(data):
        raise RecordingError("a block is damaged")
    return _parsed(text)


def read_blocks(file: BinaryIO, name: str) -> Iterator[Block]:
    """The complete blocks of an open file, in order, up to the first that is cut or damaged.

    Raises RecordingError when the file is not a recording, or of a version that is not known.
    """
    is_first, offset, data = True, 0, b""
    while True:
        chunk = file.read(_CHUNK_BYTES)
        data += chunk
        while data:
            text, used = _unpacked(data, offset)
            if text is None:
                break
            try:
                entries, header = _parsed(text)
            except RecordingError as error:
                if is_first:
                    raise RecordingError(f"{name}: {error}") from error
                return
            if is_first and header is None:
                raise RecordingError(f"{name} is not a recording: its first line is not a header")
            yield Block(entries, offset, used, header)
            is_first, offset, data = False, offset + used, data[used:]
        if not chunk or (data and not _may_go_on(data)):
            break
    if is_first:
        raise RecordingError(f"{name} is not a recording: it has no whole block")


def entries_of(path: Path) -> Iterator[Entry]:
    """Every entry of a recording. Raises RecordingError."""
    try:
        with path.open("rb") as file:
            for block in read_blocks(file, str(path)):
                yield from block.entries
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error


def _unpacked(data: bytes, offset: int) -> tuple[bytes | None, int]:
    """Text of the gzip member at the start of `data`, and its length; None: it is not complete."""
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = unpacker.decompress(data, BLOCK_BYTES_MAX)
    except zlib.error:
        return None, 0
    if not unpacker.eof:
        return None, 0
    return text, len(data) - len(unpacker.unused_data)


def _may_go_on(data: bytes) -> bool:
    """Whether more bytes could complete the block in `data`."""
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = unpacker.decompress(data, BLOCK_BYTES_MAX)
    except zlib.error:
        return False
    return len(text) < BLOCK_BYTES_MAX


def _entry_line(entry: Entry) -> dict[str, Any]:
    match entry:
        case Samples(ts_ms, probe, rows):
            return {"ts": ts_ms, "probe": probe, "rows": _plain(rows)}
        case Described(ts_ms, probe, rows):
            return {"ts": ts_ms, "probe": probe, "inventory": _plain(rows)}
        case Failure(ts_ms, probe, kind, message):
            return {"ts": ts_ms, "probe": probe, "failed": kind, "message": message}
        case Ended(ts_ms, ticks, missed):
            return {"ts": ts_ms, "ended": True, "ticks": ticks, "missed": missed}


def _plain(rows: Reading) -> dict[str, Any]:
    return {table: list(several) for table, several in rows.items()}


def _parsed(text: bytes) -> tuple[tuple[Entry, ...], RecordingHeader | None]:
    header: RecordingHeader | None = None
    entries: list[Entry] = []
    for number, raw in enumerate(text.splitlines()):
        try:
            line = json.loads(raw, parse_constant=_refuse)
            if number == 0 and "format" in line:
                header = _header_of(line)
            else:
                entries.append(_entry_of(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, RecordingError):
                raise
            raise RecordingError(
                f"line {number + 1} of a block is not an entry: {error}"
            ) from error
    return tuple(entries), header


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _header_of(line: Mapping[str, Any]) -> RecordingHeader:
    if line["format"] != FORMAT:
        raise RecordingError(f"it is a {line['format']!r}, not a {FORMAT!r}")
    if line["version"] != VERSION:
        raise RecordingError(
            f"it is a recording of version {line['version']}; this gpuwarden reads {VERSION}"
        )
    interval_s = float(line["interval_s"])
    if not 0 < interval_s <= 3600:
        raise ValueError(f"interval_s = {interval_s}")
    return RecordingHeader(
        gpuwarden=str(line["gpuwarden"]),
        node=str(line["node"]),
        started_at=str(line["started_at"]),
        interval_s=interval_s,
        label=str(line["label"]),
        has_identity=bool(line["has_identity"]),
        probes=tuple(
            RecordedProbe(
                str(probe["name"]),
                {str(table): int(cadence) for table, cadence in probe["tables"].items()},
                None if probe.get("gpu_uuid") is None else str(probe["gpu_uuid"]),
            )
            for probe in line["probes"]
        ),
    )


def _entry_of(line: Mapping[str, Any]) -> Entry:
    ts_ms = line["ts"]
    if type(ts_ms) is not int or not 0 <= ts_ms < 2**53:
        raise ValueError(f"ts = {ts_ms!r}")
    if "ended" in line:
        return Ended(ts_ms, int(line["ticks"]), int(line["missed"]))
    probe = str(line["probe"])
    if "failed" in line:
        return Failure(ts_ms, probe, str(line["failed"]), str(line["message"]))
    if "inventory" in line:
        return Described(ts_ms, probe, _checked(line["inventory"]))
    return Samples(ts_ms, probe, _checked(line["rows"]))


def _checked(rows: Any) -> Reading:
    """Check that tables are lists of flat objects; the sampler checks the cells."""
    for table, several in rows.items():
        if type(several) is not list or any(type(row) is not dict for row in several):
            raise ValueError(f"{table} is not a list of rows")
        for row in several:
            if any(isinstance(value, (dict, list)) for value in row.values()):
                raise ValueError(f"a row of {table} is not flat")
    reading: Reading = rows
    return reading
