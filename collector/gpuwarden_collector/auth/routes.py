"""Serves the endpoints of access: a token's scope, the authority's certificate, enrolment and login."""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from aiohttp import web

from gpuwarden.access import COOKIE, DIGEST, ID, LOGIN_PATH, LOGOUT_PATH, OWN_PATH, Denied, Scope
from gpuwarden.clock import Clock
from gpuwarden_collector.auth import token_file
from gpuwarden_collector.auth.gate import GRANT
from gpuwarden_collector.auth.scopes import Need
from gpuwarden_collector.auth.token_file import TokenFileError
from gpuwarden_collector.auth.token_store import Granted, TokenEntry, TokenStore, TokenStoreError

BODY_BYTES_MAX = 4_096
BODY_S = 10.0
NODE_BYTES_MAX = 256
_COOKIE_S = 30 * 86_400


class AccessRoutes:
    """The handlers; they call `changed` after they have written the file of tokens."""

    def __init__(
        self,
        tokens: Path,
        ca: Path | None,
        clock: Clock,
        changed: Callable[[], None],
        judged: Callable[[str, Need, str | None], Granted | Denied],
    ) -> None:
        self._tokens = tokens
        self._ca = ca
        self._clock = clock
        self._changed = changed
        self._judged = judged

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes for the application."""
        return [
            web.get("/v1/token", self.token),
            web.get("/v1/ca", self.authority),
            web.post("/v1/enroll", self.enroll),
            web.post(LOGIN_PATH, self.login),
            web.post(LOGOUT_PATH, self.logout),
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
                "expires_at": None if ends_at is None else ends_at.isoformat(),
            }
        )

    async def authority(self, request: web.Request) -> web.Response:
        """GET /v1/ca: the certificate of the authority that signed the collector's."""
        if self._ca is None:
            return _error(404, "this collector has no authority of its own (tls_ca)")
        try:
            text = await asyncio.to_thread(self._ca.read_bytes)
        except OSError as error:
            return _error(503, f"tls_ca cannot be read: {error.strerror}")
        return web.Response(body=text, content_type="application/x-pem-file")

    async def login(self, request: web.Request) -> web.Response:
        """POST /login: put a token into a cookie, and redirect to the page that asked for it."""
        try:
            async with asyncio.timeout(BODY_S):
                content = await request.content.readexactly(_length(request))
        except (TimeoutError, ValueError, EOFError):
            return _error(400, f"the body must be a form of at most {BODY_BYTES_MAX} bytes")
        said = dict(parse_qsl(content.decode("ascii", "replace")))
        after = said.get("next", "/")
        if not OWN_PATH.fullmatch(after):
            after = "/"
        token = said.get("token", "").strip()
        verdict = self._judged(token, Scope.READ, request.remote)
        if isinstance(verdict, Denied):
            wrong = urlencode({"next": after, "why": verdict.why})
            return web.Response(status=303, headers={"Location": f"{LOGIN_PATH}?{wrong}"})
        answer = web.Response(status=303, headers={"Location": after})
        answer.set_cookie(
            COOKIE,
            token,
            httponly=True,
            # A proxy that does TLS sets this header; a client that forges it only loses its own cookie.
            secure=request.secure or request.headers.get("X-Forwarded-Proto") == "https",
            samesite="Strict",
            max_age=_COOKIE_S,
        )
        return answer

    async def logout(self, _request: web.Request) -> web.Response:
        """POST /logout: delete the cookie."""
        answer = web.Response(status=303, headers={"Location": LOGIN_PATH})
        answer.del_cookie(COOKIE, httponly=True, samesite="Strict")
        return answer

    async def enroll(self, request: web.Request) -> web.Response:
        """POST /v1/enroll: register the token that a node has created for itself, by its hash."""
        grant = request.get(GRANT)
        if grant is None:
            return _error(409, "this collector requires no tokens: only set collector_url")
        try:
            node, name, digest = await _asked(request)
        except ValueError as error:
            return _error(400, str(error))
        now = self._clock.now()

        def change(store: TokenStore) -> tuple[TokenStore, TokenEntry]:
            return store.enrolled(grant.entry.id, node, name, digest, now)

        try:
            entry = await asyncio.to_thread(token_file.edit, self._tokens, change)
        except TokenStoreError as error:
            return _error(409, str(error))
        except TokenFileError as error:
            return _error(503, str(error))
        self._changed()
        return web.json_response({"id": entry.id, "node": entry.node}, status=201)


def _length(request: web.Request) -> int:
    length = request.content_length
    if length is None or length > BODY_BYTES_MAX:
        raise ValueError(f"the body has {length} bytes")
    return length


async def _asked(request: web.Request) -> tuple[str, str, str]:
    """Node, and the id and hash of its token. Raises ValueError."""
    if (request.content_length or BODY_BYTES_MAX + 1) > BODY_BYTES_MAX:
        raise ValueError(f"the body must be JSON of at most {BODY_BYTES_MAX} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            document = json.loads(await request.content.readexactly(request.content_length or 0))
        node, name, digest = (document[key] for key in ("node", "id", "sha256"))
    except (TimeoutError, ValueError, TypeError, KeyError, EOFError, RecursionError) as error:
        raise ValueError("the body must be JSON with node, id and sha256") from error
    if not isinstance(node, str) or not 0 < len(node.encode()) <= NODE_BYTES_MAX:
        raise ValueError(f"node must be a name of at most {NODE_BYTES_MAX} bytes")
    if not node.isprintable():
        raise ValueError("node has characters that are not printable")
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise ValueError("id must be 12 small letters and digits")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ValueError("sha256 must be 64 hexadecimal digits")
    return node, name, digest


def _error(status: int, reason: str) -> web.Response:
    return web.json_response({"error": reason, "status": status}, status=status)
