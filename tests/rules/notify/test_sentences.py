"""Messages read well; each fits a phone's screen."""

from dataclasses import replace
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

import pytest
from tests.rules.notify.alerts import START, make_alert

from gpuwarden.alert import Alert
from gpuwarden_rules.notify.message import Digest, MessageKind, Notification, Waster
from gpuwarden_rules.notify.planner import plan
from gpuwarden_rules.notify.routing import Recipient, Route, RoutingPolicy
from gpuwarden_rules.notify.sentences import FORMS, SHORT_CHARACTERS_MAX, Style, rendered

STYLE = Style(UTC)
S = timedelta(seconds=1)
SCREEN_CHARACTERS = 700


def messages(
    *looks: tuple[list[Alert], timedelta], group_by=("rule", "node")
) -> list[Notification]:
    """Messages of looks at these alerts, so long after the first fired."""
    route = Route(receivers=("chat",), group_by=group_by)
    policy, state, found = RoutingPolicy({"chat": Recipient()}, [route]), {}, []
    for alerts, after in looks:
        done = plan(state, alerts, policy, START + after)
        state = done.state
        found += done.messages
    return found


def test_eight_gpus_of_a_node() -> None:
    (message,) = messages(([make_alert(gpu=gpu) for gpu in range(8)], S))
    words = rendered(message, "text", replace(STYLE, link="https://gpuwarden.example.com"))
    assert words.title == "CRITICAL dgx-07: gpu_hot ×8"
    assert words.body == (
        "GPU 0 of dgx-07 slows down at 92 °C; the limit is 87 °C.\n"
        "7 more: gpu 1, 2, 3, 4, 5, 6, 7.\n"
        "Since 13:51 UTC (12 min).\n"
        "Do: Check the fans and the inlet of dgx-07; move the job if it stays hot.\n"
        "Cost: $23.60/h, $4.73 so far.\n"
        "https://gpuwarden.example.com"
    )


def test_the_cost_is_said_once() -> None:
    """A lone alert's summary may say it; the sum over several is nowhere else."""
    told = replace(make_alert(), summary="GPU 0 is idle: $0.59 so far, $2.95/h.")
    (message,) = messages(([told], S))
    assert "Cost" not in rendered(message, "text", STYLE).body
    (message,) = messages(([told, make_alert(gpu=1)], S))
    assert "Cost: $5.90/h" in rendered(message, "text", STYLE).body
    unknown = replace(make_alert(usd_per_hour=None), summary="GPU 0 is idle: cost unknown.")
    (message,) = messages(([unknown], S))
    assert "Cost" not in rendered(message, "text", STYLE).body


def test_what_is_over_stands_beside_what_still_fires() -> None:
    alerts = [make_alert(gpu=gpu) for gpu in range(3)]
    *_, message = messages((alerts, S), (alerts[2:], 60 * S))
    body = rendered(message, "text", STYLE).body
    assert body.splitlines()[-1] == "Over: gpu 0, 1 (after 13 min, cost $1.28)."


def test_the_end_says_how_long_and_what_it_cost() -> None:
    *_, message = messages(([make_alert()], S), ([], timedelta(hours=2)))
    words = rendered(message, "text", STYLE)
    assert words.title == "RESOLVED dgx-07: gpu_hot"
    assert words.body.splitlines()[-1] == "Over after 2 h 12 min, cost $6.49."


def test_a_repeat_says_that_it_is_one() -> None:
    *_, message = messages(([make_alert()], S), ([make_alert()], timedelta(days=1)))
    words = rendered(message, "text", Style(ZoneInfo("Europe/Berlin")))
    assert words.title == "STILL CRITICAL dgx-07: gpu_hot"
    assert "Since 02 Mar 14:51 CET (1 d 0 h)." in words.body


def test_what_is_unknown_or_simulated_is_said() -> None:
    (message,) = messages(([make_alert(usd_per_hour=None, simulated=True)], S))
    words = rendered(message, "text", STYLE)
    assert words.title.endswith("(simulated)")
    assert "Cost: unknown." in words.body
    (message,) = messages(([make_alert(), make_alert(gpu=1, usd_per_hour=None)], S))
    assert "Cost: at least $2.95/h, $0.59 so far." in rendered(message, "text", STYLE).body


def test_a_group_of_nodes_names_them() -> None:
    alerts = [make_alert(node=f"n{n}", gpu=gpu) for n in (1, 2) for gpu in (0, 1)]
    (message,) = messages((alerts, S), group_by=("rule",))
    words = rendered(message, "text", STYLE)
    assert words.title == "CRITICAL 2 nodes: gpu_hot ×4"
    assert "3 more: n1 gpu 1, n2 gpu 0, 1." in words.body


def test_a_group_of_many_rules_and_places_fits_a_screen() -> None:
    alerts = [
        make_alert(f"rule_{number}", node=f"a-rather-long-name-of-a-node-{gpu}", gpu=gpu)
        for number in range(9)
        for gpu in range(300)
    ]
    (message,) = messages((alerts, S), group_by=("severity",))
    for form in FORMS:
        words = rendered(message, form, STYLE)
        assert len(words.body) < 3 * SCREEN_CHARACTERS
    (message,) = messages((alerts[:300], S), group_by=("severity",))
    assert "and 283 more" in rendered(message, "text", STYLE).body


@pytest.mark.parametrize("form", FORMS)
def test_a_usual_message_fits_a_phone(form) -> None:
    (message,) = messages(([make_alert(gpu=gpu) for gpu in range(8)], S))
    words = rendered(message, form, STYLE)
    assert len(words.title) + len(words.body) < SCREEN_CHARACTERS


def test_the_short_form_is_one_short_line() -> None:
    alert = replace(make_alert(), summary="word " * 100)
    (message,) = messages(([alert], S))
    body = rendered(message, "short", STYLE).body
    assert len(body) == SHORT_CHARACTERS_MAX
    assert "\n" not in body


def test_markdown_has_no_marks_but_ours() -> None:
    alert = replace(make_alert(), summary="job *bold*_x_ [a](b) <b>", remedy="`rm`")
    (message,) = messages(([alert], S))
    body = rendered(message, "markdown", STYLE).body
    assert body.startswith("job \\*bold\\*\\_x\\_ \\[a\\](b) \\<b\\>")
    assert "**Do:** \\`rm\\`" in body


def test_a_digest() -> None:
    digest = Digest(
        since=START - timedelta(days=1),
        until=START,
        wasted_hours=40.0,
        gpu_hours=192.0,
        usd=118.0,
        labels=(
            Waster(name="idle_held", usd=100.0, hours=30.0),
            Waster(name="free", usd=18.0, hours=10.0),
        ),
        wasters=(
            Waster(name="dgx-07", usd=100.0, hours=30.0),
            Waster(name="x", usd=None, hours=10),
        ),
        alerts=(Waster(name="gpu_idle_held", usd=90.5, hours=31.25),),
    )
    message = Notification(
        id="d", receiver="chat", kind=MessageKind.DIGEST, group="d", made_at=START, digest=digest
    )
    words = rendered(message, "text", STYLE)
    assert words.title == "GPU waste: $118.00"
    assert words.body == (
        "In the 1 d 0 h to 02 Mar 14:03 UTC: 40 of 192 GPU-hours (21%) were wasted: $118.00.\n"
        "idle_held 30 h, free 10 h.\n"
        "Most on:\n"
        "1. dgx-07: $100.00, 30.0 GPU-h\n"
        "2. x: cost unknown, 10.0 GPU-h\n"
        "Costliest alerts:\n"
        "1. gpu_idle_held: $90.50, 31.2 h"
    )
    empty = replace(message, digest=replace(digest, gpu_hours=0.0, wasted_hours=0.0, usd=None))
    assert rendered(empty, "text", STYLE).title == "GPU waste: cost unknown"
