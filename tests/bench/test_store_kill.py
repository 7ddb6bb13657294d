"""A store whose processes are killed, each alone and all at once, has every acknowledged row once."""

from pathlib import Path

import pytest
from bench.store_kill import PROCESSES, Run


@pytest.mark.slow
async def test_kills_lose_nothing_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parent.parent.parent
    parts = ("contract", "collector", "rules", "dashboards", ".")
    monkeypatch.setenv("PYTHONPATH", ":".join(str(root / part) for part in parts))
    monkeypatch.chdir(root)
    tally = await Run(tmp_path, agents=3, seed=7).run(kills=len(PROCESSES))
    assert tally.wrong == []
    assert dict(tally.kills) == dict.fromkeys(PROCESSES, 1)
    assert tally.acknowledged > 0
    assert tally.reads > 0
