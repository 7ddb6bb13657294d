"""`up` decides and says the right things; the whole of it runs in the end-to-end tests."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden_cli.composition.up import (
    ALERTS_SAID_MAX,
    AlertPrinter,
    simulated_gpus,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALERT = Alert(
    fingerprint="f",
    rule="gpu_idle_held",
    severity=Severity.WARNING,
    state=AlertState.FIRING,
    labels={},
    summary="GPU 3 of n1 idle for 2 h.",
    remedy="Stop the job\nor free its memory.",
    value=None,
    usd_per_hour=2.95,
    began_at=NOW - timedelta(hours=2),
    active_at=NOW,
    fired_at=NOW,
    seen_at=NOW,
    simulated=True,
)


@pytest.mark.parametrize(
    ("asked", "real", "simulated"), [(None, 0, 8), (None, 4, 0), (16, 4, 16), (0, 0, 0)]
)
def test_gpus_are_simulated_where_there_are_none_or_as_asked(asked, real, simulated) -> None:
    assert simulated_gpus(asked, real) == simulated


def test_the_first_alert_says_what_to_do_the_next_are_a_line(capsys) -> None:
    voice = AlertPrinter()
    voice.on_change(replace(ALERT, state=AlertState.PENDING, fired_at=None))
    voice.on_change(ALERT)
    voice.on_change(replace(ALERT, state=AlertState.RESOLVED))
    assert capsys.readouterr().out.splitlines() == [
        "FIRING warning: GPU 3 of n1 idle for 2 h. $5.90 so far, $2.95/h. (simulated)",
        "  what to do: Stop the job or free its memory.",
        "RESOLVED warning: GPU 3 of n1 idle for 2 h. $5.90 so far, $2.95/h. (simulated)",
    ]


def test_a_flood_of_alerts_ends_with_where_the_rest_is(capsys) -> None:
    voice = AlertPrinter()
    for number in range(ALERTS_SAID_MAX + 50):
        voice.on_change(replace(ALERT, fingerprint=str(number)))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == ALERTS_SAID_MAX + 2
    assert "gpuwarden alerts list" in lines[-1]
