"""Sends messages by HTTP POST, and turns answers into outcomes."""

import os
from collections.abc import Callable, Mapping

import aiohttp

from gpuwarden_rules.notify.receivers.receiver import (
    TIMEOUT_S,
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    Outcome,
    shortened,
)

ANSWER_BYTES_MAX = 65_536


class HttpReceiver:
    """Base of receivers behind an HTTP address: opens one session, and closes it."""

    timeout_s: float | None = TIMEOUT_S
    _session: aiohttp.ClientSession | None = None

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        parse: Callable[[str], Outcome] | None = None,
    ) -> Outcome:
        """POST JSON once. `parse` reads the body of an answer 200. No outcome shows the address."""
        self._session = self._session or aiohttp.ClientSession()
        headers = {"Content-Type": "application/json", **headers}
        try:
            async with self._session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                text = (await answer.content.read(ANSWER_BYTES_MAX)).decode("utf-8", "replace")
                if parse is not None and answer.status == 200:
                    return parse(text)
                return outcome_of(answer.status, text, answer.headers.get("Retry-After"))
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno or 0
            reason = os.strerror(number) if number > 0 else error.os_error.strerror
            return DeliveryDelayed(f"no connection: {reason or type(error).__name__}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return DeliveryDelayed(type(error).__name__)

    async def close(self) -> None:
        """Close the session."""
        if self._session:
            await self._session.close()


def outcome_of(status: int, said: str, retry_after: str | None = None) -> Outcome:
    """The outcome that an HTTP answer means for a message.

    Only answers about the content refuse the message. With those about the address or the sender (401,
    403, 404 ...) it waits until somebody has corrected the settings.
    """
    reason = f"HTTP {status}" + (f": {shortened(said)}" if said.strip() else "")
    if 200 <= status < 300:
        return Delivered(reason)
    if status in (400, 413, 415, 422):
        return DeliveryRefused(reason)
    if 300 <= status < 400:
        return DeliveryDelayed(
            f"{reason}: it redirects, and a message with secrets does not follow"
        )
    digits = (retry_after or "").strip()
    return DeliveryDelayed(reason, float(digits) if digits.isascii() and digits.isdigit() else None)
