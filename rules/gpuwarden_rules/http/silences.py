"""HTTP routes of silences and acknowledgements: list, preview, make and end them."""

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aiohttp import web

from gpuwarden.alert import Alert, Silence
from gpuwarden.clock import Clock
from gpuwarden_rules.evaluation.reload import RuleReloader
from gpuwarden_rules.http.answers import Guarded, answer, document_of, instant
from gpuwarden_rules.http.silence_requests import RequestError, silence_of

PREVIEWED_MAX = 50
"""Alerts that the preview of a silence names."""


def routes(
    guarded: Guarded, clock: Clock, on_silence: Callable[[], None]
) -> Iterable[web.AbstractRouteDef]:
    """`on_silence` is called when one comes or ends."""

    async def list_silences(_request: web.Request, reloader: RuleReloader) -> web.Response:
        alerts = reloader.engine.alerts
        found = [_silence(silence, alerts) for silence in reloader.engine.silences]
        return answer({"silences": found})

    async def add_silence(request: web.Request, reloader: RuleReloader) -> web.Response:
        document = await document_of(request)
        engine = reloader.engine
        silence = silence_of(document, engine.alerts, clock.now(), uuid.uuid4().hex[:12])
        await engine.silence(silence)
        on_silence()
        return answer(_silence(silence, engine.alerts), 201)

    async def preview(request: web.Request, reloader: RuleReloader) -> web.Response:
        alerts, now = reloader.engine.alerts, clock.now()
        asked = {"matchers": request.query.getall("matcher", []), "for": "1h", "author": "preview"}
        silence = silence_of(asked, alerts, now, "")
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
        silence = next((s for s in reloader.engine.silences if s.id == wanted), None)
        if silence is None:
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
