"""Serves the endpoints of access: a token's scope, the authority's certificate, enrolment and login."""

import asyncio
import html
import logging
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from aiohttp import web

from gpuwarden.access import (
    CALLBACK_PATH,
    COOKIE,
    LOGIN_PATH,
    LOGOUT_PATH,
    OWN_PATH,
    SIGN_IN_PATH,
    Denied,
    Scope,
    Token,
)
from gpuwarden.clock import Clock
from gpuwarden_collector.auth import token_file
from gpuwarden_collector.auth.access_file import AccessRules, OidcSettings
from gpuwarden_collector.auth.gate import GRANT
from gpuwarden_collector.auth.oidc import PENDING_S, Person, SignInError, SignIns
from gpuwarden_collector.auth.scopes import Holder, Need
from gpuwarden_collector.auth.token_file import TokenFileError
from gpuwarden_collector.auth.token_store import Granted, TokenEntry, TokenStore

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 4_096
BODY_S = 10.0
_COOKIE_S = 30 * 86_400
_SIGN_IN_COOKIE = "gpuwarden-sign-in"
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
"""For answers to URLs with a code."""

_LOGGED_EVERY_S = 10.0
"""Interval between two lines of the log on sign-ins that failed for one reason: strangers can make them fail."""


class AccessRoutes:
    """The handlers; they call `changed` after they have written the file of tokens."""

    def __init__(
        self,
        tokens: Path,
        ca: Path | None,
        clock: Clock,
        changed: Callable[[], None],
        judged: Callable[[str, Need, str | None], Granted | Denied],
        rules: Callable[[], AccessRules],
    ) -> None:
        self._tokens = tokens
        self._ca = ca
        self._clock = clock
        self._changed = changed
        self._judged = judged
        self._rules = rules
        self._signing_in: SignIns | None = None
        self._logged_at_s: dict[str, float] = {}

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes for the application."""
        return [
            web.get("/v1/token", self.token),
            web.get("/v1/ca", self.authority),
            web.post(LOGIN_PATH, self.login),
            web.post(LOGOUT_PATH, self.logout),
            web.get(SIGN_IN_PATH, self.sign_in),
            web.get(CALLBACK_PATH, self.signed_in),
        ]

    async def token(self, request: web.Request) -> web.Response:
        """GET /v1/token: scope, node and expiry of the caller's token."""
        grant = request.get(GRANT)
        if grant is None:
            return web.json_response({"required": False})
        ends_at = grant.entry.expires_at
        return web.json_response(
            {
                "required": True,
                "id": grant.entry.id,
                "scope": grant.entry.scope,
                "node": grant.entry.node,
                "team": grant.entry.team,
                "username": grant.entry.comment if grant.entry.person else None,
                "expires_at": None if ends_at is None else ends_at.isoformat(),
            }
        )

    async def authority(self, request: web.Request) -> web.Response:
        """GET /v1/ca: the certificate of the authority that signed the collector's."""
        if self._ca is None:
            return error_answer(404, "this collector has no authority of its own (tls_ca)")
        try:
            text = await asyncio.to_thread(self._ca.read_bytes)
        except OSError as error:
            return error_answer(503, f"tls_ca cannot be read: {error.strerror}")
        return web.Response(body=text, content_type="application/x-pem-file")

    async def login(self, request: web.Request) -> web.Response:
        """POST /login: put a token into a cookie, and redirect to the page that asked for it."""
        try:
            async with asyncio.timeout(BODY_S):
                content = await request.content.readexactly(_length(request))
        except (TimeoutError, ValueError, EOFError):
            return error_answer(400, f"the body must be a form of at most {BODY_BYTES_MAX} bytes")
        said = dict(parse_qsl(content.decode("ascii", "replace")))
        after = said.get("next", "/")
        if not OWN_PATH.fullmatch(after):
            after = "/"
        token = said.get("token", "").strip()
        verdict = self._judged(token, Scope.READ, request.remote)
        if isinstance(verdict, Denied):
            wrong = urlencode({"next": after, "why": verdict.why})
            return web.Response(status=303, headers={"Location": f"{LOGIN_PATH}?{wrong}"})
        request[GRANT] = verdict
        answer = web.Response(status=303, headers={"Location": after})
        _give(answer, request, token, _COOKIE_S)
        return answer

    async def sign_in(self, request: web.Request) -> web.Response:
        """GET /login/sso: send the browser to the provider."""
        after = request.query.get("next", "/")
        oidc = self._rules().oidc
        if oidc is None:
            return error_answer(404, "access_file has no [oidc]: sign in with a token")
        try:
            url, cookie = await self._sign_ins(oidc).begin(
                after if OWN_PATH.fullmatch(after) else "/"
            )
        except SignInError as error:
            return self._not_signed_in(error, after)
        answer = web.Response(status=303, headers={"Location": url, **_PRIVATE})
        answer.set_cookie(
            _SIGN_IN_COOKIE,
            cookie,
            path=LOGIN_PATH,
            httponly=True,
            secure=_is_secure(request),
            samesite="Lax",  # it must come with the provider's redirect
            max_age=int(PENDING_S),
        )
        return answer

    async def signed_in(self, request: web.Request) -> web.Response:
        """GET /login/callback: give the person whom the provider names a session."""
        oidc = self._rules().oidc
        if oidc is None:
            return error_answer(404, "access_file has no [oidc]: sign in with a token")
        cookie = request.cookies.get(_SIGN_IN_COOKIE, "")
        try:
            person, after = await self._sign_ins(oidc).end(cookie, request.query)
            token, request[GRANT] = await self._session_of(person, oidc)
        except SignInError as error:
            return self._not_signed_in(error, "/")
        log.info(
            "signed in", extra={"person": person.name, "id": person.id, "client": request.remote}
        )
        # The cookie is not sent with a redirect that another site began, but with one of this page.
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(after)}"><p>Signed in.'
        answer = web.Response(text=page, content_type="text/html", headers=_PRIVATE)
        _give(answer, request, token, oidc.session_seconds)
        answer.del_cookie(_SIGN_IN_COOKIE, path=LOGIN_PATH)
        return answer

    def _not_signed_in(self, error: SignInError, after: str) -> web.Response:
        now_s = self._clock.monotonic()
        if now_s - self._logged_at_s.get(error.why, -math.inf) >= _LOGGED_EVERY_S:
            self._logged_at_s[error.why] = now_s
            log.warning("nobody was signed in", extra={"why": error.why, "reason": str(error)})
        page = after if OWN_PATH.fullmatch(after) else "/"
        wrong = urlencode({"next": page, "why": f"sso_{error.why}"})
        return web.Response(status=303, headers={"Location": f"{LOGIN_PATH}?{wrong}", **_PRIVATE})

    def _sign_ins(self, oidc: OidcSettings) -> SignIns:
        if self._signing_in is None or self._signing_in.settings != oidc:
            self._signing_in = SignIns(oidc, self._clock)
        return self._signing_in

    async def _session_of(self, person: Person, oidc: OidcSettings) -> tuple[str, Granted]:
        """A token for the person's browser, with the rights of their groups. Raises SignInError."""
        rights = self._rules().rights_of(person.groups)
        if rights is None:
            has = ", ".join(sorted(person.groups)[:20]) or "none"
            raise SignInError(
                "groups", f"no group of {person.name!r} is in access_file; they are in {has}"
            )
        token, now = Token.new(rights.scope), self._clock.now().replace(microsecond=0)
        entry = TokenEntry(
            token.id,
            rights.scope,
            token.digest,
            now,
            expires_at=now + timedelta(seconds=oidc.session_seconds),
            comment=person.name,
            line=person.id,
            team=rights.team,
            person=person.id,
        )
        await self._changed_tokens(lambda store: store.signed_in(entry, now))
        return token.text, Granted(entry)

    async def _changed_tokens(self, change: Callable[[TokenStore], TokenStore]) -> None:
        """Change the file of tokens. Raises SignInError."""
        try:
            await asyncio.to_thread(
                token_file.edit, self._tokens, lambda store: (change(store), None)
            )
        except TokenFileError as error:
            raise SignInError("file", str(error)) from error
        self._changed()

    async def logout(self, request: web.Request) -> web.Response:
        """POST /logout: end the session, `?everywhere=1`: all of the person, and delete the cookie."""
        held = request.cookies.get(COOKIE)
        verdict = None if held is None else self._judged(held, Holder, request.remote)
        if isinstance(verdict, Granted):
            request[GRANT] = verdict
        if isinstance(verdict, Granted) and (person := verdict.entry.person) is not None:
            session = None if request.query.get("everywhere") == "1" else verdict.entry.id
            try:
                await self._changed_tokens(lambda store: store.signed_out(person, session))
            except SignInError as error:
                return error_answer(503, str(error))
        answer = web.Response(status=303, headers={"Location": LOGIN_PATH})
        answer.del_cookie(COOKIE, httponly=True, samesite="Strict")
        return answer


def _is_secure(request: web.Request) -> bool:
    """Whether the browser uses HTTPS. A proxy that does TLS sets this header; a client that forges it only loses its
    own cookie."""
    return request.secure or request.headers.get("X-Forwarded-Proto") == "https"


def _give(answer: web.Response, request: web.Request, token: str, lasts_s: int) -> None:
    """Put a token into the browser's cookie."""
    answer.set_cookie(
        COOKIE,
        token,
        httponly=True,
        secure=_is_secure(request),
        samesite="Strict",
        max_age=lasts_s,
    )


def _length(request: web.Request) -> int:
    length = request.content_length
    if length is None or length > BODY_BYTES_MAX:
        raise ValueError(f"the body has {length} bytes")
    return length


def error_answer(status: int, reason: str) -> web.Response:
    """Answer with the form of every error."""
    return web.json_response({"error": reason, "status": status}, status=status)
