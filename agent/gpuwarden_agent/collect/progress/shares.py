"""Shares limits between the users of a host, so that what one of them writes hides nobody else's."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice, zip_longest
from typing import TypeVar

FILES_MAX = 256
NAMES_A_READING = 10_000
"""Names of a folder that one reading looks at: of a larger folder the next one looks at the next."""
COUNT_EVERY_S = 60.0
_NAMES_KEPT_S = 3600.0
NAMELESS = "users without a name on this host"

T = TypeVar("T")
_NOBODY = object()


def share_of(username: str) -> str:
    """The user of a share. All uids without an account have one together: a user can have thousands (subuid)."""
    return NAMELESS if username.isdigit() else username


def in_turn(queues: Mapping[str, Mapping[T, None]]) -> Iterator[T]:
    """The first of each queue, then the second of each, and so on."""
    turns = chain.from_iterable(zip_longest(*queues.values(), fillvalue=_NOBODY))
    return (item for item in turns if item is not _NOBODY)  # type: ignore[misc]


class FolderShares:
    """Which files of a folder are read: as many of each user, until there are `FILES_MAX`."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        self._entries: Iterator[os.DirEntry[str]] | None = None
        self._names: dict[str, dict[str, None]] = {}
        """Names by user, at most `FILES_MAX` of each."""
        self._pass: dict[str, dict[str, None]] = {}
        """Those of the pass through the folder that has begun."""
        self._more: Counter[str] = Counter()
        """Number of files by user for which there was no room in this pass."""
        self._counted_s = float("-inf")
        self._shares: dict[int, str] = {}
        self._shares_s = 0.0

    def choose(self, folder: int, now_s: float) -> tuple[list[str], Counter[str]]:
        """Names of the files to read, and at times the number of files by user that are not read. Raises OSError."""
        if now_s - self._shares_s > _NAMES_KEPT_S:
            self._shares, self._shares_s = {}, now_s
        is_whole = self._look_at_names(folder)
        chosen = list(islice(in_turn(self._names), FILES_MAX))
        left: Counter[str] = Counter()
        if is_whole:
            if now_s - self._counted_s >= COUNT_EVERY_S:
                read = set(chosen)
                left = self._more + Counter(
                    {user: len(names.keys() - read) for user, names in self._names.items()}
                )
                self._counted_s = now_s if left else self._counted_s
            self._more = Counter()
        return chosen, left

    def _look_at_names(self, folder: int) -> bool:
        """Look at the next names; whether the folder ends with them."""
        if self._entries is None:
            self._entries, self._pass = os.scandir(folder), {}
        number = 0
        for entry in islice(self._entries, NAMES_A_READING):
            number += 1
            if not entry.name.startswith("."):
                with suppress(OSError):  # removed meanwhile
                    self._add(
                        entry.name, os.stat(entry.name, dir_fd=folder, follow_symlinks=False).st_uid
                    )
        if number == NAMES_A_READING:
            return False
        self._entries = None
        self._names = self._pass
        return True

    def _add(self, name: str, uid: int) -> None:
        user = self._shares.get(uid)
        if user is None:
            user = self._shares[uid] = share_of(self._name_of(uid))
        for names in (self._names, self._pass):
            mine = names.setdefault(user, {})
            if len(mine) < FILES_MAX:
                mine[name] = None
            elif names is self._pass and name not in mine:
                self._more[user] += 1

    def forget(self, name: str) -> None:
        """Give the place of a removed file to another."""
        for names in self._names.values():
            names.pop(name, None)
