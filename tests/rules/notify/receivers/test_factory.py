"""Every kind of receiver that the file knows is made."""

from datetime import UTC

import pytest
from tests.rules.notify.alerts import START

from gpuwarden.clock import ManualClock
from gpuwarden_rules.notify.receivers.alertmanager import Alertmanager
from gpuwarden_rules.notify.receivers.apprise_service import AppriseService
from gpuwarden_rules.notify.receivers.factory import KINDS, ReceiverPlan, receiver_of
from gpuwarden_rules.notify.receivers.local import LineFile, Output
from gpuwarden_rules.notify.receivers.slack import Slack
from gpuwarden_rules.notify.receivers.webhook import Webhook
from gpuwarden_rules.notify.sentences import Style

MADE = {
    "apprise": ("json://localhost", AppriseService),
    "slack": ("#gpus", Slack),
    "webhook": ("http://h", Webhook),
    "alertmanager": ("http://h", Alertmanager),
    "file": ("/x", LineFile),
    "stdout": ("", Output),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_receiver_can_be_made(kind) -> None:
    target, made = MADE[kind]
    plan = ReceiverPlan(name="a", kind=kind, target=target, secret="xoxb-1")
    receiver = receiver_of(plan, Style(UTC), ManualClock(START))
    assert isinstance(receiver, made)
    await receiver.close()
