from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwarden.clock import ManualClock

CAPTURES = Path(__file__).parents[4] / "shared" / "data" / "captures"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 7, 14, 8, 12, 38, tzinfo=UTC))


@pytest.fixture
def captures() -> Path:
    if not CAPTURES.is_dir():
        pytest.skip("no recordings of nvidia-smi at ../shared/data/captures")
    return CAPTURES
