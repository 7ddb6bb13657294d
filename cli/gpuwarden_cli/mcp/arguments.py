"""Describes the arguments of a tool as JSON Schema, and validates an assistant's values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_KINDS: Mapping[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "object": (dict,)}


class ArgumentError(ValueError):
    """An argument is wrong; the message is one line that says what the tool takes."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a tool."""

    name: str
    kind: str
    """string, integer or object."""
    meaning: str
    default: Any = None
    choices: Sequence[str] = ()
    least: int | None = None
    most: int | None = None
    is_required: bool = False

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema."""
        found: dict[str, Any] = {"type": self.kind, "description": self.meaning}
        more = {
            "default": self.default,
            "enum": list(self.choices) or None,
            "minimum": self.least,
            "maximum": self.most,
        }
        return found | {name: value for name, value in more.items() if value is not None}

    def checked(self, value: Any) -> Any:
        """The value, or the default. Raises ArgumentError."""
        if value is None and not self.is_required:
            return self.default
        if not isinstance(value, _KINDS[self.kind]) or isinstance(value, bool):
            raise ArgumentError(f"{self.name} must be of type {self.kind}")
        if self.choices and value not in self.choices:
            raise ArgumentError(
                f"{self.name} = {value!r} is not known; it is one of {', '.join(self.choices)}"
            )
        if isinstance(value, int) and not (self.least or 0) <= value <= (self.most or value):
            raise ArgumentError(
                f"{self.name} = {value} must be between {self.least} and {self.most}"
            )
        return value


def schema_of(takes: Sequence[Argument]) -> dict[str, Any]:
    """JSON Schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": {one.name: one.schema() for one in takes},
        "required": [one.name for one in takes if one.is_required],
        "additionalProperties": False,
    }


def checked(takes: Sequence[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values and defaults by argument. Raises ArgumentError."""
    known = {one.name: one for one in takes}
    for name in given:
        if name not in known:
            raise ArgumentError(
                f"there is no argument {name!r}; there are {', '.join(known) or 'none'}"
            )
    for one in takes:
        if one.is_required and given.get(one.name) is None:
            raise ArgumentError(f"{one.name} is needed: {one.meaning}")
    return {name: one.checked(given.get(name)) for name, one in known.items()}
