"""Serves `/v1/bursts`: asks the agent of a node to sample a GPU quickly for a short time.

A request waits in memory until its agent sends a batch; the answer to it hands the request out. It expires after a
minute, so that a restart of the collector loses nothing that somebody still waits for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from aiohttp import web

from gpuwarden.burst import (
    BURSTS_HEADER,
    EXPIRES_S,
    NODE_HEADER,
    BurstError,
    BurstRequest,
    burst_of,
    bursts_header,
)
from gpuwarden.clock import Clock
from gpuwarden_collector.http.app import error_response
from gpuwarden_collector.http.json_bodies import (
    JsonBodyError,
    answering_errors,
    json_body,
    owner_of,
)

HOURLY_MAX = 60
"""Bursts of one node in an hour."""
HANDED_OUT_MAX = 8
"""Requests in one answer."""
KEPT = timedelta(hours=1)
_BODY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class AskedBurst:
    """A request and what happened to it."""

    node: str
    request: BurstRequest
    asked_by: str | None
    asked_at: datetime
    handed_out_at: datetime | None = None

    @property
    def expires_at(self) -> datetime:
        """Until when it is handed out."""
        return self.asked_at + timedelta(seconds=EXPIRES_S)

    def state(self, now: datetime) -> str:
        """waiting, handed out, or expired: no agent fetched it in time."""
        if self.handed_out_at is not None:
            return "handed out"
        return "waiting" if now < self.expires_at else "expired"

    def is_over(self, now: datetime) -> bool:
        """Whether its samples are taken, unless the agent got it late: it runs one after another."""
        if self.handed_out_at is None:
            return now >= self.expires_at
        return now >= self.handed_out_at + timedelta(seconds=self.request.seconds)


def admitted(
    known: Iterable[AskedBurst], asked: AskedBurst, now: datetime
) -> tuple[list[AskedBurst], str | None]:
    """What is kept with one more request, and why that is refused; None: it is admitted."""
    kept = [one for one in known if now - one.asked_at < KEPT]
    of_node = [one for one in kept if one.node == asked.node]
    if len(of_node) >= HOURLY_MAX:
        return kept, f"{asked.node} has had {HOURLY_MAX} bursts within an hour"
    for one in of_node:
        if one.request.gpu_uuid == asked.request.gpu_uuid and not one.is_over(now):
            return kept, f"burst {one.request.id} of this GPU is not over: wait for it"
    return [*kept, asked], None


def handed_out(
    known: Iterable[AskedBurst], node: str, now: datetime
) -> tuple[list[AskedBurst], list[BurstRequest]]:
    """The requests for a node, again until they expire: an answer may be lost, and agents run each once."""
    known = list(known)
    live = [one for one in known if one.node == node and now < one.expires_at]
    # Those that the agent does not have yet go first: each is in each answer until it expires.
    live.sort(key=lambda one: one.handed_out_at is not None)
    given = [one.request for one in live[:HANDED_OUT_MAX]]
    kept = [
        replace(one, handed_out_at=one.handed_out_at or now) if one.request in given else one
        for one in known
    ]
    return kept, given


@dataclass(slots=True)
class BurstDesk:
    """The requests of this collector."""

    clock: Clock
    _known: list[AskedBurst] = field(default_factory=list)

    def header(self, headers: Mapping[str, str], bound_to: str | None = None) -> dict[str, str]:
        """The header for the answer to a batch; none if nobody asks for bursts of its node. `bound_to`: the only node
        that the sender's token allows; None: it allows any.
        """
        if not self._known or (said := headers.get(NODE_HEADER)) is None:
            return {}
        node = unquote(said)
        if bound_to is not None and node != bound_to:
            return {}
        self._known, given = handed_out(self._known, node, self.clock.now())
        return {BURSTS_HEADER: bursts_header(given)} if given else {}

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes for the application."""
        return [
            web.post("/v1/bursts", answering_errors(self._ask)),
            web.get("/v1/bursts/{id}", answering_errors(self._show)),
        ]

    async def _ask(self, request: web.Request) -> web.Response:
        document = await json_body(request, _BODY_BYTES_MAX, "the body must be a JSON object")
        now = self.clock.now()
        try:
            node, wanted = burst_of(document, uuid4().hex[:12])
        except BurstError as error:
            raise JsonBodyError(400, str(error)) from error
        asked = AskedBurst(node, wanted, owner_of(request).name, now)
        self._known, refused = admitted(self._known, asked, now)
        if refused is not None:
            return error_response(409, refused)
        return web.json_response(_described(asked, now), status=201)

    async def _show(self, request: web.Request) -> web.Response:
        wanted = request.match_info["id"]
        for one in self._known:
            if one.request.id == wanted:
                return web.json_response(_described(one, self.clock.now()))
        return error_response(404, "there is no such burst of the last hour")


def _described(one: AskedBurst, now: datetime) -> dict[str, Any]:
    return {
        **asdict(one.request),
        "node": one.node,
        "asked_by": one.asked_by,
        "asked_at": one.asked_at.isoformat(),
        "expires_at": one.expires_at.isoformat(),
        "state": one.state(now),
    }
