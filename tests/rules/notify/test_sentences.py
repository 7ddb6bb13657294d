"""Messages read well; each fits a phone's screen."""

import re
from dataclasses import replace
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

import pytest
from tests.rules.notify.alerts import START, Incidents, make_alert

from gpuwarden.alert import Alert
from gpuwarden_rules.notify.message import Digest, MessageKind, Notification, Waster
from gpuwarden_rules.notify.planner import plan
from gpuwarden_rules.notify.routing import Recipient, Route, RoutingPolicy
from gpuwarden_rules.notify.sentences import FORMS, SHORT_CHARACTERS_MAX, Style, rendered

STYLE = Style(UTC)
S = timedelta(seconds=1)
SCREEN_CHARACTERS = 700


def messages(*looks: tuple[list[Alert], timedelta]) -> list[Notification]:
    """Messages of looks at these alerts, so long after the first fired."""
    policy = RoutingPolicy({"chat": Recipient(updates=True)}, [Route(receivers=("chat",))])
    incidents, state, found = Incidents(), {}, []
    for alerts, after in looks:
        done = plan(state, incidents.view(alerts, START + after), policy, START + after)
        state = done.state
        found += done.messages
    return found


def test_eight_gpus_of_a_node_and_what_follows() -> None:
    alerts = [
        *(make_alert(gpu=gpu) for gpu in range(8)),
        make_alert("gpu_idle", gpu=1),
        make_alert("gpu_idle", gpu=2),
    ]
    (message,) = messages((alerts, S))
    words = rendered(message, "text", replace(STYLE, link="https://gpuwarden.example.com"))
    assert words.title == "CRITICAL dgx-07: gpu_hot ×8"
    assert words.body == (
        "8 GPUs of dgx-07: gpu_hot since 13:51 UTC.\n"
        "Where: gpu 0, 1, 2, 3, 4, 5, 6, 7.\n"
        "Follows: gpu_idle ×2.\n"
        "Since 13:51 UTC (12 min).\n"
        "Do: Check the fans and the inlet of dgx-07; move the job if it stays hot.\n"
        "Cost: $23.60/h, $4.73 so far.\n"
        "https://gpuwarden.example.com"
    )


def test_the_cost_is_said_once() -> None:
    (message,) = messages(([make_alert()], S))
    assert rendered(message, "text", STYLE).body.count("$2.95/h") == 1


def test_what_is_over_or_muted_stands_beside_what_still_fires() -> None:
    alerts = [make_alert(gpu=gpu) for gpu in range(3)]
    left = [alerts[2], replace(make_alert(gpu=4), muted="silenced by alice")]
    *_, message = messages((alerts, S), (left, 60 * S))
    body = rendered(message, "text", STYLE).body.splitlines()
    assert body[-1] == "Over: 2 alerts since the last message."
    assert "Muted: 1 of 2 alerts (silenced by alice)." in body
    stale = [replace(alert, unknown_since=START + S) for alert in alerts]
    *_, message = messages((alerts, S), (stale, 60 * S))
    body = rendered(message, "text", STYLE).body
    assert "Unknown since 14:03 UTC: no data says whether it still holds." in body


def test_the_end_says_how_long_and_what_it_cost_and_what_was_with_it() -> None:
    alerts = [make_alert(), make_alert("gpu_idle")]
    *_, message = messages((alerts, S), ([], timedelta(hours=2)))
    words = rendered(message, "text", STYLE)
    assert words.title == "RESOLVED dgx-07 GPU 0: gpu_hot"
    assert words.body.splitlines()[-1] == "Over after 2 h 12 min, cost $6.49. With it: gpu_idle."


def test_a_repeat_says_that_it_is_one() -> None:
    *_, message = messages(([make_alert()], S), ([make_alert()], timedelta(days=1)))
    words = rendered(message, "text", Style(ZoneInfo("Europe/Berlin")))
    assert words.title == "STILL CRITICAL dgx-07 GPU 0: gpu_hot"
    assert "Since 02 Mar 14:51 CET (1 d 0 h)." in words.body


def test_what_is_unknown_or_simulated_is_said() -> None:
    (message,) = messages(([make_alert(usd_per_hour=None, simulated=True)], S))
    words = rendered(message, "text", STYLE)
    assert words.title.endswith("(simulated)")
    assert "Cost: unknown." in words.body
    (message,) = messages(([make_alert(), make_alert(gpu=1, usd_per_hour=None)], S))
    assert "Cost: at least $2.95/h, $0.59 so far." in rendered(message, "text", STYLE).body


def test_what_fits_no_screen_is_counted() -> None:
    roots = [make_alert(gpu=gpu, node="a-rather-long-name-of-a-node") for gpu in range(300)]
    (message,) = messages((roots, S))
    for form in FORMS:
        assert len(rendered(message, form, STYLE).body) < SCREEN_CHARACTERS
    assert "and 184 more" in rendered(message, "text", STYLE).body
    alert = replace(make_alert(), summary="word " * 50)
    follows = tuple(make_alert(f"rule_{number}", gpu=number) for number in range(12))
    (message,) = messages(([alert], S))
    many = replace(message, firing=(alert, *follows), firing_total=13)
    body = rendered(many, "text", STYLE).body
    assert "rule_7 and 4 other rules." in body


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


@pytest.mark.parametrize("form", ["text", "markdown", "short"])
@pytest.mark.parametrize(
    "name",
    [
        "a\r\nBcc: me@elsewhere.example",
        "\x1b[31m",
        "a\u202eb",
        "@everyone",
        "x @here",
        "@Channel",
        "@all",
    ],
)
def test_a_name_is_a_text_in_each_form(name: str, form: str) -> None:
    alert = replace(make_alert(), summary=f"job {name} is idle", labels={"node": name})
    (message,) = messages(([alert], S))
    words = rendered(message, form, STYLE)
    assert words.title.isprintable()
    assert all(c.isprintable() or c == "\n" for c in words.body)
    assert not re.search(r"@(everyone|here|channel|all)\b", words.title + words.body, re.IGNORECASE)


def test_a_digest_names_money_labels_nodes_and_rules() -> None:
    digest = Digest(
        since=START - timedelta(days=1),
        until=START,
        wasted_hours=40.0,
        gpu_hours=192.0,
        usd=118.0,
        categories=(
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
