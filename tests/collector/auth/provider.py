"""A provider of OpenID Connect on loopback, whose answers a test can spoil."""

import asyncio
import base64
import functools
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT, SECRET = "gpuwarden", "s3cret"


@functools.cache
def _first_key() -> RSAKey:
    """The same for all providers: to make one takes a while."""
    return RSAKey.generate_key(2048, {"kid": "k1"})


class Provider:
    """Its `claims` are of the person who signs in; `spoil` changes the claims of an ID token, `sign` makes it."""

    def __init__(self) -> None:
        self.url = ""
        self.key = _first_key()
        self.keys = [self.key]
        self.claims: dict[str, Any] = {"sub": "s1", "preferred_username": "ada", "groups": ["ops"]}
        self.userinfo: dict[str, Any] | None = None
        self.spoil: Callable[[dict[str, Any]], Any] = lambda claims: None
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        self.answers: dict[str, web.Response] = {}
        """Answers in place of its own, by path."""
        self.hangs: set[str] = set()
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def grant(self, url: str) -> dict[str, str]:
        """What a browser brings back that was sent to this URL: state and code."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        return {"state": asked["state"], "code": code}

    @web.middleware
    async def _spoiled(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.hangs:
            await asyncio.sleep(60)
        return self.answers.get(request.path) or await handler(request)

    async def _discover(self, _request: web.Request) -> web.Response:
        ends = {
            f"{name}_endpoint": f"{self.url}/{name}"
            for name in ("authorization", "token", "userinfo")
        }
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys", **ends})

    async def _keys(self, _request: web.Request) -> web.Response:
        return web.json_response(KeySet(self.keys).as_dict(private=False))

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = self._codes.pop(str(form["code"]), None)
        verifier = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        proof = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {basic}":
            return web.json_response({"error": "invalid_client"}, status=401)
        if (
            asked is None
            or asked["code_challenge"] != proof
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "exp": now + 60,
            "iat": now,
            "nonce": asked["nonce"],
            **self.claims,
        }
        self.spoil(claims)
        return web.json_response(
            {"access_token": "at", "token_type": "Bearer", "id_token": self.sign(claims)}
        )

    async def _userinfo(self, _request: web.Request) -> web.Response:
        return web.json_response(self.userinfo or {"sub": self.claims["sub"]})


@asynccontextmanager
async def providing() -> AsyncIterator[Provider]:
    """A provider that listens until the end of the block."""
    found = Provider()
    app = web.Application(middlewares=[found._spoiled])
    app.add_routes([
        web.get("/.well-known/openid-configuration", found._discover),
        web.get("/keys", found._keys),
        web.post("/token", found._token),
        web.get("/userinfo", found._userinfo),
    ])  # fmt: skip
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        await runner.cleanup()
