"""Opens files, folders and standard input: plain, gzip or zstd, in any encoding."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from gpuwarden_importing.model import UnreadableError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEAD_BYTES = 1024 * 1024
"""Bytes of a file that are read to detect its format."""
LINE_CHARS_MAX = 8 * 1024 * 1024
"""Longest line; a longer one is split, so that a file without line ends does not fill the memory."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOMS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
STDIN = Path("-")
DAMAGE = (OSError, EOFError, zlib.error, zstd.ZstdError)
"""Exceptions of reading a damaged or deleted file."""


def found(paths: Sequence[Path]) -> list[Path]:
    """The files of paths, in order; of a folder all files that are not hidden. Raises UnreadableError."""
    files: list[Path] = []
    for path in paths:
        if path != STDIN and path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            files += [
                p for p in inside if not any(q.startswith(".") for q in p.relative_to(path).parts)
            ]
        elif path == STDIN or path.exists():
            files.append(path)
        else:
            raise UnreadableError(f"{path}: there is no such file")
    return files


@dataclass(slots=True)
class LogSource:
    """An open file."""

    head: bytes
    stream: BinaryIO
    """Uncompressed, from the beginning."""
    trouble: str = ""
    """Why reading stopped before the end."""

    def lines(self) -> Iterator[str]:
        """Lines with their ends; invalid bytes become "�". At damage they end, and `trouble` is set."""
        encoding = next((name for bom, name in _BOMS if self.head.startswith(bom)), "utf-8")
        wrapped = io.TextIOWrapper(self.stream, encoding, errors="replace", newline=None)
        try:
            while line := wrapped.readline(LINE_CHARS_MAX):
                yield line
        except DAMAGE as error:
            self.trouble = f"it is damaged, or was deleted, from here on: {error}"

    def head_lines(self) -> list[str]:
        """The first lines; the last may be cut."""
        encoding = next((name for bom, name in _BOMS if self.head.startswith(bom)), "utf-8")
        return self.head.decode(encoding, "replace").splitlines()


class _Whole(io.RawIOBase):
    """A stream of the head that was read, and then the rest."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        into = memoryview(cast(bytearray, buffer))
        piece = self._head[: len(into)] if len(self._head) else self._rest.read(len(into))
        self._head = self._head[len(piece) :] if len(self._head) else self._head
        into[: len(piece)] = piece
        return len(piece)


def opened(path: Path) -> LogSource:
    """Open a file. Raises UnreadableError."""
    try:
        raw: IO[bytes] = sys.stdin.buffer if path == STDIN else path.open("rb")
        start = raw.read(4)
        plain: IO[bytes] = io.BufferedReader(_Whole(start, raw), 1 << 18)
        if start[:2] == _GZIP:
            plain = cast(IO[bytes], gzip.GzipFile(fileobj=plain))
        elif start == _ZSTD:
            plain = cast(IO[bytes], zstd.ZstdFile(plain))
        head = _read_up_to(plain, HEAD_BYTES)
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {error.strerror or error}") from error
    return LogSource(head, io.BufferedReader(_Whole(head, plain), 1 << 18))


def _read_up_to(stream: IO[bytes], size: int) -> bytes:
    parts: list[bytes] = []
    with suppress(*DAMAGE):  # reading the lines raises it again
        while size > 0 and (piece := stream.read(min(size, 1 << 14))):
            parts.append(piece)
            size -= len(piece)
    return b"".join(parts)
