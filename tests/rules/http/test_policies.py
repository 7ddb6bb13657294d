"""An owner's answer by the link of a message: whatever its form holds, it is taken or refused."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from tests.rules.policies.test_cases import NOW, a_case

from gpuwarden.clock import ManualClock
from gpuwarden_rules.http.policies import HOURS_MAX, policy_routes
from gpuwarden_rules.policies.case_store import CaseStore, PolicyNote
from gpuwarden_rules.policies.cases import CaseState
from gpuwarden_rules.policies.service import PolicyService

_UNUSED = cast(Any, None)


class Records:
    """The collector's tables."""

    async def note(self, notes: Sequence[PolicyNote]) -> bool:
        return True

    async def save_cases(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        return True


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[tuple[TestClient[Any, Any], CaseStore, str]]:
    """A client, the store of cases, and the path of a link that waits for its answer."""
    store, clock = CaseStore(tmp_path / "policies.sqlite"), ManualClock(NOW)
    case = a_case(state=CaseState.WAITS)
    store.save([case], {}, NOW)
    secret = store.question(case, NOW + timedelta(hours=2))
    service = PolicyService(
        [], store, lambda: None, _UNUSED, clock, _UNUSED, link=None, records=Records()
    )
    app = web.Application()
    app.add_routes(policy_routes(lambda: service, clock, lambda: None, _UNUSED))
    async with TestClient(TestServer(app)) as client:
        yield client, store, f"/answer/{secret}"
    store.close()


async def test_hours_that_are_none_change_nothing_and_the_link_still_serves(
    asked: tuple[TestClient[Any, Any], CaseStore, str],
) -> None:
    client, store, path = asked
    [before] = store.cases(NOW).values()
    for hours in (
        "000024" + "9" * 300,
        "24" + "0" * 800,
        "0",
        str(HOURS_MAX + 1),
        "-1",
        "1e2",
        "٣",
        "",
    ):
        async with client.post(path, data={"answer": "keep", "hours": hours}) as answer:
            said = (await answer.json())["error"]
            assert (answer.status, said) == (
                400,
                f"hours must be a whole number from 1 to {HOURS_MAX}",
            ), hours
    for form in ({"answer": "later"}, {}):
        async with client.post(path, data=form or {"x": "y"}) as answer:
            assert answer.status == 400
    assert list(store.cases(NOW).values()) == [before]
    async with client.post(path, data={"answer": "keep", "hours": str(HOURS_MAX)}) as answer:
        assert answer.status == 200
    [after] = store.cases(NOW).values()
    assert (after.state, after.next_at) == (CaseState.KEPT, NOW + timedelta(hours=HOURS_MAX))
