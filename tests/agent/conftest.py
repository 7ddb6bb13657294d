from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from tests.agent.fakes import StubCollector

from gpuwarden.clock import ManualClock


@pytest.fixture
async def stub_collector() -> AsyncIterator[StubCollector]:
    """A running collector under the test's control."""
    stub = StubCollector()
    await stub.start()
    yield stub
    await stub.stop()


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that starts at a whole second."""
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 7, 14, 8, 12, 38, tzinfo=UTC))
