"""Sends messages through apprise: Slack, Teams, PagerDuty, e-mail and many more, by an address.

apprise is imported by the first receiver that needs it. Its addresses contain secrets: error texts are passed
on without any part of the address, and apprise's own log is off.
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from gpuwarden.alert import Severity
from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.receivers.receiver import (
    TIMEOUT_S,
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    Outcome,
    shortened,
)
from gpuwarden_rules.notify.receivers.smtp_mail import COMMAND_S, SmtpMail
from gpuwarden_rules.notify.sentences import Style, rendered

if TYPE_CHECKING:
    import apprise

OWNER = "{owner}"
"""Placeholder for the owner in an address."""
DEDUPLICATED = {"pagerduty": "dedup", "opsgenie": "alias"}
"""Parameter of pagers for the identity of an incident, by the scheme of the address."""
PIECE_CHARACTERS_MIN = 4
_SEPARATORS = re.compile(r"[/:@?&=,\s]+")


class AppriseService:
    """A Receiver behind an apprise address."""

    def __init__(self, url: str, form: str, style: Style) -> None:
        """Raises ValueError, without the address, if apprise does not understand it."""
        self._url = url
        self._form = form
        self._style = style
        problem = problem_of(url)
        if problem:
            raise ValueError(problem)
        # Its own thread: a service that hangs must not delay others.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="apprise")
        self._mail = SmtpMail()
        # A mail that is given up while the server takes it would be sent twice.
        self.timeout_s: float | None = None if _mail_server(_opened(url)) else TIMEOUT_S

    async def send(self, message: Notification) -> Outcome:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._send, message)

    async def close(self) -> None:
        self._mail.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, message: Notification) -> Outcome:
        if message.report is not None:
            server = _mail_server(_opened(self._url))
            if server is not None:
                return self._mail.send(server, message)
        words = rendered(message, self._form, self._style)
        # The short form has everything in its body.
        title = "" if self._form == "short" else words.title
        url = of_incident(self._url, message)
        return send_text(url, message.address, title, words.body, self._form, type_of(message))


def send_text(
    url: str,
    address: str | None,
    title: str,
    body: str,
    form: str = "text",
    kind: "apprise.NotifyType | None" = None,
) -> Outcome:
    """Send a text once; `{owner}` in the URL becomes `address`. No outcome shows a secret."""
    import apprise

    if OWNER in url and address is None:
        return DeliveryRefused("the message is for no owner, or its owner has no address")
    place = url.replace(OWNER, quote(address or "", safe="@"))
    service = _opened(place)
    if service is None:
        return DeliveryRefused(
            f"with the owner {address!r} apprise does not understand the address"
        )
    limit_s = TIMEOUT_S
    if server := _mail_server(service):
        # apprise has one limit for all answers of a mail server, and abandons the call at its other limit.
        server.socket_connect_timeout = max(server.socket_connect_timeout, COMMAND_S)
        limit_s = 0.0
    is_markdown = form == "markdown"
    result = service.notify(
        title=title,
        body=body,
        notify_type=kind or apprise.NotifyType.INFO,
        body_format=apprise.NotifyFormat.MARKDOWN if is_markdown else apprise.NotifyFormat.TEXT,
        timeout=limit_s,
    )
    if result:
        return Delivered("sent")
    said = [entry.message for entry in result.logs() if entry.level in ("WARNING", "ERROR")]
    return DeliveryDelayed(
        shortened(without(" ".join(said) or "apprise could not send", url, place))
    )


def problem_of(url: str) -> str | None:
    """The problem of an address, without showing it; None: apprise can parse it."""
    if _opened(url.replace(OWNER, "someone")) is not None:
        return None
    scheme = url.partition("://")[0]
    if not re.fullmatch(r"[a-zA-Z0-9+.-]{1,20}", scheme) or scheme == url:
        return "not an address that apprise understands; it begins as in slack:// or mailtos://"
    return f"apprise does not understand the address after {scheme}://"


def _opened(url: str) -> "apprise.Apprise | None":
    import apprise

    logging.getLogger("apprise").propagate = False
    logging.getLogger("apprise").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.WARNING)  # its debug lines have the path
    asset = apprise.AppriseAsset(secure_logging=True, app_id="gpuwarden", http_redirects=False)
    service = apprise.Apprise(asset=asset)
    if not service.add(url):
        return None
    for plugin in service:
        plugin.redirects = False  # also where the address has redirect=yes: messages have secrets
    return service


def _mail_server(service: "apprise.Apprise | None") -> Any:
    """apprise's plugin of an address of mail; None: the address is of something else."""
    plugin = service[0] if service else None
    return plugin if type(plugin).__name__ == "NotifyEmail" else None


def of_incident(url: str, message: Notification) -> str:
    """The address of a pager with the incident's id, so that it deduplicates messages and ends the incident."""
    name = DEDUPLICATED.get(url.partition("://")[0].lower())
    if name is None or message.incident is None or f"{name}=" in url:
        return url
    action = "" if "action=" in url else "&action=map"
    return f"{url}{'&' if '?' in url else '?'}{name}={message.incident.id}{action}"


def type_of(message: Notification) -> "apprise.NotifyType":
    """The type of the message for apprise; for pagers, success ends an incident."""
    import apprise

    if message.is_over:
        return apprise.NotifyType.SUCCESS
    match message.severity:
        case Severity.CRITICAL:
            return apprise.NotifyType.FAILURE
        case Severity.WARNING:
            return apprise.NotifyType.WARNING
    return apprise.NotifyType.INFO


def without(text: str, *urls: str) -> str:
    """The text with every part of the addresses that could be a secret masked."""
    pieces = {piece for url in urls for piece in _pieces(url.partition("://")[2])}
    for piece in sorted(pieces, key=len, reverse=True):
        text = text.replace(piece, "***")
    return text


def _pieces(address: str) -> Iterable[str]:
    for piece in _SEPARATORS.split(address):
        if len(piece) >= PIECE_CHARACTERS_MIN:
            yield from (piece, unquote(piece))
