"""Firing alerts for the tests of notification."""

from datetime import UTC, datetime, timedelta

from gpuwarden.alert import Alert, AlertState, Severity, fingerprint

START = datetime(2026, 3, 2, 14, 3, tzinfo=UTC)


def make_alert(
    rule: str = "gpu_hot",
    *,
    gpu: int = 0,
    node: str = "dgx-07",
    severity: Severity = Severity.CRITICAL,
    at: datetime = START,
    usd_per_hour: float | None = 2.95,
    owner: str | None = None,
    muted: str | None = None,
    simulated: bool = False,
) -> Alert:
    labels = {"node": node, "gpu": str(gpu), "gpu_uuid": f"GPU-{gpu}"}
    return Alert(
        fingerprint=fingerprint(rule, labels),
        rule=rule,
        severity=severity,
        state=AlertState.FIRING,
        labels=labels,
        summary=f"GPU {gpu} of {node} slows down at 92 °C; the limit is 87 °C.",
        remedy=f"Check the fans and the inlet of {node}; move the job if it stays hot.",
        value=92.0,
        usd_per_hour=usd_per_hour,
        began_at=at - timedelta(minutes=12),
        active_at=at,
        fired_at=at,
        seen_at=at,
        owner=owner,
        muted=muted,
        simulated=simulated,
    )
