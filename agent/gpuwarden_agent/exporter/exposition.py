"""Writes the Prometheus text format 0.0.4: families, labels, escaping.

A family is once on a page, a series once in its family; a series without a value is not written.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_KINDS = ("gauge", "counter")


@dataclass(frozen=True, slots=True)
class Family:
    """One name with its series: label text, as `label_text` makes it, to value."""

    name: str
    kind: str
    """"gauge" or "counter"."""
    help: str
    series: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), f"{self.name!r} is not a name of a metric"
        assert self.kind in _KINDS, f"{self.name} has kind {self.kind!r}"

    def put(self, labels: str, value: float | None) -> None:
        """Add a series; the first one with these labels stays. None and NaN are absent."""
        if value is not None and math.isfinite(value):
            self.series.setdefault(labels, value)


def label_text(labels: Mapping[str, object]) -> str:
    """`{gpu="0",model="NVIDIA H100"}`, in the order given, without the labels that are None."""
    pairs = []
    for name, value in labels.items():
        assert _LABEL.fullmatch(name), f"{name!r} is not a name of a label"
        if value is not None:
            pairs.append(f'{name}="{_escaped_label(str(value))}"')
    return "{" + ",".join(pairs) + "}" if pairs else ""


def text_of(families: Iterable[Family]) -> str:
    """The page. Of two families with the same name the first is used; empty ones are not written."""
    by_name: dict[str, Family] = {}
    for family in families:
        if family.series:
            by_name.setdefault(family.name, family)
    return "".join(line for family in by_name.values() for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped_help(family.help)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for labels, value in family.series.items():
        yield f"{family.name}{labels} {_number(value)}\n"


def _number(value: float) -> str:
    """Shortest text that reads back as the same value; booleans are 1 and 0."""
    return repr(int(value)) if isinstance(value, int) else repr(value)


def _escaped_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
