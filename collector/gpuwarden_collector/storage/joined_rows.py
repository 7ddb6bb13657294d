"""Writes and maps files of joined rows: the rows of one block of a segment, a record batch a table.

A block holds the frames that begin within a fixed range of bytes of a segment, so all processes have the
same blocks. The file only repeats rows of the segment, is not synced, and is deleted with the segment.
Readers use it only for a complete block: the segment continues after it, or has ended.

Layout, little endian, each part padded to 64 bytes:

    "GPUWROWS"  u32 length of JSON  JSON {table: [position, size]}  record batch*
"""

import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuwarden_collector.storage.segment import padded, write_all

BLOCK_BYTES = 8 * 1024 * 1024
"""Size of a block: a process holds at most this much of the current one in its own memory."""
SUFFIX = ".rows"
_UNFINISHED = ".rows.new"
_MAGIC = b"GPUWROWS"
_HEAD = struct.Struct("<8sI")

Block = tuple[int, int]
"""Number of the segment, and of the block in it."""


def block_number(frame_start: int) -> int:
    """The number of the block of a frame that begins there."""
    return frame_start // BLOCK_BYTES


def joined_path(folder: Path, block: Block) -> Path:
    """The file of a block."""
    return folder / f"{block[0]:012d}-{block[1]:06d}{SUFFIX}"


def joined_blocks(names: Iterable[str]) -> set[Block]:
    """Blocks that have a file among these names."""
    found = set()
    for name in names:
        if name.endswith(SUFFIX):
            segment, _, block = name.removesuffix(SUFFIX).partition("-")
            if segment.isdigit() and block.isdigit():
                found.add((int(segment), int(block)))
    return found


def write_joined(folder: Path, block: Block, batches: Mapping[str, Any]) -> None:
    """Write a block's file under a temporary name, then rename it. Raises OSError."""
    messages = {name: batch.serialize() for name, batch in batches.items()}
    places, position = {}, 0
    for name, message in messages.items():
        places[name] = position, message.size
        position += padded(message.size)
    meta = json.dumps(places).encode()
    head = _HEAD.pack(_MAGIC, len(meta)) + meta
    parts: list[Any] = [head.ljust(padded(len(head)), b"\0")]
    for message in messages.values():
        parts += [message, bytes(padded(message.size) - message.size)]
    path = joined_path(folder, block)
    unfinished = path.with_suffix(_UNFINISHED)
    try:
        number = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            write_all(number, parts, 0)
        finally:
            os.close(number)
        unfinished.rename(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


class JoinedRows:
    """Rows of one block, mapped from its file."""

    def __init__(self, folder: Path, block: Block, schemas: Mapping[str, Any]) -> None:
        """`schemas`: Arrow schemas by table. Raises OSError, ValueError."""
        path = joined_path(folder, block)
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        content = pa.py_buffer(self._mapped)
        if content.size < _HEAD.size or not content.slice(0, 8).equals(pa.py_buffer(_MAGIC)):
            raise ValueError(f"{path} is not a file of joined rows")
        _, size = _HEAD.unpack_from(content)
        places = json.loads(content.slice(_HEAD.size, size).to_pybytes())
        begin = padded(_HEAD.size + size)
        self.batches: Mapping[str, Any] = {
            name: pa.ipc.read_record_batch(content.slice(begin + position, length), schemas[name])
            for name, (position, length) in places.items()
        }

    def release_pages(self) -> None:
        """Release the file's pages from this process's memory; later reads use the page cache."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


def remove_joined(folder: Path, until: int | None = None) -> None:
    """Delete the files of segments up to a number; None: all, and unfinished ones. Raises OSError."""
    for name in os.listdir(folder):
        if not name.endswith((SUFFIX, _UNFINISHED)):
            continue
        segment = name.partition("-")[0]
        if until is None or (segment.isdigit() and int(segment) <= until):
            (folder / name).unlink(missing_ok=True)
