"""Access keeps up with its files, and a damaged one locks nobody out and admits nobody."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.access import Scope
from gpuwarden.clock import ManualClock
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.auth.access_control import LAST_USED_INTERVAL_S, AccessControl
from gpuwarden_collector.auth.token_file import NAME, last_used
from gpuwarden_collector.settings import CollectorSettings


async def test_a_damaged_file_is_logged_and_the_old_tokens_stay_valid(
    start: Any, session: Any, grant: Any, bearer: Any, data_dir: Path, caplog: Any
) -> None:
    token = grant(Scope.READ)
    async with start(require_tokens=True) as collector:
        (data_dir / NAME).write_text("{")
        collector.reload()
        collector.reload()
        assert len([r for r in caplog.records if "cannot be read" in r.message]) == 1
        async with session.get(collector.url + "/metrics", headers=bearer(token)) as answer:
            assert answer.status == 200
        (data_dir / NAME).unlink()
        collector.reload()
        async with session.get(collector.url + "/metrics", headers=bearer(token)) as answer:
            assert answer.status == 401


def test_a_damaged_file_at_the_start_is_one_line(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / NAME).write_text("{")
    with pytest.raises(StartError, match="this is not a file of tokens"):
        AccessControl(CollectorSettings(data_dir=tmp_path), clock, Counter(), 1_024)


async def test_the_last_use_of_a_token_outlives_the_collector(
    start: Any, session: Any, grant: Any, bearer: Any, data_dir: Path, clock: ManualClock
) -> None:
    first, second, never = grant(Scope.READ), grant(Scope.READ), grant(Scope.READ)
    for token in (first, second):
        async with (
            start(require_tokens=True) as collector,
            session.get(collector.url + "/metrics", headers=bearer(token)) as answer,
        ):
            assert answer.status == 200
        clock.advance(LAST_USED_INTERVAL_S)
    used = last_used(data_dir / NAME)
    assert set(used) == {first.id, second.id} and never.id not in used
    assert (used[second.id] - used[first.id]).total_seconds() == LAST_USED_INTERVAL_S
