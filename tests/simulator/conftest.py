"""Shares what the simulator's tests need: a moment, runs of one workload, and the check of rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.agent import fakes
from tests.agent.conftest import stub_collector  # noqa: F401

from gpuwarden.metrics import METRICS, Kind
from gpuwarden.models import model_named
from gpuwarden.schema import WIRE_TABLES, Type
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_simulator import Placement, SimulatedNode, Workload

START_MS = 1_763_683_200_000
"""A Friday in November 2025, 00:00 UTC."""

STAMPED = {"ts", "node", "simulated", "agent_id", "boot_id"}
"""Columns that the sampler adds."""

PYTHON_TYPES: dict[Type, type] = {
    Type.STRING: str,
    Type.BOOL: bool,
    Type.FLOAT32: float,
    Type.FLOAT64: float,
}


def tick(node: SimulatedNode, ts_ms: int) -> tuple[int, set[str]]:
    """An instant and the tables that are due then, as the sampler asks for them."""
    return ts_ms, {table for table, s in node.tables.items() if ts_ms % (1000 * s) == 0}


def _check_row(table_name: str, row: Row) -> None:
    table = WIRE_TABLES[table_name]
    for name, value in row.items():
        column = table.column(name)
        if value is None:
            continue
        assert type(value) is PYTHON_TYPES.get(column.type, int), (table_name, name, value)
        if column.limits:
            low, high = column.limits
            assert low <= value <= high, (table_name, name, value)
    for column in table.columns:
        if column.required and column.name not in STAMPED:
            assert row.get(column.name) is not None, (table_name, column.name)


@pytest.fixture(scope="session")
def fake_probe() -> Callable[..., Any]:
    return fakes.fake_probe


@pytest.fixture(scope="session")
def until_true() -> Callable[..., Any]:
    return fakes.until_true


@pytest.fixture(scope="session")
def start_ms() -> int:
    return START_MS


@pytest.fixture(scope="session")
def check_reading() -> Callable[[Reading], None]:
    """Asserts that every cell is of its column's type and within its limits."""

    def check(reading: Reading) -> None:
        for table, rows in reading.items():
            for row in rows:
                _check_row(table, row)

    return check


@pytest.fixture(scope="session")
def check_counters() -> Callable[[str, Row, Row], None]:
    """Asserts that no counter of a table falls from one row to the next."""

    def check(table: str, before: Row, after: Row) -> None:
        for metric in METRICS[table]:
            is_there = metric.name in before and metric.name in after
            if metric.kind is Kind.COUNTER and is_there:
                assert after[metric.name] >= before[metric.name], metric.name  # type: ignore[operator]

    return check


@dataclass(frozen=True)
class Run:
    """One GPU that did one thing for a while."""

    gpu: Sequence[Row]
    host: Sequence[Row]
    process: Sequence[Row]

    def mean(self, column: str) -> float:
        """Mean of a column over the rows of the table that has it; absent cells left out."""
        for rows in (self.gpu, self.host, self.process):
            cells = [row[column] for row in rows if row.get(column) is not None]
            if cells:
                return sum(cells) / len(cells)  # type: ignore[arg-type]
        raise KeyError(column)

    def growth(self, column: str) -> float:
        """Growth of a counter of gpu_samples over the run."""
        return self.gpu[-1][column] - self.gpu[0][column]  # type: ignore[operator,return-value]

    def share_with_bit(self, bit: int) -> float:
        """Share of samples whose clocks_event_reasons has the bit."""
        return sum(bool(row["clocks_event_reasons"] & bit) for row in self.gpu) / len(self.gpu)  # type: ignore[operator]


@pytest.fixture(scope="session")
def runs() -> Mapping[Workload, Run]:
    """Half an hour of each workload on one H100."""
    found = {}
    for workload in Workload:
        node = SimulatedNode("one", 1, model_named("H100-SXM-80GB"), 3, [Placement((0,), workload)])
        readings = [node.read(*tick(node, START_MS + 1000 * s)) for s in range(1800)]
        found[workload] = Run(
            [reading["gpu_samples"][0] for reading in readings],
            [reading["host_samples"][0] for reading in readings],
            [row for reading in readings for row in reading.get("process_samples", ())],
        )
    return found
