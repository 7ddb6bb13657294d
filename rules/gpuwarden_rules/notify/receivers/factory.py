"""Lists the kinds of receivers, and makes one from its entry in the notification file."""

from dataclasses import dataclass, field
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_rules.notify.receivers.receiver import Receiver
from gpuwarden_rules.notify.sentences import Style

KINDS = ("apprise", "slack", "webhook", "alertmanager", "file", "stdout")
UPDATING = ("slack", "webhook", "file")
"""Kinds that get every change of an incident: programs, and services that can edit a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverPlan:
    """A receiver's entry in the notification file."""

    name: str
    kind: str
    """One of KINDS."""
    target: str = field(repr=False)
    """Address or path, with its secrets."""
    secret: str | None = field(default=None, repr=False)
    """The signing secret of a webhook, or the token of Slack."""
    form: str = "text"
    wants_resolved: bool = True


def receiver_of(plan: ReceiverPlan, style: Style, clock: Clock) -> Receiver:
    """The receiver, with its libraries imported. Raises ValueError without secrets."""
    match plan.kind:
        case "webhook":
            from gpuwarden_rules.notify.receivers.webhook import Webhook

            return Webhook(plan.target, plan.secret, style, clock)
        case "slack":
            from gpuwarden_rules.notify.receivers.slack import Slack

            assert plan.secret is not None
            return Slack(plan.target, plan.secret, style)
        case "alertmanager":
            from gpuwarden_rules.notify.receivers.alertmanager import Alertmanager

            return Alertmanager(plan.target, style)
        case "apprise":
            from gpuwarden_rules.notify.receivers.apprise_service import AppriseService

            return AppriseService(plan.target, plan.form, style)
        case "file":
            from gpuwarden_rules.notify.receivers.local import LineFile

            return LineFile(Path(plan.target), style)
        case "stdout":
            from gpuwarden_rules.notify.receivers.local import Output

            return Output(plan.form, style)
    raise ValueError(f"receiver {plan.name!r} is of an unknown kind {plan.kind!r}")
