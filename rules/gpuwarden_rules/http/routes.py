"""HTTP routes of the rules: `/v1/rules` and `/v1/silences`. docs/api.md is the full text."""

import dataclasses
import json
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from gpuwarden.alert import Alert
from gpuwarden.clock import Clock, iso_text
from gpuwarden.query import Querier, QueryError
from gpuwarden.silence import Silence
from gpuwarden_rules.backtest.explain import Explanation, explanation
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.evaluation.reload import ReloadError, RuleReloader
from gpuwarden_rules.http.silence_requests import RequestError, silence_of

Handler = Callable[[web.Request, RuleReloader], Awaitable[web.Response]]


def routes(
    reloader: Callable[[], RuleReloader | None], querier: Querier, clock: Clock
) -> Iterable[web.AbstractRouteDef]:
    """Routes on the engine that `reloader` gives; 503 while it gives none."""

    def guarded(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            found = reloader()
            if found is None:
                return _error(503, "the rules have not started yet")
            try:
                return await handler(request, found)
            except RequestError as error:
                return _error(error.status, str(error))

        return handle

    async def list_rules(_request: web.Request, reloader: RuleReloader) -> web.Response:
        return _answer({"rules": described(reloader.engine)})

    async def reload(_request: web.Request, reloader: RuleReloader) -> web.Response:
        try:
            rule_set = await reloader.reload()
        except ReloadError as error:
            problems = [dataclasses.asdict(problem) for problem in error.problems]
            return _answer({"error": str(error), "status": 422, "problems": problems}, 422)
        return _answer({"rules": len(rule_set.rules), "overrides": len(rule_set.overrides)})

    async def list_silences(_request: web.Request, reloader: RuleReloader) -> web.Response:
        alerts = reloader.engine.alerts
        found = [_silence(silence, alerts) for silence in reloader.engine.silences]
        return _answer({"silences": found})

    async def add_silence(request: web.Request, reloader: RuleReloader) -> web.Response:
        document = await _document(request)
        engine = reloader.engine
        silence = silence_of(document, engine.alerts, clock.now(), uuid.uuid4().hex[:12])
        await engine.silence(silence)
        return _answer(_silence(silence, engine.alerts), 201)

    async def end_silence(request: web.Request, reloader: RuleReloader) -> web.Response:
        wanted = request.match_info["id"]
        silence = next((s for s in reloader.engine.silences if s.id == wanted), None)
        if silence is None:
            raise RequestError(f"there is no silence {wanted!r}", 404)
        await reloader.engine.silence(dataclasses.replace(silence, ends_at=clock.now()))
        return web.Response(status=204)

    async def explain(request: web.Request, reloader: RuleReloader) -> web.Response:
        wanted = request.match_info["fingerprint"]
        try:
            found = await explanation(reloader.engine, querier, wanted, clock.now())
        except QueryError as error:
            raise RequestError(str(error), 503) from error
        if found is None:
            raise RequestError(f"there is no alert {wanted!r}", 404)
        return web.json_response(_explained(found), dumps=_dumps)

    return [
        web.get("/v1/alerts/{fingerprint}/explanation", guarded(explain)),
        web.get("/v1/rules", guarded(list_rules)),
        web.post("/v1/rules/reload", guarded(reload)),
        web.get("/v1/silences", guarded(list_silences)),
        web.post("/v1/silences", guarded(add_silence)),
        web.delete("/v1/silences/{id}", guarded(end_silence)),
    ]


async def _document(request: web.Request) -> Any:
    """The JSON of a body. Raises RequestError."""
    # A page of another site can send a form without asking, and JSON it cannot.
    if request.content_type != "application/json":
        raise RequestError("the body must be JSON, with that Content-Type", 415)
    try:
        return json.loads(await request.text())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error


def described(engine: RuleEngine) -> list[dict[str, Any]]:
    """Each rule with its state and figures, as JSON has it."""
    stats, overrides = engine.stats, engine.overrides
    found = []
    for rule in engine.rules:
        figures = stats[rule.name]
        found.append(
            {
                "rule": rule.name,
                "state": figures.state,
                "reason": figures.cannot_run or figures.last_error,
                "severity": rule.severity.value,
                "labels": list(rule.labels),
                "interval_s": rule.interval_s,
                "for_s": rule.for_s,
                "keep_firing_for_s": rule.keep_firing_for_s,
                "params": dict(rule.params),
                "requires": [f"{table}.{column}" for table, column in rule.requires],
                "consequence": rule.consequence.value,
                "caused_by": {name: list(equal) for name, equal in rule.caused_by.items()},
                "summary": str(rule.summary),
                "file": rule.path,
                "line": rule.line,
                "overrides": len(overrides[rule.name]),
                "pending": figures.pending,
                "firing": figures.firing,
                "unknown": figures.unknown,
                "muted": figures.muted,
                "evaluations": figures.evaluations,
                "failures": figures.failures,
                "last_seconds": figures.last_seconds,
                "last_success_at": _instant(figures.last_success_at),
            }
        )
    return found


def _silence(silence: Silence, alerts: Sequence[Alert]) -> dict[str, Any]:
    return {
        "id": silence.id,
        "matchers": [str(matcher) for matcher in silence.matchers],
        "fingerprint": silence.fingerprint,
        "author": silence.author,
        "comment": silence.comment,
        "starts_at": _instant(silence.starts_at),
        "ends_at": _instant(silence.ends_at),
        "alerts": sum(silence.covers(alert) for alert in alerts),
    }


def _explained(found: Explanation) -> dict[str, Any]:
    return {
        "alert": found.episodes[0],
        "timeline": [{"at": at, "what": what} for at, what in found.timeline()],
        "params": dict(found.params),
        "rows": [
            {"when": when, "at": at, "row": row if isinstance(row, Mapping) else None}
            | ({"problem": row} if isinstance(row, str) else {})
            for when, at, row in found.rows
        ],
        "sql": found.sql,
    }


def _dumps(document: Any) -> str:
    """JSON of rows: instants as elsewhere, spans in seconds, else as text; NaN is null."""

    def plain(value: Any) -> Any:
        match value:
            case dict():
                return {str(key): plain(inner) for key, inner in value.items()}
            case list() | tuple():
                return [plain(inner) for inner in value]
            case datetime():
                return _instant(value)
            case timedelta():
                return value.total_seconds()
            case float() if not math.isfinite(value):
                return None
            case None | bool() | int() | float() | str():
                return value
            case _:
                return str(value)

    return json.dumps(plain(document), ensure_ascii=False, allow_nan=False)


def _instant(instant: datetime | None) -> str | None:
    return iso_text(instant) if instant else None


def _answer(document: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(document, status=status)


def _error(status: int, reason: str) -> web.Response:
    return _answer({"error": reason, "status": status}, status)
