"""Checks names of nodes, which are host names or addresses."""

import re
from collections.abc import Iterable

CHARACTERS_MAX = 253
"""As of a host name in DNS."""
_NAME = re.compile(rf"[A-Za-z0-9_:][A-Za-z0-9._:-]{{0,{CHARACTERS_MAX - 1}}}")


class NodeNameError(ValueError):
    """A text cannot be the name of a node; the message is one line."""


def is_node_name(name: str) -> bool:
    """Whether a text can be the name of a node."""
    return _NAME.fullmatch(name) is not None


def check_node_name(name: object) -> str:
    """The name. Raises NodeNameError."""
    if not isinstance(name, str) or not is_node_name(name):
        raise NodeNameError(
            f"{str(name)[:100]!r} cannot be the name of a node: 1 to {CHARACTERS_MAX} letters, digits, '.', '-', '_' and"
            " ':', not beginning with '.' or '-'"
        )
    return name


def twin_of(name: str, names: Iterable[str]) -> str | None:
    """One of `names` that differs from `name` in upper and lower case alone, as two host names never do."""
    folded = name.casefold()
    return next((one for one in names if one != name and one.casefold() == folded), None)
