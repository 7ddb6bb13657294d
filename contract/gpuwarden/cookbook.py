"""Reads the named questions of `cookbook.sql`: SQL with parameters, for commands, pages, docs and clients."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from math import isfinite
from typing import Any

from gpuwarden.durations import instant_before

SINCE = "since"
"""A parameter that is given as a duration before now, and bound as a timestamp."""
_ENTRY = re.compile(
    r"^-- ## (?P<topic>[^\n]+)\n"
    r"|^-- (?P<name>[a-z-]+): (?P<title>[^\n]+)\n(?P<parameters>(?:-- \$[^\n]+\n)*)(?P<sql>SELECT.*?);\n",
    re.DOTALL | re.MULTILINE,
)
_PARAMETER = re.compile(r"-- \$(\w+) (\S+): ([^\n]+)")
_UNITS = {"s": "SECOND", "m": "MINUTE", "h": "HOUR", "d": "DAY"}


@dataclass(frozen=True, slots=True)
class QuestionParameter:
    """A parameter of a question."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and its SELECT."""

    name: str
    topic: str
    title: str
    sql: str
    parameters: tuple[QuestionParameter, ...]

    @property
    def plain_sql(self) -> str:
        """The SELECT with its defaults inserted, ready to run."""
        sql = self.sql
        for one in self.parameters:
            is_time = one.name == SINCE
            value = _before_now(one.default) if is_time else _literal(one.default)
            sql = sql.replace(f"${one.name}::TIMESTAMP" if is_time else f"${one.name}", value)
        return sql

    def values(self, given: Mapping[str, str], now: datetime) -> dict[str, Any]:
        """Values to bind, given ones and defaults. `now` is aware. Raises ValueError."""
        known = {one.name: one for one in self.parameters}
        for name in given:
            if name not in known:
                takes = ", ".join(known) or "none"
                raise ValueError(f"{self.name} has no parameter {name}; it takes {takes}")
        return {
            name: _value(name, given.get(name, one.default), one, now)
            for name, one in known.items()
        }


def _value(name: str, text: str, parameter: QuestionParameter, now: datetime) -> Any:
    if name == SINCE:
        return instant_before(now, text, f"{name} =")
    is_text = isinstance(_number(parameter.default), str)
    value = text if is_text else _number(text)
    if value == text and not is_text:
        raise ValueError(f"{name} = {text} is not a number")
    return value


def _number(text: str) -> int | float | str:
    """The number that the text is, else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and isfinite(value) else text


def _before_now(duration: str) -> str:
    return f"now()::TIMESTAMP - INTERVAL {duration[:-1]} {_UNITS[duration[-1]]}"


def _literal(text: str) -> str:
    value = _number(text)
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


@cache
def questions() -> Sequence[Question]:
    """All questions in the order of the file, by topic."""
    from importlib.resources import files

    found, topic = [], ""
    for entry in _ENTRY.finditer((files("gpuwarden") / "cookbook.sql").read_text()):
        if entry["topic"]:
            topic = entry["topic"]
            continue
        parameters = tuple(
            QuestionParameter(*groups) for groups in _PARAMETER.findall(entry["parameters"])
        )
        found.append(Question(entry["name"], topic, entry["title"], entry["sql"], parameters))
    return found


def question_named(name: str) -> Question:
    """The question with that name. Raises ValueError, which names the nearest one."""
    by_name = {one.name: one for one in questions()}
    if name not in by_name:
        near = get_close_matches(name, by_name, n=1)
        hint = f"is it {near[0]}? " if near else ""
        raise ValueError(f"there is no question {name}; {hint}`gpuwarden ask` lists them")
    return by_name[name]
