"""Reads, makes and expires silences in Alertmanager through its API v2.

Source: https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec

from gpuwarden.alert import Silence
from gpuwarden.clock import iso_text
from gpuwarden_rules.notify.receivers.receiver import TIMEOUT_S, shortened
from gpuwarden_rules.notify.silence_sync import TheirSilence, comment_there, matchers_there

LIST_BYTES_MAX = 16 * 1024**2
ANSWER_BYTES_MAX = 65_536


_OPERATORS = {(True, False): "=", (False, False): "!=", (True, True): "=~", (False, True): "!~"}


class SilencesError(Exception):
    """Alertmanager did not do what was asked, or its answer was lost; the message has no address."""


class _Matcher(msgspec.Struct, rename="camel"):
    name: str
    value: str
    is_regex: bool
    is_equal: bool = True


class _Status(msgspec.Struct):
    state: str


class _Listed(msgspec.Struct, rename="camel"):
    id: str
    status: _Status
    matchers: list[_Matcher]
    starts_at: datetime
    ends_at: datetime
    created_by: str = ""
    comment: str = ""


class _Made(msgspec.Struct, rename={"silence_id": "silenceID"}):
    silence_id: str


class AlertmanagerSilences:
    """The silences of one Alertmanager. Every method raises SilencesError."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/api/v2"
        self._session: aiohttp.ClientSession | None = None

    async def listed(self) -> dict[str, TheirSilence]:
        """All silences by id, with those that expired lately."""
        body = await self._call("GET", "/silences", None, LIST_BYTES_MAX)
        try:
            found = msgspec.json.decode(body, type=list[_Listed])
            return {one.id: _theirs(one) for one in found}
        except (ValueError, OverflowError) as error:
            raise SilencesError(f"its list of silences cannot be read: {error}") from error

    async def create(self, silence: Silence, installation: str) -> str:
        """Make a silence; its id there."""
        matchers = [
            {
                "name": name,
                "value": value,
                "isRegex": "~" in operator,
                "isEqual": not operator.startswith("!"),
            }
            for name, operator, value in matchers_there(silence)
        ]
        document = {
            "matchers": matchers,
            "startsAt": iso_text(silence.starts_at),
            "endsAt": iso_text(silence.ends_at),
            "createdBy": silence.author,
            "comment": comment_there(silence, installation),
        }
        body = await self._call("POST", "/silences", document, ANSWER_BYTES_MAX)
        try:
            return msgspec.json.decode(body, type=_Made).silence_id
        except ValueError as error:
            raise SilencesError(f"its answer cannot be read: {error}") from error

    async def expire(self, theirs_id: str) -> None:
        """Expire a silence; one that is not there any more is fine."""
        await self._call("DELETE", f"/silence/{theirs_id}", None, ANSWER_BYTES_MAX)

    async def close(self) -> None:
        """Close the session."""
        if self._session:
            await self._session.close()

    async def _call(
        self, method: str, path: str, document: Mapping[str, Any] | None, most: int
    ) -> bytes:
        self._session = self._session or aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(TIMEOUT_S)
        )
        try:
            async with self._session.request(
                method, self._url + path, json=document, allow_redirects=False
            ) as answer:
                body = await answer.content.read(most + 1)
                while len(body) <= most and not answer.content.at_eof():
                    body += await answer.content.read(most + 1 - len(body))
        except TimeoutError as error:
            raise SilencesError(f"no answer within {TIMEOUT_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SilencesError(type(error).__name__) from error
        if len(body) > most:
            raise SilencesError(f"its answer is larger than {most} bytes")
        if method == "DELETE" and answer.status == 404:
            return b""
        if not 200 <= answer.status < 300:
            said = shortened(body.decode("utf-8", "replace"))
            raise SilencesError(f"HTTP {answer.status}" + (f": {said}" if said else ""))
        return body


def _theirs(one: _Listed) -> TheirSilence:
    return TheirSilence(
        id=one.id,
        matchers=tuple((m.name, _OPERATORS[m.is_equal, m.is_regex], m.value) for m in one.matchers),
        author=one.created_by,
        comment=one.comment,
        starts_at=one.starts_at.astimezone(UTC),
        ends_at=one.ends_at.astimezone(UTC),
        is_expired=one.status.state == "expired",
    )
