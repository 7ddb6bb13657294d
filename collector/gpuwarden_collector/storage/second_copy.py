"""Keeps a second copy of segments on another collector, the standby.

`SecondCopy` sends the bytes that were appended to this collector's segments. The standby's `CopyFolder` appends
them to its own files and syncs these before it answers. A copied folder is a data folder without a state file:
a collector that opens it takes the identity from the segments' headers and seals them. From then on the standby
refuses copies with that identity (`recovered`), because their segment numbers count as sealed.
"""

import http.client
import json
import os
import re
import shutil
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuwarden.clock import Clock
from gpuwarden.files import sync_folder, write_whole
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.segment import (
    FOLDER,
    SegmentError,
    read_header,
    segment_numbers,
    segment_path,
    write_all,
)

COPIES = "copies"
"""Folder in the standby's data folder, with a folder for each collector."""
PIECE_BYTES_MAX = 8 * 1024 * 1024
ANSWER_S = 5.0
AGAIN_AFTER_S = 1.0
"""Least time between a failure and the next try; until then batches are refused at once."""
_RECOVERED = ".recovered"
_SENDER = ".sender"
_IDENTITY = re.compile(r"[0-9A-Za-z-]{1,64}")


class CopyConflictError(Exception):
    """The sent bytes do not continue the copy; the message is one line."""


class CopyFolder:
    """The copies that a standby keeps for other collectors."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / COPIES

    def collectors(self) -> list[str]:
        """Identities of the collectors that have copies here. Raises OSError."""
        if not self._folder.exists():
            return []
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir())

    def data_dir(self, collector: str) -> Path:
        """The folder of a collector's copies. Raises CopyConflictError for a name that is not an identity."""
        if not _IDENTITY.fullmatch(collector):
            raise CopyConflictError(f"{collector!r} is not the identity of a collector")
        return self._folder / collector

    def extents(self, collector: str) -> dict[int, tuple[int, int]]:
        """Size and salt of each segment. Raises CopyConflictError, SegmentError, OSError."""
        self._refuse_recovered(collector)
        folder = self.data_dir(collector) / FOLDER
        paths = {number: segment_path(folder, number) for number in segment_numbers(folder)}
        return {n: (p.stat().st_size, read_header(p).salt) for n, p in paths.items()}

    def append(
        self, collector: str, segment: int, offset: int, piece: bytes, *, oldest: int
    ) -> None:
        """Append and sync a piece of a segment's copy, and delete the copies of segments before `oldest`.

        Raises CopyConflictError when the copy does not end at `offset`, OSError.
        """
        self._refuse_recovered(collector)
        if oldest > segment:
            raise CopyConflictError(f"the oldest segment, {oldest}, is behind segment {segment}")
        folder = self.data_dir(collector) / FOLDER
        if not folder.exists():
            folder.mkdir(parents=True)
            for made in (folder.parent, folder.parent.parent, folder.parent.parent.parent):
                sync_folder(made)
        path = segment_path(folder, segment)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(file).st_size
            if size != offset:
                raise CopyConflictError(
                    f"the copy of segment {segment} has {size} bytes, not {offset}"
                )
            write_all(file, [piece], offset)
            os.fsync(file)
        except OSError:
            # Remove the part of the piece that was written.
            os.ftruncate(file, offset)
            raise
        finally:
            os.close(file)
        if not offset:
            sync_folder(folder)
        for number in segment_numbers(folder):
            if number < oldest:
                segment_path(folder, number).unlink(missing_ok=True)

    def claim(self, collector: str, sender: str) -> None:
        """Accept copies of a collector from its first sender only; "": from any sender.

        Raises CopyConflictError for another sender, OSError.
        """
        path = self._folder / f"{self.data_dir(collector).name}{_SENDER}"
        try:
            first = path.read_text().strip()
        except FileNotFoundError:
            if sender:
                self._folder.mkdir(exist_ok=True)
                write_whole(path, f"{sender}\n".encode(), mode=0o640)
            return
        if sender and sender != first:
            raise CopyConflictError(
                f"the copies of collector {collector} belong to another token ({first}): if that token is lost,"
                f" delete {path}"
            )

    def note_recovered(self, collector: str, at: str) -> None:
        """Accept no more copies of that collector. Raises OSError."""
        path = self._folder / f"{collector}{_RECOVERED}"
        with path.open("w") as file:
            file.write(f"{at}\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)

    def remove(self, collector: str) -> None:
        """Delete the copies of a collector. Raises OSError."""
        shutil.rmtree(self.data_dir(collector))

    def _refuse_recovered(self, collector: str) -> None:
        path = self._folder / f"{self.data_dir(collector).name}{_RECOVERED}"
        if path.exists():
            raise CopyConflictError(
                f"the copies of collector {collector} were recovered here on {path.read_text().strip()}: stop it, move"
                " its data folder away, and start it with a new one"
            )


@dataclass(frozen=True, slots=True)
class Standby:
    """The collector that keeps the second copy."""

    url: str
    token_file: Path | None = None
    tls_ca: Path | None = None


class SecondCopy:
    """Sends one collector's segments to its standby. Only the writer thread uses it."""

    def __init__(self, data_dir: Path, collector: str, standby: Standby, clock: Clock) -> None:
        """Raises StartError for an invalid URL or file."""
        self._folder = data_dir / FOLDER
        self._path = f"/v1/copies/{collector}"
        self._standby = standby
        self._clock = clock
        parts = urlsplit(standby.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartError(f"standby_url: {standby.url!r} is not the URL of a collector")
        try:
            context = ssl.create_default_context(cafile=standby.tls_ca)
        except OSError as error:
            raise StartError(f"standby_tls_ca: {standby.tls_ca}: {error}") from error
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._connection = (
            http.client.HTTPSConnection(parts.hostname, port, timeout=ANSWER_S, context=context)
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, port, timeout=ANSWER_S)
        )
        self._copied: dict[int, int] | None = None
        """Bytes of each segment that the standby has; None: ask it again after a failure."""
        self._headers: dict[int, tuple[int, int]] = {}
        """End of each segment's header, and its salt."""
        self._oldest = 0
        """The oldest segment here; the standby deletes copies of earlier ones."""
        self._not_before_s = 0.0
        self._failure = ""

    def bring_up_to_date(self, segment: int, end: int) -> None:
        """Copy all frames up to position `end` of the current segment to the standby.

        Raises StoreUnavailableError with a sentence; the next call sends the missing bytes.
        """
        if self._clock.monotonic() < self._not_before_s:
            raise StoreUnavailableError(self._failure)
        try:
            if self._copied is None:
                self._copied = self._fetch_extents()
            known = self._copied
            if known.get(segment):
                self._send(segment, end)
                return
            # A new segment: complete the earlier ones first.
            numbers = segment_numbers(self._folder)
            self._oldest = min([segment, *numbers])
            for number in numbers:
                path = segment_path(self._folder, number)
                with suppress(FileNotFoundError):  # the lake holds it
                    self._send(number, end if number == segment else path.stat().st_size)
        except (OSError, http.client.HTTPException, SegmentError, _RefusedError) as error:
            self._connection.close()
            self._copied = None
            self._not_before_s = self._clock.monotonic() + AGAIN_AFTER_S
            self._failure = f"the standby {self._standby.url} has no second copy: {_why(error)}"
            raise StoreUnavailableError(self._failure) from error

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _fetch_extents(self) -> dict[int, int]:
        """Ask the standby for the size of each copy of a segment that is here."""
        copied = {}
        for number, (size, salt) in _extents(self._request("GET", self._path)).items():
            path = segment_path(self._folder, number)
            if not path.exists():
                continue
            if salt != self._header(number)[1] or size > path.stat().st_size:
                raise _RefusedError(
                    f"its segment {number} differs from this collector's, which was restored from a backup or lost"
                    f" bytes: recover the copies there first (docs/cluster.md)"
                )
            copied[number] = size
        return copied

    def _header(self, number: int) -> tuple[int, int]:
        if number not in self._headers:
            header = read_header(segment_path(self._folder, number))
            self._headers = {n: h for n, h in self._headers.items() if n > number - 100}
            self._headers[number] = header.end, header.salt
        return self._headers[number]

    def _send(self, number: int, end: int) -> None:
        """Send the bytes of a segment that the standby lacks. A segment without frames is not sent, because its
        number may be used again."""
        assert self._copied is not None
        if end <= self._header(number)[0]:
            return
        at = self._copied.get(number, 0)
        if at >= end:
            return
        with segment_path(self._folder, number).open("rb") as file:
            while at < end:
                piece = os.pread(file.fileno(), min(PIECE_BYTES_MAX, end - at), at)
                if not piece:
                    raise _RefusedError(f"segment {number} ends at {at}, before {end}")
                where = f"{self._path}/{number}?offset={at}&oldest={self._oldest}"
                self._request("PUT", where, piece)
                at += len(piece)
                self._copied[number] = at

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream"} if body is not None else {}
        if self._standby.token_file is not None:
            token = self._standby.token_file.read_text().strip()
            headers["Authorization"] = f"Bearer {token}"
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status not in (200, 204):
            raise _RefusedError(_sentence(answer.status, content))
        return content


class _RefusedError(Exception):
    """The standby refuses the copy; the message says why."""


def _sentence(status: int, content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return f"it answers with status {status}"


def _extents(content: bytes) -> Mapping[int, tuple[int, int]]:
    try:
        segments = json.loads(content)["segments"].items()
        return {int(number): (int(one["bytes"]), int(one["salt"])) for number, one in segments}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _RefusedError(f"its list of copies cannot be read: {error}") from error


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_S:g} s"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__
