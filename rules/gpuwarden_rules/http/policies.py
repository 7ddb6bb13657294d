"""Serves policies: what they do, what the actor is to do, and the page by which owners answer; see docs/api.md."""

import html
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from gpuwarden.access import CALLER
from gpuwarden.clock import Clock
from gpuwarden.parameters import whole_number_of
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.backtest.run import Backtester
from gpuwarden_rules.evaluation.fleet import locations
from gpuwarden_rules.http.answers import RequestError, answer, document_of, error_answer
from gpuwarden_rules.policies.case_store import CaseStoreError
from gpuwarden_rules.policies.cases import PolicyCase, digest_of
from gpuwarden_rules.policies.dry_run import DryRun, Outcome, dry_run, saved_usd
from gpuwarden_rules.policies.service import PolicyService, act_sentence

NOTE_CHARACTERS_MAX = 500
ACTS_LISTED_MAX = 500
"""Acts that a dry run lists; wrong ones come first."""
HOURS_MAX = 14 * 24
_BODY_BYTES_MAX = 1_024
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
}
Served = Callable[[web.Request, PolicyService], Awaitable[web.Response]]


def policy_routes(
    service: Callable[[], PolicyService | None],
    clock: Clock,
    backtester: Callable[[], Backtester | None],
    querier: Querier,
) -> Iterable[web.AbstractRouteDef]:
    """Routes on `service()`; 404 while that is None: the collector has no policies. Dry runs follow backtests of
    `backtester()`."""

    def served(handler: Served) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            found = service()
            if found is None:
                return error_answer(404, "this collector has no policies: set policies_path")
            try:
                return await handler(request, found)
            except RequestError as error:
                return error_answer(error.status, str(error))
            except (CaseStoreError, QueryError) as error:
                return error_answer(503, str(error))

        return handle

    return [
        web.get("/v1/policies", served(_listed)),
        web.get("/v1/policies/results", served(_results)),
        web.post("/v1/policies/stop", served(_stop)),
        web.post("/v1/policies/start", served(_start)),
        web.post("/v1/policies/{name}/seen", served(_see)),
        web.get("/v1/policies/{name}/dry-run", served(partial(_dry_run, backtester, querier))),
        web.post("/v1/nodes/{node}/resume", served(_resume)),
        web.get("/v1/acts", served(_acts)),
        web.post("/v1/acts/{id}", served(_report)),
        web.get("/answer/{secret}", served(_question)),
        web.post("/answer/{secret}", served(partial(_take, clock))),
    ]


async def _listed(_request: web.Request, policies: PolicyService) -> web.Response:
    return answer(await policies.document())


async def _results(_request: web.Request, policies: PolicyService) -> web.Response:
    return answer({"results": await policies.results()})


async def _stop(_request: web.Request, policies: PolicyService) -> web.Response:
    await policies.stop(CALLER.get().name or "somebody")
    return answer({"stopped": True})


async def _start(_request: web.Request, policies: PolicyService) -> web.Response:
    await policies.start()
    return answer({"stopped": False})


async def _see(request: web.Request, policies: PolicyService) -> web.Response:
    asked = _object(await document_of(request))
    name, digest = request.match_info["name"], asked.get("digest")
    if not isinstance(digest, str) or not await policies.see(name, digest):
        raise RequestError(
            f"the collector has no policy {name!r} of this content: reload it first", 409
        )
    return answer({"seen": True})


async def _dry_run(
    backtester: Callable[[], Backtester | None],
    querier: Querier,
    request: web.Request,
    policies: PolicyService,
) -> web.Response:
    name, wanted = request.match_info["name"], request.query.get("backtest", "")
    policy = next((one for one in policies.policies if one.name == name), None)
    if policy is None:
        raise RequestError(f"no policy is called {name!r}", 404)
    found = backtester()
    made = None if found is None else found.get(wanted)
    if made is None or made.rule.name != policy.rule:
        raise RequestError(f"backtest={wanted!r} is not a backtest of rule {policy.rule}", 404)
    if made.result is None:
        raise RequestError(f"the backtest is {made.state.value}: wait until it is done", 409)
    done = await dry_run(policy, made.result, await locations(querier), querier)
    return answer(_dry_run_document(done))


def _dry_run_document(done: DryRun) -> dict[str, Any]:
    acts = [trial for trial in done.trials if trial.act_at is not None]
    return {
        "policy": done.policy.name,
        "digest": digest_of(done.policy),
        "since": done.since,
        "until": done.until,
        "acts": len(done.of(Outcome.ACTED)),
        "judged": sum(trial.is_judged or trial.is_wrong for trial in acts),
        "wrong": len(done.wrong),
        "saved_usd": done.saved_usd,
        "simulated": any(trial.alert.simulated for trial in acts),
        "outcomes": {o.value: len(found) for o in Outcome if (found := done.of(o))},
        "users": [
            {
                "username": username or None,
                "alerts": len(trials),
                "jobs": len({trial.subject.job for trial in trials} - {""}),
                "saved_usd": saved_usd(trials),
                "wrong": sum(trial.is_wrong for trial in trials),
            }
            for username, trials in done.by_user().items()
        ],
        "listed": [
            {
                "act_at": trial.act_at,
                "labels": dict(trial.alert.labels),
                "username": trial.subject.username or None,
                "job": trial.subject.job or None,
                "outcome": trial.outcome.value,
                "saved_usd": trial.saved_usd,
                "busy_again_at": trial.busy_again_at,
            }
            for trial in sorted(acts, key=lambda trial: not trial.is_wrong)[:ACTS_LISTED_MAX]
        ],
    }


async def _resume(request: web.Request, policies: PolicyService) -> web.Response:
    case = await policies.resume(request.match_info["node"], CALLER.get().name or "somebody")
    return answer({"id": case.id}, 202)


async def _acts(request: web.Request, policies: PolicyService) -> web.Response:
    kinds, nodes = (frozenset(request.query.getall(name, [])) for name in ("kind", "node"))
    found = [
        _act(case)
        for case in await policies.acts()
        if (not kinds or case.act.value in kinds) and (not nodes or case.node in nodes)
    ]
    return answer({"acts": found})


async def _report(request: web.Request, policies: PolicyService) -> web.Response:
    asked, name = _object(await document_of(request)), request.match_info["id"]
    is_done, note = asked.get("is_done"), asked.get("note", "")
    if not isinstance(is_done, bool) or not isinstance(note, str):
        raise RequestError("the body must have is_done, true or false, and may have note, a text")
    ended = await policies.report(name, is_done=is_done, note=note[:NOTE_CHARACTERS_MAX])
    if ended is None:
        raise RequestError(f"case {name!r} waits for no report", 409)
    return answer({"id": ended.id, "state": ended.state.value})


async def _question(request: web.Request, policies: PolicyService) -> web.Response:
    case = await policies.asked(request.match_info["secret"])
    return _page(*_OVER, status=410) if case is None else _page("Still needed?", _form(case))


async def _take(clock: Clock, request: web.Request, policies: PolicyService) -> web.Response:
    asked = await _form_of(request)
    match asked.get("answer"):
        case "end":
            until = None
        case "keep":
            try:
                hours = whole_number_of(asked.get("hours", ""), 1, HOURS_MAX)
            except ValueError as error:
                raise RequestError(f"hours {error}") from error
            until = clock.now() + timedelta(hours=hours)
        case _:
            raise RequestError("answer must be end, or keep with hours")
    found = await policies.answer(request.match_info["secret"], until)
    if found is None:
        return _page(*_OVER, status=410)
    if until is None:
        return _page(
            "It will be ended", f"<p>Within seconds, {html.escape(act_sentence(found))}.</p>"
        )
    return _page("It is kept", f"<p>Nothing is done before {found.next_at:%Y-%m-%d %H:%M} UTC.</p>")


_OVER = (
    "This link is over",
    "<p>It was used, it is too old, or the job has ended. Nothing was changed.</p>",
)


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object")
    return document


def _act(case: PolicyCase) -> dict[str, Any]:
    return {
        "id": case.id, "act": case.act.value, "policy": case.policy, "node": case.node, "username": case.username, "job": case.job,
        "gpu_uuid": case.gpu_uuid,
        "asked_at": case.act_at, "by": case.next_at, "summary": case.summary,
    }  # fmt: skip


async def _form_of(request: web.Request) -> dict[str, str]:
    """The fields of a small form. Raises RequestError."""
    if (request.content_length or _BODY_BYTES_MAX + 1) > _BODY_BYTES_MAX:
        raise RequestError(f"the body must be a form of at most {_BODY_BYTES_MAX} bytes", 413)
    return dict(parse_qsl((await request.read()).decode("ascii", "replace")))


def _form(case: PolicyCase) -> str:
    at = (
        ""
        if case.next_at is None
        else f" The next step comes at {case.next_at:%Y-%m-%d %H:%M} UTC."
    )
    return f"""<p>{html.escape(case.summary)}</p>
<p>Policy {html.escape(case.policy)} would do this to it: {html.escape(act_sentence(case))}.{at}</p>
<form method="post"><input type="hidden" name="answer" value="keep"><label>Still needed for
<input name="hours" type="number" min="1" max="{HOURS_MAX}" value="24"> hours</label> <button>keep it</button></form>
<form method="post"><input type="hidden" name="answer" value="end"><button>end it now</button></form>"""


def _page(title: str, body: str, status: int = 200) -> web.Response:
    text = f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title} · gpuwarden</title>
<style>body{{font:16px system-ui;max-width:40em;margin:3em auto;padding:0 1em}}form{{margin:1em 0}}</style>
<h1>{title}</h1>{body}</html>"""
    return web.Response(text=text, status=status, content_type="text/html", headers=_PAGE_HEADERS)
