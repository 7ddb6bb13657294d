"""Reads a request for a silence, and checks it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwarden.alert import Alert, Matcher, Silence, matcher_of
from gpuwarden.durations import seconds_of

KEYS = ("matchers", "fingerprint", "for", "ends_at", "starts_at", "author", "comment")
AUTHOR_CHARS_MAX = 100
COMMENT_CHARS_MAX = 1_000
MATCHERS_MAX = 20
SPAN_MAX = timedelta(days=366)


class RequestError(ValueError):
    """The request is wrong; the message says what to change."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def silence_of(document: Any, alerts: Sequence[Alert], now: datetime, silence_id: str) -> Silence:
    """The silence that a JSON document asks for; `alerts` are those that can be acknowledged.

    Raises RequestError.
    """
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object")
    unknown = sorted(str(key) for key in document.keys() - set(KEYS))
    if unknown:
        raise RequestError(f"unknown key {unknown[0]!r}; known: {', '.join(KEYS)}")
    fingerprint = document.get("fingerprint")
    if (fingerprint is None) == (document.get("matchers") is None):
        raise RequestError('give either "matchers" or "fingerprint", of one alert')
    if fingerprint is not None and fingerprint not in [alert.fingerprint for alert in alerts]:
        raise RequestError(f"no alert with fingerprint {fingerprint!r} is active", 404)
    starts_at = _instant(document, "starts_at") or now
    return Silence(
        id=silence_id,
        matchers=() if fingerprint is not None else _matchers(document["matchers"]),
        fingerprint=fingerprint,
        author=_text(document, "author", AUTHOR_CHARS_MAX, is_required=True),
        comment=_text(document, "comment", COMMENT_CHARS_MAX),
        starts_at=starts_at,
        ends_at=_end(document, starts_at, now),
    )


def _matchers(value: Any) -> tuple[Matcher, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise RequestError('"matchers" must be a list of texts such as "node=n1"')
    if not 0 < len(value) <= MATCHERS_MAX:
        raise RequestError(f'"matchers" must have 1 to {MATCHERS_MAX} entries')
    try:
        return tuple(matcher_of(text) for text in value)
    except ValueError as error:
        raise RequestError(str(error)) from error


def _text(document: Mapping[str, Any], key: str, chars: int, *, is_required: bool = False) -> str:
    value = document.get(key, "")
    if not isinstance(value, str) or len(value) > chars or not value.isprintable():
        raise RequestError(f'"{key}" must be a text of one line, of at most {chars} characters')
    if is_required and not value.strip():
        raise RequestError(f'"{key}" is missing')
    return value.strip()


def _end(document: Mapping[str, Any], starts_at: datetime, now: datetime) -> datetime:
    span, ends_at = document.get("for"), _instant(document, "ends_at")
    if (span is None) == (ends_at is None):
        raise RequestError('give either "for", such as "2h", or "ends_at"')
    if ends_at is None:
        seconds = seconds_of(span) if isinstance(span, str) else None
        if not seconds:
            raise RequestError(f'"for" = {span!r} is not a duration; write 30m, 2h or 1d')
        ends_at = starts_at + timedelta(seconds=min(seconds, 2 * SPAN_MAX.total_seconds()))
    if ends_at <= max(now, starts_at):
        raise RequestError("a silence must end after it starts, and after now")
    if ends_at - now > SPAN_MAX:
        raise RequestError(f"a silence ends within {SPAN_MAX.days} days")
    return ends_at


def _instant(document: Mapping[str, Any], key: str) -> datetime | None:
    value = document.get(key)
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise RequestError(f'"{key}" = {value!r} is not an ISO 8601 instant') from error
    try:
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except OverflowError as error:
        raise RequestError(f'"{key}" = {value!r} is out of range') from error
