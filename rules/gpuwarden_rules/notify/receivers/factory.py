"""Makes receivers of what the file of settings says: the only list of their kinds."""

from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_rules.notify.receivers.receiver import Receiver
from gpuwarden_rules.notify.sentences import Style
from gpuwarden_rules.notify.settings import ReceiverPlan


def receiver_of(plan: ReceiverPlan, style: Style, clock: Clock) -> Receiver:
    """The receiver; what it needs is loaded by then. Raises ValueError, which shows no secret."""
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
