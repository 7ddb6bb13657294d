"""Says which alerts notify nobody, and why: silences and acknowledgements, as a pure function."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from gpuwarden.alert import Alert, Silence, first_covering


def reasons(alerts: Iterable[Alert], silences: Sequence[Silence], now: datetime) -> dict[str, str]:
    """Why an alert notifies nobody, by fingerprint of those that do not."""
    active = [silence for silence in silences if silence.is_active(now)]
    return {
        alert.fingerprint: silence.reason(now)
        for alert in (alerts if active else ())
        if (silence := first_covering(active, alert, now))
    }
