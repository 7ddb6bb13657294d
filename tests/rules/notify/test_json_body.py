"""The JSON of a message has the documented keys."""

import json
from dataclasses import replace
from datetime import UTC
from pathlib import Path

from tests.rules.notify.alerts import START, make_alert, message_of

from gpuwarden.alert import AlertState
from gpuwarden_rules.notify.json_body import body_of, line_of
from gpuwarden_rules.notify.message import Digest, Waster
from gpuwarden_rules.notify.sentences import Style

PAGE = Path(__file__).parents[3] / "docs" / "notifications.md"
OVER = replace(make_alert(gpu=1), state=AlertState.RESOLVED, resolved_at=START)
MESSAGE = replace(message_of(make_alert()), resolved=(OVER,), resolved_total=1)


def test_a_message_of_an_incident_has_alerts_instants_and_nulls() -> None:
    body = json.loads(line_of(MESSAGE, Style(UTC)))
    assert (body["version"], body["status"], body["severity"]) == (1, "open", "critical")
    assert (body["reason"], body["incident"]["rule"]) == ("opened", "gpu_hot")
    assert body["made_at"] == "2026-03-02T14:03:00.000Z"
    assert body["firing"][0]["labels"]["gpu"] == "0"
    assert body["firing"][0]["resolved_at"] is None
    assert body["resolved"][0]["resolved_at"] == "2026-03-02T14:03:00.000Z"
    assert body["title"].startswith("CRITICAL")


def test_what_is_unknown_is_null() -> None:
    message = replace(MESSAGE, firing=(make_alert(usd_per_hour=None),), resolved=())
    (alert,) = body_of(message, Style(UTC))["firing"]
    assert alert["usd_per_hour"] is None
    assert alert["usd_so_far"] is None


def test_every_key_is_documented() -> None:
    digest = Digest(
        since=START, until=START, wasted_hours=1, gpu_hours=2, usd=3,
        wasters=(Waster(name="n", usd=1, hours=1),),
    )  # fmt: skip
    body = body_of(replace(MESSAGE, digest=digest), Style(UTC))
    keys = {
        *body,
        *body["incident"],
        *body["firing"][0],
        *body["digest"],
        *body["digest"]["wasters"][0],
    }
    page = PAGE.read_text()
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
