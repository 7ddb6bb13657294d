"""Shares what the tests of the readers need: a text in, rows by table out."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_importing.model import ImportTally, Origin, Reader

AT_MS = 1_780_000_000_000
DATA = Path(__file__).parents[3] / "shared" / "data"


class Imported:
    """The rows of a reader by table, as dicts, and what it left out."""

    def __init__(self, reader: Reader, text: str, origin: Origin) -> None:
        self.tally = ImportTally()
        self.tables: dict[str, list[dict[str, Any]]] = {}
        for table, row in reader(lines(text), origin, self.tally):
            self.tables.setdefault(table, []).append(row)
        for table, rows in self.tables.items():
            names = {name: None for row in rows for name in row}
            self.tables[table] = [{name: row.get(name) for name in names} for row in rows]

    def __getitem__(self, table: str) -> list[dict[str, Any]]:
        return self.tables[table]


def lines(text: str) -> Iterator[str]:
    """Lines with their ends."""
    return iter(text.splitlines(keepends=True))


@pytest.fixture(scope="session")
def imported() -> Callable[..., Imported]:
    """`imported(reader, text, node="n1", ...)`."""

    def run(reader: Reader, text: str, **origin: Any) -> Imported:
        return Imported(reader, text, Origin(**{"node": "n1", "at_ms": AT_MS, **origin}))

    return run


@pytest.fixture
def data() -> Path:
    """Real captures, where they are."""
    if not DATA.is_dir():
        pytest.skip("no captures beside the checkout (../shared/data)")
    return DATA


_SECTION = re.compile(r"\n#{20,}\n# (\w+) :: .*\n# \$ (.*?) ?\n(?:# .*\n)*#{20,}\n")
CAPTURES = ("h100-80gb-hbm3", "h100-mig", "h200", "l40s", "geforce-rtx-2080-super")


@pytest.fixture
def capture(data: Path) -> Callable[[str, str, str], str]:
    """`capture(machine, "load", "nvidia-smi -q")`: what a command printed, by how the command begins."""

    def find(machine: str, mode: str, command: str) -> str:
        (path,) = (data / "captures").glob(f"*{machine}*")
        parts = _SECTION.split(path.read_text())
        for at in range(1, len(parts), 3):
            said = parts[at + 1]
            more = (f"{command} -c", f"{command}=")
            if parts[at] == mode and (said == command or said.startswith(more)):
                return parts[at + 2]
        raise AssertionError(f"no {command} of {machine}, {mode}")

    return find
