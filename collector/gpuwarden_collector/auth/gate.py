"""Checks each HTTP request before its handler: the token, its scope, and requests that other web pages cause."""

import base64
import binascii
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from aiohttp import web

from gpuwarden.access import (
    CALLER,
    COOKIE,
    LOGIN_PATH,
    Caller,
    Denied,
    Scope,
    Token,
    allows,
    is_local_name,
)
from gpuwarden.clock import Clock
from gpuwarden_collector.auth.access_file import AccessRules, is_within, person_id
from gpuwarden_collector.auth.connections import Connections
from gpuwarden_collector.auth.exposure import Exposure
from gpuwarden_collector.auth.scopes import Anyone, Need, is_for_teams, need_of
from gpuwarden_collector.auth.senders import NOBODY
from gpuwarden_collector.auth.token_store import Granted, TokenEntry, TokenStore

log = logging.getLogger(__name__)

GRANT = web.RequestKey("GRANT", Granted)
"""Key of a request's `Granted`; absent where no token is required."""

REFUSED = web.RequestKey[TokenEntry | None]("REFUSED", TokenEntry)
"""Key of a request that was refused here: its token, if that is valid; None: it has none."""
_KNOWN = frozenset({"scope", "team"})
"""Reasons of refusals of valid tokens."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOG_INTERVAL_S = 60.0
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
"""Headers of proxies: the client is on another machine."""
_CHALLENGE = 'Basic realm="gpuwarden: any name, and a token as the password", charset="UTF-8"'

GUESSES_MAX = 30
"""Wrong tokens that an address may send in `GUESSES_S`; then wrong ones get 429. A right token always works."""
GUESSES_S = 60.0
_ADDRESSES_MAX = 10_000
_NAME_CHARACTERS_MAX = 200
_LOCAL_ONLY = "without tokens this collector answers"
_PROXY = "; if there is a proxy in front of it, set require_tokens = true (docs/security.md)"
_GUESSED = f"this address has sent {GUESSES_MAX} wrong tokens in a minute: check the token, and try again later"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guesses:
    """Counts wrong tokens of the last minute by address."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._counts: Counter[str] = Counter()

    def is_over(self, client: str, now_s: float) -> bool:
        """Whether the address has sent too many."""
        self._begin(now_s)
        return self._counts[client] >= GUESSES_MAX

    def note(self, client: str, now_s: float) -> None:
        """Count a wrong token. Addresses beyond _ADDRESSES_MAX share one count."""
        self._begin(now_s)
        known = client in self._counts or len(self._counts) < _ADDRESSES_MAX
        self._counts[client if known else ""] += 1

    def _begin(self, now_s: float) -> None:
        if now_s - self._since_s >= GUESSES_S:
            self._since_s, self._counts = now_s, Counter()


class Gate:
    """Decides on each request, with the current tokens."""

    def __init__(
        self,
        exposure: Exposure,
        store: Callable[[], TokenStore],
        rules: Callable[[], AccessRules],
        refresh: Callable[[], None],
        clock: Clock,
        denied: Counter[str],
        connections: Connections,
    ) -> None:
        """`store`: the current tokens, `rules`: teams; `refresh` reads them again if they have changed. `denied`: counts denials by reason."""
        self._exposure = exposure
        self._store = store
        self._rules = rules
        self._refresh = refresh
        self._clock = clock
        self._denied = denied
        self._connections = connections
        self._logged_at_s: dict[str, float] = {}
        self._guesses = Guesses()
        self.last_used: dict[str, datetime] = {}
        """By token id: when it was last used."""

    @property
    def middleware(self) -> Any:
        """The middleware for aiohttp."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            verdict = self._judged(request)
            if isinstance(verdict, Denied):
                request[REFUSED] = self._entry_of(request) if verdict.why in _KNOWN else None
                return self._refused(request, verdict)
            CALLER.set(self._caller(verdict))
            if verdict is not None:
                request[GRANT] = verdict
                if request.transport is not None:
                    self._connections.authenticate(request.transport.get_extra_info("peername"))
            return await handler(request)

        return guard

    def _entry_of(self, request: web.Request) -> TokenEntry | None:
        """The token that a request has, without its check."""
        try:
            token = Token.parse(_presented(request) or "")
        except ValueError:
            return None
        return self._store().get(token.id)

    def _caller(self, verdict: Granted | None) -> Caller:
        if verdict is None:
            return Caller(None if self._exposure.asks_tokens else Scope.ADMIN, None)
        entry = verdict.entry
        return Caller(entry.scope, entry.name, entry.first_id, verdict.team)

    def _judged(self, request: web.Request) -> Granted | Denied | None:
        resource = request.match_info.route.resource
        if resource is None:
            return None  # the answer will be 404
        if (denied := self._as_web_page(request)) is not None:
            return denied
        need = need_of(request.method, resource.canonical)
        if need is Anyone or not self._exposure.asks_tokens:
            return None
        presented = request.headers.getall("Authorization", [])
        if len(presented) > 1:
            return Denied("malformed", "header Authorization occurs more than once")
        token = _presented(request)
        by_proxy = self._by_proxy(request, need) if not presented else None
        verdict = by_proxy or self.judged(token, need, request.remote)
        has_team = isinstance(verdict, Granted) and verdict.team is not None
        if has_team and not is_for_teams(request.method, resource.canonical):
            return Denied("team", "this is not for readers of one team", 403)
        return verdict

    def _by_proxy(self, request: web.Request, need: Need) -> Granted | Denied | None:
        """The verdict on a person whom a trusted proxy names; None: it names nobody, or the client is not the proxy."""
        proxy = self._rules().proxy
        if proxy is None or not is_within(request.remote, proxy.addresses):
            return None
        names = request.headers.getall(proxy.user_header, [])
        if not names:
            return None
        lists = request.headers.getall(proxy.groups_header, [])
        if len(names) > 1 or len(lists) > 1:
            return Denied("malformed", "headers of the proxy occur more than once")
        name, groups = names[0], [group.strip() for group in ",".join(lists).split(",")]
        if not _is_name(name):
            return Denied("malformed", f"{proxy.user_header} must have the name of one person")
        if not all(_is_name(group) for group in groups if group):
            return Denied(
                "malformed", f"{proxy.groups_header} must have names, with commas between"
            )
        rights = self._rules().rights_of(frozenset(groups))
        if rights is None:
            return Denied("groups", f"no group of {name!r} is in access_file", 403)
        if isinstance(need, Scope) and not allows(rights.scope, need):
            return Denied("scope", f"{name!r} has scope {rights.scope}, and this needs {need}", 403)
        person = person_id("proxy", name)
        entry = TokenEntry(
            person,
            rights.scope,
            "",
            self._clock.now(),
            comment=name,
            team=rights.team,
            person=person,
        )
        return self._with_team(Granted(entry))

    def judged(self, token: str | None, need: Need, client: str | None) -> Granted | Denied:
        """Whether a token is valid for `need`; records when it was used. `client`: the address that sent it."""
        now, now_s = self._clock.now(), self._clock.monotonic()
        verdict = self._store().judged(token, need, now)
        if isinstance(verdict, Denied) and verdict.why == "unknown":
            if self._guesses.is_over(client or "", now_s):
                return Denied("guesses", _GUESSED, 429)
            self._refresh()  # it may have been created just now
            verdict = self._store().judged(token, need, now)
        self._note(verdict, client, now_s)
        if isinstance(verdict, Granted):
            self.last_used[verdict.entry.id] = now
        return self._with_team(verdict)

    def judged_entry(
        self, name: str, need: Need, client: str | None, *, is_it: bool
    ) -> Granted | Denied:
        """As `judged`, for a token by its id; `is_it`: the client has proved that it has the token, without sending it."""
        now, now_s = self._clock.now(), self._clock.monotonic()
        verdict = self._store().judged_entry(name, need, now, is_it=is_it)
        self._note(verdict, client, now_s)
        if isinstance(verdict, Granted):
            self.last_used[name] = now
        return self._with_team(verdict)

    def _with_team(self, verdict: Granted | Denied) -> Granted | Denied:
        """Add the team of the token; a token whose team is gone sees nothing."""
        if isinstance(verdict, Denied) or (name := verdict.entry.team) is None:
            return verdict
        team = self._rules().teams.get(name)
        if team is None:
            return Denied(
                "team", f"access_file has no team {name}, to which this token belongs", 403
            )
        return replace(verdict, team=team)

    def is_guessing(self, client: str) -> bool:
        """Whether an address has sent too many wrong tokens lately."""
        return self._guesses.is_over(client, self._clock.monotonic())

    def _note(self, verdict: Granted | Denied, client: str | None, now_s: float) -> None:
        if isinstance(verdict, Denied) and verdict.why in ("unknown", "malformed"):
            self._guesses.note(client or "", now_s)

    def _as_web_page(self, request: web.Request) -> Denied | None:
        """Deny requests that a web page of another site causes: browsers send their cookie with them, and reach loopback."""
        host = request.headers.get("Host", "")
        if self._exposure.is_local:
            if not is_local_name(host):
                return Denied("host", f"{_LOCAL_ONLY} to localhost and addresses only{_PROXY}", 421)
            if any(name in request.headers for name in _FORWARDED):
                return Denied(
                    "proxy", f"{_LOCAL_ONLY} this machine's own programs only{_PROXY}", 403
                )
        if request.method in _SAFE:
            return None
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site is not None:
            is_ours = site in ("same-origin", "none")
        else:
            is_ours = origin is None or _host_of(origin) == host
        return (
            None if is_ours else Denied("cross_site", "a page of another site may not do this", 403)
        )

    def count(self, denied: Denied, *, client: str | None, path: str) -> None:
        """Count a denial, and log it if none with the same reason was logged within a minute."""
        self._denied[denied.why] += 1
        now_s = self._clock.monotonic()
        if now_s - self._logged_at_s.get(denied.why, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._logged_at_s[denied.why] = now_s
            extra = {"why": denied.reason, "client": client, "path": path}
            log.warning(
                "a request was denied; further ones with this reason are only counted", extra=extra
            )

    def _refused(self, request: web.Request, denied: Denied) -> web.Response:
        self.count(denied, client=request.remote, path=request.path)
        if denied.status == 401 and request.method == "GET" and _is_browser(request):
            return web.Response(status=303, headers={"Location": _login_of(request, denied)})
        body = {"error": denied.reason, "status": denied.status}
        answer = web.json_response(body, status=denied.status)
        if denied.status == 429:
            answer.headers["Retry-After"] = str(int(GUESSES_S))
        if denied.status == 401:
            answer.headers["WWW-Authenticate"] = _CHALLENGE
        if not request.content.is_eof():
            answer.force_close()
        return answer


def _is_name(text: str) -> bool:
    """Whether a text of a proxy names one person or group: not none, not several, and readably."""
    return 0 < len(text.strip()) <= _NAME_CHARACTERS_MAX and text.isprintable() and "," not in text


def node_of(request: web.Request) -> str | None:
    """The only node whose rows the request may have; None: any."""
    grant = request.get(GRANT)
    return None if grant is None else grant.entry.node


def sender_of(request: web.Request) -> str:
    """The sender of the request (`senders.py`)."""
    grant = request.get(GRANT)
    return NOBODY if grant is None else grant.entry.sender


def _presented(request: web.Request) -> str | None:
    """The token of a request; None: there is none."""
    header = request.headers.get("Authorization")
    return token_in(header) if header is not None else request.cookies.get(COOKIE)


def _is_browser(request: web.Request) -> bool:
    """Whether a browser asks for a page, so that a person can log in."""
    return "text/html" in request.headers.get("Accept", "")


def _login_of(request: web.Request, denied: Denied) -> str:
    asked = {"next": request.path_qs}
    if denied.why != "missing":
        asked["why"] = denied.why
    return f"{LOGIN_PATH}?{urlencode(asked)}"


def token_in(authorization: str) -> str:
    """The token in the header, of `Bearer TOKEN` or the password of `Basic`; "": there is none."""
    scheme, _, rest = authorization.partition(" ")
    rest = rest.strip()
    match scheme.lower():
        case "bearer":
            return rest
        case "basic":
            try:
                pair = base64.b64decode(rest, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return ""
            return pair.partition(":")[2]
        case _:
            return ""


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as `http://[`
        return None
