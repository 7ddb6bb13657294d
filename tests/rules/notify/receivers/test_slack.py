"""A bot's messages in Slack: posted once, edited while the incident changes."""

import json
from dataclasses import replace
from datetime import UTC

from aiohttp import web
from tests.rules.notify.alerts import make_alert, message_of
from tests.rules.notify.hook_server import hook_server

from gpuwarden_rules.notify.message import MessageReason
from gpuwarden_rules.notify.receivers.receiver import Delivered, DeliveryDelayed, DeliveryRefused
from gpuwarden_rules.notify.receivers.slack import Slack
from gpuwarden_rules.notify.sentences import Style

MESSAGE = message_of(replace(make_alert(), summary="GPU 0 <hot> & loud"))


async def test_an_incident_is_one_message_that_is_edited_and_a_reply_where_it_is_worse() -> None:
    async with hook_server() as hook:
        hook.answer = lambda request: web.json_response({"ok": True, "channel": "C1", "ts": "7.5"})
        slack = Slack("#gpus", "xoxb-1", Style(UTC), hook.url + "/")
        assert await slack.send(MESSAGE) == Delivered("posted", "C1/7.5")
        for reason in (MessageReason.UPDATED, MessageReason.ESCALATED, MessageReason.RESOLVED):
            sent = await slack.send(replace(MESSAGE, reason=reason, handle="C1/7.5"))
            assert sent == Delivered("posted", "C1/7.5")
        await slack.close()
    bodies = [json.loads(got.body) for got in hook.got]
    methods = [got.path.rpartition("/")[2] for got in hook.got]
    assert methods == [
        "chat.postMessage",
        "chat.update",
        "chat.update",
        "chat.postMessage",
        "chat.update",
    ]
    assert bodies[0]["text"].startswith(
        "*CRITICAL dgx-07 GPU 0: gpu_hot*\nGPU 0 &lt;hot&gt; &amp; loud"
    )
    assert (bodies[1]["channel"], bodies[1]["ts"]) == ("C1", "7.5")
    assert (bodies[3]["thread_ts"], bodies[3]["reply_broadcast"]) == ("7.5", True)
    assert hook.got[0].headers["Authorization"] == "Bearer xoxb-1"


async def test_what_slack_answers_decides_and_a_message_that_is_gone_is_posted_again() -> None:
    answers = {
        "message_not_found": Delivered("posted", "C1/8"),
        "channel_not_found": DeliveryDelayed("channel_not_found"),
        "msg_too_long": DeliveryRefused("msg_too_long"),
    }
    for error, expected in answers.items():
        async with hook_server() as hook:

            def answer(request: web.Request, error: str = error) -> web.Response:
                is_new = request.path.endswith("postMessage")
                good = {"ok": True, "channel": "C1", "ts": "8"}
                return web.json_response(good if is_new else {"ok": False, "error": error})

            hook.answer = answer
            slack = Slack("#gpus", "xoxb-1", Style(UTC), hook.url + "/")
            found = await slack.send(replace(MESSAGE, reason=MessageReason.UPDATED, handle="C1/7"))
            await slack.close()
        assert found == expected, error
    async with hook_server() as hook:
        hook.answer = lambda request: web.Response(status=429, headers={"Retry-After": "9"})
        slack = Slack("#gpus", "xoxb-1", Style(UTC), hook.url + "/")
        assert await slack.send(MESSAGE) == DeliveryDelayed("HTTP 429", 9.0)
        await slack.close()
