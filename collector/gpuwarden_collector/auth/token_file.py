"""Reads and writes the file of tokens: JSON, mode 0600, used by the collector and by `gpuwarden token`.

A change holds a lock, so that two changes at the same time do not undo each other. A reader needs no lock, because the
file is replaced as a whole. The collector alone writes when each token was last used, into a second file.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuwarden.data_folder import TOKENS
from gpuwarden.files import write_whole
from gpuwarden_collector.auth.token_store import TokenEntry, TokenStore

NAME = TOKENS
VERSION = 1

R = TypeVar("R")


class TokenFileError(Exception):
    """The file cannot be read or written; one line with the path."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    tokens: list[TokenEntry]


def load(path: Path) -> TokenStore:
    """Read the tokens; none if there is no file. Raises TokenFileError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return TokenStore()
    except OSError as error:
        raise TokenFileError(
            f"{path}: {error.strerror}: give it to the collector's user"
        ) from error
    try:
        document = msgspec.json.decode(content, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"{path}: this is not a file of tokens ({error})"
        raise TokenFileError(f"{what}: restore it, or remove it and create new tokens") from error
    if document.version != VERSION:
        raise TokenFileError(f"{path}: version {document.version}; this gpuwarden knows {VERSION}")
    if any(entry.created_at.tzinfo is None for entry in document.tokens):
        raise TokenFileError(f"{path}: a time in it has no time zone: write it as UTC, with a Z")
    return TokenStore(document.tokens)


def edit(path: Path, change: Callable[[TokenStore], tuple[TokenStore, R]]) -> R:
    """Change the tokens; if `change` raises, they stay as they were. Raises TokenFileError."""
    with _locked(path):
        before = load(path)
        after, result = change(before)
        if after is not before:
            document = _Document(VERSION, after.entries)
            content = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
            _write(path, content)
    return result


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # A lock on the file itself would not work, because each change replaces the file.
    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.geteuid() == 0:
                owner = path.parent.stat()
                os.fchown(handle, owner.st_uid, owner.st_gid)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except BaseException:
            os.close(handle)
            raise
    except FileNotFoundError as error:
        raise TokenFileError(
            f"{path.parent} is missing: start the collector once, which creates its data folder"
        ) from error
    except OSError as error:
        raise TokenFileError(
            f"{lock}: {error.strerror}: run this as the collector's user"
        ) from error
    try:
        yield
    finally:
        os.close(handle)


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise TokenFileError(f"{path}: {error.strerror}: the tokens have not changed") from error


def last_used(path: Path) -> dict[str, datetime]:
    """By id when each token was last used, to about a minute; empty: unknown."""
    try:
        found = msgspec.json.decode(_used_path(path).read_bytes(), type=dict[str, datetime])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {name: at for name, at in found.items() if at.tzinfo is not None}


def write_last_used(path: Path, used: Mapping[str, datetime]) -> None:
    """Write when each token was last used. Raises TokenFileError."""
    document = {name: at.isoformat(timespec="seconds") for name, at in used.items()}
    _write(_used_path(path), json.dumps(document, indent=1).encode() + b"\n")


def _used_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.used")
