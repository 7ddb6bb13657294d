"""Posts messages to a Slack channel as a bot, and edits them while their incident changes.

The first message of an incident is chat.postMessage; later ones edit it with chat.update. Slack does not notify
anyone of an edit, so an escalated or repeated incident is also a reply that is broadcast to the channel.
"""

import json
from typing import Any

from gpuwarden_rules.notify.message import MessageKind, MessageReason, Notification
from gpuwarden_rules.notify.receivers.http_receiver import HttpReceiver
from gpuwarden_rules.notify.receivers.receiver import (
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    Outcome,
    shortened,
)
from gpuwarden_rules.notify.sentences import Style, rendered

API = "https://slack.com/api/"
CHARACTERS_MAX = 3_900
REFUSED = ("invalid_arguments", "msg_too_long", "no_text")
"""Errors about the message; other errors are about the channel, the token or Slack."""
GONE = ("message_not_found", "cant_update_message", "edit_window_closed")


class Slack(HttpReceiver):
    """A Receiver that posts to one channel."""

    def __init__(self, channel: str, token: str, style: Style, api: str = API) -> None:
        self._channel = channel
        self._token = token
        self._style = style
        self._api = api

    async def send(self, message: Notification) -> Outcome:
        words = rendered(message, "text", self._style)
        text = f"*{_escaped(words.title)}*\n{_escaped(words.body)}"[:CHARACTERS_MAX]
        channel, _, ts = (message.handle or "").partition("/")
        if not ts or message.kind is not MessageKind.INCIDENT:
            return await self._call("chat.postMessage", {"channel": self._channel, "text": text})
        edited = await self._call("chat.update", {"channel": channel, "ts": ts, "text": text})
        if isinstance(edited, DeliveryRefused) and edited.reason in GONE:
            return await self._call("chat.postMessage", {"channel": self._channel, "text": text})
        is_loud = message.reason in (MessageReason.ESCALATED, MessageReason.REPEATED)
        if is_loud and isinstance(edited, Delivered):
            reply = {"channel": channel, "text": _escaped(words.title), "thread_ts": ts}
            said = await self._call("chat.postMessage", {**reply, "reply_broadcast": True})
            return Delivered(said.note, message.handle) if isinstance(said, Delivered) else said
        return edited

    async def _call(self, method: str, body: dict[str, Any]) -> Outcome:
        headers = {"Authorization": f"Bearer {self._token}"}
        return await self.post(self._api + method, json.dumps(body).encode(), headers, _outcome)


def _outcome(answer: str) -> Outcome:
    """The outcome of a call of Slack's API; the message's channel and time are its handle."""
    try:
        found = json.loads(answer)
        problem = None if found["ok"] else str(found["error"])
        handle = f"{found['channel']}/{found['ts']}" if problem is None else None
    except (ValueError, KeyError, TypeError):
        return DeliveryDelayed(f"Slack's answer is not understood: {shortened(answer)}")
    if problem is None:
        return Delivered("posted", handle)
    if problem in (*REFUSED, *GONE):
        return DeliveryRefused(problem)
    return DeliveryDelayed(problem)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
