"""The first page begins with the worst that is known, its price, and what to do; and never praises what is not known."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuwarden_dashboards.read.fleet import Trouble
from gpuwarden_dashboards.read.fleet_verdict import fleet_verdict

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
TOTALS = {
    "gpus": 8, "reporting": 8, "nodes": 2, "idle": 0, "usd_wasted_per_hour": 0.0, "newest_at": NOW,
}  # fmt: skip
INCIDENT = {
    "id": "i1", "severity": "critical", "summary": "GPU 3 is hot.", "remedy": "Cool it.", "owner": "ann",
    "muted": None, "total": 1, "loud": 1, "critical": 1,
}  # fmt: skip
MUTED = {**INCIDENT, "muted": "silenced by bo", "loud": 0, "critical": 0}
ALERT = {**INCIDENT, "fingerprint": "f1", "severity": "warning", "owner": None}


@pytest.mark.parametrize(
    ("incidents", "alerts", "totals", "unjudged", "level", "word", "sentence"),
    [
        ([], [], {"nodes": 0, "gpus": 0, "reporting": 0, "newest_at": None}, "Not judged yet", "", "No data yet", "No host has reported yet."),
        ([], [], {"gpus": 0, "reporting": 0, "nodes": 1}, None, "", "No GPU", "1 host reports, and no GPU was found."),
        ([], [], {"reporting": 0}, "Not judged yet", "", "Starting", "on their way"),
        ([INCIDENT], [], {"reporting": 0, "newest_at": NOW - timedelta(minutes=12)}, None, "critical", "No data", "Nothing was received for 12 min"),
        ([INCIDENT], [], {}, None, "critical", "Critical", "1 incident is open. GPU 3 is hot."),
        ([{**INCIDENT, "total": 9, "loud": 7, "critical": 2}], [ALERT], {}, None, "critical", "Critical",
         "7 incidents are open, 2 critical. The worst: GPU 3 is hot."),
        ([{**INCIDENT, "loud": 2, "critical": 2}], [], {}, None, "critical", "Critical", "2 incidents are open, all critical."),
        ([MUTED], [ALERT], {}, None, "warning", "Warning", "1 alert fires. GPU 3 is hot."),
        ([], [], {"reporting": 7}, None, "warning", "Not reporting", "1 of 8 GPUs does not report."),
        ([], [], {}, "Not judged yet: 1 of 71.", "", "Not judged", "1 of 71"),
        ([MUTED], [], {}, None, "good", "Well", "nothing new is wrong: 1 incident is acknowledged or silenced."),
        ([], [], {}, None, "good", "Well", "All 8 GPUs report, and nothing is wrong."),
        ([], [], {"gpus": 1, "reporting": 1}, None, "good", "Well", "1 GPU reports"),
    ],
)  # fmt: skip
def test_the_worst_that_is_known_is_said(
    incidents: list[dict[str, Any]],
    alerts: list[dict[str, Any]],
    totals: dict[str, Any],
    unjudged: str | None,
    level: str,
    word: str,
    sentence: str,
) -> None:
    verdict = fleet_verdict(Trouble(NOW, incidents, alerts), {**TOTALS, **totals}, unjudged)
    assert (verdict.level, verdict.word) == (level, word)
    assert sentence in verdict.sentence


def test_a_verdict_has_its_price_who_must_act_and_where_the_evidence_is() -> None:
    totals = {**TOTALS, "usd_wasted_per_hour": 2.0, "idle": 3}
    verdict = fleet_verdict(Trouble(NOW, [INCIDENT], []), totals, None)
    assert (verdict.usd_per_hour, verdict.usd_per_month) == (2.0, 1461.0)
    assert (verdict.action, verdict.owner, verdict.path) == ("Cool it.", "ann", "/incidents/i1")
    assert fleet_verdict(Trouble(NOW, [], [ALERT]), totals, None).path == "/alerts/f1"
    idle = fleet_verdict(Trouble(NOW, [], []), totals, None)
    assert idle.action.startswith("3 GPUs are idle")
    assert "state=idle" in idle.path
    free = fleet_verdict(Trouble(NOW, [], []), {**totals, "usd_wasted_per_hour": None}, None)
    assert (free.usd_per_hour, free.usd_per_month, free.action) == (None, None, "")
