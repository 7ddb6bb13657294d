"""apprise against a real server, and its secrets."""

import json
import logging
from dataclasses import replace
from datetime import UTC

import pytest
from aiohttp import web
from tests.rules.notify.alerts import make_alert, message_of
from tests.rules.notify.hook_server import Hook, hook_server

from gpuwarden_rules.notify.message import MessageReason, Notification
from gpuwarden_rules.notify.receivers.apprise_service import (
    AppriseService,
    of_incident,
    problem_of,
    type_of,
    without,
)
from gpuwarden_rules.notify.receivers.receiver import Delivered, DeliveryDelayed, DeliveryRefused
from gpuwarden_rules.notify.sentences import Style

MESSAGE = message_of(make_alert())


async def send(url: str, message: Notification = MESSAGE, form: str = "text"):
    service = AppriseService(url, form, Style(UTC))
    try:
        return await service.send(message)
    finally:
        await service.close()


def address(hook: Hook, rest: str = "") -> str:
    return hook.url.replace("http://", "json://") + rest


async def test_a_message_arrives_with_its_type() -> None:
    async with hook_server() as hook:
        assert await send(address(hook, "/x")) == Delivered("sent")
    body = json.loads(hook.got[0].body)
    assert (body["title"], body["type"]) == ("CRITICAL dgx-07 GPU 0: gpu_hot", "failure")
    assert "Do: Check the fans" in body["message"]


async def test_a_message_goes_to_its_owner() -> None:
    async with hook_server() as hook:
        url = address(hook, "/to/{owner}")
        assert await send(url, replace(MESSAGE, address="a b@example.com")) == Delivered("sent")
        assert await send(url) == DeliveryRefused(
            "the message is for no owner, or its owner has no address"
        )
    assert hook.got[0].path == "/to/a%20b@example.com"


async def test_no_message_follows_a_redirect() -> None:
    async with hook_server() as hook, hook_server() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            for form in ("", "/?redirect=yes"):
                location = {"Location": f"{elsewhere.url}/{status}"}
                hook.answer = lambda _, s=status, to=location: web.Response(status=s, headers=to)
                assert isinstance(await send(address(hook, form)), DeliveryDelayed), (status, form)
    assert elsewhere.got == []
    assert len(hook.got) == 10


def test_a_pager_knows_the_incident_and_its_end() -> None:
    assert MESSAGE.incident is not None
    made = of_incident("pagerduty://key@api", MESSAGE)
    assert made == f"pagerduty://key@api?dedup={MESSAGE.incident.id}&action=map"
    assert of_incident("opsgenie://key?alias=x", MESSAGE) == "opsgenie://key?alias=x"
    assert of_incident("slack://a/b/c", MESSAGE) == "slack://a/b/c"
    over = replace(MESSAGE, reason=MessageReason.RESOLVED, firing=())
    assert type_of(over) == "success"
    assert type_of(MESSAGE) == "failure"


class Lines(logging.Handler):
    """What a log would hold."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "aiohttp.access":  # the test's own server
            self.lines.append(record.getMessage())


@pytest.fixture
def logged():
    lines, root = Lines(), logging.getLogger()
    before = root.level
    root.addHandler(lines)
    root.setLevel(logging.DEBUG)
    yield lines.lines
    root.removeHandler(lines)
    root.setLevel(before)


async def test_no_secret_is_in_reason_or_log(logged) -> None:
    async with hook_server() as hook:
        hook.answer = lambda request: web.Response(status=403, text="token4711 is wrong")
        url = hook.url.replace("http://", "json://alice:pass0815@") + "/token4711?secret=hush1234"
        outcome = await send(url)
    assert isinstance(outcome, DeliveryDelayed)
    for secret in ("token4711", "pass0815", "hush1234"):
        assert secret not in str(outcome)
        assert secret not in "".join(logged)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("token4711", "not an address that apprise understands"),
        ("slackk://token4711/x", "does not understand the address after slackk://"),
        ("slack://token4711", "does not understand the address after slack://"),
        ("", "not an address"),
    ],
)
def test_an_address_that_apprise_does_not_know_is_said_without_it(url, says) -> None:
    problem = problem_of(url)
    assert says in problem
    assert "token4711" not in problem
    with pytest.raises(ValueError, match="apprise"):
        AppriseService(url, "text", Style(UTC))


def test_parts_of_addresses_are_made_unreadable_also_when_escaped() -> None:
    said = without("no https://h/p%40ss9/ for p@ss9", "slack://p%40ss9/T1234")
    assert "ss9" not in said
