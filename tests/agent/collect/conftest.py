from pathlib import Path

import pytest

CAPTURES = Path(__file__).parents[4] / "shared" / "data" / "captures"


@pytest.fixture
def captures() -> Path:
    if not CAPTURES.is_dir():
        pytest.skip("no recordings of nvidia-smi at ../shared/data/captures")
    return CAPTURES
