"""Serves the pages of incidents, alerts and silences."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlencode

from aiohttp import web

from gpuwarden.alert import Severity
from gpuwarden.clock import from_ms, to_ms
from gpuwarden.query import Record
from gpuwarden_dashboards.http import NotKnownError, choice, html, instant, whole
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.incidents import (
    ALERT_STAGES,
    ANY_STAGE,
    INCIDENT_STAGES,
    LIST_FILTERS,
    SINCE,
    Chosen,
    Episode,
    Listed,
    read_alert,
    read_alerts,
    read_incident,
    read_incidents,
    read_silences,
)

SINCE_USUAL = "7d"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class IncidentPages(Page):
    """GET /incidents, /incidents/{id}, /alerts, /alerts/{fingerprint} and /silences."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The pages."""
        return [
            web.get("/incidents", self._incidents),
            web.get("/incidents/{id}", self._incident),
            web.get("/alerts", self._alerts),
            web.get("/alerts/{fingerprint}", self._alert),
            web.get("/silences", self._silences),
        ]

    def render(self, listed: Listed, path: str, stages: Sequence[str]) -> str:
        """The HTML of a list; `path` says whether of incidents or alerts."""
        chosen = listed.chosen
        link = partial(_link, path, chosen, stages[0])
        return self._templates.render(
            "incidents.html",
            listed=listed,
            link=link,
            path=path,
            stages=stages,
            sinces=SINCE,
            severities=list(reversed(Severity)),
            unjudged=self._unjudged,
            at="/incidents",
        )

    def render_one(self, episode: Episode, kind: str) -> str:
        """The HTML of one incident, or of one alert."""
        return self._templates.render(
            "incident.html",
            episode=episode,
            subject=episode.subject,
            kind=kind,
            to_ms=to_ms,
            matchers=_matchers(episode.subject),
            firing=[
                alert["fingerprint"]
                for alert in _acknowledged_by(episode, kind)
                if alert["state"] != "resolved"
            ],
            at="/incidents",
        )

    async def _incidents(self, request: web.Request) -> web.Response:
        chosen = _chosen(request, INCIDENT_STAGES)
        listed = await read_incidents(self._querier, chosen, self._clock.now())
        return html(self.render(listed, "/incidents", INCIDENT_STAGES))

    async def _alerts(self, request: web.Request) -> web.Response:
        chosen = _chosen(request, ALERT_STAGES)
        listed = await read_alerts(self._querier, chosen, self._clock.now())
        return html(self.render(listed, "/alerts", ALERT_STAGES))

    async def _incident(self, request: web.Request) -> web.Response:
        wanted = request.match_info["id"]
        found = await read_incident(self._querier, wanted, self._clock.now())
        if found is None:
            raise NotKnownError(
                f"there is no incident {wanted}: old ones are deleted with their rows"
            )
        return html(self.render_one(found, "incident"))

    async def _alert(self, request: web.Request) -> web.Response:
        """`?active_at=` (milliseconds since 1970) chooses the episode."""
        active_ms = whole(request, "active_at", 0)
        found = await read_alert(
            self._querier,
            request.match_info["fingerprint"],
            from_ms(active_ms) if active_ms else None,
            self._clock.now(),
        )
        if found is None:
            raise NotKnownError("there is no such alert: old ones are deleted with their rows")
        return html(self.render_one(found, "alert"))

    async def _silences(self, request: web.Request) -> web.Response:
        now = self._clock.now()
        current, over = await read_silences(self._querier, now)
        return html(
            self._templates.render(
                "silences.html",
                now=now,
                current=current,
                over=over,
                matchers=request.query.getall("matcher", []),
                at="/incidents",
            )
        )


def _chosen(request: web.Request, stages: Sequence[str]) -> Chosen:
    filters = {
        name: " ".join(value.split())
        for name in LIST_FILTERS
        if (value := request.query.get(name, "").strip())
    }
    # Whatever was open at 03:00 may still be, or has ended.
    at = instant(request, "at", EPOCH)
    usual = stages[0] if at == EPOCH else ANY_STAGE
    return Chosen(
        choice(request, "state", usual, stages),
        choice(request, "since", SINCE_USUAL, SINCE),
        filters,
        None if at == EPOCH else at,
    )


def _link(path: str, chosen: Chosen, usual: str, **changed: str | None) -> str:
    """The address of this list with some parameters changed, without those that are as usual; None takes one away."""
    at = chosen.at and f"{chosen.at:%Y-%m-%dT%H:%M}"
    asked = {"state": chosen.stage, **chosen.filters, "since": chosen.since, "at": at, **changed}
    first = ANY_STAGE if asked["at"] else usual
    plain = {"state": first, "since": SINCE_USUAL}
    kept = {name: value for name, value in asked.items() if value and plain.get(name) != value}
    return f"{path}?{urlencode(kept)}" if kept else path


def _matchers(record: Record) -> list[str]:
    """Matchers of a silence of it: its rule and place."""
    labels = record["labels"]
    # The UUID identifies the GPU, whose index may change with a reboot.
    names = [name for name in labels if name != "gpu" or "gpu_uuid" not in labels]
    return [f"rule={record['rule']}", *(f"{name}={labels[name]}" for name in sorted(names))]


def _acknowledged_by(episode: Episode, kind: str) -> Sequence[Record]:
    """The alerts that an acknowledgement covers: the firing roots, else all that fire."""
    if kind == "alert":
        return [episode.subject]
    firing = [alert for alert in episode.alerts if alert["state"] == "firing"]
    return [alert for alert in firing if alert["cause"] is None] or firing
