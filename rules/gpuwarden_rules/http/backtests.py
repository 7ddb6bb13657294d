"""Serves backtests over HTTP: start one, get its progress and result, cancel it."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from gpuwarden.alert import Alert
from gpuwarden.durations import seconds_of
from gpuwarden_rules.backtest.run import SPAN_MAX, Backtest, Backtester, BusyError
from gpuwarden_rules.evaluation.reload import RuleReloader
from gpuwarden_rules.http.answers import Guarded, RequestError, answer, document_of

EPISODES_MAX = 2_000


def routes(
    backtester: Callable[[], Backtester | None], guarded: Guarded
) -> Iterable[web.AbstractRouteDef]:
    """Routes on `backtester()`; `guarded` wraps handlers that need the rules."""

    async def begin(request: web.Request, reloader: RuleReloader) -> web.Response:
        document = await document_of(request)
        engine = reloader.engine
        if not isinstance(document, dict) or document.keys() - {"rule", "since"}:
            raise RequestError('the body must be like {"rule": "gpu_idle_held", "since": "7d"}')
        rule = next((r for r in engine.rules if r.name == document.get("rule")), None)
        if rule is None:
            raise RequestError(f"no rule is called {document.get('rule')!r}", 404)
        since = document.get("since", "24h")
        seconds = seconds_of(since) if isinstance(since, str) else None
        if not seconds or seconds > SPAN_MAX.total_seconds():
            raise RequestError(
                f'"since" = {since!r} is not a duration up to {SPAN_MAX.days}d; write 6h or 7d'
            )
        try:
            span = timedelta(seconds=seconds)
            made = _found().begin(rule, engine.overrides[rule.name], span)
        except BusyError as error:
            raise RequestError(str(error), 409) from error
        return answer(_document(made), 201)

    async def running(_request: web.Request, _reloader: RuleReloader) -> web.Response:
        one = _found().running
        return answer({"running": None if one is None else _document(one)})

    async def show(request: web.Request, _reloader: RuleReloader) -> web.Response:
        wanted = request.match_info["id"]
        found = _found().get(wanted)
        if found is None:
            raise RequestError(f"there is no backtest {wanted!r}", 404)
        return answer(_document(found))

    async def cancel(request: web.Request, _reloader: RuleReloader) -> web.Response:
        wanted = request.match_info["id"]
        if not _found().cancel(wanted):
            raise RequestError(f"there is no backtest {wanted!r}", 404)
        return web.Response(status=204)

    def _found() -> Backtester:
        found = backtester()
        if found is None:
            raise RequestError("the rules have not started yet", 503)
        return found

    return [
        web.get("/v1/backtests", guarded(running)),
        web.post("/v1/backtests", guarded(begin)),
        web.get("/v1/backtests/{id}", guarded(show)),
        web.delete("/v1/backtests/{id}", guarded(cancel)),
    ]


def _document(made: Backtest) -> dict[str, Any]:
    done = made.result
    found: dict[str, Any] = {
        "id": made.id,
        "rule": made.rule.name,
        "state": made.state,
        "since": made.since,
        "until": made.until,
        "progress": made.progress,
        "seconds": made.seconds,
        "reason": made.reason,
    }
    if done is None:
        return found
    episodes = [_episode(alert, done.until) for alert in done.episodes[:EPISODES_MAX]]
    return found | {
        "step_s": done.step_s,
        "resolution_s": done.resolution_s,
        "evaluations": done.evaluations,
        "queries": done.queries,
        "usd": done.usd(),
        "fired": len(done.episodes),
        "episodes": episodes,
    }


def _episode(alert: Alert, until: datetime) -> dict[str, Any]:
    names = ("labels", "severity", "owner", "summary", "began_at", "fired_at", "resolved_at")
    found = {name: getattr(alert, name) for name in names}
    return found | {"labels": dict(alert.labels), "usd": alert.usd_so_far(until)}
