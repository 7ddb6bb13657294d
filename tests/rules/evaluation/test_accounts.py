"""The cost of an alert is that of its minutes in `waste`, each once, wherever they are stored."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.waste import WasteScope, waste_sql
from gpuwarden_rules.evaluation.accounts import CostSpan, accounts_of_spans
from gpuwarden_rules.testing.database import MemoryDatabase

BEGIN = datetime(2026, 3, 1, 6, tzinfo=UTC)
ROLLED_UNTIL = BEGIN + timedelta(hours=9)
MINUTES = 11 * 60
GPUS = ("GPU-a", "GPU-b")


@pytest.fixture(scope="module")
def database() -> Iterator[MemoryDatabase]:
    """Eleven hours of two GPUs, of which nine are rolled up; every fourth minute has work, each minute its own price."""
    memory = MemoryDatabase()
    begin, rolled = BEGIN.replace(tzinfo=None), ROLLED_UNTIL.replace(tzinfo=None)
    for number, uuid in enumerate(GPUS):
        memory.insert("gpus", [{
            "gpu_uuid": uuid, "node": "n1", "gpu": number, "model": "H100", "usd_per_hour": 3.0 + number, "simulated": False,
            "first_seen_at": BEGIN, "last_seen_at": BEGIN + timedelta(minutes=MINUTES),
        }])  # fmt: skip
        memory.execute(
            "INSERT INTO gpu_1m BY NAME "
            f"SELECT TIMESTAMP '{begin}' + to_minutes(m) AS ts, 'n1' AS node, '{uuid}' AS gpu_uuid, {number} AS gpu, "
            "false AS simulated, 60 AS samples, 0 AS detail_samples, 0 AS health_samples, "
            "if(m % 4 = 0, 10, 60) AS idle_seconds, if(m % 4 = 0, 50, 0) AS busy_seconds, 0 AS unknown_seconds "
            f"FROM range({MINUTES}) r(m)"
        )
    memory.execute(f"INSERT INTO waste_1h BY NAME {waste_sql(WasteScope(begin, rolled))}")
    yield memory
    memory.close()


def usd_of_minutes(span: CostSpan) -> float:
    """By hand: a free minute is one in four of which nothing ran."""
    first = span.since.replace(second=0)
    minutes = range(int((first - BEGIN) / timedelta(minutes=1)), MINUTES)
    free = [m for m in minutes if m % 4 and BEGIN + timedelta(minutes=m) < span.until]
    return len(free) * (3.0 + GPUS.index(span.gpu_uuid or "")) / 60


_SECONDS = st.integers(0, 60 * MINUTES) | st.integers(0, MINUTES).map(lambda minute: 60 * minute)
_SPANS = st.lists(st.tuples(st.sampled_from(GPUS), _SECONDS, _SECONDS), min_size=3, max_size=8)


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=_SPANS)
def test_a_span_costs_each_of_its_minutes_once_wherever_hours_begin_and_are_rolled_up(
    database: MemoryDatabase, drawn: list[tuple[str, int, int]]
) -> None:
    spans = [
        CostSpan(
            str(number), "n1", uuid, ("free",),
            BEGIN + timedelta(seconds=min(ends)), BEGIN + timedelta(seconds=max(ends)),
        )
        for number, (uuid, *ends) in enumerate(drawn)
    ]  # fmt: skip
    accounts = asyncio.run(accounts_of_spans(database, spans, ROLLED_UNTIL))
    for span in spans:
        account = accounts.get(span.key)
        assert (account.usd if account else 0.0) == pytest.approx(usd_of_minutes(span))
