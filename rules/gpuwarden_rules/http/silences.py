"""Serves silences and acknowledgements over HTTP: list, preview, create and end them."""

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from gpuwarden.access import CALLER
from gpuwarden.alert import Alert, Matcher, Silence, matcher_of
from gpuwarden.clock import Clock, instant_of
from gpuwarden.durations import seconds_of
from gpuwarden.query import Querier, QueryError, query_all
from gpuwarden_rules.evaluation.reload import RuleReloader
from gpuwarden_rules.http.answers import Guarded, RequestError, answer, document_of, instant

PREVIEWED_MAX = 50
"""Most alerts in the preview of a silence."""


@dataclass(frozen=True, slots=True)
class SilenceRights:
    """What the caller may silence. One of a team: its nodes by name, and its alerts."""

    nodes: frozenset[str] | None = None
    """None: all."""
    alerts: frozenset[str] = frozenset()
    """Fingerprints, if `nodes` is not None."""

    def shown(self, alerts: Sequence[Alert]) -> list[Alert]:
        """Those of the alerts that the caller may see."""
        return [a for a in alerts if self.nodes is None or a.fingerprint in self.alerts]

    def covers(self, silence: Silence) -> bool:
        """Whether the silence is only about what the caller may silence."""
        if self.nodes is None:
            return True
        if silence.fingerprint is not None:
            return silence.fingerprint in self.alerts
        return any(
            matcher.name == "node" and matcher.operator == "=" and matcher.value in self.nodes
            for matcher in silence.matchers
        )


async def _rights(querier: Querier) -> SilenceRights:
    """Those of the caller, by what its queries see. Raises QueryError."""
    if CALLER.get().team is None:
        return SilenceRights()
    asked: list[tuple[str, None]] = [(_NODES, None), (_ALERTS, None)]
    nodes, alerts = await query_all(querier, asked)
    return SilenceRights(
        frozenset(row["node"] for row in nodes.records()),
        frozenset(row["fingerprint"] for row in alerts.records()),
    )


_NODES = "SELECT node FROM nodes"
_ALERTS = "SELECT DISTINCT fingerprint FROM alerts"


def routes(
    guarded: Guarded, clock: Clock, on_silence: Callable[[], None], querier: Querier
) -> Iterable[web.AbstractRouteDef]:
    """`on_silence` is called when a silence is created or ended. `querier`: sees what the caller may see."""

    async def rights() -> SilenceRights:
        try:
            return await _rights(querier)
        except QueryError as error:
            raise RequestError(str(error), 503) from error

    async def list_silences(_request: web.Request, reloader: RuleReloader) -> web.Response:
        own = await rights()
        alerts = own.shown(reloader.engine.alerts)
        found = [_silence(one, alerts) for one in reloader.engine.silences if own.covers(one)]
        return answer({"silences": found})

    async def add_silence(request: web.Request, reloader: RuleReloader) -> web.Response:
        document = await document_of(request)
        engine, own = reloader.engine, await rights()
        alerts = own.shown(engine.alerts)
        author = (CALLER.get().name or "somebody")[:AUTHOR_CHARS_MAX]
        silence = silence_of(document, alerts, clock.now(), uuid.uuid4().hex[:12], author)
        if not own.covers(silence):
            reason = "a team silences its own nodes: add a matcher node=NAME of one of them"
            raise RequestError(reason, 403)
        await engine.silence(silence)
        on_silence()
        return answer(_silence(silence, alerts), 201)

    async def preview(request: web.Request, reloader: RuleReloader) -> web.Response:
        alerts, now = (await rights()).shown(reloader.engine.alerts), clock.now()
        asked = {"matchers": request.query.getall("matcher", []), "for": "1h"}
        silence = silence_of(asked, alerts, now, "", "")
        covered = [alert for alert in alerts if silence.covers(alert)]
        shown = [
            {
                "fingerprint": a.fingerprint,
                "severity": a.severity,
                "state": a.state,
                "summary": a.summary,
            }
            for a in covered[:PREVIEWED_MAX]
        ]
        return answer({"alerts": len(covered), "covered": shown})

    async def end_silence(request: web.Request, reloader: RuleReloader) -> web.Response:
        wanted = request.match_info["id"]
        own = await rights()
        silence = next((s for s in reloader.engine.silences if s.id == wanted), None)
        if silence is None or not own.covers(silence):
            raise RequestError(f"there is no silence {wanted!r}", 404)
        await reloader.engine.silence(dataclasses.replace(silence, ends_at=clock.now()))
        on_silence()
        return web.Response(status=204)

    return [
        web.get("/v1/silences", guarded(list_silences)),
        web.get("/v1/silences/preview", guarded(preview)),
        web.post("/v1/silences", guarded(add_silence)),
        web.delete("/v1/silences/{id}", guarded(end_silence)),
    ]


def _silence(silence: Silence, alerts: Sequence[Alert]) -> dict[str, Any]:
    return {
        "id": silence.id,
        "matchers": [str(matcher) for matcher in silence.matchers],
        "fingerprint": silence.fingerprint,
        "author": silence.author,
        "comment": silence.comment,
        "starts_at": instant(silence.starts_at),
        "ends_at": instant(silence.ends_at),
        "alerts": sum(silence.covers(alert) for alert in alerts),
    }


KEYS = ("matchers", "fingerprint", "for", "ends_at", "starts_at", "comment")
AUTHOR_CHARS_MAX = 100
COMMENT_CHARS_MAX = 1_000
MATCHERS_MAX = 20
SPAN_MAX = timedelta(days=366)


def silence_of(
    document: Any, alerts: Sequence[Alert], now: datetime, silence_id: str, author: str
) -> Silence:
    """The silence that a JSON document asks for; `alerts` are those that can be acknowledged, `author` is who sent it.

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
        author=author,
        comment=_comment(document),
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


def _comment(document: Mapping[str, Any]) -> str:
    value = document.get("comment", "")
    if not isinstance(value, str) or len(value) > COMMENT_CHARS_MAX or not value.isprintable():
        raise RequestError(
            f'"comment" must be a text of one line, of at most {COMMENT_CHARS_MAX} characters'
        )
    return value.strip()


def _end(document: Mapping[str, Any], starts_at: datetime, now: datetime) -> datetime:
    span, ends_at = document.get("for"), _instant(document, "ends_at")
    if (span is None) == (ends_at is None):
        raise RequestError('give either "for", such as "2h", or "ends_at"')
    late = f"a silence ends within {SPAN_MAX.days} days"
    if starts_at - now > SPAN_MAX:
        raise RequestError(late)
    if ends_at is None:
        seconds = seconds_of(span) if isinstance(span, str) else None
        if not seconds:
            raise RequestError(f'"for" = {span!r} is not a duration; write 30m, 2h or 1d')
        ends_at = starts_at + timedelta(seconds=min(seconds, 2 * SPAN_MAX.total_seconds()))
    if ends_at <= max(now, starts_at):
        raise RequestError("a silence must end after it starts, and after now")
    if ends_at - now > SPAN_MAX:
        raise RequestError(late)
    return ends_at


def _instant(document: Mapping[str, Any], key: str) -> datetime | None:
    value = document.get(key)
    if value is None:
        return None
    try:
        return instant_of(value if isinstance(value, str) else "")
    except ValueError as error:
        raise RequestError(f'"{key}" {error}') from error
