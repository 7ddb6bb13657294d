"""Every kind of receiver that the file knows is made."""

from datetime import UTC

import pytest
from tests.rules.notify.alerts import START

from gpuwarden.clock import ManualClock
from gpuwarden_rules.notify.receivers.factory import receiver_of
from gpuwarden_rules.notify.sentences import Style
from gpuwarden_rules.notify.settings import KINDS, ReceiverPlan

TARGETS = {
    "apprise": "json://localhost",
    "webhook": "http://h",
    "alertmanager": "http://h",
    "file": "/x",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind(kind) -> None:
    plan = ReceiverPlan(name="a", kind=kind, target=TARGETS.get(kind, ""))
    receiver = receiver_of(plan, Style(UTC), ManualClock(START))
    await receiver.close()


def test_another_kind_is_a_bug_with_a_name() -> None:
    with pytest.raises(ValueError, match="'a' is of an unknown kind 'pigeon'"):
        receiver_of(
            ReceiverPlan(name="a", kind="pigeon", target=""), Style(UTC), ManualClock(START)
        )
