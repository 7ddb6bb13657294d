"""Serves the pages of incidents, alerts and silences."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gpuwarden.alert import ALERT_FILTERS, Severity
from gpuwarden.clock import from_ms, to_ms
from gpuwarden.query import Record
from gpuwarden_dashboards.http import NotKnownError, choice, html, whole
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.incidents import (
    ALERT_STAGES,
    INCIDENT_STAGES,
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
        kept = {**chosen.filters, **({"since": chosen.since} if chosen.since != "7d" else {})}
        tabs = [
            (stage, listed.found.get(stage, 0), f"{path}?{urlencode({'state': stage, **kept})}")
            for stage in stages
        ]
        return self._templates.render(
            "incidents.html", listed=listed, tabs=tabs, path=path, filters=ALERT_FILTERS, sinces=SINCE,
            severities=list(reversed(Severity)), unjudged=self._unjudged, at="/incidents",
        )  # fmt: skip

    def render_one(self, episode: Episode, kind: str) -> str:
        """The HTML of one incident, or of one alert."""
        return self._templates.render(
            "incident.html",
            episode=episode,
            subject=episode.subject,
            kind=kind,
            to_ms=to_ms,
            labels=_labels,
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
        name: value for name in ALERT_FILTERS if (value := request.query.get(name, "").strip())
    }
    return Chosen(
        choice(request, "state", stages[0], stages), choice(request, "since", "7d", SINCE), filters
    )


def _labels(record: Record) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(record["labels"])
    return found


def _matchers(record: Record) -> list[str]:
    """Matchers of a silence of it: its rule and place."""
    labels = _labels(record)
    # The UUID identifies the GPU, whose index may change with a reboot.
    names = [name for name in labels if name != "gpu" or "gpu_uuid" not in labels]
    return [f"rule={record['rule']}", *(f"{name}={labels[name]}" for name in sorted(names))]


def _acknowledged_by(episode: Episode, kind: str) -> Sequence[Record]:
    """The alerts that an acknowledgement covers: the firing roots, else all that fire."""
    if kind == "alert":
        return [episode.subject]
    firing = [alert for alert in episode.alerts if alert["state"] == "firing"]
    return [alert for alert in firing if alert["cause"] is None] or firing
