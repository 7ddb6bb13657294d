"""Serves rules, judgement, silences, backtests and explanations of alerts; see docs/api.md."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from gpuwarden.clock import Clock, instant_of
from gpuwarden.judgement import NOT_STARTED
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.backtest.explain import Explanation, explanation
from gpuwarden_rules.backtest.run import Backtester
from gpuwarden_rules.evaluation.reload import ReloadError, RuleReloader
from gpuwarden_rules.evaluation.unable import read_unable, rules_of_gpus
from gpuwarden_rules.http import backtests, prometheus, silences
from gpuwarden_rules.http.answers import Handler, RequestError, answer, error_answer
from gpuwarden_rules.http.policies import policy_routes
from gpuwarden_rules.http.rule_document import described, written
from gpuwarden_rules.policies.service import PolicyService


def routes(
    reloader: Callable[[], RuleReloader | None],
    querier: Querier,
    clock: Clock,
    backtester: Callable[[], Backtester | None] = lambda: None,
    on_silence: Callable[[], None] = lambda: None,
    policies: Callable[[], PolicyService | None] = lambda: None,
) -> Iterable[web.AbstractRouteDef]:
    """Routes on the engine of `reloader()`; 503 while that is None. `on_silence` is called when a silence changes."""

    def guarded(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            found = reloader()
            if found is None:
                return error_answer(503, "the rules have not started yet")
            try:
                return await handler(request, found)
            except RequestError as error:
                return error_answer(error.status, str(error))

        return handle

    async def list_rules(_request: web.Request, reloader: RuleReloader) -> web.Response:
        judgement = reloader.engine.judgement.document()
        found = answer({"rules": described(reloader.engine), "judgement": judgement})
        found.enable_compression()
        return found

    async def show_rule(request: web.Request, reloader: RuleReloader) -> web.Response:
        wanted, engine = request.match_info["name"], reloader.engine
        rule = next((rule for rule in engine.all_rules if rule.name == wanted), None)
        if rule is None:
            raise RequestError(f"no rule is called {wanted!r}", 404)
        # Reading its file and its test cases takes a fifth of a second.
        return answer(await asyncio.to_thread(written, engine, rule))

    async def reload(_request: web.Request, reloader: RuleReloader) -> web.Response:
        try:
            rule_set = await reloader.reload()
        except ReloadError as error:
            problems = [dataclasses.asdict(problem) for problem in error.problems]
            return answer({"error": str(error), "status": 422, "problems": problems}, 422)
        return answer({"rules": len(rule_set.rules), "overrides": len(rule_set.overrides)})

    async def explain(request: web.Request, reloader: RuleReloader) -> web.Response:
        wanted = request.match_info["fingerprint"]
        episode = request.query.get("active_at")
        try:
            active_at = instant_of(episode) if episode else None
        except ValueError as error:
            raise RequestError(f"active_at {error}") from error
        try:
            found = await explanation(reloader.engine, querier, wanted, clock.now(), active_at)
        except QueryError as error:
            raise RequestError(str(error), 503) from error
        if found is None:
            raise RequestError(f"there is no alert {wanted!r}", 404)
        return answer(_document(found))

    return [
        web.get("/v1/judgement", partial(_judge, reloader)),
        web.get("/v1/alerts/{fingerprint}/explanation", guarded(explain)),
        web.get("/v1/gpus/{gpu_uuid}/unable-rules", guarded(partial(_show_unable, querier, clock))),
        web.get("/v1/rules", guarded(list_rules)),
        web.get("/v1/rules/{name}", guarded(show_rule)),
        web.post("/v1/rules/reload", guarded(reload)),
        *prometheus.routes(guarded),
        *silences.routes(guarded, clock, on_silence, querier),
        *backtests.routes(backtester, guarded),
        *policy_routes(policies, clock, backtester, querier),
    ]


async def _show_unable(
    querier: Querier, clock: Clock, request: web.Request, reloader: RuleReloader
) -> web.Response:
    wanted, rules = request.match_info["gpu_uuid"], reloader.engine.rules
    try:
        found = await read_unable(querier, rules, wanted, clock.now())
    except QueryError as error:
        raise RequestError(str(error), 503) from error
    if found is None:
        raise RequestError(f"GPU {wanted!r} has no samples of the last hour", 404)
    listed = [
        {"rule": one.rule.name, "severity": one.rule.severity.value, "missing": one.missing}
        for one in found
    ]
    return answer({"gpu_uuid": wanted, "rules": len(rules_of_gpus(rules)), "unable": listed})


async def _judge(
    reloader: Callable[[], RuleReloader | None], _request: web.Request
) -> web.Response:
    found = reloader()
    return answer((found.engine.judgement if found else NOT_STARTED).document())


def _document(found: Explanation) -> dict[str, Any]:
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
        "charts": [dataclasses.asdict(chart) for chart in found.charts],
    }
