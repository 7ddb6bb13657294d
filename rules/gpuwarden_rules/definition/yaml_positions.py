"""Reads YAML with positions, so that every problem has its line and column."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpuwarden.durations import seconds_of

Scalar = bool | int | float | str
Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True, order=True)
class FileProblem:
    """A problem of a file, with its position; line and column count from 1."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


class RuleFileError(ValueError):
    """A file has problems. The message has one line for each, in file order."""

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))


TEST_SUFFIX = ".test.yaml"
"""Ends the name of a file with test cases."""


def yaml_files(paths: Iterable[Path], *, tests: bool) -> list[Path]:
    """The files that are named, and `*.yaml` of folders: those with test cases, or the others."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    return [path for path in found if path.name.endswith(TEST_SUFFIX) == tests]


def read_text(path: Path) -> str:
    """The text of a file. Raises RuleFileError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RuleFileError([FileProblem(str(path), 1, 1, f"cannot be read: {reason}")]) from error


class YamlReader:
    """Reads one YAML document; collects problems instead of stopping at the first.

    The methods that read a value return None where they have noted a problem. A node that is None, an
    optional key that the file does not have, reads as nothing and is no problem.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.problems: list[FileProblem] = []
        self._lines = text.splitlines()
        self._text = text
        self._merging: list[Node] = []

    def root(self) -> Node | None:
        """The document's root node."""
        try:
            node = _composed(self._text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            self._note(line, column, f"not valid YAML: {error.problem or error.context}")
            return None
        except (yaml.YAMLError, RecursionError) as error:
            self._note(1, 1, f"not valid YAML: {' '.join(str(error).split()) or 'nested too deep'}")
            return None
        if node is None:
            self._note(1, 1, "the file is empty")
        return node

    def fields(
        self, node: Node | None, *, required: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> dict[str, Node]:
        """Values by key of a mapping; notes unknown keys, and required keys that are missing."""
        known = (*required, *optional)
        found = self.entries(node)
        for key, (key_node, _) in found.items():
            if key not in known:
                self.note(key_node, f"unknown key {key!r}; known: {', '.join(known)}")
        for key in required:
            if key not in found and isinstance(node, MappingNode):
                self.note(node, f"key {key!r} is missing")
        return {key: value for key, (_, value) in found.items() if key in known}

    def entries(self, node: Node | None) -> dict[str, tuple[Node, Node]]:
        """Key node and value node by key of a mapping with any keys."""
        if node is None:
            return {}
        if not isinstance(node, MappingNode):
            self.note(node, f"must be a mapping of keys to values, not {_described(node)}")
            return {}
        found: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key_node, value in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = self._merged(value)
            elif not isinstance(key_node, ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                self.note(key_node, "a key must be a text")
            elif key_node.value in found:
                self.note(key_node, f"key {key_node.value!r} stands twice")
            else:
                found[key_node.value] = (key_node, value)
        return {**merged, **found}

    def _merged(self, node: Node) -> dict[str, tuple[Node, Node]]:
        """The entries of `<<: *anchor`; each mapping once, because an anchor can contain itself."""
        if node in self._merging:
            self.note(node, "a mapping cannot be merged into itself")
            return {}
        self._merging.append(node)
        found = self.entries(node)
        self._merging.pop()
        return found

    def items(self, node: Node | None) -> list[Node]:
        """Nodes of a list."""
        if isinstance(node, SequenceNode):
            return list(node.value)
        if node is not None:
            self.note(node, f"must be a list, not {_described(node)}")
        return []

    def scalar(self, node: Node | None) -> Scalar | None:
        """A text, number or boolean."""
        if node is None:
            return None
        if isinstance(node, ScalarNode):
            try:
                value = SafeConstructor().construct_object(node)
            except (ValueError, yaml.YAMLError):
                value = None
            if isinstance(value, bool | int | float | str):
                return value
        self.note(node, f"must be a text, a number or a boolean, not {_described(node)}")
        return None

    def text(self, node: Node | None) -> str | None:
        """A text; numbers and booleans need quotes."""
        if isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:str":
            return str(node.value)
        if node is not None:
            self.note(node, f"must be a text, not {_described(node)}")
        return None

    def choice(self, node: Node | None, key: str, known: type[Choice]) -> Choice | None:
        """A text that is a value of an enumeration; `key` is for the message."""
        text = self.text(node)
        if node is None or text is None:
            return None
        if text not in list(known):
            self.note(node, f"{key} {text!r} must be one of {', '.join(known)}")
            return None
        return known(text)

    def boolean(self, node: Node | None) -> bool | None:
        """True or false."""
        value = self.scalar(node)
        if node is not None and value is not None and not isinstance(value, bool):
            self.note(node, "must be true or false")
        return value if isinstance(value, bool) else None

    def parameters(self, node: Node | None) -> dict[str, tuple[Node, Scalar]]:
        """Key node and value of each entry of a mapping; durations as seconds."""
        found = {}
        for key, (key_node, value_node) in self.entries(node).items():
            value = self.scalar(value_node)
            seconds = seconds_of(value) if isinstance(value, str) else None
            if value is not None:
                found[key] = key_node, value if seconds is None else seconds
        return found

    def note(self, node: Node, message: str, offset: int | None = None) -> None:
        """Add a problem at a node, or at an offset of its text."""
        line, column = self.position(node, offset)
        self._note(line, column, message)

    def position(self, node: Node, offset: int | None = None) -> tuple[int, int]:
        """Line and column of a node, or of an offset of its text where that is known."""
        line, column = node.start_mark.line, node.start_mark.column
        if offset is None or not isinstance(node, ScalarNode):
            return line + 1, column + 1
        if node.style == "|":
            before = node.value[:offset]
            line += 1 + before.count("\n")
            start = before.rfind("\n") + 1
            text = node.value[start:].split("\n", 1)[0]
            original = self._lines[line] if line < len(self._lines) else text
            return line + 1, len(original) - len(text) + offset - start + 1
        if node.start_mark.line == node.end_mark.line and node.style != ">":
            return line + 1, column + offset + (2 if node.style else 1)
        return line + 1, column + 1

    def raise_problems(self) -> None:
        """Raise RuleFileError if there are problems."""
        if self.problems:
            raise RuleFileError(self.problems)

    def _note(self, line: int, column: int, message: str) -> None:
        self.problems.append(FileProblem(self.path, line, column, message))


def _described(node: Node) -> str:
    match node:
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list"
        case _:
            return {"null": "nothing", "str": "a text", "int": "a number", "float": "a number"}.get(
                node.tag.rpartition(":")[2], f"{node.value}"
            )


_DEPTH_MAX = 100
"""Deepest nesting that libyaml composes: its composer calls itself without a limit."""


def _composed(text: str) -> Node | None:
    """The document's root node, as PyYAML composes it; by libyaml where it is there, six times as fast.

    PyYAML itself reads a text with tabs, which libyaml takes for spaces, and one with an error, which it words better.
    """
    loader = getattr(yaml, "CSafeLoader", None)
    if loader is not None and "\t" not in text:
        with suppress(yaml.YAMLError, UnicodeEncodeError):
            if _depth(text, loader) <= _DEPTH_MAX:
                return yaml.compose(text, Loader=loader)
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _depth(text: str, loader: type[Any]) -> int:
    """Nesting of the mapping or list that lies deepest. Raises yaml.YAMLError."""
    depth = deepest = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            deepest = max(deepest, depth)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return deepest
