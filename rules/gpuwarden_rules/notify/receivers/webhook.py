"""Sends messages as signed JSON by POST, as the Standard Webhooks specification 1.0.0 says.

    webhook-id         the message's id, the same when it is sent again
    webhook-timestamp  seconds since the epoch, of this attempt
    webhook-signature  v1,<base64 of HMAC-SHA256 over "id.timestamp.body">

The secret is used as it is written; with the prefix whsec_, the rest is base64 of the key. Any status from 200
to 299 acknowledges.
"""

import base64
import binascii
import hashlib
import hmac
import json

from gpuwarden.clock import Clock, to_ms
from gpuwarden_rules.notify.json_body import body_of
from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.receivers.http_receiver import HttpReceiver
from gpuwarden_rules.notify.receivers.receiver import Outcome
from gpuwarden_rules.notify.sentences import Style

SECRET_PREFIX = "whsec_"


class Webhook(HttpReceiver):
    """A Receiver that POSTs to one address."""

    def __init__(self, url: str, secret: str | None, style: Style, clock: Clock) -> None:
        """`secret`: None sends no signature. Raises ValueError if it is not base64."""
        self._url = url
        self._key = key_of(secret) if secret else None
        self._style = style
        self._clock = clock

    async def send(self, message: Notification) -> Outcome:
        body = json.dumps(body_of(message, self._style), ensure_ascii=False).encode()
        timestamp = to_ms(self._clock.now()) // 1000
        headers = {"webhook-id": message.id, "webhook-timestamp": str(timestamp)}
        if self._key is not None:
            headers["webhook-signature"] = signature(self._key, message.id, timestamp, body)
        return await self.post(self._url, body, headers)


def key_of(secret: str) -> bytes:
    """The signing key of a secret. Raises ValueError without the secret."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"after {SECRET_PREFIX} must be base64") from None


def signature(key: bytes, identity: str, timestamp_s: int, body: bytes) -> str:
    """The header `webhook-signature`."""
    signed = f"{identity}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
