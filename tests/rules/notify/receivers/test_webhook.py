"""Webhooks against a real server: body, headers, signature, and answers."""

import base64
import hashlib
import hmac
import json
import socket
from dataclasses import replace
from datetime import UTC

import pytest
from aiohttp import web
from tests.rules.notify.alerts import START, make_alert, message_of
from tests.rules.notify.hook_server import hook_server

from gpuwarden.clock import ManualClock
from gpuwarden_rules.notify.receivers.receiver import Delivered, DeliveryDelayed, DeliveryRefused
from gpuwarden_rules.notify.receivers.webhook import Webhook, key_of, signature
from gpuwarden_rules.notify.sentences import Style

STYLE = Style(UTC)
MESSAGE = replace(message_of(make_alert()), id="abc")


async def send(url: str, secret: str | None = None):
    hook = Webhook(url, secret, STYLE, ManualClock(START))
    try:
        return await hook.send(MESSAGE)
    finally:
        await hook.close()


async def test_a_message_is_signed_json() -> None:
    async with hook_server() as hook:
        assert await send(f"{hook.url}/gpus?x=1", "geheim") == Delivered("HTTP 204")
    (got,) = hook.got
    assert got.path == "/gpus?x=1"
    assert json.loads(got.body)["firing"][0]["rule"] == "gpu_hot"
    signed = f"abc.{int(START.timestamp())}.".encode() + got.body
    expected = base64.b64encode(hmac.new(b"geheim", signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-id"] == "abc"
    assert got.headers["webhook-signature"] == f"v1,{expected}"


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the Standard Webhooks specification."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_that_is_no_base64_is_refused_unseen() -> None:
    with pytest.raises(ValueError, match="base64") as error:
        key_of("whsec_geheim!")
    assert "geheim" not in str(error.value)


async def test_without_a_secret_there_is_no_signature() -> None:
    async with hook_server() as hook:
        await send(hook.url)
    assert "webhook-signature" not in hook.got[0].headers


async def test_answers_are_judged_and_redirects_not_followed() -> None:
    async with hook_server() as hook:
        hook.answer = lambda request: web.Response(status=400, text="no such\nfield")
        assert await send(hook.url) == DeliveryRefused("HTTP 400: no such field")
        hook.answer = lambda request: web.Response(status=302, headers={"Location": "/x"})
        assert isinstance(await send(hook.url), DeliveryDelayed)
    assert len(hook.got) == 2


async def test_nobody_there_is_a_reason_without_the_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert await send(f"http://user:geheim@127.0.0.1:{port}/token") == DeliveryDelayed(
        "no connection: Connection refused"
    )
    assert "geheim" not in str(await send(f"http://127.0.0.1:{port}/geheim\n"))
