"""Signs people in with OpenID Connect: the authorization code flow with state, nonce and PKCE (S256).

The browser holds its sign-in in a cookie (`BegunSignIn`): no collector has a table that strangers could fill, and any
collector behind the same address can end it. `person_of` checks an ID token; the libraries joserfc and cryptography
check its signature. https://openid.net/specs/openid-connect-core-1_0.html
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlencode

import aiohttp

from gpuwarden.clock import Clock
from gpuwarden_collector.auth.access_file import OidcSettings, person_id

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

log = logging.getLogger(__name__)

PENDING_S = 600.0
"""Time to sign in at the provider."""
LEEWAY_S = 60
"""How far the clocks of collectors and provider may differ."""
AFTER_CHARACTERS_MAX = 2_000
"""Longest path to show afterwards: browsers drop cookies of more than 4,096 bytes."""
PROVIDER_S = 10.0
"""Longest time for all requests of a sign-in to the provider."""
KNOWN_S = 3_600.0
"""Time for which the provider's endpoints and keys are kept."""
KEYS_AGAIN_S = 30.0
"""Least time between two readings of the keys, because a token named an unknown one."""
_BODY_BYTES_MAX = 1024 * 1024
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Signatures by a private key: neither `none`, nor HMAC with a secret that the collector has too."""
_TEXT_MAX = 200


class SignInError(Exception):
    """Nobody is signed in. `why`: a word to count and explain by; the message is for the log."""

    def __init__(self, why: str, reason: str) -> None:
        super().__init__(reason)
        self.why = why


@dataclass(frozen=True, slots=True)
class Person:
    """A person, as the provider knows them."""

    id: str
    """12 small letters and digits, from issuer and subject."""
    name: str
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class BegunSignIn:
    """A sign-in that has begun, as its browser's cookie holds it.

    State, nonce and verifier follow from the secret and from all else in the cookie. From what passes through the
    provider (state, nonce, the hash of the verifier) nobody can compute them, and a changed cookie fits no state. The
    provider accepts each code once.
    """

    secret: str = field(repr=False)
    """256 random bits."""
    began_s: int
    """Seconds since 1970."""
    after: str
    """Path to show afterwards."""

    @classmethod
    def new(cls, after: str, now_s: int) -> "BegunSignIn":
        """A sign-in that begins now."""
        after = after if len(after) <= AFTER_CHARACTERS_MAX else "/"
        return cls(secrets.token_urlsafe(32), now_s, after)

    @classmethod
    def of_cookie(cls, cookie: str, state: str, now_s: int) -> "BegunSignIn":
        """The sign-in of a browser that the provider sent back with `state`. Raises SignInError."""
        try:
            if (match := _COOKIE.fullmatch(cookie)) is None:
                raise ValueError("it has another form")
            after = base64.urlsafe_b64decode(f"{match[3]}==").decode()
        except ValueError as error:
            raise SignInError(
                "over", f"the browser began no sign-in: its cookie: {error}"
            ) from error
        begun = cls(match[1], int(match[2]), after)
        if not hmac.compare_digest(begun.state.encode(), state.encode("utf-8", "replace")):
            raise SignInError("over", "another browser began this sign-in")
        if not -LEEWAY_S <= now_s - begun.began_s < PENDING_S:
            raise SignInError("over", "the sign-in is too old")
        return begun

    @property
    def cookie(self) -> str:
        """The value of the cookie."""
        return f"{self.secret}.{self.began_s}.{_base64url(self.after.encode())}"

    @property
    def state(self) -> str:
        """Ties the provider's answer to the browser."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Ties the ID token to the sign-in."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Ties the code to the sign-in (PKCE)."""
        return self._derived("verifier")

    def _derived(self, use: str) -> str:
        text = f"{use}\n{self.began_s}\n{self.after}"
        return _base64url(hmac.digest(self.secret.encode(), text.encode(), "sha256"))


_COOKIE = re.compile(r"([\w-]{43})\.(\d{1,12})\.([\w-]+)", re.ASCII)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def person_of(claims: Mapping[str, Any], oidc: OidcSettings) -> Person:
    """The person of verified claims. Raises SignInError."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise SignInError("refused", "the ID token has no subject")
    named = (claims.get(name) for name in (oidc.user_claim, "email"))
    names = (
        "".join(filter(str.isprintable, text)).strip() for text in named if isinstance(text, str)
    )
    name = next(filter(None, names), subject)[:_TEXT_MAX]
    listed = claims.get(oidc.groups_claim, [])
    groups = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
    known = frozenset(group for group in groups if isinstance(group, str))
    return Person(person_id(oidc.issuer, subject), name, known)


def verified(
    token: str, keys: "KeySet", oidc: OidcSettings, nonce: str, now_s: int
) -> dict[str, Any]:
    """The claims of an ID token for this client, sign-in and moment. Raises SignInError, KeyError: no such key."""
    from joserfc import jwt  # with cryptography, which few collectors need
    from joserfc.errors import JoseError

    try:
        found = jwt.decode(token, keys, algorithms=_ALGORITHMS)
        registry = jwt.JWTClaimsRegistry(
            now=now_s,
            leeway=LEEWAY_S,
            iss={"essential": True, "value": oidc.issuer},
            aud={"essential": True, "value": oidc.client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        registry.validate(found.claims)
    except (JoseError, ValueError, TypeError) as error:
        if "key" in type(error).__name__.lower() or "No key" in str(error):
            raise KeyError(str(error)) from error
        raise SignInError("refused", f"the ID token is not valid: {error}") from error
    claims = dict(found.claims)
    party = claims.get("azp", oidc.client_id)
    has_others = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if party != oidc.client_id or (has_others and "azp" not in claims):
        raise SignInError("refused", "the ID token was made for another client")
    return claims


class SignIns:
    """Sign-ins at one provider. One event loop uses it."""

    def __init__(self, oidc: OidcSettings, clock: Clock) -> None:
        self.settings = oidc
        self._clock = clock
        self._known: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._asking = asyncio.Semaphore(8)

    async def begin(self, after: str) -> tuple[str, str]:
        """Begin a sign-in; the provider's URL to send the browser to, and the cookie. Raises SignInError."""
        async with self._provider() as session:
            endpoints = await self._endpoints(session)
        begun = BegunSignIn.new(after, self._now_s())
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_url,
            "scope": " ".join(self.settings.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": _base64url(hashlib.sha256(begun.verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        url = endpoints["authorization_endpoint"]
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}", begun.cookie

    async def end(self, cookie: str, said: Mapping[str, str]) -> tuple[Person, str]:
        """End the sign-in of a browser with the provider's state and code; the person, and the path to show.

        Raises SignInError.
        """
        begun = BegunSignIn.of_cookie(cookie, said.get("state", ""), self._now_s())
        if not (code := said.get("code", "")):
            raise SignInError(
                "refused", f"the provider said {said.get('error', 'nothing')[:100]!r}"
            )
        async with self._provider() as session:
            endpoints = await self._endpoints(session)
            given = await self._exchanged(session, endpoints, code, begun.verifier)
            claims = await self._claims(session, endpoints, given, begun.nonce)
        return person_of(claims, self.settings), begun.after

    def _now_s(self) -> int:
        return int(self._clock.now().timestamp())

    def _provider(self) -> "_Asking":
        return _Asking(self._asking, self.settings)

    async def _endpoints(self, session: aiohttp.ClientSession) -> Mapping[str, Any]:
        now_s = self._clock.monotonic()
        if self._known is None or now_s - self._known[0] >= KNOWN_S:
            issuer = self.settings.issuer
            url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            found = await _json(session.get(url, allow_redirects=False), url)
            if found.get("issuer") != issuer:
                raise SignInError(
                    "provider", f"{url} is of issuer {found.get('issuer')!r}, not of {issuer!r}"
                )
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                end = found.get(name)
                is_safe = isinstance(end, str) and end.startswith(
                    ("https://", issuer.rstrip("/") + "/")
                )
                if not is_safe:
                    raise SignInError(
                        "provider", f"{url}: {name} is {end!r}, which is no https:// URL"
                    )
            self._known = now_s, found
        return self._known[1]

    async def _exchanged(
        self,
        session: aiohttp.ClientSession,
        endpoints: Mapping[str, Any],
        code: str,
        verifier: str,
    ) -> Mapping[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.redirect_url,
            "client_id": self.settings.client_id,
            "code_verifier": verifier,
        }
        headers = {}
        if (path := self.settings.client_secret_file) is not None:
            try:
                secret = path.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SignInError(
                    "provider", f"{path}: the secret cannot be read: {error}"
                ) from error
            methods = endpoints.get(
                "token_endpoint_auth_methods_supported", ["client_secret_basic"]
            )
            if "client_secret_basic" in methods:
                # Both parts are encoded as in a form: RFC 6749, 2.3.1.
                pair = f"{quote_plus(self.settings.client_id)}:{quote_plus(secret)}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = secret
        url = endpoints["token_endpoint"]
        posted = session.post(url, data=form, headers=headers, allow_redirects=False)
        found = await _json(posted, url)
        if not isinstance(found.get("id_token"), str):
            raise SignInError("provider", f"{url} answered without an ID token")
        return found

    async def _claims(
        self,
        session: aiohttp.ClientSession,
        endpoints: Mapping[str, Any],
        given: Mapping[str, Any],
        nonce: str,
    ) -> Mapping[str, Any]:
        """Verified claims, with those of the userinfo endpoint where the ID token has no groups."""
        claims = await self._verified(session, endpoints, given["id_token"], nonce)
        url, access = endpoints.get("userinfo_endpoint"), given.get("access_token")
        if self.settings.groups_claim in claims or not isinstance(url, str) or not access:
            return claims
        headers = {"Authorization": f"Bearer {access}"}
        more = await _json(session.get(url, headers=headers, allow_redirects=False), url)
        if more.get("sub") != claims.get("sub"):
            raise SignInError("refused", f"{url} answered for another person")
        return {**more, **claims}

    async def _verified(
        self,
        session: aiohttp.ClientSession,
        endpoints: Mapping[str, Any],
        token: str,
        nonce: str,
    ) -> dict[str, Any]:
        now_s = self._now_s()
        keys = await self._read_keys(session, endpoints, KNOWN_S)
        try:
            return verified(token, keys, self.settings, nonce, now_s)
        except KeyError:
            keys = await self._read_keys(session, endpoints, KEYS_AGAIN_S)
        try:
            return verified(token, keys, self.settings, nonce, now_s)
        except KeyError as error:
            raise SignInError("refused", "the ID token is signed by an unknown key") from error

    async def _read_keys(
        self, session: aiohttp.ClientSession, endpoints: Mapping[str, Any], age_s: float
    ) -> "KeySet":
        """The provider's keys, read at most that long ago."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        now_s = self._clock.monotonic()
        if self._keys is None or now_s - self._keys[0] >= age_s:
            url = endpoints["jwks_uri"]
            found = await _json(session.get(url, allow_redirects=False), url)
            try:
                keys = KeySet.import_key_set(found)  # type: ignore[arg-type]
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise SignInError(
                    "provider", f"{url}: these keys cannot be read: {error}"
                ) from error
            self._keys = now_s, keys
        return self._keys[1]


class _Asking:
    """A session with the provider; errors of HTTP and time become SignInError."""

    def __init__(self, turns: asyncio.Semaphore, oidc: OidcSettings) -> None:
        self._turns = turns
        self._oidc = oidc

    async def __aenter__(self) -> aiohttp.ClientSession:
        tls: ssl.SSLContext | bool = True
        if (path := self._oidc.ca_file) is not None:
            try:
                tls = ssl.create_default_context(cafile=str(path))
            except (OSError, ssl.SSLError) as error:
                raise SignInError(
                    "provider", f"{path}: no certificate can be read: {error}"
                ) from error
        await self._turns.acquire()
        timeout = aiohttp.ClientTimeout(total=PROVIDER_S)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(ssl=tls), trust_env=True
        )
        return self._session

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._turns.release()
        await self._session.close()
        if isinstance(error, TimeoutError):
            raise SignInError(
                "provider", f"{self._oidc.issuer} did not answer within {PROVIDER_S:g} s"
            ) from error
        if isinstance(error, aiohttp.ClientError | OSError):
            raise SignInError(
                "provider", f"{self._oidc.issuer} cannot be reached: {error}"
            ) from error


async def _json(asked: Any, url: str) -> dict[str, Any]:
    """The JSON object that answers a request. Raises SignInError."""
    async with asked as answer:
        body = await answer.content.read(_BODY_BYTES_MAX + 1)
        while len(body) <= _BODY_BYTES_MAX and (more := await answer.content.read(_BODY_BYTES_MAX)):
            body += more
        status = answer.status
    try:
        found = json.loads(body[:_BODY_BYTES_MAX])
    except (ValueError, RecursionError) as error:
        raise SignInError("provider", f"{url} answered {status} without JSON") from error
    if status != 200 or not isinstance(found, dict):
        why = found.get("error", "") if isinstance(found, dict) else ""
        raise SignInError(
            "refused" if why == "invalid_grant" else "provider",
            f"{url} answered {status} {str(why)[:100]}",
        )
    return found
